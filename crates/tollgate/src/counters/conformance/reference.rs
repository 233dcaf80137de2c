//! Comparison with the pure functions of the algorithms.

use super::Harness;
use super::fixture::{LONG, TestLimit, charge, settle, slack};
use crate::algorithms::sliding_window_log::Log;
use crate::algorithms::{self, CounterState, Outcome, Verdict};
use crate::limit::{Algorithm, Limit};
use crate::time::{Span, Timestamp};

/// A counter kept by the pure functions, with which a store is compared.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    state: Option<CounterState>,
    log: Log,
}

impl Reference {
    /// Evaluates a charge and takes it if it is admitted.
    pub fn charge(&mut self, limit: &Limit, cost: u32, now: Timestamp) -> Verdict {
        if limit.algorithm() == Algorithm::SlidingWindowLog {
            let verdict = self.log.evaluate(limit, cost, now);
            if verdict.admits() && cost > 0 {
                self.log.record(limit, cost, now);
            }
            return verdict;
        }
        let evaluation = algorithms::evaluate(limit, self.state, cost, now);
        self.state = evaluation.next.map(|next| next.state).or(self.state);
        evaluation.verdict
    }
}

pub(super) fn near(a: Span, b: Span, slack: Span) -> bool {
    a.as_micros().abs_diff(b.as_micros()) <= slack.as_micros()
}

/// Whether two verdicts are equal within the tolerance.
fn alike(actual: Verdict, expected: Verdict, slack: Span) -> bool {
    let near = |a, b| near(a, b, slack);
    let outcome = match (actual.outcome, expected.outcome) {
        (Outcome::Admit { delay: a }, Outcome::Admit { delay: b })
        | (Outcome::Refuse { retry_after: a }, Outcome::Refuse { retry_after: b }) => near(a, b),
        (Outcome::Never, Outcome::Never) => true,
        _ => false,
    };
    outcome && actual.remaining == expected.remaining && near(actual.reset_after, expected.reset_after)
}

/// The store decides what the algorithms decide, for any mixture of costs, instants and algorithms.
pub fn random_traces_equal_the_pure_functions<H: Harness>(harness: &H) {
    let drift = harness.drift();
    settle(harness, LONG);
    let mut seed = 1_u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for trace in 0..60 {
        let algorithm = Algorithm::ALL[trace % Algorithm::ALL.len()];
        let requests = u32::try_from(next(12) + 1).unwrap_or(1);
        let window = if drift.is_zero() { Span::from_micros((next(100) + 1) * 1_000) } else { LONG };
        let tested = TestLimit::new(algorithm, requests, window);
        let (mut reference, started) = (Reference::default(), harness.now());
        for step in 0..30 {
            if drift.is_zero() {
                harness.advance(Span::from_micros(next(3) * next(window.as_micros())));
            }
            let cost = u32::try_from(next(4)).unwrap_or(0);
            let expected = reference.charge(&tested.limit, cost, harness.now());
            let actual = charge(harness, &tested, cost);
            // Every verdict of a trace depends on its first charge, which may have been late.
            assert!(
                alike(actual, expected, slack(harness, started)),
                "step {step} of trace {trace}, {algorithm} {requests} per {window}, cost {cost}: {actual:?} \
                 instead of {expected:?}"
            );
        }
    }
}
