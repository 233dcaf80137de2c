//! Adding what the fallback counted to the shared counters once they are reachable again.
//!
//! The counters of a client that sends a request are reconciled before it is decided. All others are reconciled in the
//! background, a few at a time, because their clients may reach another node next.

use smallvec::SmallVec;

use super::Limiter;
use crate::counters::fallback::{PendingCounter, Transfer};
use crate::counters::{Charge, Charges, CounterStore, Effect, ReconcileStatus, StoreError, Verdicts};
use crate::limit::Limit;
use crate::record::RecordSink;
use crate::rules::RuleSet;
use crate::time::Timestamp;

impl<S, R: RecordSink> Limiter<S, R> {
    /// Whether the fallback may hold charges. Reads one flag.
    pub fn has_pending_charges(&self) -> bool {
        self.fallback.is_used()
    }

    /// The progress of reconciliation.
    pub fn reconcile_status(&self) -> ReconcileStatus {
        self.fallback.status()
    }
}

impl<S: CounterStore, R: RecordSink> Limiter<S, R> {
    /// Adds at most `counters_max` fallback counters to the shared ones. Returns how many are settled: added, or expired
    /// meanwhile. Returns 0 if nothing is pending or the store is unreachable.
    ///
    /// Call it repeatedly with pauses: one large call would delay requests.
    pub async fn reconcile(&self, counters_max: usize, now: Timestamp) -> usize {
        if !self.fallback.is_used() {
            return 0;
        }
        let rules = self.rules.load();
        let pending = self.fallback.take_pending(counters_max);
        let (reachable, others): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|counter| self.is_reachable(counter));
        for counter in others {
            self.fallback.put_back_pending(counter);
        }
        let settled = reachable.len();
        let limits: Vec<_> = reachable.iter().map(|counter| limit_to_charge(&rules, counter)).collect();
        // What the store does not accept returns to the fallback when this is dropped.
        let mut transfer = Transfer::new(&self.fallback, now);
        for (counter, limit) in reachable.iter().zip(&limits) {
            transfer.add_pending(&charge_of(counter, limit), counter.clone());
        }
        if transfer.charges.charges.is_empty() {
            return settled;
        }
        let before = transfer.charges.charges.len();
        let result = self.counters.reconcile(&mut transfer.charges, now).await;
        self.fallback.count_reconciled(before - transfer.charges.charges.len());
        if result.is_ok() { settled } else { 0 }
    }

    /// Reconciles the counters of these charges, if the fallback holds any, and charges them.
    ///
    /// Requests of the same client that are in flight at this moment may be decided before the fallback's charges arrive.
    pub(super) async fn charge_after_outage(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<Verdicts, StoreError> {
        if !self.counters.is_reachable(charges) {
            return self.counters.charge_all(charges, now).await;
        }
        let mut transfer = self.fallback.transfer(charges, now);
        let before = transfer.charges.charges.len();
        if before == 0 {
            return self.counters.charge_all(charges, now).await;
        }
        let verdicts = self.counters.reconcile_and_charge(&mut transfer.charges, charges, now).await;
        self.fallback.count_reconciled(before - transfer.charges.charges.len());
        verdicts
    }

    fn is_reachable(&self, counter: &PendingCounter) -> bool {
        let charge = charge_of(counter, &counter.charged.limit);
        self.counters
            .is_reachable(&Charges { charges: SmallVec::from_slice(&[charge]), ..Charges::default() })
    }
}

/// The limit that its rule has now: other nodes have charged the counter by it, and a smaller one would truncate it. A
/// limit that no rule has any more, or that is an override, is used as it was last charged.
fn limit_to_charge<'a>(rules: &'a RuleSet, counter: &'a PendingCounter) -> &'a Limit {
    rules.limit_of(counter.charged.counter).unwrap_or(&counter.charged.limit)
}

fn charge_of<'a>(counter: &'a PendingCounter, limit: &'a Limit) -> Charge<'a> {
    let charged = &counter.charged;
    Charge {
        subject: counter.subject(),
        counter: charged.counter,
        rule: &charged.rule,
        limit,
        cost: 0,
        effect: Effect::Enforce,
        leases: charged.leases,
        refundable: false,
    }
}
