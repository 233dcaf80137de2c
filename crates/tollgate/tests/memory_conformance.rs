//! The conformance suite of the memory store.

tollgate::counters::conformance!(tollgate::MemoryCounters::default());

/// The same suite with a store that has its own clock, as a shared one does.
mod own_clock {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tollgate::counters::conformance::Harness;
    use tollgate::counters::{
        Charges, CounterAdmin, CounterStore, PenalizedClient, Refund, RefundOutcomes, StoreError, Verdicts,
        memory::MemoryCounters,
    };
    use tollgate::{Span, Timestamp};

    /// A store with its own clock, which advances one millisecond per call.
    struct OwnClock {
        counters: MemoryCounters,
        now: AtomicU64,
    }

    impl OwnClock {
        fn tick(&self) -> Timestamp {
            Timestamp::from_micros(self.now.fetch_add(1_000, Ordering::Relaxed))
        }
    }

    impl CounterStore for OwnClock {
        async fn charge_all(&self, charges: &Charges<'_>, _: Timestamp) -> Result<Verdicts, StoreError> {
            self.counters.charge_all(charges, self.tick()).await
        }

        async fn refund(&self, refunds: &[Refund<'_>], _: Timestamp) -> RefundOutcomes {
            self.counters.refund(refunds, self.tick()).await
        }
    }

    impl CounterAdmin for OwnClock {
        async fn reset(&self, charges: &Charges<'_>) -> Result<usize, StoreError> {
            self.counters.reset(charges).await
        }

        async fn pardon(&self, client: &str) -> Result<bool, StoreError> {
            self.counters.pardon(client).await
        }

        async fn penalized_clients(
            &self,
            count_max: usize,
            _: Timestamp,
        ) -> Result<Vec<PenalizedClient>, StoreError> {
            self.counters.penalized_clients(count_max, self.tick()).await
        }
    }

    impl Harness for OwnClock {
        type Store = OwnClock;

        fn store(&self) -> &OwnClock {
            self
        }

        fn now(&self) -> Timestamp {
            Timestamp::from_micros(self.now.load(Ordering::Relaxed))
        }

        fn advance(&self, span: Span) {
            self.now.fetch_add(span.as_micros(), Ordering::Relaxed);
        }

        fn drift(&self) -> Span {
            Span::from_millis(300)
        }
    }

    tollgate::counters::conformance!(
        harness = OwnClock {
            counters: MemoryCounters::default(),
            now: AtomicU64::new(Timestamp::from_secs(1_767_225_600).as_micros() - 100_000),
        }
    );
}
