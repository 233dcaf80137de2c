//! Overrides of user and endpoint and of single checks, and concurrent rule changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tollgate::counters::conformance::block_on;
use tollgate::rules::overrides::Override;
use tollgate::{Algorithm, Endpoint, Id, Limit, Limiter, MemoryCounters, Request, RuleSet, Span, Window};

use crate::{NOW, admitted, asked, limiter, look, request};

const RULES: &str = "default_limit = 10\ndefault_window = 60";

fn minute(requests: u32) -> Limit {
    Limit::new(Algorithm::TokenBucket, requests, Window::Length(Span::from_secs(60))).unwrap()
}

fn limit_for(user: &str, path: &str, requests: u32) -> Override {
    Override::new(Id::parse(user).unwrap(), &Endpoint::parse(path).unwrap(), minute(requests), NOW)
}

fn set(limiter: &Limiter<MemoryCounters>, path: &str, requests: u32) {
    let agreed = async { Ok::<(), ()>(()) };
    let new = limit_for("alice", path, requests);
    block_on(limiter.change_override(&request(path, "alice"), NOW, agreed, |all| all.with(new.clone())))
        .unwrap();
}

#[test]
fn override_applies_to_its_user_and_endpoint_only() {
    let limiter = limiter(RULES);
    set(&limiter, "/search", 3);
    assert_eq!(admitted(&limiter, &request("/search", "alice")), 3);
    assert_eq!(admitted(&limiter, &request("/other", "alice")), 10);
    assert_eq!(admitted(&limiter, &request("/search", "bob")), 10);
}

#[test]
fn new_override_is_no_second_allowance() {
    let limiter = limiter(RULES);
    let request = request("/search", "alice");
    (0..4).for_each(|_| assert!(limiter.check_now(&request, NOW).admits()));
    set(&limiter, "/search", 6);
    assert_eq!(look(&limiter, &request).binding().unwrap().remaining(), 2);
    assert_eq!(admitted(&limiter, &request), 2);
    set(&limiter, "/search", 9);
    assert_eq!(admitted(&limiter, &request), 3, "raised by three");
}

#[test]
fn usage_carries_over_once() {
    let limiter = limiter(RULES);
    let request = request("/search", "alice");
    (0..2).for_each(|_| assert!(limiter.check_now(&request, NOW).admits()));
    for (requests, left) in [(6, 4), (9, 7), (5, 3)] {
        set(&limiter, "/search", requests);
        assert_eq!(look(&limiter, &request).binding().unwrap().remaining(), left);
    }
}

#[test]
fn check_override_beats_configured_override() {
    let limiter = limiter(RULES);
    set(&limiter, "/search", 3);
    let own = minute(2);
    let with_own = Request { limit_override: Some(&own), ..request("/search", "alice") };
    assert_eq!(admitted(&limiter, &with_own), 2);
    assert_eq!(admitted(&limiter, &request("/search", "alice")), 3);
    let more = minute(5);
    let raised = Request { limit_override: Some(&more), ..request("/search", "alice") };
    assert_eq!(admitted(&limiter, &raised), 3, "two of the five were used");
}

#[test]
fn check_override_applies_without_a_rule() {
    let rules = r#"
        [[rules]]
        name = "a"
        when = { users = ["bob"] }
        action = "block"
        [[rules]]
        name = "ends-the-built-in-default"
        when = { users = ["nobody"] }
        per = ["user"]
        requests_per_hour = 1
    "#;
    let limiter = limiter(rules);
    let own = minute(2);
    let with_own = |user| Request { limit_override: Some(&own), ..request("/", user) };
    assert_eq!(asked(&look(&limiter, &with_own("alice"))), ["@check"]);
    assert_eq!(admitted(&limiter, &with_own("alice")), 2);
    assert_eq!(admitted(&limiter, &with_own("bob")), 0, "blocked all the same");
}

#[test]
fn reset_clears_rule_and_override() {
    let limiter = limiter(RULES);
    let request = request("/search", "alice");
    assert_eq!(admitted(&limiter, &request), 10);
    set(&limiter, "/search", 12);
    assert_eq!(admitted(&limiter, &request), 2);
    assert_eq!(block_on(limiter.snapshot().reset(&request)).unwrap().counters, 2);
    assert_eq!(admitted(&limiter, &request), 12);
}

#[test]
fn counters_survive_a_changed_limit() {
    let limiter = limiter(RULES);
    let request = request("/", "alice");
    (0..6).for_each(|_| assert!(limiter.check_now(&request, NOW).admits()));
    limiter.replace_rules(RuleSet::from_toml("default_limit = 8\ndefault_window = \"1m\"").unwrap());
    assert_eq!(admitted(&limiter, &request), 2);
}

#[test]
fn limit_in_force_is_what_a_check_override_replaces() {
    let rule = |name: &str, per: &str, requests: u32, more: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nlayer = \"{name}\"\nper = \"{per}\"\n{more}\n\
             limits = [{{ requests = {requests}, window = \"1m\" }}, {{ requests = 90, window = \"1h\" }}]\n"
        )
    };
    let rules = [
        rule("a-all", "global", 70, ""),
        rule("b-look", "user", 60, "action = \"log_only\""),
        rule("c-each", "user", 50, ""),
        rule("d-too", "user", 40, ""),
        "[[rules]]\nname = \"free\"\npriority = 1\naction = \"allow\"\nwhen = { endpoints = [\"/free\"] }\n"
            .to_owned(),
    ];
    let limiter = limiter(&rules.concat());
    let in_force = |path: &str| limiter.rules().limit_in_force(&request(path, "alice"));
    assert_eq!(in_force("/search"), Some(minute(50)));
    assert_eq!(in_force("/free"), None, "whom a rule exempts has none");
    let nobody = Request::new(Endpoint::parse("/search").unwrap());
    assert_eq!(limiter.rules().limit_in_force(&nobody), None);
    set(&limiter, "/search", 3);
    assert_eq!(in_force("/search"), Some(minute(3)));
    let own = minute(2);
    let with_own = Request { limit_override: Some(&own), ..request("/search", "alice") };
    assert_eq!(limiter.rules().limit_in_force(&with_own), Some(minute(3)), "not its own");
}

#[test]
fn concurrent_overrides_are_not_lost() {
    let limiter = limiter(RULES);
    let next = RuleSet::from_toml(RULES).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                limiter.replace_rules(next.with_overrides(Arc::default()));
            }
        });
        for number in 0..2_000 {
            let path = format!("/{number}");
            limiter.update_overrides(|overrides| overrides.with(limit_for("alice", &path, 1)));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(limiter.rules().overrides().len(), 2_000);
}

#[test]
fn every_decision_sees_one_rule_set() {
    // Both limits must be of the same set.
    let rules = |n: u32| {
        let rule = |name: &str, per: &str| {
            format!(
                "[[rules]]\nname = \"{name}\"\nper = [\"{per}\"]\nlimits = [{{ requests = {n}, window = \"1m\" }}]\n"
            )
        };
        RuleSet::from_toml(&[rule("a", "user"), rule("b", "global")].concat()).unwrap()
    };
    let limiter = Limiter::new(rules(1_000), MemoryCounters::default());
    let done = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                let decision = limiter.check_now(&request("/", "alice"), NOW);
                let limits: Vec<u32> = decision.reports.iter().map(|report| report.requests).collect();
                assert!(limits == [1_000, 1_000] || limits == [2_000, 2_000], "{limits:?}");
                seen += 1;
            }
            seen
        });
        for n in 0..2_000 {
            limiter.replace_rules(rules(1_000 * (n % 2 + 1)));
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(seen > 0);
}
