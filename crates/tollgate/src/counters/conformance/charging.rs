//! Cases of charging.

use std::thread;

use super::Harness;
use super::fixture::{
    LONG, TestLimit, admits_all, charge, charge_all, charges, limit, random, remaining, settle,
};
use crate::algorithms::{Outcome, Verdict};
use crate::identity::Subject;
use crate::limit::Algorithm;
use crate::time::Span;

/// If one limit refuses, the others are not charged.
pub fn refusal_by_one_limit_charges_no_other<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (wide, narrow) = (TestLimit::long(algorithm, 10), TestLimit::long(Algorithm::FixedWindow, 1));
        assert!(admits_all(harness, &[&wide, &narrow], 1));
        for order in [[&wide, &narrow], [&narrow, &wide]] {
            assert!(!admits_all(harness, &order, 1), "{algorithm}");
        }
        assert_eq!(remaining(harness, &wide), 9, "{algorithm}");
    }
}

/// The first verdict belongs to the first charge.
pub fn verdicts_keep_the_order_of_charges<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let limits: Vec<TestLimit> = (1..=16).map(|n| TestLimit::long(Algorithm::FixedWindow, n * 10)).collect();
    let mut order: Vec<&TestLimit> = limits.iter().collect();
    for _ in 0..2 {
        order.reverse();
        let left: Vec<u32> =
            charge_all(harness, &charges(&order, 0)).verdicts.iter().map(|v| v.remaining).collect();
        assert_eq!(left, order.iter().map(|tested| tested.limit.requests()).collect::<Vec<_>>());
    }
}

/// Read and write are one step.
pub fn concurrent_callers_cannot_share_the_last_unit<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let tested = TestLimit::long(algorithm, 20);
        let caller = || (0..25).filter(|_| charge(harness, &tested, 1).admits()).count();
        let admitted: usize = thread::scope(|scope| {
            let callers = [(); 4].map(|()| scope.spawn(caller));
            callers.into_iter().map(|caller| caller.join().unwrap_or(usize::MAX)).sum()
        });
        assert_eq!(admitted, 20, "{algorithm}");
    }
}

/// Two limits charged in different orders by concurrent callers are charged equally often.
pub fn concurrent_callers_cannot_split_a_pair_of_limits<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let (one, other) =
        (TestLimit::long(Algorithm::TokenBucket, 30), TestLimit::long(Algorithm::FixedWindow, 20));
    let caller = |order: [&TestLimit; 2]| (0..25).filter(|_| admits_all(harness, &order, 1)).count();
    let admitted: usize = thread::scope(|scope| {
        let callers = [[&one, &other], [&other, &one]].map(|order| scope.spawn(move || caller(order)));
        callers.into_iter().map(|caller| caller.join().unwrap_or(usize::MAX)).sum()
    });
    assert_eq!((admitted, remaining(harness, &one), remaining(harness, &other)), (20, 10, 0));
}

/// Subjects of one rule, and rules of one subject, have separate counters.
pub fn subjects_and_rules_do_not_share_counters<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let first = TestLimit::long(algorithm, 1);
        let subject = TestLimit { subject: Subject(random()), ..TestLimit::long(algorithm, 1) };
        let subject = TestLimit { counter: first.counter, ..subject };
        let rule =
            TestLimit { subject: first.subject, rule: "conformance-2", ..TestLimit::long(algorithm, 1) };
        assert!(charge(harness, &first, 1).admits() && !charge(harness, &first, 1).admits());
        assert!(charge(harness, &subject, 1).admits(), "{algorithm}: another subject");
        assert!(charge(harness, &rule, 1).admits(), "{algorithm}: another rule");
    }
}

/// Two subjects of one limit, such as an account and an address, are charged together or not at all.
pub fn two_subjects_of_one_limit_are_charged_together<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let of = |counter| TestLimit { counter, ..TestLimit::long(algorithm, 2) };
        let address = TestLimit::long(algorithm, 2);
        let accounts = [address.counter; 3].map(of);
        assert!(accounts[..2].iter().all(|account| admits_all(harness, &[account, &address], 1)));
        assert!(!admits_all(harness, &[&accounts[2], &address], 1), "{algorithm}: another account");
        assert_eq!([0, 1, 2].map(|n: usize| remaining(harness, &accounts[n])), [1, 1, 2], "{algorithm}");
    }
}

/// A cost above the capacity gets `Never`; a cost equal to it is admitted.
pub fn cost_above_capacity_is_never<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let tested = TestLimit::long(algorithm, 5);
        let never = charge(harness, &tested, 6);
        assert_eq!((never.outcome, never.remaining), (Outcome::Never, 5), "{algorithm}");
        assert!(charge(harness, &tested, 5).admits(), "{algorithm}");
    }
}

/// A limit of zero refuses every cost.
pub fn limit_of_zero_always_refuses<H: Harness>(harness: &H) {
    for algorithm in Algorithm::ALL {
        for cost in [0, 1] {
            let verdict = charge(harness, &TestLimit::long(algorithm, 0), cost);
            assert_eq!(
                verdict,
                Verdict { outcome: Outcome::Never, remaining: 0, reset_after: Span::ZERO },
                "{algorithm}"
            );
        }
    }
}

/// A raised limit adds the difference; under a lowered one the consumption still counts.
pub fn consumption_survives_a_limit_change<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let mut tested = TestLimit::long(algorithm, 10);
        assert!(charge(harness, &tested, 6).admits());
        for (requests, left) in [(100, 94), (8, 2), (10, 4), (6, 0), (3, 0), (10, 4)] {
            tested.limit = limit(algorithm, requests, LONG);
            assert_eq!(remaining(harness, &tested), left, "{algorithm} changed to {requests}");
        }
        tested.limit = limit(algorithm, 20, LONG);
        assert!(charge(harness, &tested, 10).admits());
        tested.limit = limit(algorithm, 17, LONG);
        assert_eq!(remaining(harness, &tested), 1, "{algorithm}");
    }
}
