//! Rules that limit a user or API key more strictly than the limits set for it.

use super::rule::Rule;
use super::set::RuleSet;
use crate::accounts::AccountLimits;
use crate::identity::Dimension;
use crate::limit::Limit;

/// The user or API key that limits are set for. What is not known may be anything.
#[derive(Copy, Clone, Debug, Default)]
pub struct LimitOwner<'a> {
    /// Whether the limits are those of an API key.
    pub is_key: bool,
    /// The user, or the user of the key.
    pub user: Option<&'a str>,
    /// The tenant.
    pub tenant: Option<&'a str>,
    /// The tier.
    pub tier: Option<&'a str>,
}

impl RuleSet {
    /// The rules, and their first limits, that `limits` do not replace and that admit fewer requests on average.
    pub fn stricter_rules(&self, owner: LimitOwner<'_>, limits: AccountLimits) -> Vec<(&Rule, &Limit)> {
        let Ok(limits) = limits.limits() else { return Vec::new() };
        let remaining = self
            .rules
            .iter()
            .filter(|rule| rule.enforces() && may_match(rule, owner) && !is_replaced(rule, owner));
        let stricter = |limit: &&Limit| limits.iter().any(|own| admits_less(limit, own));
        remaining
            .filter_map(|rule| {
                Some((rule, rule.limits.iter().map(|each| &each.limit).find(|limit| stricter(limit))?))
            })
            .collect()
    }
}

fn is_replaced(rule: &Rule, owner: LimitOwner<'_>) -> bool {
    let counts_owner = |by: &Dimension| match by {
        Dimension::Client | Dimension::User => true,
        Dimension::ApiKey => owner.is_key,
        _ => false,
    };
    rule.is_plan_level() && rule.per.iter().any(counts_owner)
}

fn may_match(rule: &Rule, owner: LimitOwner<'_>) -> bool {
    let when = &rule.when;
    let facts = [(&when.users, owner.user), (&when.tenants, owner.tenant), (&when.tiers, owner.tier)];
    facts.into_iter().all(|(values, fact)| {
        values.is_empty() || fact.is_none_or(|fact| values.iter().any(|value| **value == *fact))
    })
}

/// Whether `limit` admits fewer requests per time than `other`.
fn admits_less(limit: &Limit, other: &Limit) -> bool {
    let micros = |limit: &Limit| u128::from(limit.window_length().as_micros());
    u128::from(limit.requests()) * micros(other) < u128::from(other.requests()) * micros(limit)
}
