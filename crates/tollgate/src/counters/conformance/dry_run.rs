//! Cases in which nothing is charged.

use super::Harness;
use super::fixture::{LONG, TestLimit, admits_all, charge, charge_all, charges, remaining, settle, slack};
use super::penalties::TestClient;
use super::reference::near;
use crate::counters::Charges;
use crate::limit::Algorithm;
use crate::penalties::PenaltyPolicy;

/// A cost of zero reads whether a cost of one would be admitted, and charges nothing.
pub fn peek_changes_nothing<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let tested = TestLimit::long(algorithm, 2);
        for left in [2, 1, 0] {
            for _ in 0..3 {
                let peek = charge(harness, &tested, 0);
                assert_eq!((peek.remaining, peek.admits()), (left, left > 0), "{algorithm}");
            }
            assert_eq!(charge(harness, &tested, 1).admits(), left > 0, "{algorithm}");
        }
    }
}

/// A dry run returns verdicts, charges nothing and counts no violation.
pub fn dry_run_changes_nothing<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
    for algorithm in Algorithm::ALL {
        let (tested, client) = (TestLimit::long(algorithm, 2), TestClient::new());
        let dry = |cost| Charges {
            dry_run: true,
            penalty: Some(client.penalty(&policy)),
            ..charges(&[&tested], cost)
        };
        for _ in 0..3 {
            let verdict = charge_all(harness, &dry(2)).verdicts[0];
            assert_eq!((verdict.admits(), verdict.remaining), (true, 2), "{algorithm}");
        }
        assert!(charge(harness, &tested, 2).admits(), "{algorithm}");
        for _ in 0..3 {
            let verdicts = charge_all(harness, &dry(1));
            assert!(verdicts.cooldown.is_none() && !verdicts.verdicts[0].admits(), "{algorithm}");
        }
    }
}

/// In a dry run, or when another limit refuses, a verdict reports the counter as it stands.
pub fn uncharged_limit_reports_its_current_state<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (tested, closed) = (TestLimit::long(algorithm, 5), TestLimit::long(algorithm, 0));
        for used in 0..3 {
            let started = harness.now();
            let peeked = charge(harness, &tested, 0);
            assert_eq!(
                (peeked.remaining, peeked.reset_after.is_zero()),
                (5 - used, used == 0),
                "{algorithm}"
            );
            for cost in [1, 2] {
                let dry =
                    charge_all(harness, &Charges { dry_run: true, ..charges(&[&tested], cost) }).verdicts[0];
                let refused = charge_all(harness, &charges(&[&tested, &closed], 1)).verdicts[0];
                let slack = slack(harness, started);
                for verdict in [dry, refused] {
                    let same = verdict.remaining == peeked.remaining
                        && near(verdict.reset_after, peeked.reset_after, slack);
                    assert!(
                        verdict.admits() && same,
                        "{algorithm}, {used} used: {verdict:?}, peeked: {peeked:?}"
                    );
                }
            }
            assert!(charge(harness, &tested, 1).admits(), "{algorithm}");
        }
    }
}

/// A shadow limit reports its refusal and does not refuse the request.
pub fn shadow_refusal_does_not_refuse<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (enforced, shadow) = (TestLimit::long(algorithm, 3), TestLimit::long(algorithm, 1).shadow());
        for admitted_by_shadow in [true, false, false] {
            let both = charges(&[&shadow, &enforced], 1);
            let verdicts = charge_all(harness, &both);
            assert!(verdicts.admitted(&both), "{algorithm}");
            assert_eq!(verdicts.verdicts[0].admits(), admitted_by_shadow, "{algorithm}");
        }
        assert_eq!((remaining(harness, &enforced), remaining(harness, &shadow)), (0, 0), "{algorithm}");
    }
}

/// A refused request does not count for a shadow limit.
pub fn shadow_limit_is_charged_only_on_admission<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (enforced, shadow) = (TestLimit::long(algorithm, 1), TestLimit::long(algorithm, 5).shadow());
        assert!(admits_all(harness, &[&enforced, &shadow], 1));
        assert!(!admits_all(harness, &[&enforced, &shadow], 1), "{algorithm}");
        assert_eq!(remaining(harness, &shadow), 4, "{algorithm}");
    }
}
