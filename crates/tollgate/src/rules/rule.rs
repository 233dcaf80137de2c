//! A rule: when it matches, what it counts by, its limits and its action.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use ipnet::IpNet;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::pattern::{Pattern, Specificity};
use crate::counters::CounterId;
use crate::identity::{Dimension, Id, NormalForm, Normalization, Request};
use crate::limit::Limit;
use crate::method::Method;
use crate::time::Span;

/// One rule, checked.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Unique; part of its counters' keys.
    pub name: Box<str>,
    /// The rule with the lowest number is looked at first.
    pub priority: u32,
    /// Which requests it is about.
    pub when: Matcher,
    /// What it counts by.
    pub per: Vec<Dimension>,
    /// Only the first matching rule of a layer applies.
    pub layer: Box<str>,
    /// What it does.
    pub action: Action,
    /// Its limits; none for `allow` and `block`.
    pub limits: Vec<RuleLimit>,
    /// Whether nodes that share its counters may take units of busy ones in advance.
    pub leases: bool,
    /// What happens when its counters cannot be reached.
    pub on_store_failure: OnStoreFailure,
    /// What a refused client is told.
    pub response: Response,
    /// Rules that are switched off are kept, listed and never matched.
    pub enabled: bool,
}

/// A limit of a rule and the name of its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimit {
    /// The numbers.
    pub limit: Limit,
    /// Which counters.
    pub counter: CounterId,
}

impl RuleLimit {
    /// The limit of a rule with that name.
    pub fn new(rule: &str, limit: Limit) -> Self {
        let counter = counter_id(rule, &limit);
        RuleLimit { limit, counter }
    }
}

/// The counters of a rule: by name, window and algorithm, never by the numbers.
pub(crate) fn counter_id(rule: &str, limit: &Limit) -> CounterId {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    for part in [rule, limit.algorithm().as_str(), &limit.window().to_string()] {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part.as_bytes());
    }
    CounterId(hasher.finish128().as_u128())
}

/// What a matching rule does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Refuse what exceeds its limits.
    Reject,
    /// Hold what exceeds its limits for a while, then refuse.
    Throttle,
    /// Refuse every request.
    Block,
    /// Admit, and look at no further rule.
    Allow,
    /// Judge and record, refuse nothing.
    LogOnly,
}

impl Action {
    /// All actions.
    pub const ALL: [Action; 5] =
        [Action::Reject, Action::Throttle, Action::Block, Action::Allow, Action::LogOnly];

    /// The name users write and read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Reject => "reject",
            Action::Throttle => "throttle",
            Action::Block => "block",
            Action::Allow => "allow",
            Action::LogOnly => "log_only",
        }
    }

    /// Whether it counts anything.
    pub const fn limits(self) -> bool {
        matches!(self, Action::Reject | Action::Throttle | Action::LogOnly)
    }
}

/// What happens to a request whose counters cannot be reached.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Counted in this process's memory until the store is back.
    #[default]
    Local,
    /// Admitted.
    Open,
    /// Refused as unavailable, never as over the limit.
    Closed,
}

impl OnStoreFailure {
    /// All modes.
    pub const ALL: [OnStoreFailure; 3] =
        [OnStoreFailure::Local, OnStoreFailure::Open, OnStoreFailure::Closed];

    /// The name users write and read.
    pub const fn as_str(self) -> &'static str {
        match self {
            OnStoreFailure::Local => "local",
            OnStoreFailure::Open => "open",
            OnStoreFailure::Closed => "closed",
        }
    }
}

/// What a refused client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status a gateway answers with.
    pub status: u16,
    /// The text for the client.
    pub message: Option<Box<str>>,
    /// Clients are never asked back sooner than this.
    pub retry_after_floor: Span,
}

impl Default for Response {
    fn default() -> Self {
        Response { status: 429, message: None, retry_after_floor: Span::ZERO }
    }
}

/// The conditions of a rule. All that are given must hold; one of the values of each is enough.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    /// Plans.
    pub tiers: Vec<Box<str>>,
    /// Endpoint patterns.
    pub endpoints: Vec<Pattern>,
    /// Methods; `HEAD` is `GET`, unless a [`Normalization`] says otherwise.
    pub methods: Vec<Method>,
    /// Blocks of addresses.
    pub ips: Vec<IpNet>,
    /// Users.
    pub users: Vec<Box<str>>,
    /// Organisations.
    pub tenants: Vec<Box<str>>,
    /// Descriptors and the values each may have.
    pub descriptors: Vec<(Box<str>, Vec<Box<str>>)>,
}

/// A condition that can be known to hold before a rule is looked at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Tier,
    Endpoint,
    User,
    Tenant,
}

/// The condition that a request does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The fact of that name is missing from the request.
    Missing(String),
    /// The fact of that name is none of those asked for.
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
    /// Names what it is about as requests that are read by `spelling` do.
    pub(super) fn normalize(&mut self, normalization: &Normalization) {
        fold_all(&mut self.users, normalization.ids.user);
        fold_all(&mut self.tenants, normalization.ids.tenant);
        for (name, values) in &mut self.descriptors {
            fold_all(values, normalization.descriptors.of(name));
        }
        for method in &mut self.methods {
            *method = normalization.normalize_method(*method);
        }
        if normalization.ignore_path_case {
            self.endpoints.iter_mut().for_each(|pattern| *pattern = pattern.casefold());
        }
    }

    /// Whether every condition holds.
    pub fn matches(&self, request: &Request<'_>) -> bool {
        self.matches_beyond(None, request)
    }

    /// Whether every condition holds, given that one is known to.
    pub(super) fn matches_beyond(&self, known: Option<Condition>, request: &Request<'_>) -> bool {
        let is_known = |condition| known == Some(condition);
        (is_known(Condition::Tier) || one_of(&self.tiers, request.tier))
            && (is_known(Condition::User) || one_of(&self.users, request.user))
            && (is_known(Condition::Tenant) || one_of(&self.tenants, request.tenant))
            && (is_known(Condition::Endpoint) || self.matches_endpoint(request))
            && self.matches_method(request)
            && self.matches_ip(request)
            && self.descriptors.iter().all(|(name, values)| one_of(values, request.descriptor(name)))
    }

    /// The first condition that does not hold.
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

    /// How narrowly it matches: of two rules with one priority, the greater is looked at first.
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

fn fold_all(values: &mut [Box<str>], fold: NormalForm) {
    for value in values {
        *value = fold.normalize(value).into();
    }
}

fn one_of(values: &[Box<str>], id: Option<Id<'_>>) -> bool {
    values.is_empty() || id.is_some_and(|id| values.iter().any(|value| **value == *id.as_str()))
}
