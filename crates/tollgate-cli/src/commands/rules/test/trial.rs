//! One test, tried out.

use std::sync::Arc;

use tollgate::headers::retry_after_secs;
use tollgate::{Answer, Decision, Limiter, MemoryCounters, RuleSet};

use super::examples::{Example, Step};

/// What became of a test.
pub(super) struct Trial<'a> {
    pub(super) example: &'a Example,
    /// How many requests were made.
    pub(super) requests: usize,
    pub(super) mismatches: Vec<Mismatch>,
}

/// An expectation that was not met.
pub(super) struct Mismatch {
    /// Counted from one.
    pub(super) step: usize,
    pub(super) line: usize,
    /// Which repetition of how many, where there are several.
    pub(super) request: Option<(u32, u32)>,
    pub(super) key: &'static str,
    pub(super) expected: String,
    pub(super) actual: String,
}

impl Trial<'_> {
    pub(super) fn passed(&self) -> bool {
        self.mismatches.is_empty()
    }
}

/// Tries a test with fresh counters. It goes on after a mismatch: every mismatch is reported.
pub(super) fn try_out<'a>(rules: &RuleSet, example: &'a Example) -> Trial<'a> {
    let rules = rules.with_overrides(Arc::clone(rules.overrides()));
    let limiter = Limiter::new(rules, MemoryCounters::default());
    let mut trial = Trial { example, requests: 0, mismatches: Vec::new() };
    let mut now = example.start;
    for (number, step) in (1..).zip(&example.steps) {
        let descriptors = step.facts.descriptors();
        let request = step.facts.request(&step.endpoint, &descriptors);
        let mut missed = Vec::new();
        for repetition in 1..=step.repeat {
            now = now + if repetition == 1 { step.after } else { step.every };
            let decision = limiter.check_now(&request, now);
            trial.requests += 1;
            // The first repetition that goes wrong tells enough: those after it mostly go wrong alike.
            if missed.is_empty() {
                missed = compare(number, step, repetition, &decision);
            }
        }
        trial.mismatches.append(&mut missed);
    }
    trial
}

fn compare(number: usize, step: &Step, repetition: u32, decision: &Decision) -> Vec<Mismatch> {
    let last = repetition == step.repeat;
    let due = |key: &str| last || !matches!(key, "remaining" | "retry_after" | "delay");
    let mismatch = |(key, expected): &(&'static str, String)| {
        let actual = actual(key, decision);
        let request = (step.repeat > 1).then_some((repetition, step.repeat));
        let expected = expected.clone();
        (due(key) && actual != expected).then_some(Mismatch {
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

/// What a decision says to one key of `expect`, told as the expectation is.
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
