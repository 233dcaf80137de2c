//! Cases that wait for a limit to be restored.

use super::Harness;
use super::fixture::{TestLimit, charge, in_time, limit, remaining, settle, short, try_in_time};
use crate::algorithms::{Outcome, Verdict};
use crate::limit::Algorithm;
use crate::time::Span;

/// After `reset_after` a limit is restored in full, and not beyond.
pub fn burst_returns_after_idle_window<H: Harness>(harness: &H) {
    let window = short(harness);
    let round = |algorithm| {
        let tested = TestLimit::new(algorithm, 3, window);
        settle(harness, window);
        let started = harness.now();
        let verdicts = [(); 4].map(|()| charge(harness, &tested, 1));
        in_time(harness, started, window)?;
        let Verdict { outcome: Outcome::Admit { .. }, remaining: 0, reset_after } = verdicts[2] else {
            panic!("{algorithm}: {verdicts:?}");
        };
        assert!(!verdicts[3].admits(), "{algorithm}");
        harness.advance(reset_after);
        settle(harness, window);
        let started = harness.now();
        assert_eq!(remaining(harness, &tested), 3, "{algorithm}");
        assert!(charge(harness, &tested, 3).admits(), "{algorithm}");
        let fourth = charge(harness, &tested, 1);
        in_time(harness, started, window)?;
        assert!(!fourth.admits(), "{algorithm}: a fourth request");
        Some(())
    };
    for algorithm in Algorithm::ALL {
        try_in_time(algorithm, || round(algorithm));
    }
}

/// A refused client that waits exactly `retry_after` is admitted, and not before.
pub fn waiting_for_retry_after_is_enough<H: Harness>(harness: &H) {
    let window = short(harness);
    let round = |algorithm| {
        let tested = TestLimit::new(algorithm, 3, window);
        settle(harness, window);
        let started = harness.now();
        assert!(charge(harness, &tested, 3).admits());
        let outcome = charge(harness, &tested, 2).outcome;
        in_time(harness, started, window)?;
        let Outcome::Refuse { retry_after } = outcome else { panic!("{algorithm}: {outcome:?}") };
        if harness.drift().is_zero() {
            harness.advance(Span::from_micros(retry_after.as_micros() - 1));
            assert!(!charge(harness, &tested, 2).admits(), "{algorithm}: too early");
            harness.advance(Span::from_micros(1));
        } else {
            harness.advance(retry_after);
        }
        assert!(charge(harness, &tested, 2).admits(), "{algorithm}");
        Some(())
    };
    for algorithm in Algorithm::ALL {
        try_in_time(algorithm, || round(algorithm));
    }
}

/// Callers of one counter may hold different limits while a change reaches them. What the lower one cannot see is not
/// forgiven.
pub fn callers_with_different_limits_get_the_largest<H: Harness>(harness: &H) {
    let window = short(harness);
    for algorithm in Algorithm::ALL {
        let high = TestLimit::new(algorithm, 300, window);
        let low = TestLimit { limit: limit(algorithm, 200, window), ..high };
        let (started, mut admitted) = (harness.now(), 0_u64);
        for _ in 0..20 {
            admitted += u64::from(charge(harness, &low, 1).admits());
            while charge(harness, &high, 1).admits() {
                admitted += 1;
            }
            harness.advance(Span::from_micros(window.as_micros() / 50));
        }
        let elapsed = (harness.now().since(started) + harness.drift()).as_micros();
        let possible = 300
            + if algorithm.has_burst() {
                300 * elapsed / window.as_micros() + 1
            } else {
                // A run that lasts for less than a window touches two of them.
                300 * (elapsed / window.as_micros() + 1)
            };
        assert!(admitted <= possible, "{algorithm}: {admitted} instead of {possible}");
        assert!(admitted >= 300, "{algorithm}: {admitted}");
    }
}
