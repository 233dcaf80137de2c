//! A rule as the walk reads it: a copy, in one place.
//!
//! A rule as written is spread over many places in memory. Of a few rules all of them stay in the cache; of ten
//! thousand each is a miss, one after another, since most are found only through the one before. What decides whether a
//! rule applies and what it charges is therefore copied to neighbouring lines. The rest (other conditions, messages)
//! is read where it is, by the few who ask.

use smallvec::SmallVec;

use super::pattern::ShortText;
use super::rule::{Action, Condition, Matcher, Rule, RuleLimit};
use crate::identity::{Dimension, Request};

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct CompiledRule {
    pub(super) enabled: bool,
    pub(super) action: Action,
    pub(super) leases: bool,
    /// What a request has met if the index found the rule for it.
    filed: Option<Condition>,
    /// Whether there are conditions beside that one and the plans.
    beyond: bool,
    /// The plans, unless they are what it is filed under: the condition that is most often the second one.
    tiers: SmallVec<[ShortText; 1]>,
    pub(super) per: SmallVec<[Dimension; 1]>,
    pub(super) name: Box<str>,
    pub(super) limits: SmallVec<[RuleLimit; 1]>,
}

impl CompiledRule {
    pub(super) fn new(rule: &Rule, filed: Option<Condition>) -> Self {
        let tiers = if filed == Some(Condition::Tier) { &[][..] } else { &rule.when.tiers };
        CompiledRule {
            enabled: rule.enabled,
            action: rule.action,
            leases: rule.leases,
            filed,
            beyond: has_others(&rule.when, filed),
            tiers: tiers.iter().map(|tier| tier.as_bytes().into()).collect(),
            per: rule.per.iter().cloned().collect(),
            name: rule.name.clone(),
            limits: rule.limits.iter().cloned().collect(),
        }
    }

    /// Whether every condition holds, given that the index found the rule. `rule` is the one this is brief about.
    #[inline]
    pub(super) fn matches_found(&self, rule: &Rule, request: &Request<'_>) -> bool {
        let is = |tier: &str| self.tiers.iter().any(|known| **known == *tier.as_bytes());
        (self.tiers.is_empty() || request.tier.is_some_and(|tier| is(tier.as_str())))
            && (!self.beyond || rule.when.matches_beyond(self.filed, request))
    }
}

/// Whether there are conditions beside the one that the rule is filed under and the plans.
fn has_others(when: &Matcher, filed: Option<Condition>) -> bool {
    let beside = |given: bool, condition| given && filed != Some(condition);
    beside(!when.endpoints.is_empty(), Condition::Endpoint)
        || beside(!when.users.is_empty(), Condition::User)
        || beside(!when.tenants.is_empty(), Condition::Tenant)
        || !when.methods.is_empty()
        || !when.ips.is_empty()
        || !when.descriptors.is_empty()
}
