//! Several calls against one rule set.

use super::Limiter;
use crate::counters::CounterStore;
use crate::decision::Decision;
use crate::identity::Request;
use crate::record::RecordSink;
use crate::rules::{RuleSet, Snapshot};
use crate::time::Timestamp;

/// A limiter and the rule set in force when [`Limiter::snapshot`] was called: check, peek, explain, inspect and reset.
///
/// A service that reads the rules or accounts to build a request (API keys, normalization, overrides) checks it against
/// the same ones. The request may borrow from the snapshot, and a batch uses one snapshot for all of its items.
///
/// ```
/// use tollgate::limit::LimitOverride;
/// # use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};
/// # async fn check(limiter: &Limiter<MemoryCounters>, now: Timestamp) -> Result<(), Box<dyn std::error::Error>> {
/// let snapshot = limiter.snapshot();
/// let request = Request { user: Some(Id::parse("alice")?), ..Request::new(Endpoint::parse("/search")?) };
///
/// let sent = LimitOverride { requests: Some(5), ..LimitOverride::default() };
/// let limit = snapshot.rules().complete_override(&request, &sent)?;
/// let request = Request { limit_override: limit.as_ref(), ..request };
/// let decision = snapshot.check(&request, now).await;
/// # Ok(()) }
/// ```
pub struct LimiterSnapshot<'l, S, R> {
    pub(super) limiter: &'l Limiter<S, R>,
    pub(super) rules: Snapshot,
}

impl<S, R: RecordSink> LimiterSnapshot<'_, S, R> {
    /// The rule set of this snapshot.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The rule set for a decision to keep.
    pub(super) fn shared_rules(&self) -> Snapshot {
        self.limiter.rules.load_same(&self.rules)
    }
}

impl<S: CounterStore, R: RecordSink> LimiterSnapshot<'_, S, R> {
    /// See [`Limiter::check`].
    pub async fn check(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let draft = self.limiter.decide(&self.rules, request, now, false).await;
        self.limiter.record(draft, self.shared_rules(), request, now)
    }

    /// Returns what [`LimiterSnapshot::check`] would decide now, without charging or recording anything.
    pub async fn peek(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let draft = self.limiter.decide(&self.rules, request, now, true).await;
        draft.complete(self.shared_rules(), now)
    }
}
