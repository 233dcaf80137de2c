//! The limiter decides requests against the rule set in force.
//!
//! - `check`: the steps of one decision, in order
//! - `settle`: refunds once the response is known
//! - `snapshot`: one or more calls against the same rule set
//! - `explain`, `inspect`: why a decision came out as it did, and what the counters of a client hold
//! - `reset`, `change_override`: changes to the counters and limits of one client
//! - `reconcile`: adds what was counted during an outage to the shared counters

mod change_override;
mod check;
mod explain;
mod inspect;
mod reconcile;
mod reset;
mod settle;
mod snapshot;

use std::sync::Arc;

pub use self::change_override::CarryOver;
pub use self::reset::Reset;
pub use self::settle::Settlement;
pub use self::snapshot::LimiterSnapshot;
use crate::accounts::Accounts;
use crate::counters::fallback::Fallback;
use crate::counters::memory::{MemoryBounds, MemoryCounters};
use crate::identity::Seed;
use crate::record::{NoRecords, RecordSink};
use crate::rules::overrides::Overrides;
use crate::rules::{CurrentRules, RuleSet, Snapshot};
use crate::time::Timestamp;

/// Decides requests: a rule set, counters, and a sink for records.
///
/// ```
/// use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};
///
/// let rules = RuleSet::from_toml("default_limit = 2\ndefault_window = 60")?;
/// let limiter = Limiter::new(rules, MemoryCounters::default());
/// let request = Request { user: Some(Id::parse("alice")?), ..Request::new(Endpoint::parse("/search")?) };
///
/// let now = Timestamp::from(std::time::SystemTime::now());
/// assert!(limiter.check_now(&request, now).admits());
/// assert!(limiter.check_now(&request, now).admits());
/// let refused = limiter.check_now(&request, now);
/// assert_eq!(refused.retry_after().map(|wait| wait.as_secs_ceil()), Some(30));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limiter<S, R = NoRecords> {
    rules: CurrentRules,
    counters: S,
    /// Counts in place of `counters` while those are unreachable.
    fallback: Fallback,
    records: R,
}

impl<S> Limiter<S> {
    /// Creates a limiter that emits no records and shares its counters with no other limiter.
    pub fn new(rules: RuleSet, counters: S) -> Self {
        Limiter::with_records(rules, counters, NoRecords, Seed::random())
    }
}

impl<S, R: RecordSink> Limiter<S, R> {
    /// Creates a limiter that emits records. Limiters that share counters must use the same seed.
    pub fn with_records(rules: RuleSet, counters: S, records: R, seed: Seed) -> Self {
        let fallback = Fallback::new(MemoryBounds::default());
        Limiter { rules: CurrentRules::new(rules.with_seed(seed)), counters, fallback, records }
    }

    /// Bounds the memory of the fallback counters.
    #[must_use]
    pub fn with_fallback_bounds(self, bounds: MemoryBounds) -> Self {
        Limiter { fallback: Fallback::new(bounds), ..self }
    }

    /// The counters charged while the shared ones are unreachable. They are kept until their windows end.
    pub fn fallback_counters(&self) -> &MemoryCounters {
        self.fallback.shares()
    }

    /// Drops expired counters from one shard of the fallback counters. Call it periodically with increasing `turn`.
    pub fn sweep_fallback(&self, turn: usize, now: Timestamp) {
        self.fallback.sweep_shard(turn, now);
    }

    /// Discards fallback counters and penalty records that another node has reset, so that they are not reconciled.
    ///
    /// A counter is identified by the exclusive or of its subject and counter id, a penalty record by its subject.
    pub fn discard_fallback(&self, reset: &[u128]) {
        self.fallback.discard(reset);
    }

    /// The counters.
    pub fn counters(&self) -> &S {
        &self.counters
    }

    /// The sink for records.
    pub fn records(&self) -> &R {
        &self.records
    }

    /// The key of the subject hashes.
    pub fn seed(&self) -> Seed {
        self.rules.load().seed
    }

    /// Replaces the key of the subject hashes: counters written under the old key are no longer found. For a node that
    /// joins a fleet after it has started.
    pub fn set_seed(&self, seed: Seed) {
        self.rules.update(|rules| rules.with_overrides(Arc::clone(rules.overrides())).with_seed(seed));
        // Subjects are hashed with another key now.
        self.fallback.forget_subjects();
    }

    /// The rule set in force.
    pub fn rules(&self) -> Snapshot {
        self.rules.load()
    }

    /// The rule set in force together with this limiter, for several calls that must see the same rules.
    pub fn snapshot(&self) -> LimiterSnapshot<'_, S, R> {
        LimiterSnapshot { limiter: self, rules: self.rules.load() }
    }

    /// Replaces the rules and keeps overrides and accounts.
    pub fn replace_rules(&self, rules: RuleSet) {
        self.update_rules(move |current| {
            let kept = rules.with_overrides(Arc::clone(current.overrides()));
            kept.with_accounts(Arc::clone(current.accounts()))
        });
    }

    /// Replaces the overrides per user and endpoint. `next` may run again if another change interferes.
    pub fn update_overrides(&self, next: impl Fn(&Overrides) -> Overrides) {
        self.update_rules(|rules| rules.with_overrides(Arc::new(next(rules.overrides()))));
    }

    /// Replaces accounts: users, API keys and blocks. `next` may run again if another change interferes.
    pub fn update_accounts(&self, next: impl Fn(&Accounts) -> Accounts) {
        self.update_rules(|rules| rules.with_accounts(Arc::new(next(rules.accounts()))));
    }

    /// Replaces rules, overrides and accounts together. `next` may run again if another change interferes.
    pub fn update_rules(&self, next: impl Fn(&RuleSet) -> RuleSet) {
        self.rules.update(|current| next(current).with_seed(current.seed));
    }
}
