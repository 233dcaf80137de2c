//! Counters that several nodes share, and that can be made unreachable.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use smallvec::smallvec;
use tollgate::counters::{
    Charge, Charges, CounterAdmin, CounterStore, PenalizedClient, Refund, RefundOutcome, RefundOutcomes,
    StoreError, Verdicts,
};
use tollgate::{MemoryCounters, Timestamp};

/// Shared counters that can be made unreachable.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) counters: MemoryCounters,
    pub(crate) down: AtomicBool,
    /// One of its two servers is down.
    pub(crate) half_down: AtomicBool,
    pub(crate) refuses_to_carry: AtomicBool,
    pub(crate) added: AtomicUsize,
    /// Four if none is set.
    pub(crate) nodes: Option<NonZeroU32>,
}

impl CounterStore for &Shared {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        if self.down.load(Ordering::Relaxed) {
            return Err(StoreError::Unreachable);
        }
        Ok(Verdicts { shared: true, ..self.counters.charge_all_now(charges, now) })
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> RefundOutcomes {
        if self.down.load(Ordering::Relaxed) {
            return refunds.iter().map(|_| RefundOutcome::Lost).collect();
        }
        self.counters.refund_now(refunds, now)
    }

    fn nodes(&self) -> NonZeroU32 {
        self.nodes.unwrap_or(NonZeroU32::new(4).unwrap())
    }

    fn is_reachable(&self, charges: &Charges<'_>) -> bool {
        let is_away = charges.charges.iter().any(|charge| charge.subject.0 >> 127 == 0);
        !(self.down.load(Ordering::Relaxed) || is_away && self.half_down.load(Ordering::Relaxed))
    }

    async fn reconcile(&self, held: &mut Charges<'_>, now: Timestamp) -> Result<(), StoreError> {
        if self.refuses_to_carry.load(Ordering::Relaxed) {
            return Err(StoreError::Unreachable);
        }
        self.added.fetch_add(held.charges.len(), Ordering::Relaxed);
        // What exceeds the limit cannot make the counter fuller.
        for charge in held.charges.drain(..) {
            let charge_alone = |cost| {
                let alone = Charges { charges: smallvec![Charge { cost, ..charge }], ..Charges::default() };
                self.counters.charge_all_now(&alone, now).verdicts[0].remaining
            };
            charge_alone(charge.cost.min(charge_alone(0)));
        }
        Ok(())
    }
}

impl CounterAdmin for &Shared {
    async fn verify_reset(&self, _charges: &Charges<'_>) -> Result<(), StoreError> {
        if self.down.load(Ordering::Relaxed) { Err(StoreError::Unreachable) } else { Ok(()) }
    }

    async fn reset(&self, charges: &Charges<'_>) -> Result<usize, StoreError> {
        if self.down.load(Ordering::Relaxed) {
            return Err(StoreError::Unreachable);
        }
        self.counters.reset(charges).await
    }

    async fn pardon(&self, client: &str) -> Result<bool, StoreError> {
        self.counters.pardon(client).await
    }

    async fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> Result<Vec<PenalizedClient>, StoreError> {
        self.counters.penalized_clients(count_max, now).await
    }
}

/// Polls a future that never waits.
pub(crate) fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}
