//! What the cases share.

use smallvec::SmallVec;

use super::Harness;
use crate::algorithms::Verdict;
use crate::counters::{Charge, Charges, CounterId, CounterStore, Effect, Verdicts};
use crate::identity::{Seed, Subject};
use crate::limit::{Algorithm, Limit, Window};
use crate::time::{Span, Timestamp};

/// A window in which nothing is restored while a case runs.
pub(super) const LONG: Span = Span::from_secs(86_400);

/// One limit of one subject.
pub(super) struct TestLimit {
    pub(super) limit: Limit,
    pub(super) subject: Subject,
    pub(super) counter: CounterId,
    pub(super) rule: &'static str,
    pub(super) effect: Effect,
}

impl TestLimit {
    pub(super) fn new(algorithm: Algorithm, requests: u32, window: Span) -> Self {
        let limit = limit(algorithm, requests, window);
        let (subject, counter) = (Subject(random()), CounterId(random()));
        TestLimit { limit, subject, counter, rule: "conformance", effect: Effect::Enforce }
    }

    pub(super) fn long(algorithm: Algorithm, requests: u32) -> Self {
        TestLimit::new(algorithm, requests, LONG)
    }

    pub(super) fn shadow(self) -> Self {
        TestLimit { effect: Effect::Shadow, ..self }
    }

    pub(super) fn charge(&self, cost: u32) -> Charge<'_> {
        let TestLimit { limit, subject, counter, rule, effect } = self;
        Charge {
            subject: *subject,
            counter: *counter,
            rule,
            limit,
            cost,
            effect: *effect,
            leases: true,
            refundable: false,
        }
    }
}

pub(super) fn limit(algorithm: Algorithm, requests: u32, window: Span) -> Limit {
    match Limit::new(algorithm, requests, Window::Length(window)) {
        Ok(limit) => limit,
        Err(error) => panic!("{error}"),
    }
}

pub(super) fn random() -> u128 {
    u128::from_le_bytes(Seed::random().0)
}

/// The charges of one request.
pub(super) fn charges<'a>(limits: &[&'a TestLimit], cost: u32) -> Charges<'a> {
    let charges: SmallVec<[Charge<'a>; 4]> = limits.iter().map(|tested| tested.charge(cost)).collect();
    Charges { charges, ..Charges::default() }
}

pub(super) fn charge_all<H: Harness>(harness: &H, charges: &Charges<'_>) -> Verdicts {
    match harness.block_on(harness.store().charge_all(charges, harness.now())) {
        Ok(verdicts) => verdicts,
        Err(error) => panic!("the store returned no verdicts: {error}"),
    }
}

pub(super) fn charge<H: Harness>(harness: &H, tested: &TestLimit, cost: u32) -> Verdict {
    charge_all(harness, &charges(&[tested], cost)).verdicts[0]
}

pub(super) fn remaining<H: Harness>(harness: &H, tested: &TestLimit) -> u32 {
    charge(harness, tested, 0).remaining
}

pub(super) fn admits_all<H: Harness>(harness: &H, limits: &[&TestLimit], cost: u32) -> bool {
    let charges = charges(limits, cost);
    charge_all(harness, &charges).admitted(&charges)
}

/// A window that a case can wait for.
pub(super) fn short<H: Harness>(harness: &H) -> Span {
    if harness.drift().is_zero() { Span::from_secs(60) } else { Span::from_secs(2) }
}

/// The longest duration of a case on a slow machine.
pub(super) const CASE_MAX: Span = Span::from_secs(30);

/// Waits for the next aligned window if the current one could end in the middle of a case.
pub(super) fn settle<H: Harness>(harness: &H, window: Span) {
    if harness.drift().is_zero() {
        return;
    }
    let gone = harness.now().as_micros() % window.as_micros();
    let left = window.as_micros() - gone;
    if left <= (window.as_micros() / 2).min(CASE_MAX.as_micros()) {
        harness.advance(Span::from_micros(left));
    }
}

/// The tolerance for durations measured from `since`: the store's drift and the time that has passed since.
pub(super) fn slack<H: Harness>(harness: &H, since: Timestamp) -> Span {
    let drift = harness.drift();
    if drift.is_zero() { drift } else { drift + harness.now().since(since) }
}

/// How often a round is retried on a slow machine.
pub(super) const TRIES: usize = 5;

/// Repeats a round until it completes before its limits restore anything: a slower round proves nothing.
pub(super) fn try_in_time(algorithm: Algorithm, round: impl Fn() -> Option<()>) {
    assert!((0..TRIES).any(|_| round().is_some()), "{algorithm}: the machine is too slow for any round");
}

/// `Some` if a limit with this window cannot have restored anything since.
pub(super) fn in_time<H: Harness>(harness: &H, since: Timestamp, window: Span) -> Option<()> {
    (harness.now().since(since).as_micros() < window.as_micros() / 4).then_some(())
}
