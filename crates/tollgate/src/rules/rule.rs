//! Rules: conditions, counted dimensions, limits and action.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use ipnet::IpNet;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::pattern::{Pattern, Specificity};
use super::refund_policy::RefundPolicy;
use super::sample_rate::SampleRate;
use crate::counters::CounterId;
use crate::identity::{Dimension, Id, NormalForm, Normalization, Request};
use crate::limit::Limit;
use crate::method::Method;
use crate::time::Span;

/// One validated rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Unique; part of its counter ids.
    pub name: Box<str>,
    /// Rules with lower numbers are evaluated first.
    pub priority: u32,
    /// Which requests it matches.
    pub when: Matcher,
    /// The dimensions that it counts by.
    pub per: Vec<Dimension>,
    /// Whether a user, key, login, address or descriptor is counted over all tenants together. By default each tenant has
    /// its own counters.
    pub across_tenants: bool,
    /// Only the first matching rule of a layer applies.
    pub layer: Box<str>,
    /// What it does with matching requests.
    pub action: Action,
    /// Its limits; empty for `allow` and `block`.
    pub limits: Vec<RuleLimit>,
    /// What one request is charged.
    pub cost: RuleCost,
    /// Which requests count, by the status of their response.
    pub refund_policy: RefundPolicy,
    /// Whether nodes may lease units of busy counters from the shared store. A rule that refunds is never leased: a unit of
    /// a lease that was returned could not be taken back.
    pub leases: bool,
    /// What happens while the counter store is unreachable; by default as [`RuleSettings`](super::RuleSettings) say.
    pub on_store_failure: Option<OnStoreFailure>,
    /// The share of requests admitted by this rule that is recorded; by default as the settings of the service say.
    pub sample_allowed: Option<SampleRate>,
    /// The response to refused requests.
    pub response: Response,
    /// Disabled rules are listed but never match.
    pub enabled: bool,
}

/// The name of the rule that `default_limit` and the built-in default become.
pub const DEFAULT_RULE: &str = "default";

impl Rule {
    /// Whether the rule can refuse requests that exceed a limit.
    pub fn enforces(&self) -> bool {
        self.enabled && matches!(self.action, Action::Reject | Action::Throttle)
    }

    /// Whether the rule limits every client.
    pub fn limits_every_client(&self) -> bool {
        let is_any = |by: &Dimension| matches!(by, Dimension::Client | Dimension::Global);
        self.enforces() && self.matches_every_request() && self.per.iter().all(is_any)
    }

    /// Whether the rule has no conditions. The pattern `/*` does not count as one.
    pub fn matches_every_request(&self) -> bool {
        let Matcher { tiers, users, tenants, .. } = &self.when;
        [tiers, users, tenants].iter().all(|values| values.is_empty()) && self.has_no_conditions_on_requests()
    }

    /// Whether the limits of a user or an API key take the place of this rule: it counts users, keys or clients, and no
    /// condition on endpoint, method, address or descriptor makes it the protection of something else.
    pub fn is_plan_level(&self) -> bool {
        let is_plan = |by: &Dimension| {
            matches!(by, Dimension::Client | Dimension::User | Dimension::ApiKey | Dimension::Tenant)
        };
        self.per.iter().all(is_plan) && self.has_no_conditions_on_requests()
    }

    /// Whether its counters are those of one tenant, although it does not count by tenant.
    pub(super) fn is_within_tenant(&self) -> bool {
        !self.across_tenants
            && self.per.iter().any(Dimension::is_within_tenant)
            && !self.per.contains(&Dimension::Tenant)
    }

    /// Whether only tier, user and tenant decide what it matches.
    fn has_no_conditions_on_requests(&self) -> bool {
        let Matcher { tiers: _, users: _, tenants: _, endpoints, methods, ips, descriptors } = &self.when;
        (endpoints.is_empty() || endpoints.iter().any(Pattern::is_everything))
            && methods.is_empty()
            && ips.is_empty()
            && descriptors.is_empty()
    }
}

/// A limit of a rule and the id of its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimit {
    /// The limit.
    pub limit: Limit,
    /// The id of its counters.
    pub counter: CounterId,
}

impl RuleLimit {
    /// A limit of the rule named `rule`.
    pub fn new(rule: &str, limit: Limit) -> Self {
        let counter = counter_id(rule, &limit);
        RuleLimit { limit, counter }
    }
}

/// The counter id: a hash of name, algorithm and window. Changing the number of requests keeps the counters.
pub(crate) fn counter_id(rule: &str, limit: &Limit) -> CounterId {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    for part in [rule, limit.algorithm().as_str(), &limit.window().to_string()] {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part.as_bytes());
    }
    CounterId(hasher.finish128().as_u128())
}

/// The factor by which a rule multiplies the cost of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleCost {
    /// A number.
    Times(u32),
    /// The value of the descriptor with this name. A value that is missing or not a number counts as 1.
    Descriptor(Box<str>),
}

impl Default for RuleCost {
    fn default() -> Self {
        RuleCost::Times(1)
    }
}

impl RuleCost {
    /// What the request is charged.
    pub(crate) fn of(&self, request: &Request<'_>) -> u32 {
        let factor = match self {
            RuleCost::Times(factor) => *factor,
            RuleCost::Descriptor(name) => {
                request.descriptor(name).and_then(|value| value.as_str().parse().ok()).unwrap_or(1)
            }
        };
        request.cost.saturating_mul(factor)
    }
}

impl fmt::Display for RuleCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleCost::Times(factor) => write!(f, "{factor}"),
            RuleCost::Descriptor(name) => write!(f, "descriptor:{name}"),
        }
    }
}

named_enum! {
    /// What a matching rule does.
    pub enum Action {
        /// Refuse requests that exceed a limit.
        Reject = "reject",
        /// Delay requests that exceed a limit, and refuse those that would wait too long.
        Throttle = "throttle",
        /// Refuse every request.
        Block = "block",
        /// Admit, and skip all further rules.
        Allow = "allow",
        /// Count and record, but refuse nothing.
        LogOnly = "log_only",
    }
}

impl Action {
    /// Whether rules with this action have limits.
    pub const fn limits(self) -> bool {
        matches!(self, Action::Reject | Action::Throttle | Action::LogOnly)
    }
}

named_enum! {
    /// What happens to a request while the counter store is unreachable.
    #[derive(Default)]
    pub enum OnStoreFailure {
        /// It is counted in local memory until the store recovers.
        #[default]
        Local = "local",
        /// It is admitted.
        Open = "open",
        /// It is refused as unavailable, not as over the limit.
        Closed = "closed",
    }
}

/// The response to refused requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status for gateways.
    pub status: u16,
    /// A message for the client.
    pub message: Option<Box<str>>,
    /// The minimum `Retry-After`.
    pub retry_after_floor: Span,
}

impl Default for Response {
    fn default() -> Self {
        Response { status: 429, message: None, retry_after_floor: Span::ZERO }
    }
}

/// The conditions of a rule. All given conditions must match; a condition matches if one of its values does.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    /// Tiers.
    pub tiers: Vec<Box<str>>,
    /// Endpoint patterns.
    pub endpoints: Vec<Pattern>,
    /// Methods. `HEAD` matches as `GET`, unless a [`Normalization`] separates them.
    pub methods: Vec<Method>,
    /// Networks.
    pub ips: Vec<IpNet>,
    /// Users.
    pub users: Vec<Box<str>>,
    /// Tenants.
    pub tenants: Vec<Box<str>>,
    /// Descriptors with their values.
    pub descriptors: Vec<(Box<str>, Vec<Box<str>>)>,
}

/// A condition that the index can check.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Tier,
    Endpoint,
    User,
    Tenant,
}

/// The condition that does not match a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The request has no value for it.
    Missing(String),
    /// The request has another value.
    Other(String),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Missing(fact) => write!(f, "the request has no {fact}"),
            Mismatch::Other(fact) => write!(f, "the {fact} does not match"),
        }
    }
}

impl Matcher {
    /// Normalizes the values of all conditions.
    pub(super) fn normalize(&mut self, normalization: &Normalization) {
        normalize_all(&mut self.users, normalization.ids.user);
        normalize_all(&mut self.tenants, normalization.ids.tenant);
        for (name, values) in &mut self.descriptors {
            normalize_all(values, normalization.descriptors.of(name));
        }
        for method in &mut self.methods {
            *method = normalization.normalize_method(*method);
        }
        if normalization.ignore_path_case {
            self.endpoints.iter_mut().for_each(|pattern| *pattern = pattern.casefold());
        }
    }

    /// Whether all conditions match.
    pub fn matches(&self, request: &Request<'_>) -> bool {
        self.matches_given(None, request)
    }

    /// Whether all conditions match, given that one is known to.
    pub(super) fn matches_given(&self, known: Option<Condition>, request: &Request<'_>) -> bool {
        let is_known = |condition| known == Some(condition);
        (is_known(Condition::Tier) || one_of(&self.tiers, request.tier))
            && (is_known(Condition::User) || one_of(&self.users, request.user))
            && (is_known(Condition::Tenant) || one_of(&self.tenants, request.tenant))
            && (is_known(Condition::Endpoint) || self.matches_endpoint(request))
            && self.matches_method(request)
            && self.matches_ip(request)
            && self.descriptors.iter().all(|(name, values)| one_of(values, request.descriptor(name)))
    }

    /// The first condition that does not match.
    pub fn mismatch(&self, request: &Request<'_>) -> Option<Mismatch> {
        let fact = |name: &str, missing: bool| {
            if missing { Mismatch::Missing(name.to_owned()) } else { Mismatch::Other(name.to_owned()) }
        };
        let simple = [
            ("tier", &self.tiers, request.tier),
            ("user", &self.users, request.user),
            ("tenant", &self.tenants, request.tenant),
        ];
        if !self.matches_endpoint(request) {
            return Some(fact("endpoint", false));
        }
        if let Some((name, _, id)) = simple.into_iter().find(|(_, values, id)| !one_of(values, *id)) {
            return Some(fact(name, id.is_none()));
        }
        if !self.matches_method(request) {
            return Some(fact("method", request.method.is_none()));
        }
        if !self.matches_ip(request) {
            return Some(fact("ip", request.ip.is_none()));
        }
        let failed = |(name, values): &&(Box<str>, Vec<Box<str>>)| !one_of(values, request.descriptor(name));
        let (name, _) = self.descriptors.iter().find(failed)?;
        Some(fact(&format!("descriptor {name}"), request.descriptor(name).is_none()))
    }

    fn matches_endpoint(&self, request: &Request<'_>) -> bool {
        self.endpoints.is_empty() || self.endpoints.iter().any(|pattern| pattern.matches(&request.endpoint))
    }

    fn matches_method(&self, request: &Request<'_>) -> bool {
        let is = |method: Method| self.methods.iter().any(|m| m.counted() == method.counted());
        self.methods.is_empty() || request.method.is_some_and(is)
    }

    fn matches_ip(&self, request: &Request<'_>) -> bool {
        let within = |ip: IpAddr| self.ips.iter().any(|net| net.contains(&ip.to_canonical()));
        self.ips.is_empty() || request.ip.is_some_and(within)
    }

    /// Of two rules with the same priority, the one with greater specificity is evaluated first.
    pub fn specificity(&self) -> (usize, Option<Specificity>, u8) {
        let conditions = [
            !self.tiers.is_empty(),
            !self.endpoints.is_empty(),
            !self.methods.is_empty(),
            !self.ips.is_empty(),
            !self.users.is_empty(),
            !self.tenants.is_empty(),
        ];
        let count = conditions.into_iter().filter(|given| *given).count() + self.descriptors.len();
        let endpoint = self.endpoints.iter().map(Pattern::specificity).min();
        let network = self.ips.iter().map(IpNet::prefix_len).min().unwrap_or(0);
        (count, endpoint, network)
    }
}

fn normalize_all(values: &mut [Box<str>], form: NormalForm) {
    for value in values {
        *value = form.normalize(value).into();
    }
}

fn one_of(values: &[Box<str>], id: Option<Id<'_>>) -> bool {
    values.is_empty() || id.is_some_and(|id| values.iter().any(|value| **value == *id.as_str()))
}
