//! A limiter snapshot: one rule set for everything that a request needs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tollgate::counters::conformance::block_on;
use tollgate::{
    Algorithm, Endpoint, Id, LimitError, LimitOverride, Limiter, MemoryCounters, Request, RuleSet, Span,
    Timestamp,
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn rules(requests: u32) -> RuleSet {
    RuleSet::from_toml(&format!("default_limit = {requests}\ndefault_window = 60")).unwrap()
}

fn request() -> Request<'static> {
    Request { user: Some(Id::parse("alice").unwrap()), ..Request::new(Endpoint::parse("/x").unwrap()) }
}

#[test]
fn snapshot_keeps_its_rules_while_they_are_replaced() {
    let limiter = Limiter::new(rules(1), MemoryCounters::default());
    let before = limiter.snapshot();
    limiter.replace_rules(rules(100));
    let limit = |snapshot: &tollgate::LimiterSnapshot<'_, _, _>| {
        let decisions = [
            block_on(snapshot.check(&request(), NOW)),
            block_on(snapshot.peek(&request(), NOW)),
            block_on(snapshot.explain(&request(), NOW)).decision,
        ];
        decisions.map(|decision| decision.binding().unwrap().requests)
    };
    assert_eq!(limit(&before), [1; 3]);
    assert_eq!(limit(&limiter.snapshot()), [100; 3]);
}

#[test]
fn snapshot_and_limiter_share_their_counters() {
    let limiter = Limiter::new(rules(2), MemoryCounters::default());
    let snapshot = limiter.snapshot();
    assert!(block_on(snapshot.check(&request(), NOW)).admits());
    assert!(limiter.check_now(&request(), NOW).admits());
    assert!(!block_on(snapshot.check(&request(), NOW)).admits());
    assert_eq!(block_on(snapshot.reset(&request())).unwrap().counters, 1);
    assert!(limiter.check_now(&request(), NOW).admits());
}

#[test]
fn override_is_completed_from_the_limit_in_force() {
    let rules = rules(7);
    let complete = |sent: LimitOverride| rules.complete_override(&request(), &sent);
    assert_eq!(complete(LimitOverride::default()), Ok(None));
    let sent = LimitOverride { window: Some(Span::from_secs(5)), ..LimitOverride::default() };
    let limit = complete(sent).unwrap().unwrap();
    assert_eq!((limit.requests(), limit.window_length()), (7, Span::from_secs(5)));
    let sent = LimitOverride {
        algorithm: Some(Algorithm::SlidingWindowLog),
        requests: Some(10_001),
        ..LimitOverride::default()
    };
    assert_eq!(complete(sent), Err(LimitError::LogTooLong));
}
