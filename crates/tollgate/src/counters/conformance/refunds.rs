//! Cases of refunds.

use std::thread;

use super::Harness;
use super::fixture::{LONG, TestLimit, charge, charge_all, charges, remaining, settle, short};
use super::reset::reset;
use crate::counters::{Charge, ChargeMark, Charges, CounterStore, Refund, RefundOutcome};
use crate::limit::Algorithm;
use crate::time::Span;

fn refundable(tested: &TestLimit, cost: u32) -> Charges<'_> {
    let mut all = charges(&[tested], cost);
    all.charges.iter_mut().for_each(|charge| charge.refundable = true);
    all
}

/// Charges a refundable cost. `None` if it is refused.
fn take<H: Harness>(harness: &H, tested: &TestLimit, cost: u32) -> Option<ChargeMark> {
    let charges = refundable(tested, cost);
    let verdicts = charge_all(harness, &charges);
    let mark = verdicts.marks.as_ref().and_then(|marks| marks[0]);
    assert_eq!(mark.is_some(), verdicts.admitted(&charges), "an admitted charge has a mark");
    mark
}

/// Charges a refundable cost that must be admitted.
fn taken<H: Harness>(harness: &H, tested: &TestLimit, cost: u32) -> ChargeMark {
    take(harness, tested, cost).unwrap_or_else(|| panic!("{} was refused", tested.limit))
}

fn give_back<H: Harness>(harness: &H, tested: &TestLimit, cost: u32, mark: ChargeMark) -> RefundOutcome {
    let charge = Charge { refundable: true, ..tested.charge(cost) };
    let refunds = [Refund { charge, mark }];
    harness.block_on(harness.store().refund(&refunds, harness.now()))[0]
}

/// Whether each of several charges can be refunded, whichever comes first. A queue gives back its last place only.
fn in_any_order(algorithm: Algorithm) -> bool {
    algorithm != Algorithm::LeakyBucket
}

/// A refund restores one charge, and no other.
pub fn refund_restores_one_charge<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let tested = TestLimit::long(algorithm, 10);
        let only = taken(harness, &tested, 3);
        assert_eq!(give_back(harness, &tested, 3, only), RefundOutcome::Refunded, "{algorithm}");
        assert_eq!(remaining(harness, &tested), 10, "{algorithm}");
        assert!(charge(harness, &tested, 3).admits());
        let mark = taken(harness, &tested, 2);
        assert_eq!(remaining(harness, &tested), 5, "{algorithm}");
        assert_eq!(give_back(harness, &tested, 2, mark), RefundOutcome::Refunded, "{algorithm}");
        assert_eq!(remaining(harness, &tested), 7, "{algorithm}");
        assert!(charge(harness, &tested, 7).admits() && !charge(harness, &tested, 1).admits(), "{algorithm}");
    }
}

/// Charges are refunded in any order, those made before, between and after others.
pub fn refunds_in_any_order_restore_every_charge<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| in_any_order(*algorithm)) {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let tested = TestLimit::long(algorithm, 10);
            let marks = [(); 4].map(|()| taken(harness, &tested, 1));
            for (given_back, position) in (1..).zip(order) {
                let outcome = give_back(harness, &tested, 1, marks[position]);
                assert_eq!(outcome, RefundOutcome::Refunded, "{algorithm}: {position} of {order:?}");
                assert_eq!(remaining(harness, &tested), 6 + given_back, "{algorithm} {order:?}");
            }
        }
    }
}

/// A queue takes back its last place. Requests behind another one keep theirs.
pub fn queue_gives_back_its_last_place_only<H: Harness>(harness: &H) {
    let tested = TestLimit::long(Algorithm::LeakyBucket, 10);
    let (first, last) = (taken(harness, &tested, 1), taken(harness, &tested, 1));
    assert_eq!(give_back(harness, &tested, 1, first), RefundOutcome::Dropped);
    assert_eq!(remaining(harness, &tested), 8);
    assert_eq!(give_back(harness, &tested, 1, last), RefundOutcome::Refunded);
    assert_eq!(remaining(harness, &tested), 9);
}

/// A refused client is admitted as soon as a charge is refunded.
pub fn refund_admits_a_refused_client<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let tested = TestLimit::long(algorithm, 1);
        for _ in 0..3 {
            let mark = taken(harness, &tested, 1);
            assert!((0..2).all(|_| !charge(harness, &tested, 1).admits()), "{algorithm}");
            assert_eq!(give_back(harness, &tested, 1, mark), RefundOutcome::Refunded, "{algorithm}");
        }
        assert!(charge(harness, &tested, 1).admits(), "{algorithm}");
    }
}

/// After its window a charge is not refunded, whatever was charged since.
pub fn refund_after_the_window_is_dropped<H: Harness>(harness: &H) {
    let window = short(harness);
    let algorithms = Algorithm::ALL.map(|algorithm| TestLimit::new(algorithm, 2, window));
    settle(harness, window);
    let marks = algorithms.each_ref().map(|tested| taken(harness, tested, 2));
    harness.advance(window + Span::from_millis(1));
    for (tested, mark) in algorithms.iter().zip(marks) {
        let admitted = charge(harness, tested, 1).admits();
        let left = remaining(harness, tested);
        let algorithm = tested.limit.algorithm();
        assert_eq!(give_back(harness, tested, 2, mark), RefundOutcome::Dropped, "{algorithm}");
        if harness.drift().is_zero() {
            assert_eq!(remaining(harness, tested), left, "{algorithm}, admitted: {admitted}");
        }
    }
}

/// After a reset a charge is not refunded, whatever was charged since.
pub fn refund_after_a_reset_is_dropped<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let tested = TestLimit::long(algorithm, 10);
        let marks = [(); 2].map(|()| taken(harness, &tested, 2));
        reset(harness, &charges(&[&tested], 1));
        assert_eq!(give_back(harness, &tested, 2, marks[0]), RefundOutcome::Dropped, "{algorithm}");
        assert_eq!(remaining(harness, &tested), 10, "{algorithm}");
        let after = taken(harness, &tested, 4);
        assert_eq!(give_back(harness, &tested, 2, marks[1]), RefundOutcome::Dropped, "{algorithm}");
        assert_eq!(remaining(harness, &tested), 6, "{algorithm}");
        assert_eq!(give_back(harness, &tested, 4, after), RefundOutcome::Refunded, "{algorithm}");
    }
}

/// Refusals, peeks, dry runs and charges that are not refundable have no marks.
pub fn only_taken_charges_have_marks<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (tested, other) = (TestLimit::long(algorithm, 2), TestLimit::long(algorithm, 9));
        assert_eq!(charge_all(harness, &charges(&[&tested], 1)).marks, None, "{algorithm}");
        let dry_run = Charges { dry_run: true, ..refundable(&tested, 1) };
        for charges in [dry_run, refundable(&tested, 0), refundable(&tested, 2)] {
            let marks = charge_all(harness, &charges).marks.into_iter().flat_map(|marks| marks.into_iter());
            assert_eq!(marks.flatten().count(), 0, "{algorithm}");
        }
        let mut both = charges(&[&other, &tested], 1);
        both.charges[1].refundable = true;
        let marks = charge_all(harness, &both).marks.unwrap_or_default();
        assert!(marks.len() == 2 && marks[0].is_none() && marks[1].is_some(), "{algorithm}: {marks:?}");
    }
}

/// Callers that charge and refund concurrently never use more than the limit, and nothing is refunded twice.
pub fn concurrent_refunds_never_over_admit<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let tested = TestLimit::long(algorithm, 20);
        // Admitted and not refunded.
        let caller = |caller: usize| {
            (0..20)
                .filter(|turn| match take(harness, &tested, 1) {
                    Some(mark) if !(turn + caller).is_multiple_of(3) => {
                        give_back(harness, &tested, 1, mark) != RefundOutcome::Refunded
                    }
                    mark => mark.is_some(),
                })
                .count()
        };
        let kept: usize = thread::scope(|scope| {
            let callers = [0, 1, 2, 3].map(|number| scope.spawn(move || caller(number)));
            callers.into_iter().map(|caller| caller.join().unwrap_or(usize::MAX)).sum()
        });
        assert!(kept <= 20, "{algorithm}: {kept} of 20");
        let left = usize::try_from(remaining(harness, &tested)).unwrap_or(usize::MAX);
        assert_eq!(left + kept, 20, "{algorithm}");
    }
}
