//! Cases of resets.

use super::Harness;
use super::fixture::{LONG, TestLimit, charge, charges, remaining, settle};
use super::penalties::{TestClient, strict};
use crate::counters::{Charges, CounterAdmin};
use crate::limit::Algorithm;

pub(super) fn reset<H: Harness>(harness: &H, charges: &Charges<'_>) -> usize {
    match harness.block_on(harness.store().reset(charges)) {
        Ok(count) => count,
        Err(error) => panic!("the reset failed: {error}"),
    }
}

/// A reset clears the counters and the penalty record of a client.
pub fn reset_restores_the_full_limit<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let policy = strict(LONG);
    for algorithm in Algorithm::ALL {
        let (tested, untouched, client) =
            (TestLimit::long(algorithm, 2), TestLimit::long(algorithm, 2), TestClient::new());
        assert!(charge(harness, &tested, 2).admits());
        assert!(!client.charge(harness, &tested, &policy).verdicts[0].admits());
        assert!(client.record(harness).is_some());
        let all = Charges { penalty: Some(client.penalty(&policy)), ..charges(&[&tested, &untouched], 1) };
        assert_eq!(reset(harness, &all), 1, "{algorithm}: one of two held something");
        assert_eq!(remaining(harness, &tested), 2, "{algorithm}");
        assert_eq!(client.record(harness), None, "{algorithm}");
        assert!(client.charge(harness, &tested, &policy).verdicts[0].admits(), "{algorithm}");
    }
}

/// A reset clears only the counters that it names.
pub fn reset_spares_other_subjects<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let mine = TestLimit::long(algorithm, 2);
        let theirs = TestLimit { counter: mine.counter, ..TestLimit::long(algorithm, 2) };
        assert!(charge(harness, &mine, 2).admits() && charge(harness, &theirs, 2).admits());
        reset(harness, &charges(&[&mine], 1));
        assert_eq!((remaining(harness, &mine), remaining(harness, &theirs)), (2, 0), "{algorithm}");
    }
}
