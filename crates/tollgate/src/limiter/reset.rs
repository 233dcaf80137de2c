//! Clearing the counters of one client.

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
    /// When the store, or a part of it, is unreachable. The parts that were reached and the fallback counters are
    /// cleared all the same.
    pub async fn reset(&self, request: &Request<'_>) -> Result<Reset, StoreError> {
        let (limiter, rules) = (self.limiter, &self.rules);
        let check_overrides = rules.check_overrides(request);
        let mut scratch = Scratch::default();
        let (charges, skipped) = rules.charges_of_client(request, &check_overrides, &mut scratch);
        let reset = limiter.counters.reset(&charges).await;
        // Also after an error: what was cleared in part must not return by reconciliation.
        if limiter.fallback.is_used() {
            let counters = charges.charges.iter().map(|charge| charge.subject.0 ^ charge.counter.0);
            let penalty = charges.penalty.map(|penalty| penalty.subject.0);
            limiter.fallback.discard(&counters.chain(penalty).collect::<Vec<_>>());
        }
        Ok(Reset { counters: reset?, skipped: skipped.into_iter().map(|skipped| skipped.rule).collect() })
    }
}
