//! An explanation agrees with peek, with a check of cost zero, and with the next check.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tollgate::counters::conformance::block_on;
use tollgate::decision::{Answer, LimitReport, Refusal};
use tollgate::{
    Algorithm, Decision, Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Span, Timestamp,
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn limiter(rules: &str) -> Limiter<MemoryCounters> {
    Limiter::new(RuleSet::from_toml(rules).unwrap(), MemoryCounters::default())
}

fn request(cost: u32) -> Request<'static> {
    let user = Some(Id::parse("alice").unwrap());
    Request { user, cost, ..Request::new(Endpoint::parse("/").unwrap()) }
}

fn remaining_and_reset(decision: &Decision) -> (u32, Span) {
    let report = decision.binding().unwrap();
    (report.remaining(), report.verdict.reset_after)
}

#[test]
fn explain_peek_and_cost_zero_agree() {
    for algorithm in Algorithm::ALL {
        let rule = format!(
            "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"{algorithm}\"\n\
             limits = [{{ requests = 5, window = \"1h\" }}]"
        );
        let limiter = limiter(&rule);
        for used in 0..5 {
            let expected = remaining_and_reset(&limiter.check_now(&request(0), NOW));
            assert_eq!((expected.0, expected.1.is_zero()), (5 - used, used == 0), "{algorithm}");
            for cost in [0, 1, 9] {
                let peeked = block_on(limiter.snapshot().peek(&request(cost), NOW));
                let explained = block_on(limiter.snapshot().explain(&request(cost), NOW));
                assert_eq!(remaining_and_reset(&peeked), expected, "{algorithm}, cost {cost}, {used} used");
                assert_eq!(
                    remaining_and_reset(&explained.decision),
                    expected,
                    "{algorithm}, cost {cost}, {used} used"
                );
            }
            assert!(limiter.check_now(&request(1), NOW).admits());
        }
    }
}

#[test]
fn refusal_reports_other_limits_as_they_stand() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "r"
        per = ["user"]
        limits = [{ requests = 2, window = "1m" }, { requests = 10, window = "1h" }]
    "#,
    );
    let admitted = limiter.check_now(&request(2), NOW);
    let refused = limiter.check_now(&request(1), NOW);
    assert!(admitted.admits() && !refused.admits());
    let hour =
        |decision: &Decision| (decision.reports[1].remaining(), decision.reports[1].verdict.reset_after);
    assert_eq!(hour(&admitted), (8, Span::from_secs(720)));
    assert_eq!(hour(&refused), hour(&admitted));
}

#[test]
fn counters_are_reported_during_a_cooldown() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "slow"
        per = ["user"]
        layer = "slow"
        response = { retry_after_floor = "10m" }
        limits = [{ requests = 2, window = "10s" }]
        [[rules]]
        name = "wide"
        per = ["user"]
        layer = "wide"
        limits = [{ requests = 9, window = "1h" }]
        [progressive_penalties]
        enabled = true
        violation_threshold = 1
        base_cooldown = "1m"
    "#,
    );
    assert!(limiter.check_now(&request(2), NOW).admits());
    assert!(!limiter.check_now(&request(1), NOW).admits());
    let later = NOW + Span::from_secs(5);
    let explained = block_on(limiter.snapshot().explain(&request(1), later));
    assert!(matches!(explained.decision.answer, Answer::Refuse { reason: Refusal::Cooldown, .. }));
    assert_eq!(
        explained.cooldown_until(),
        Some(NOW + Span::from_secs(60)),
        "regardless of retry_after_floor"
    );
    let seen =
        |report: &LimitReport| (report.remaining(), report.verdict.reset_after, report.verdict.admits());
    let seen: Vec<_> = explained.reports().iter().map(seen).collect();
    assert_eq!(seen, [(1, Span::from_secs(5), true), (7, Span::from_secs(795), true)]);
    let asked = request(1);
    for rule in explained.rules(&asked) {
        assert!(rule.matched && rule.reports.len() == 1, "{rule:?}");
        assert!(rule.reason.contains("in cooldown"), "{}", rule.reason);
    }
    let ended = block_on(limiter.snapshot().explain(&request(1), NOW + Span::from_secs(60)));
    assert_eq!((ended.cooldown_until(), ended.decision.admits()), (None, true));
    assert_eq!(ended.reports().len(), 2);
    assert!(ended.rules(&asked).iter().all(|rule| rule.reason == "matches: its limits apply"));
}

#[test]
fn next_allowed_at_ignores_retry_after_floor() {
    let rule = r#"
        [[rules]]
        name = "r"
        per = ["user"]
        limits = [{ requests = 1, window = "1m" }]
        response = { retry_after_floor = "1h" }
    "#;
    let penalties =
        "[progressive_penalties]\nenabled = true\nviolation_threshold = 1\nbase_cooldown = \"10m\"";
    for (rules, wait) in [(rule.to_owned(), 60), (format!("{rule}\n{penalties}"), 600)] {
        let limiter = limiter(&rules);
        assert!(limiter.check_now(&request(1), NOW).admits());
        assert!(!limiter.check_now(&request(1), NOW).admits());
        let explained = block_on(limiter.snapshot().explain(&request(1), NOW));
        assert_eq!(explained.decision.retry_after(), Some(Span::from_secs(3_600)));
        let next = explained.next_allowed_at().unwrap();
        assert_eq!(next, NOW + Span::from_secs(wait));
        assert!(!limiter.check_now(&request(1), next - Span::from_micros(1)).admits());
        assert!(limiter.check_now(&request(1), next).admits());
    }
}

#[test]
fn cost_above_the_capacity_is_explained() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "bucket"
        per = ["user"]
        cost = 3
        limits = [{ requests = 60, window = "1m", burst = 20 }]
        [[rules]]
        name = "shadow"
        per = ["user"]
        action = "log_only"
        algorithm = "fixed_window"
        limits = [{ requests = 6, window = "1h" }]
    "#,
    );
    let reasons = |cost: u32| -> Vec<String> {
        let explained = block_on(limiter.snapshot().explain(&request(cost), NOW));
        explained.rules(&request(cost)).into_iter().map(|rule| rule.reason).collect()
    };
    assert_eq!(
        reasons(7),
        [
            "matches, and refuses: the cost 21 exceeds the 20 that 60 per 1m admits at once, so the request can never pass",
            "matches, and would refuse: the cost 7 exceeds the 6 that 6 per 1h admits, so the request can never pass",
        ]
    );
    assert_eq!(reasons(6), ["matches: its limits apply"; 2]);
}
