//! Consumption survives sweeps and restarts after a limit was lowered.

use super::*;
use tollgate::rules::overrides::Override;

const MINUTE: Span = Span::from_secs(60);
const HOUR: Span = Span::from_secs(3_600);

/// `requests` per hour and user, and more rules.
fn rules(requests: u32, more: &str) -> RuleSet {
    let text = format!(
        "[[rules]]\nname = \"hourly\"\nper = \"user\"\nlimits = [{{ requests = {requests}, window = \"1h\" }}]\n{more}"
    );
    RuleSet::from_toml(&text).unwrap()
}

fn check(limiter: &Limiter<MemoryCounters>, user: &str, now: Timestamp) -> Option<Span> {
    let user = Some(Id::parse(user).unwrap());
    let request = Request { user, ..Request::new(Endpoint::parse("/x").unwrap()) };
    let decision = limiter.check_now(&request, now);
    assert_eq!(decision.admits(), decision.retry_after().is_none());
    decision.retry_after()
}

/// A limiter at which alice has just used 20 of 3600 per hour, which are restored in twenty seconds.
fn used() -> Limiter<MemoryCounters> {
    let limiter = Limiter::new(rules(3_600, ""), MemoryCounters::default());
    (0..20).for_each(|_| assert_eq!(check(&limiter, "alice", NOW), None));
    limiter
}

/// Asserts that alice waits as long as if nothing had been swept.
fn assert_waits(limiter: &Limiter<MemoryCounters>, now: Timestamp) {
    let wait = check(limiter, "alice", now).expect("refused");
    assert_eq!(now + wait, NOW + Span::from_secs(1_800), "2 per hour: one is restored after half an hour");
    assert!(check(limiter, "alice", now + wait - Span::from_micros(1)).is_some());
    assert_eq!(check(limiter, "alice", now + wait), None);
}

#[test]
fn consumption_of_a_lowered_limit_survives_a_sweep() {
    let limiter = used();
    limiter.replace_rules(rules(2, ""));
    limiter.counters().sweep(NOW + MINUTE);
    assert_waits(&limiter, NOW + MINUTE);
}

#[test]
fn consumption_of_a_lowered_limit_survives_a_restart() {
    let limiter = used();
    limiter.replace_rules(rules(2, ""));
    let mut saved = Vec::new();
    limiter.counters().save(limiter.seed(), NOW + MINUTE, &mut saved).unwrap();
    let counters = MemoryCounters::default();
    let seed = counters.restore(saved.as_slice()).unwrap();
    let restarted = Limiter::with_records(rules(2, ""), counters, NoRecords, seed);
    restarted.counters().sweep(NOW + MINUTE);
    assert_waits(&restarted, NOW + MINUTE);
}

#[test]
fn retention_of_a_lowered_limit_is_bounded() {
    let limiter = used();
    limiter.replace_rules(rules(2, ""));
    // Retention is stored rounded up.
    limiter.counters().sweep(NOW + HOUR + MINUTE + MINUTE);
    assert_eq!(limiter.counters().len(), 0);
}

#[test]
fn repeated_changes_do_not_extend_retention_further() {
    let limiter = used();
    for _ in 0..50 {
        limiter.replace_rules(rules(2, ""));
        limiter.replace_rules(rules(3_600, ""));
    }
    limiter.counters().sweep(NOW + HOUR + MINUTE + MINUTE);
    assert_eq!(limiter.counters().len(), 0);
}

#[test]
fn unchanged_or_raised_limits_extend_no_retention() {
    let other = "[[rules]]\nname = \"other\"\nper = \"ip\"\nlimits = [{ requests = 1, window = \"1h\" }]\n";
    for changed in [rules(3_600, other), rules(7_200, "")] {
        let limiter = used();
        limiter.replace_rules(changed);
        limiter.update_accounts(Clone::clone);
        limiter.counters().sweep(NOW + Span::from_secs(21));
        assert_eq!(limiter.counters().len(), 0);
    }
}

#[test]
fn lowered_override_keeps_the_users_consumption() {
    let lowered = |requests| {
        let (user, endpoint) = (Id::parse("alice").unwrap(), Endpoint::parse("/x").unwrap());
        Override::new(user, &endpoint, limit(Algorithm::TokenBucket, requests, HOUR), NOW)
    };
    let limiter = Limiter::new(rules(3_600, ""), MemoryCounters::default());
    limiter.update_overrides(|all| all.with(lowered(3_600)));
    for user in ["alice", "bob"] {
        (0..20).for_each(|_| assert_eq!(check(&limiter, user, NOW), None));
    }
    limiter.update_overrides(|all| all.with(lowered(2)));
    limiter.counters().sweep(NOW + MINUTE);
    assert_eq!(limiter.counters().len(), 1, "only that user's");
    assert_waits(&limiter, NOW + MINUTE);
}
