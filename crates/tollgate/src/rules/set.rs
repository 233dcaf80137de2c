//! A rule set: everything a decision reads, immutable, swapped whole.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hashbrown::{HashMap, HashSet};

use super::compiled::CompiledRule;
use super::evaluate::CHARGES_MAX;
use super::index::Index;
use super::overrides::Overrides;
use super::rule::{Action, Rule};
use crate::accounts::Accounts;
use crate::counters::CounterId;
use crate::identity::{Normalization, Seed};
use crate::limit::Limit;
use crate::penalties::PenaltyPolicy;

/// IPv6 addresses are counted by this many leading bits unless configured otherwise.
pub const IPV6_PREFIX_DEFAULT: u8 = 64;

/// Everything a decision reads. One request sees one rule set. A clone shares its memory.
#[derive(Clone, Debug)]
pub struct RuleSet {
    /// In the order of the walk.
    pub(crate) rules: Arc<[Rule]>,
    /// The same, as the walk reads them.
    pub(super) compiled: Arc<[CompiledRule]>,
    /// The layer of each rule, as a number; [`NO_LAYER`] if it takes none.
    pub(super) layers: Arc<[u32]>,
    /// The most limits that are enforced for one request.
    pub(super) enforced_max: usize,
    pub(super) index: Arc<Index>,
    /// Where the limit of a counter stands: which rule, and which of its limits.
    counters: Arc<HashMap<CounterId, (u32, u32)>>,
    pub(crate) penalties: Option<PenaltyPolicy>,
    pub(crate) overrides: Arc<Overrides>,
    pub(super) accounts: Arc<Accounts>,
    /// Whether the accounts know anybody.
    pub(super) has_accounts: bool,
    /// Whether requests are completed or read otherwise before the walk. Here, because every request asks, once.
    pub(super) needs_resolution: bool,
    pub(crate) ipv6_prefix: u8,
    pub(super) nat64: bool,
    /// Which spellings of facts are one; none if each is taken as it is written.
    pub(super) normalization: Option<Arc<Normalization>>,
    /// The key of the subject hashes. It stands here so that one request sees one, whenever a fleet agrees on another.
    pub(crate) seed: Seed,
}

/// Why rules do not make a set.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// Counters are kept by rule name, so names are unique.
    #[error("two rules are named {0:?}")]
    DuplicateName(String),
    /// One request would be charged more limits than one can be.
    #[error("the rules of all layers together have {0} limits; one request is charged at most {CHARGES_MAX}")]
    TooManyLimits(usize),
}

impl RuleSet {
    /// Orders and indexes the rules: by priority, then the more specific first, then by name.
    ///
    /// # Errors
    /// When two rules share a name, or one request could be charged too many limits.
    pub fn new(mut rules: Vec<Rule>, penalties: Option<PenaltyPolicy>) -> Result<Self, RuleSetError> {
        rules.sort_by(|a, b| {
            (a.priority.cmp(&b.priority))
                .then_with(|| b.when.specificity().cmp(&a.when.specificity()))
                .then_with(|| a.name.cmp(&b.name))
        });
        check_names(&rules)?;
        let (layers, enforced_max) = number_layers(&rules)?;
        let (index, compiled) = file(&rules);
        Ok(RuleSet {
            counters: Arc::new(by_counter(&rules)),
            rules: rules.into(),
            compiled,
            layers,
            enforced_max,
            index,
            penalties,
            overrides: Arc::default(),
            accounts: Arc::default(),
            has_accounts: false,
            needs_resolution: false,
            ipv6_prefix: IPV6_PREFIX_DEFAULT,
            nat64: false,
            normalization: None,
            seed: Seed::random(),
        })
    }

    /// The same rules with addresses counted by this many leading bits of IPv6.
    #[must_use]
    pub fn with_ipv6_prefix(self, ipv6_prefix: u8) -> Self {
        RuleSet { ipv6_prefix, ..self }
    }

    /// The same rules, with addresses of `64:ff9b::/96` taken for the IPv4 addresses that a NAT64 put into them, or not.
    #[must_use]
    pub fn with_nat64(self, nat64: bool) -> Self {
        RuleSet { nat64, ..self }.refresh_needs_resolution()
    }

    /// The same rules for requests whose facts are read by `spelling`. What the rules name is spelled so from then on, and
    /// so are the users and endpoints that have numbers of their own.
    ///
    /// Counters of clients whose facts read differently are not found any more: such clients start afresh.
    #[must_use]
    pub fn with_normalization(self, normalization: Normalization) -> Self {
        if normalization.is_exact() && self.is_exact() {
            return self;
        }
        let mut rules = self.rules.to_vec();
        for rule in &mut rules {
            rule.when.normalize(&normalization);
        }
        let (index, compiled) = file(&rules);
        let normalization = (!normalization.is_exact()).then(|| Arc::new(normalization));
        let overrides = Arc::clone(&self.overrides);
        let set = RuleSet { rules: rules.into(), compiled, index, normalization, ..self };
        set.with_overrides(overrides).refresh_needs_resolution()
    }

    /// The same rules with these numbers for single users and endpoints.
    #[must_use]
    pub fn with_overrides(&self, overrides: Arc<Overrides>) -> Self {
        let overrides = Overrides::spelled(overrides, self.normalization.as_ref());
        RuleSet { overrides, ..self.clone() }
    }

    /// The same rules with these users, keys and blocks.
    #[must_use]
    pub fn with_accounts(&self, accounts: Arc<Accounts>) -> Self {
        RuleSet { has_accounts: !accounts.is_empty(), accounts, ..self.clone() }.refresh_needs_resolution()
    }

    /// The same rules, with what every request asks about them put together.
    fn refresh_needs_resolution(self) -> Self {
        RuleSet { needs_resolution: self.has_accounts || self.nat64 || self.normalization.is_some(), ..self }
    }

    /// The same rules with subjects hashed by this key.
    pub(crate) fn with_seed(self, seed: Seed) -> Self {
        RuleSet { seed, ..self }
    }

    /// The rules, in the order of the walk.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The limit whose counters these are, if a rule has it.
    pub(crate) fn limit_of(&self, counter: CounterId) -> Option<&Limit> {
        let (rule, limit) = *self.counters.get(&counter)?;
        Some(&self.rules.get(rule as usize)?.limits.get(limit as usize)?.limit)
    }

    /// The numbers set for single users and endpoints.
    pub fn overrides(&self) -> &Arc<Overrides> {
        &self.overrides
    }

    /// What is known of users and keys, and who is blocked.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// By how many leading bits IPv6 addresses are counted.
    pub fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// Whether addresses of `64:ff9b::/96` are taken for the IPv4 addresses in them.
    pub fn nat64(&self) -> bool {
        self.nat64
    }

    /// Which spellings of facts are one.
    pub fn normalization(&self) -> &Normalization {
        self.normalization.as_deref().unwrap_or(&PLAIN)
    }

    /// Whether every fact is taken as it is written: one look, for the way of every request.
    #[inline]
    pub(crate) fn is_exact(&self) -> bool {
        self.normalization.is_none()
    }

    /// When and how long clients are kept out, if at all.
    pub fn penalties(&self) -> Option<&PenaltyPolicy> {
        self.penalties.as_ref()
    }
}

/// Every fact as it is written.
static PLAIN: Normalization = Normalization::EXACT;

/// Files the rules, and makes a brief of each.
fn file(rules: &[Rule]) -> (Arc<Index>, Arc<[CompiledRule]>) {
    let (index, filed) = Index::new(rules);
    let compiled = rules.iter().zip(filed).map(|(rule, filed)| CompiledRule::new(rule, filed)).collect();
    (Arc::new(index), compiled)
}

/// Where each limit stands, by its counter.
fn by_counter(rules: &[Rule]) -> HashMap<CounterId, (u32, u32)> {
    let limits = (0..).zip(rules).flat_map(|(rule, Rule { limits, .. })| {
        (0..).zip(limits).map(move |(position, limit)| (limit.counter, (rule, position)))
    });
    limits.collect()
}

/// The layer of rules that take none.
pub(super) const NO_LAYER: u32 = u32::MAX;

fn check_names(rules: &[Rule]) -> Result<(), RuleSetError> {
    let mut names = HashSet::new();
    match rules.iter().find(|rule| !names.insert(&*rule.name)) {
        Some(twice) => Err(RuleSetError::DuplicateName(twice.name.to_string())),
        None => Ok(()),
    }
}

/// Gives each layer a number, and checks that the layers together stay within what one request can be charged. The
/// numbers, and the most limits that one request can be charged.
fn number_layers(rules: &[Rule]) -> Result<(Arc<[u32]>, usize), RuleSetError> {
    let mut numbers: HashMap<&str, (u32, usize)> = HashMap::new();
    let mut layers = Vec::with_capacity(rules.len());
    for rule in rules {
        let fresh = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let (number, limits_max) = numbers.entry(&rule.layer).or_insert((fresh, 0));
        if rule.enabled && rule.action != Action::LogOnly {
            *limits_max = rule.limits.len().max(*limits_max);
        }
        layers.push(if matches!(rule.action, Action::Reject | Action::Throttle) {
            *number
        } else {
            NO_LAYER
        });
    }
    let most = numbers.values().map(|(_, limits)| limits).sum();
    if most > CHARGES_MAX { Err(RuleSetError::TooManyLimits(most)) } else { Ok((layers.into(), most)) }
}

/// The rule set in force. Reading it takes no lock; replacing it replaces it whole.
#[derive(Debug)]
pub(crate) struct CurrentRules(ArcSwap<RuleSet>);

impl CurrentRules {
    pub(crate) fn new(rules: RuleSet) -> Self {
        CurrentRules(ArcSwap::from_pointee(rules))
    }

    pub(crate) fn load(&self) -> Snapshot {
        Snapshot(self.0.load())
    }

    /// Another handle of the same set. Cheap as long as the set is still in force: no reference count is touched.
    pub(crate) fn load_same(&self, held: &Snapshot) -> Snapshot {
        let current = self.0.load();
        let same =
            if Arc::ptr_eq(&current, &held.0) { current } else { Guard::from_inner(Arc::clone(&held.0)) };
        Snapshot(same)
    }

    /// Makes the next set from the current one; made again if another change comes between. The one before it.
    pub(crate) fn update(&self, next: impl Fn(&RuleSet) -> RuleSet) -> Arc<RuleSet> {
        self.0.rcu(|current| next(current))
    }
}

/// The rule set that one decision saw, kept alive as long as the decision.
pub struct Snapshot(Guard<Arc<RuleSet>>);

impl std::ops::Deref for Snapshot {
    type Target = RuleSet;
    fn deref(&self) -> &RuleSet {
        &self.0
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({} rules)", self.rules.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_found_by_its_counter_however_facts_are_spelled() {
        let rule = |number: u32| {
            format!(
                "[[rules]]\nname = \"r{number}\"\npriority = {}\nper = [\"user\"]\nlimits = [\
                 {{ requests = {number}, window = \"1m\" }}, {{ requests = 9000, window = \"1h\" }}]\n",
                7 * number % 100
            )
        };
        let rules = RuleSet::from_toml(&(1..500).map(rule).collect::<String>()).unwrap();
        let normalization = Normalization { ignore_path_case: true, ..Normalization::EXACT };
        for rules in [rules.clone(), rules.with_normalization(normalization)] {
            for limit in rules.rules().iter().flat_map(|rule| &rule.limits) {
                assert_eq!(rules.limit_of(limit.counter), Some(&limit.limit));
            }
            assert_eq!(rules.limit_of(CounterId(7)), None);
        }
    }
}
