//! A limit is lowered: what was used stays used, however often the table is tidied and the process restarted.

use super::*;
use tollgate::rules::overrides::Override;

const MINUTE: Span = Span::from_secs(60);
const HOUR: Span = Span::from_secs(3_600);

/// `requests` per hour for each user, and whatever else.
fn rules(requests: u32, more: &str) -> RuleSet {
    let text = format!(
        "[[rules]]\nname = \"hourly\"\nper = \"user\"\nlimits = [{{ requests = {requests}, window = \"1h\" }}]\n{more}"
    );
    RuleSet::from_toml(&text).unwrap()
}

fn ask(limiter: &Limiter<MemoryCounters>, user: &str, now: Timestamp) -> Option<Span> {
    let user = Some(Id::parse(user).unwrap());
    let request = Request { user, ..Request::new(Endpoint::parse("/x").unwrap()) };
    let decision = limiter.check_now(&request, now);
    assert_eq!(decision.admits(), decision.retry_after().is_none());
    decision.retry_after()
}

/// A limiter at which alice has just used twenty of 3600 an hour: as good as new in twenty seconds.
fn used() -> Limiter<MemoryCounters> {
    let limiter = Limiter::new(rules(3_600, ""), MemoryCounters::default());
    (0..20).for_each(|_| assert_eq!(ask(&limiter, "alice", NOW), None));
    limiter
}

/// That alice is told to wait as long as a client whose counter nobody touched, and that it is true.
fn assert_waits(limiter: &Limiter<MemoryCounters>, now: Timestamp) {
    let wait = ask(limiter, "alice", now).expect("admitted though its limit is used up");
    assert_eq!(now + wait, NOW + Span::from_secs(1_800), "2 an hour: one is back after half of it");
    assert!(ask(limiter, "alice", now + wait - Span::from_micros(1)).is_some());
    assert_eq!(ask(limiter, "alice", now + wait), None);
}

#[test]
fn what_was_used_of_a_limit_that_is_lowered_outlives_a_sweep() {
    let limiter = used();
    limiter.replace_rules(rules(2, ""));
    limiter.counters().sweep(NOW + MINUTE);
    assert_waits(&limiter, NOW + MINUTE);
}

#[test]
fn what_was_used_of_a_limit_that_is_lowered_outlives_a_restart() {
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
fn what_was_used_of_a_limit_that_is_lowered_is_over_in_the_time_of_the_new_one() {
    let limiter = used();
    limiter.replace_rules(rules(2, ""));
    // Instants at which counters are restored are remembered rounded up.
    limiter.counters().sweep(NOW + HOUR + MINUTE + MINUTE);
    assert_eq!(limiter.counters().len(), 0);
}

#[test]
fn a_limit_that_goes_up_and_down_keeps_nothing_for_longer_than_it_takes() {
    let limiter = used();
    for _ in 0..50 {
        limiter.replace_rules(rules(2, ""));
        limiter.replace_rules(rules(3_600, ""));
    }
    limiter.counters().sweep(NOW + HOUR + MINUTE + MINUTE);
    assert_eq!(limiter.counters().len(), 0);
}

#[test]
fn a_change_that_lowers_nothing_keeps_nothing() {
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
fn numbers_of_a_single_user_that_are_lowered_keep_what_that_user_has_used() {
    let numbers = |requests| {
        let (user, endpoint) = (Id::parse("alice").unwrap(), Endpoint::parse("/x").unwrap());
        Override::new(user, &endpoint, limit(Algorithm::TokenBucket, requests, HOUR), NOW)
    };
    let limiter = Limiter::new(rules(3_600, ""), MemoryCounters::default());
    limiter.update_overrides(|all| all.with(numbers(3_600)));
    for user in ["alice", "bob"] {
        (0..20).for_each(|_| assert_eq!(ask(&limiter, user, NOW), None));
    }
    limiter.update_overrides(|all| all.with(numbers(2)));
    limiter.counters().sweep(NOW + MINUTE);
    assert_eq!(limiter.counters().len(), 1, "nobody else's");
    assert_waits(&limiter, NOW + MINUTE);
}
