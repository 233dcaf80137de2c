//! Clearing the counters of one client.

use std::future::{Future, ready};

use super::LimiterSnapshot;
use crate::counters::{CounterAdmin, CounterStore, StoreError};
use crate::identity::{Request, Scratch};
use crate::record::RecordSink;

/// What a reset did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Counters that held something.
    pub counters: usize,
    /// Rules whose counter could not be identified because the request lacks a dimension they count by.
    pub skipped: Vec<String>,
}

impl<S: CounterStore + CounterAdmin, R: RecordSink> LimiterSnapshot<'_, S, R> {
    /// Clears the counters and the penalty record of the request's client.
    ///
    /// The counters of overrides sent with checks are cleared too, whatever their size: those of every algorithm with the
    /// windows in force and, if the request carries an override, the one of its window and algorithm.
    ///
    /// # Errors
    /// When the store, or a part of it, is unreachable; nothing has changed then. If it becomes unreachable during the
    /// reset, the parts that were reached and the fallback counters are cleared: repeat it.
    pub async fn reset(&self, request: &Request<'_>) -> Result<Reset, StoreError> {
        self.reset_recorded(request, ready(Ok(()))).await
    }

    /// [`reset`](Self::reset), once the store is known to be reachable and `recorded` has completed, such as writing to an
    /// audit trail.
    ///
    /// # Errors
    /// The error of `recorded`, or of the store before it; nothing has changed then. An error of the store after it as
    /// for [`reset`](Self::reset).
    pub async fn reset_recorded<E: From<StoreError>>(
        &self,
        request: &Request<'_>,
        recorded: impl Future<Output = Result<(), E>>,
    ) -> Result<Reset, E> {
        let (limiter, rules) = (self.limiter, &self.rules);
        let check_overrides = rules.check_overrides(request);
        let mut scratch = Scratch::default();
        let (charges, skipped) = rules.charges_of_client(request, &check_overrides, &mut scratch);
        limiter.counters.verify_reset(&charges).await?;
        recorded.await?;
        let reset = limiter.counters.reset(&charges).await;
        // Also after an error: what was cleared in part must not return by reconciliation.
        let counters = charges.charges.iter().map(|charge| charge.subject.0 ^ charge.counter.0);
        let penalty = charges.penalty.map(|penalty| penalty.subject.0);
        limiter.fallback.discard(&counters.chain(penalty).collect::<Vec<_>>());
        Ok(Reset { counters: reset?, skipped: skipped.into_iter().map(|skipped| skipped.rule).collect() })
    }
}
