//! The rule set: everything a decision reads. Immutable; a change replaces it as a whole.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hashbrown::{HashMap, HashSet};

use super::compiled::CompiledRule;
use super::index::Index;
use super::overrides::Overrides;
use super::plan::CHARGES_MAX;
use super::rule::{Action, OnStoreFailure, Rule};
use crate::accounts::Accounts;
use crate::counters::CounterId;
use crate::identity::{IpPrefixes, Normalization, Seed};
use crate::limit::Limit;
use crate::penalties::PenaltyPolicy;

/// The tier of requests without user, API key and tier.
pub const ANONYMOUS_TIER: &str = "anonymous";

/// What applies to all rules of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    /// Whether anything is limited or blocked. Otherwise every request is admitted, and nothing is counted.
    pub enabled: bool,
    /// What happens while the counter store is unreachable, for rules that do not say so.
    pub on_store_failure: OnStoreFailure,
    /// The tier of requests with a user or an API key, but without a tier.
    pub default_tier: Option<Box<str>>,
}

impl Default for RuleSettings {
    fn default() -> Self {
        RuleSettings { enabled: true, on_store_failure: OnStoreFailure::default(), default_tier: None }
    }
}

/// Compiled rules with the overrides and accounts beside them. One request sees one rule set. Cloning is cheap.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts, precomputed because every request reads them
pub struct RuleSet {
    /// In evaluation order.
    pub(crate) rules: Arc<[Rule]>,
    /// The same rules, laid out for evaluation.
    pub(super) compiled: Arc<[CompiledRule]>,
    /// The layer number of each rule, or [`NO_LAYER`].
    pub(super) layers: Arc<[u32]>,
    /// The maximum number of enforced limits for one request.
    pub(super) enforced_max: usize,
    pub(super) index: Arc<Index>,
    /// The rule and the position of the limit behind each counter id.
    counters: Arc<HashMap<CounterId, (u32, u32)>>,
    /// The tiers in the conditions of the rules.
    tiers: Arc<HashSet<Box<str>>>,
    pub(crate) penalties: Option<PenaltyPolicy>,
    pub(crate) overrides: Arc<Overrides>,
    pub(super) accounts: Arc<Accounts>,
    pub(super) has_accounts: bool,
    /// Whether a request cannot be evaluated as it is. Precomputed, because every request checks it.
    pub(super) needs_resolution: bool,
    pub(crate) ip_prefixes: IpPrefixes,
    pub(super) nat64: bool,
    /// `None` if it would change nothing.
    pub(super) normalization: Option<Arc<Normalization>>,
    has_built_in_default: bool,
    pub(super) settings: Arc<RuleSettings>,
    /// Whether a request without a tier may get one.
    pub(super) assigns_tiers: bool,
    /// The key of the subject hashes: part of the snapshot, so that one request uses one seed.
    pub(crate) seed: Seed,
}

/// Why rules cannot form a rule set.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// Rule names are part of counter ids, so they must be unique.
    #[error("two rules are named {0:?}; rename one of them")]
    DuplicateName(String),
    /// One request could be charged too many limits.
    #[error("one request could be charged {0} limits; the maximum over all layers is {CHARGES_MAX}")]
    TooManyLimits(usize),
}

impl RuleSet {
    /// Compiles rules. They are evaluated by priority, then by specificity, then by name.
    ///
    /// # Errors
    /// When two rules have the same name, or one request could be charged too many limits.
    pub fn new(mut rules: Vec<Rule>, penalties: Option<PenaltyPolicy>) -> Result<Self, RuleSetError> {
        rules.sort_by(|a, b| {
            (a.priority.cmp(&b.priority))
                .then_with(|| b.when.specificity().cmp(&a.when.specificity()))
                .then_with(|| a.name.cmp(&b.name))
        });
        check_names(&rules)?;
        let (layers, enforced_max) = number_layers(&rules)?;
        let (index, compiled) = compile(&rules);
        let names_anonymous =
            rules.iter().any(|rule| rule.when.tiers.iter().any(|tier| **tier == *ANONYMOUS_TIER));
        let set = RuleSet {
            counters: Arc::new(by_counter(&rules)),
            tiers: Arc::new(rules.iter().flat_map(|rule| &rule.when.tiers).cloned().collect()),
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
            ip_prefixes: IpPrefixes::DEFAULT,
            nat64: false,
            normalization: None,
            has_built_in_default: false,
            settings: Arc::default(),
            assigns_tiers: names_anonymous,
            seed: Seed::random(),
        };
        Ok(set.update_needs_resolution())
    }

    /// Sets what applies to all rules.
    #[must_use]
    pub fn with_settings(self, settings: RuleSettings) -> Self {
        let assigns_tiers = self.assigns_tiers || settings.default_tier.is_some();
        RuleSet { settings: Arc::new(settings), assigns_tiers, ..self }.update_needs_resolution()
    }

    /// What applies to all rules.
    pub fn settings(&self) -> &RuleSettings {
        &self.settings
    }

    /// What happens to a request that the rule at this position limits while the counter store is unreachable. Positions
    /// beyond the rules are those of overrides.
    pub fn on_store_failure(&self, position: usize) -> OnStoreFailure {
        let of_rule = self.rules.get(position).and_then(|rule| rule.on_store_failure);
        of_rule.unwrap_or(self.settings.on_store_failure)
    }

    /// Marks the rule [`DEFAULT_RULE`](super::DEFAULT_RULE) as not configured.
    pub(crate) fn with_built_in_default(self, has_built_in_default: bool) -> Self {
        RuleSet { has_built_in_default, ..self }
    }

    /// Whether the rule [`DEFAULT_RULE`](super::DEFAULT_RULE) applies only because nothing else limits requests.
    pub fn has_built_in_default(&self) -> bool {
        self.has_built_in_default
    }

    /// Sets the prefixes by which addresses are counted.
    #[must_use]
    pub fn with_ip_prefixes(self, ip_prefixes: IpPrefixes) -> Self {
        RuleSet { ip_prefixes, ..self }
    }

    /// Sets whether addresses in the NAT64 prefix `64:ff9b::/96` are treated as the IPv4 addresses embedded in them.
    #[must_use]
    pub fn with_nat64(self, nat64: bool) -> Self {
        RuleSet { nat64, ..self }.update_needs_resolution()
    }

    /// Normalizes the conditions of the rules, and all requests, by `normalization`.
    ///
    /// Clients whose ids change start with full limits. Accounts and overrides are not changed: their ids must already
    /// be normalized.
    #[must_use]
    pub fn with_normalization(self, normalization: Normalization) -> Self {
        if normalization.is_exact() && self.is_exact() {
            return self;
        }
        let mut rules = self.rules.to_vec();
        for rule in &mut rules {
            rule.when.normalize(&normalization);
        }
        let (index, compiled) = compile(&rules);
        let normalization = (!normalization.is_exact()).then(|| Arc::new(normalization));
        RuleSet { rules: rules.into(), compiled, index, normalization, ..self }.update_needs_resolution()
    }

    /// Replaces the limits set for single users and endpoints.
    #[must_use]
    pub fn with_overrides(&self, overrides: Arc<Overrides>) -> Self {
        RuleSet { overrides, ..self.clone() }
    }

    /// Replaces users, API keys and blocks.
    #[must_use]
    pub fn with_accounts(&self, accounts: Arc<Accounts>) -> Self {
        RuleSet { has_accounts: !accounts.is_empty(), accounts, ..self.clone() }.update_needs_resolution()
    }

    fn update_needs_resolution(self) -> Self {
        let changes_requests = self.has_accounts || self.nat64 || self.normalization.is_some();
        let needs_resolution = changes_requests || self.assigns_tiers || !self.settings.enabled;
        RuleSet { needs_resolution, ..self }
    }

    pub(crate) fn with_seed(self, seed: Seed) -> Self {
        RuleSet { seed, ..self }
    }

    /// The rules, in evaluation order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The limit of a rule by its counter id.
    pub(crate) fn limit_of(&self, counter: CounterId) -> Option<&Limit> {
        let (rule, limit) = *self.counters.get(&counter)?;
        Some(&self.rules.get(rule as usize)?.limits.get(limit as usize)?.limit)
    }

    /// Whether a rule names this tier. No rule with a tier condition applies to clients of any other tier.
    pub fn names_tier(&self, tier: &str) -> bool {
        self.tiers.contains(tier)
    }

    /// The limits set for single users and endpoints.
    pub fn overrides(&self) -> &Arc<Overrides> {
        &self.overrides
    }

    /// Users, API keys and blocks.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// The prefixes by which addresses are counted.
    pub fn ip_prefixes(&self) -> IpPrefixes {
        self.ip_prefixes
    }

    /// Whether addresses in `64:ff9b::/96` are treated as the IPv4 addresses embedded in them.
    pub fn nat64(&self) -> bool {
        self.nat64
    }

    /// How requests are normalized.
    pub fn normalization(&self) -> &Normalization {
        self.normalization.as_deref().unwrap_or(&EXACT)
    }

    /// Whether normalization changes nothing.
    #[inline]
    pub fn is_exact(&self) -> bool {
        self.normalization.is_none()
    }

    /// The progressive penalties, if enabled.
    pub fn penalties(&self) -> Option<&PenaltyPolicy> {
        self.penalties.as_ref()
    }
}

static EXACT: Normalization = Normalization::EXACT;

/// Builds the index and the compiled form of each rule.
fn compile(rules: &[Rule]) -> (Arc<Index>, Arc<[CompiledRule]>) {
    let (index, indexed_by) = Index::new(rules);
    let compiled = rules.iter().zip(indexed_by).map(|(rule, by)| CompiledRule::new(rule, by)).collect();
    (Arc::new(index), compiled)
}

/// The rule and position of each limit, by counter id.
fn by_counter(rules: &[Rule]) -> HashMap<CounterId, (u32, u32)> {
    let limits = (0..).zip(rules).flat_map(|(rule, Rule { limits, .. })| {
        (0..).zip(limits).map(move |(position, limit)| (limit.counter, (rule, position)))
    });
    limits.collect()
}

/// The layer number of rules that occupy no layer.
pub(super) const NO_LAYER: u32 = u32::MAX;

fn check_names(rules: &[Rule]) -> Result<(), RuleSetError> {
    let mut names = HashSet::new();
    match rules.iter().find(|rule| !names.insert(&*rule.name)) {
        Some(twice) => Err(RuleSetError::DuplicateName(twice.name.to_string())),
        None => Ok(()),
    }
}

/// Numbers the layers. Returns the layer of each rule and the maximum number of limits for one request.
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

/// The rule set in force. Reading it takes no lock.
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

    /// Replaces the rule set. `next` runs again if another change is concurrent.
    pub(crate) fn update(&self, next: impl Fn(&RuleSet) -> RuleSet) {
        self.0.rcu(|current| next(current));
    }
}

/// The rule set that one decision used.
pub struct Snapshot(Guard<Arc<RuleSet>>);

impl Snapshot {
    /// A handle to keep for long: a snapshot occupies a slot of its thread.
    pub(crate) fn to_arc(&self) -> Arc<RuleSet> {
        Arc::clone(&self.0)
    }

    /// Holds the set by a reference count instead.
    pub(crate) fn release_slot(&mut self) {
        self.0 = Guard::from_inner(self.to_arc());
    }
}

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
    fn counter_id_finds_its_limit() {
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
