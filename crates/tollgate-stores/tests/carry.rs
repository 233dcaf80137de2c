//! What was counted elsewhere is added whatever the limits say, by every algorithm.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod harness;

use smallvec::smallvec;
use tollgate::counters::conformance::Harness;
use tollgate::counters::{Charge, Charges, CounterId, CounterStore, Effect};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Limit, Span, Window};

use self::harness::Shared;

fn charges(limit: &Limit, cost: u32) -> Charges<'_> {
    let (subject, counter) = (Subject(7), CounterId(limit.algorithm() as u128));
    let charge = Charge { subject, counter, rule: "r", limit, cost, effect: Effect::Enforce, leases: true };
    Charges { charges: smallvec![charge], ..Charges::default() }
}

#[test]
fn what_is_carried_counts_beyond_the_limit_too() {
    let shared = Shared::single();
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, Window::Length(Span::from_secs(3_600_000))).unwrap();
        let ask = |cost: u32| {
            let charges = charges(&limit, cost);
            shared.block_on(shared.store.charge_all(&charges, shared.now())).unwrap().verdicts[0]
        };
        let carry = |cost: u32| {
            let mut held = charges(&limit, cost);
            let carried = shared.block_on(shared.store.carry(&mut held, shared.now()));
            assert!(held.charges.is_empty());
            carried
        };
        assert!(shared.store.reaches(&charges(&limit, 1)));
        assert_eq!(ask(10).remaining, 90, "{algorithm}");
        carry(60).unwrap();
        assert_eq!(ask(0).remaining, 30, "{algorithm}");
        carry(60).unwrap();
        assert_eq!(ask(0).remaining, 0, "{algorithm}");
        assert!(!ask(1).admits(), "{algorithm}");
    }
}
