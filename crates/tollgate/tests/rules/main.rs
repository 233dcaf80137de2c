//! Which limits apply: evaluation, index, short forms, overrides and normalization.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod claimed_clients;
mod evaluation;
mod flat_names;
mod normalization;
mod override_changes;
mod overrides;
mod short_forms;
mod tenants;

use tollgate::counters::conformance::block_on;
use tollgate::decision::{Answer, Decision};
use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

fn limiter(toml: &str) -> Limiter<MemoryCounters> {
    let rules = RuleSet::from_toml(toml).unwrap_or_else(|problems| panic!("{problems}\n{toml}"));
    Limiter::new(rules, MemoryCounters::default())
}

fn id(text: &str) -> Option<Id<'_>> {
    Id::parse(text).ok()
}

fn request<'a>(path: &'a str, user: &'a str) -> Request<'a> {
    Request { user: id(user), ..Request::new(Endpoint::parse(path).unwrap()) }
}

/// The rules whose limits were charged, in order.
fn asked(decision: &Decision) -> Vec<&str> {
    decision.reports.iter().map(|report| decision.rule_name_of(report)).collect()
}

fn admitted(limiter: &Limiter<MemoryCounters>, request: &Request<'_>) -> usize {
    (0..100).take_while(|_| limiter.check_now(request, NOW).admits()).count()
}

/// The decision of a dry run. The index and the full evaluation must agree.
fn look(limiter: &Limiter<MemoryCounters>, request: &Request<'_>) -> Decision {
    let peeked = block_on(limiter.snapshot().peek(request, NOW));
    let explained = block_on(limiter.snapshot().explain(request, NOW)).decision;
    assert_eq!((peeked.answer, &peeked.reports), (explained.answer, &explained.reports));
    assert_eq!(peeked.rule_name(), explained.rule_name());
    peeked
}

fn blocks(limiter: &Limiter<MemoryCounters>, request: &Request<'_>) -> bool {
    look(limiter, request).answer == Answer::Block
}
