//! Rules laid out for evaluation.
//!
//! With ten thousand rules, reading [`Rule`]s scattered over the heap costs a cache miss per field. What evaluation
//! always needs is copied to adjacent cache lines. Other conditions and messages stay in the [`Rule`].

use smallvec::SmallVec;

use super::pattern_index::ShortText;
use super::rule::{Action, Condition, Matcher, Rule, RuleCost, RuleLimit};
use crate::identity::{Client, Dimension, Request};

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct CompiledRule {
    pub(super) enabled: bool,
    pub(super) action: Action,
    pub(super) leases: bool,
    pub(super) is_plan_level: bool,
    /// The condition that the index has checked for candidates.
    indexed_by: Option<Condition>,
    /// Whether there are conditions besides that one and the tiers.
    has_others: bool,
    /// The tiers, unless the rule is indexed by them: the most common second condition.
    tiers: SmallVec<[ShortText; 1]>,
    pub(super) per: SmallVec<[Dimension; 1]>,
    pub(super) name: Box<str>,
    pub(super) limits: SmallVec<[RuleLimit; 1]>,
    pub(super) cost: RuleCost,
}

impl CompiledRule {
    pub(super) fn new(rule: &Rule, indexed_by: Option<Condition>) -> Self {
        let tiers = if indexed_by == Some(Condition::Tier) { &[][..] } else { &rule.when.tiers };
        CompiledRule {
            enabled: rule.enabled,
            action: rule.action,
            leases: rule.leases,
            is_plan_level: rule.is_plan_level(),
            indexed_by,
            has_others: has_others(&rule.when, indexed_by),
            tiers: tiers.iter().map(|tier| tier.as_bytes().into()).collect(),
            per: rule.per.iter().cloned().collect(),
            name: rule.name.clone(),
            limits: rule.limits.iter().cloned().collect(),
            cost: rule.cost.clone(),
        }
    }

    /// Whether it counts exactly this client.
    pub(super) fn counts(&self, client: Client<'_>) -> bool {
        self.per.iter().any(|dimension| dimension.is_id_of(client))
    }

    /// Whether all conditions match, given that the index returned the rule. `rule` is the source of this rule.
    #[inline]
    pub(super) fn matches_candidate(&self, rule: &Rule, request: &Request<'_>) -> bool {
        let has_tier = |tier: &str| self.tiers.iter().any(|known| **known == *tier.as_bytes());
        (self.tiers.is_empty() || request.tier.is_some_and(|tier| has_tier(tier.as_str())))
            && (!self.has_others || rule.when.matches_given(self.indexed_by, request))
    }
}

/// Whether there are conditions besides the indexed one and the tiers.
fn has_others(when: &Matcher, indexed_by: Option<Condition>) -> bool {
    let is_other = |given: bool, condition| given && indexed_by != Some(condition);
    is_other(!when.endpoints.is_empty(), Condition::Endpoint)
        || is_other(!when.users.is_empty(), Condition::User)
        || is_other(!when.tenants.is_empty(), Condition::Tenant)
        || !when.methods.is_empty()
        || !when.ips.is_empty()
        || !when.descriptors.is_empty()
}
