//! Runs one test.

use std::sync::Arc;

use tollgate::headers::retry_after_secs;
use tollgate::{Answer, Decision, Limiter, MemoryCounters, RuleSet};

use super::cases::{TestCase, TestStep};

/// The result of a test.
pub(super) struct TestResult<'a> {
    pub(super) case: &'a TestCase,
    pub(super) requests: usize,
    pub(super) mismatches: Vec<Mismatch>,
}

/// An expectation that failed.
pub(super) struct Mismatch {
    /// Starting at 1.
    pub(super) step: usize,
    pub(super) line: usize,
    /// The repetition and their number, if the step repeats.
    pub(super) request: Option<(u32, u32)>,
    pub(super) key: &'static str,
    pub(super) expected: String,
    pub(super) actual: String,
}

impl TestResult<'_> {
    pub(super) fn passed(&self) -> bool {
        self.mismatches.is_empty()
    }
}

/// Runs a test with fresh counters. It continues after a mismatch, so that all are reported.
pub(super) fn run_test<'a>(rules: &RuleSet, case: &'a TestCase) -> TestResult<'a> {
    let rules = rules.with_overrides(Arc::clone(rules.overrides()));
    let limiter = Limiter::new(rules, MemoryCounters::default());
    let mut result = TestResult { case, requests: 0, mismatches: Vec::new() };
    let mut now = case.start;
    for (number, step) in (1..).zip(&case.steps) {
        let descriptors = step.request.descriptors();
        let request = step.request.to_request(&step.endpoint, &descriptors);
        let mut failed = Vec::new();
        for repetition in 1..=step.repeat {
            now = now + if repetition == 1 { step.after } else { step.every };
            let decision = limiter.check_now(&request, now);
            result.requests += 1;
            // Only the first failing repetition is reported; the later ones usually fail the same way.
            if failed.is_empty() {
                failed = compare(number, step, repetition, &decision);
            }
        }
        result.mismatches.append(&mut failed);
    }
    result
}

fn compare(number: usize, step: &TestStep, repetition: u32, decision: &Decision) -> Vec<Mismatch> {
    let last = repetition == step.repeat;
    let applies = |key: &str| last || !matches!(key, "remaining" | "retry_after" | "delay");
    let mismatch = |(key, expected): &(&'static str, String)| {
        let actual = actual(key, decision);
        let request = (step.repeat > 1).then_some((repetition, step.repeat));
        let expected = expected.clone();
        (applies(key) && actual != expected).then_some(Mismatch {
            step: number,
            line: step.line,
            request,
            key,
            expected,
            actual,
        })
    };
    step.expect.iter().filter_map(mismatch).collect()
}

/// The value of a decision for a key of `expect`, in the same notation.
fn actual(key: &str, decision: &Decision) -> String {
    let none = || "none".to_owned();
    match (key, decision.answer) {
        ("allowed", _) => decision.admits().to_string(),
        ("decision", Answer::Admit { .. }) => "admitted".to_owned(),
        ("decision", Answer::Block) => "blocked".to_owned(),
        ("decision", _) => "refused".to_owned(),
        ("reason", Answer::Refuse { reason, .. }) => reason.as_str().to_owned(),
        ("rule", _) => decision.rule_name().map_or_else(none, |rule| format!("{rule:?}")),
        ("limit", _) => decision.binding().map_or_else(none, |report| report.requests.to_string()),
        ("remaining", _) => decision.binding().map_or_else(none, |report| report.remaining().to_string()),
        ("retry_after", Answer::Refuse { retry_after: None, .. }) => "never".to_owned(),
        ("retry_after", Answer::Refuse { retry_after: Some(wait), .. }) => retry_after_secs(wait).to_string(),
        ("delay", Answer::Admit { delay }) => delay.to_string(),
        _ => none(),
    }
}
