//! Rules laid out for evaluation.
//!
//! With ten thousand rules, reading [`Rule`]s scattered over the heap costs a cache miss per field. What evaluation
//! always needs is copied to adjacent cache lines. Other conditions and messages stay in the [`Rule`].

use smallvec::SmallVec;

use super::pattern_index::ShortText;
use super::rule::{Action, Condition, Matcher, Rule, RuleCost, RuleLimit};
use crate::identity::{Client, Dimension, Request, Seed, SubjectHasher};

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct CompiledRule {
    pub(super) enabled: bool,
    pub(super) action: Action,
    pub(super) leases: bool,
    /// Whether its charges may be refunded.
    pub(super) refundable: bool,
    pub(super) is_plan_level: bool,
    /// Whether its subjects are qualified by the tenant of the request.
    is_within_tenant: bool,
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
            leases: rule.leases && !rule.refund_policy.refunds_any(),
            refundable: rule.refund_policy.refunds_any(),
            is_plan_level: rule.is_plan_level(),
            is_within_tenant: rule.is_within_tenant(),
            indexed_by,
            has_others: has_others(&rule.when, indexed_by),
            tiers: tiers.iter().map(|tier| tier.as_bytes().into()).collect(),
            per: rule.per.iter().cloned().collect(),
            name: rule.name.clone(),
            limits: rule.limits.iter().cloned().collect(),
            cost: rule.cost.clone(),
        }
    }

    /// Starts the subject of a request: with the tenant, unless the rule counts across tenants or the subject contains the
    /// tenant anyway.
    #[inline]
    pub(super) fn start_subject(&self, seed: Seed, request: &Request<'_>) -> SubjectHasher {
        let mut values = SubjectHasher::new(seed);
        if let Some(tenant) = request.tenant
            && self.is_within_tenant
            && !(self.per.contains(&Dimension::Client) && matches!(request.client(), Some(Client::Tenant(_))))
        {
            values.push_tenant(Some(tenant.as_str()));
        }
        values
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

#[cfg(test)]
mod tests {
    use siphasher::sip128::SipHasher13;

    use super::super::set::RuleSet;
    use crate::endpoint::Endpoint;
    use crate::identity::{Id, Request, Scratch, Seed};
    use crate::time::Timestamp;

    /// The hash of the first charge of a request under a rule.
    fn subject(rule: &str, tenant: Option<&str>, user: Option<&str>) -> u128 {
        let limits = "limits = [{ requests = 1, window = \"1m\" }]";
        let rules = RuleSet::from_toml(&format!("[[rules]]\nname = \"r\"\n{rule}\n{limits}")).unwrap();
        let rules = rules.with_seed(Seed([7; 16]));
        let id = |text: Option<&'static str>| text.map(|text| Id::parse(text).unwrap());
        let (tenant, user) = (tenant.map(|_| "acme"), user.map(|_| "bob"));
        let request =
            Request { tenant: id(tenant), user: id(user), ..Request::new(Endpoint::parse("/a").unwrap()) };
        let mut scratch = Scratch::default();
        rules.plan(&request, &mut scratch, Timestamp::from_secs(1)).charges.charges[0].subject.0
    }

    fn hash(values: &[&[u8]]) -> u128 {
        SipHasher13::new_with_key(&[7; 16]).hash(&values.concat()).as_u128()
    }

    #[test]
    fn subjects_are_qualified_by_the_tenant() {
        // Stored counters depend on these encodings.
        let (acme, bob) = (b"\x03\x04\0\0\0acme".as_slice(), b"\x04\x03\0\0\0bob".as_slice());
        let (endpoint, global) = (b"\x07\x02\0\0\0/a".as_slice(), b"\x01\0\0\0\0".as_slice());
        let (tenant, user) = (Some("acme"), Some("bob"));
        for (rule, tenant, user, expected) in [
            ("per = \"user\"", None, user, &[bob][..]),
            ("per = \"user\"", tenant, user, &[acme, bob]),
            ("per = \"client\"", tenant, user, &[acme, bob]),
            ("per = [\"user\", \"endpoint\"]", tenant, user, &[acme, bob, endpoint]),
            ("per = [\"user\", \"tenant\"]", tenant, user, &[acme, bob]),
            ("per = \"user\"\nacross_tenants = true", tenant, user, &[bob]),
            ("per = \"client\"", tenant, None, &[acme]),
            ("per = \"tenant\"", tenant, user, &[acme]),
            ("per = \"endpoint\"", tenant, user, &[endpoint]),
            ("per = \"global\"", tenant, user, &[global]),
        ] {
            assert_eq!(subject(rule, tenant, user), hash(expected), "{rule} {tenant:?} {user:?}");
        }
    }
}
