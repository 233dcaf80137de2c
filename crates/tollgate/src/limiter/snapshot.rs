//! Several calls against one rule set.

use super::{Limiter, Reset};
use crate::counters::{CounterAdmin, CounterStore, StoreError};
use crate::decision::Decision;
use crate::explain::Explanation;
use crate::identity::Request;
use crate::inspect::{EndpointScope, Inspection};
use crate::record::RecordSink;
use crate::rules::{RuleSet, Snapshot};
use crate::time::Timestamp;

/// A limiter and the rule set in force when [`Limiter::snapshot`] was called.
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
    limiter: &'l Limiter<S, R>,
    rules: Snapshot,
}

impl<'l, S, R: RecordSink> LimiterSnapshot<'l, S, R> {
    pub(super) fn new(limiter: &'l Limiter<S, R>, rules: Snapshot) -> Self {
        LimiterSnapshot { limiter, rules }
    }

    /// The rule set of this snapshot.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The rule set for a decision to keep.
    fn shared_rules(&self) -> Snapshot {
        self.limiter.rules.load_same(&self.rules)
    }
}

impl<S: CounterStore, R: RecordSink> LimiterSnapshot<'_, S, R> {
    /// See [`Limiter::check`].
    pub async fn check(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let draft = self.limiter.decide(&self.rules, request, now, false).await;
        self.limiter.record(draft, self.shared_rules(), request, now)
    }

    /// See [`Limiter::peek`].
    pub async fn peek(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let draft = self.limiter.decide(&self.rules, request, now, true).await;
        draft.complete(self.shared_rules(), now)
    }

    /// See [`Limiter::explain`].
    pub async fn explain(&self, request: &Request<'_>, now: Timestamp) -> Explanation {
        self.limiter.explain_by(self.shared_rules(), request, now).await
    }

    /// See [`Limiter::inspect`].
    ///
    /// # Errors
    /// See [`Limiter::inspect`].
    pub async fn inspect(
        &self,
        request: &Request<'_>,
        endpoints: EndpointScope,
        now: Timestamp,
    ) -> Result<Inspection, StoreError> {
        self.limiter.inspect_by(&self.rules, request, endpoints, now).await
    }
}

impl<S: CounterStore + CounterAdmin, R: RecordSink> LimiterSnapshot<'_, S, R> {
    /// See [`Limiter::reset`].
    ///
    /// # Errors
    /// See [`Limiter::reset`].
    pub async fn reset(&self, request: &Request<'_>) -> Result<Reset, StoreError> {
        self.limiter.reset_by(&self.rules, request).await
    }
}
