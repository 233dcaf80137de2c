//! Limits set for a key or a user.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tollgate::accounts::{AccountError, AccountLimits, BlockTarget, Key};
use tollgate::counters::conformance::block_on;
use tollgate::counters::{
    Charge, Charges, CounterAdmin, CounterStore, PenalizedClient, StoreError, Verdicts,
};
use tollgate::inspect::EndpointScope;
use tollgate::rules::LimitOwner;
use tollgate::rules::overrides::Override;
use tollgate::{
    Accounts, Algorithm, Endpoint, Id, Limit, LimitError, Limiter, MemoryCounters, Request, RuleSet, Span,
    Timestamp, Window,
};

use crate::{NOW, admitted, asked, at, by_key, by_user, edit, id, limiter, look, new_key, per_hour};

const RULES: &str = "default_limit = 10\ndefault_window = 60";

fn minute(requests: u32) -> Limit {
    Limit::new(Algorithm::TokenBucket, requests, Window::Length(Span::from_secs(60))).unwrap()
}

#[test]
fn override_precedence_is_check_config_key_user_rule() {
    let limiter = limiter(RULES);
    let own = minute(1);
    let with_own = Request { limit_override: Some(&own), ..by_key("api_key:k1") };
    let plain = by_key("api_key:k1");
    let limit = |request: &Request<'_>| look(&limiter, request).binding().unwrap().requests;
    let numbers = |request| block_on(limiter.snapshot().explain(request, NOW)).override_source(request);
    edit(&limiter, |editor| editor.put_key(&Key { user: Some("alice"), ..new_key("k1") }).unwrap());
    assert_eq!((limit(&plain), numbers(&plain)), (10, None));
    edit(&limiter, |editor| editor.put_user("alice", None, per_hour(4)).unwrap());
    assert_eq!((limit(&plain), numbers(&plain)), (4, Some("@quota")));
    edit(&limiter, |editor| {
        let key = Key { user: Some("alice"), limits: per_hour(3), ..new_key("k1") };
        editor.put_key(&key).unwrap();
    });
    assert_eq!((limit(&plain), numbers(&plain)), (3, Some("@key")));
    let config = Override::new(Id::parse("alice").unwrap(), &Endpoint::parse("/").unwrap(), minute(2), NOW);
    limiter.update_overrides(|overrides| overrides.with(config.clone()));
    assert_eq!((limit(&plain), numbers(&plain)), (2, Some("@config")));
    assert_eq!((limit(&with_own), numbers(&with_own)), (1, Some("@check")));
    let elsewhere = Request { api_key: plain.api_key, ..at("/elsewhere") };
    assert_eq!(limit(&elsewhere), 3, "set for one endpoint");
    assert_eq!(look(&limiter, &plain).reports.len(), 1, "one takes the place of one rule");
}

#[test]
fn user_limits_span_all_endpoints() {
    let limiter = limiter(RULES);
    edit(&limiter, |editor| editor.put_user("alice", None, per_hour(4)).unwrap());
    for path in ["/a", "/b", "/c", "/d"] {
        assert!(limiter.check_now(&Request { user: id("alice"), ..at(path) }, NOW).admits());
    }
    assert_eq!(admitted(&limiter, &by_user("alice")), 0);
    assert_eq!(admitted(&limiter, &by_user("bob")), 10);
}

#[test]
fn key_limits_count_by_key_user_limits_by_user() {
    let limiter = limiter(RULES);
    edit(&limiter, |editor| {
        editor.put_user("alice", None, per_hour(2)).unwrap();
        for key in ["k1", "k2"] {
            let key = Key { user: Some("alice"), limits: per_hour(3), ..new_key(key) };
            editor.put_key(&key).unwrap();
        }
    });
    assert_eq!(admitted(&limiter, &by_key("api_key:k1")), 3);
    assert_eq!(admitted(&limiter, &by_key("api_key:k2")), 3);
    assert_eq!(admitted(&limiter, &by_user("alice")), 2);
}

#[test]
fn all_windows_are_enforced() {
    let limiter = limiter(RULES);
    let limits = AccountLimits {
        requests_per_second: Some(3),
        requests_per_hour: Some(5),
        requests_per_day: Some(6),
        burst: None,
    };
    edit(&limiter, |editor| editor.put_key(&Key { limits, ..new_key("k1") }).unwrap());
    let request = by_key("api_key:k1");
    let decision = look(&limiter, &request);
    let windows: Vec<u64> =
        decision.reports.iter().map(|report| report.window_length().as_secs_ceil()).collect();
    assert_eq!(windows, [1, 3_600, 86_400]);
    assert_eq!(admitted(&limiter, &request), 3);
    let later = NOW + Span::from_secs(1);
    assert_eq!((0..9).filter(|_| limiter.check_now(&request, later).admits()).count(), 2, "five an hour");
}

#[test]
fn burst_belongs_to_the_shortest_window() {
    let limits = AccountLimits {
        requests_per_second: Some(10),
        requests_per_hour: Some(1_000),
        burst: Some(20),
        ..AccountLimits::default()
    };
    let of_key = limiter(RULES);
    edit(&of_key, |editor| editor.put_key(&Key { limits, ..new_key("k1") }).unwrap());
    let tier = "requests_per_second = 10\nrequests_per_hour = 1000\nburst_size = 20";
    let of_rule = limiter(&format!("[[rules]]\nname = \"r\"\nper = [\"client\"]\n{tier}"));
    let of_tier = limiter(&format!("[[tiers]]\nname = \"t\"\n{tier}"));
    let in_tier = Request { tier: id("t"), ..by_user("alice") };
    for (limiter, request) in
        [(of_key, by_key("api_key:k1")), (of_rule, by_user("alice")), (of_tier, in_tier)]
    {
        assert_eq!(admitted(&limiter, &request), 20);
        let later = NOW + Span::from_secs(1);
        assert_eq!((0..50).filter(|_| limiter.check_now(&request, later).admits()).count(), 10);
    }
}

#[test]
fn quotas_and_short_forms_have_equal_buckets() {
    let limiter = limiter(RULES);
    let limits = AccountLimits { requests_per_hour: Some(3_600), burst: Some(2), ..AccountLimits::default() };
    edit(&limiter, |editor| editor.put_user("alice", None, limits).unwrap());
    assert_eq!(admitted(&limiter, &by_user("alice")), 2);
    let written = RuleSet::from_toml(
        "[[tiers]]\nname = \"t\"\nrequests_per_hour = 3600\nrequests_per_day = 9\nburst_size = 2",
    );
    let limits = AccountLimits { requests_per_day: Some(9), ..limits };
    edit(&limiter, |editor| editor.put_user("alice", None, limits).unwrap());
    let decision = look(&limiter, &by_user("alice"));
    for (report, limit) in decision.reports.iter().zip(&written.unwrap().rules()[0].limits) {
        assert_eq!((report.requests, report.capacity), (limit.limit.requests(), limit.limit.capacity()));
    }
}

/// The rule, or override, and the number of requests of each limit that applies.
fn applied(limiter: &Limiter<MemoryCounters>, request: &Request<'_>) -> Vec<(String, u32)> {
    let decision = look(limiter, request);
    let each = decision.reports.iter();
    each.map(|report| (decision.rule_name_of(report).to_owned(), report.requests)).collect()
}

fn named(rules: &[(&str, u32)]) -> Vec<(String, u32)> {
    rules.iter().map(|(name, requests)| ((*name).to_owned(), *requests)).collect()
}

const REPORTS: &str = r#"
    [[rules]]
    name = "reports"
    priority = 10
    when = { endpoints = ["/reports/*"] }
    per = ["user"]
    layer = "reports"
    limits = [{ requests = 5, window = "1h" }]
    [[rules]]
    name = "plan"
    priority = 20
    when = { endpoints = ["/*"], tiers = ["free"] }
    per = ["client"]
    limits = [{ requests = 10, window = "1h" }]
"#;

#[test]
fn quota_does_not_loosen_endpoint_rule() {
    let limiter = limiter(REPORTS);
    edit(&limiter, |editor| editor.put_user("alice", Some("free"), per_hour(5_000)).unwrap());
    let reports = Request { user: id("alice"), ..at("/reports/1") };
    assert_eq!(applied(&limiter, &reports), named(&[("reports", 5), ("plan", 5_000)]));
    assert_eq!(admitted(&limiter, &reports), 5);
    assert_eq!(applied(&limiter, &by_user("alice")), named(&[("plan", 5_000)]), "replaces the plan");
    edit(&limiter, |editor| editor.put_user("bob", None, per_hour(2)).unwrap());
    let reports = Request { user: id("bob"), ..at("/reports/1") };
    assert_eq!(applied(&limiter, &reports), named(&[("reports", 5), ("@quota", 2)]), "without a plan");
    assert_eq!(admitted(&limiter, &reports), 2);
}

#[test]
fn quota_replaces_plan_level_rules_only() {
    for (conditions, is_plan_level) in [
        ("per = [\"user\"]", true),
        ("per = [\"tenant\", \"client\"]\nwhen = { tenants = [\"acme\"] }", true),
        ("per = [\"user\"]\nwhen = { endpoints = [\"/x\", \"/*\"] }", true),
        ("per = [\"user\"]\nwhen = { endpoints = [\"/x\"] }", false),
        ("per = [\"user\"]\nwhen = { methods = [\"GET\"] }", false),
        ("per = [\"user\"]\nwhen = { ips = [\"10.0.0.0/8\"] }", false),
        ("per = [\"user\"]\nwhen = { descriptors = { plan = \"a\" } }", false),
        ("per = [\"user\", \"endpoint\"]", false),
        ("per = [\"ip\"]", false),
        ("per = [\"global\"]", false),
    ] {
        let text = format!("[[rules]]\nname = \"r\"\nrequests_per_hour = 1\n{conditions}");
        let rules = RuleSet::from_toml(&text).unwrap();
        assert_eq!(rules.rules()[0].is_plan_level(), is_plan_level, "{conditions}");
        let owner = LimitOwner { user: Some("alice"), ..LimitOwner::default() };
        let stricter = rules.stricter_rules(owner, per_hour(2)).len();
        assert_eq!(stricter, usize::from(!is_plan_level), "{conditions}");
        assert_eq!(rules.stricter_rules(owner, per_hour(1)).len(), 0, "{conditions}: not stricter");
    }
}

#[test]
fn explain_names_replaced_rules_and_the_override() {
    let limiter = limiter(REPORTS);
    edit(&limiter, |editor| editor.put_user("alice", Some("free"), per_hour(50)).unwrap());
    let reasons = |request: &Request<'_>| -> Vec<(String, usize)> {
        let explanation = block_on(limiter.snapshot().explain(request, NOW));
        let rules = explanation.rules(request);
        rules.iter().map(|rule| (rule.reason.clone(), rule.reports.len())).collect()
    };
    let replaced = "matches, but the user's quota (@quota) takes its place";
    assert_eq!(reasons(&by_user("alice"))[1], (replaced.to_owned(), 1));
    edit(&limiter, |editor| editor.put_user("alice", None, per_hour(50)).unwrap());
    let request = by_user("alice");
    let explanation = block_on(limiter.snapshot().explain(&request, NOW));
    let (name, reports) = explanation.override_beside_rules().unwrap();
    assert_eq!((name, reports.len(), reports[0].requests), ("@quota", 1, 50));
}

#[test]
fn account_limits_replace_all_plan_level_rules() {
    let rules = r#"
        [[rules]]
        name = "everybody"
        priority = 1
        per = ["global"]
        limits = [{ requests = 50, window = "1h" }]
        [[rules]]
        name = "by-key"
        priority = 2
        per = ["api_key"]
        limits = [{ requests = 20, window = "1h" }]
        [[rules]]
        name = "by-user"
        priority = 3
        per = ["user"]
        limits = [{ requests = 10, window = "1h" }]
    "#;
    let limiter = limiter(rules);
    edit(&limiter, |editor| {
        let key = Key { user: Some("alice"), limits: per_hour(7), ..new_key("k1") };
        editor.put_key(&key).unwrap();
        editor.put_user("bob", None, per_hour(5)).unwrap();
    });
    let by_key = by_key("api_key:k1");
    assert_eq!(applied(&limiter, &by_key), named(&[("everybody", 50), ("by-key", 7)]));
    assert_eq!(applied(&limiter, &by_user("bob")), named(&[("everybody", 50), ("by-user", 5)]));
}

#[test]
fn account_limits_apply_without_a_rule() {
    let rules = r#"
        [[rules]]
        name = "a"
        when = { tenants = ["acme"] }
        action = "allow"
        [[rules]]
        name = "ends-the-built-in-default"
        when = { users = ["nobody"] }
        per = ["user"]
        requests_per_hour = 1
    "#;
    let limiter = limiter(rules);
    edit(&limiter, |editor| {
        editor.put_user("alice", None, per_hour(2)).unwrap();
        editor.put_key(&Key { limits: per_hour(3), ..new_key("k1") }).unwrap();
    });
    assert_eq!(asked(&look(&limiter, &by_user("alice"))), ["@quota"]);
    assert_eq!(asked(&look(&limiter, &by_key("api_key:k1"))), ["@key"]);
    assert_eq!(admitted(&limiter, &by_user("alice")), 2);
    assert_eq!(look(&limiter, &by_user("alice")).rule_name(), Some("@quota"));
    let exempt = Request { tenant: id("acme"), ..by_user("alice") };
    assert!(look(&limiter, &exempt).reports.is_empty(), "whom a rule exempts is not limited");
}

#[test]
fn log_only_rules_are_not_replaced() {
    let rules = r#"
        [[rules]]
        name = "trial"
        action = "log_only"
        per = ["user"]
        limits = [{ requests = 1, window = "1h" }]
    "#;
    let limiter = limiter(rules);
    edit(&limiter, |editor| editor.put_user("alice", None, per_hour(2)).unwrap());
    assert_eq!(asked(&look(&limiter, &by_user("alice"))), ["trial", "default"]);
}

#[test]
fn reset_clears_account_limits() {
    let limiter = limiter(RULES);
    edit(&limiter, |editor| {
        editor.put_user("alice", None, per_hour(2)).unwrap();
        let limits = AccountLimits { requests_per_day: Some(9), ..per_hour(3) };
        editor.put_key(&Key { user: Some("alice"), limits, ..new_key("k1") }).unwrap();
    });
    let by_key = by_key("api_key:k1");
    assert_eq!((admitted(&limiter, &by_key), admitted(&limiter, &by_user("alice"))), (3, 2));
    assert_eq!(block_on(limiter.snapshot().reset(&by_user("alice"))).unwrap().counters, 1);
    assert_eq!(admitted(&limiter, &by_user("alice")), 2);
    assert_eq!(admitted(&limiter, &by_key), 0, "the user's reset names no key");
    assert_eq!(
        block_on(limiter.snapshot().reset(&by_key)).unwrap().counters,
        3,
        "two windows, and the user's"
    );
    assert_eq!((admitted(&limiter, &by_key), admitted(&limiter, &by_user("alice"))), (3, 2));
}

/// Memory counters that record the names of the charged counters.
#[derive(Default)]
struct Named {
    counters: MemoryCounters,
    names: Mutex<BTreeSet<String>>,
}

impl Named {
    fn note(&self, charges: &Charges<'_>) {
        let name =
            |charge: &Charge<'_>| format!("{:x}:{}:{}", charge.subject.0, charge.rule, charge.limit.window());
        self.names.lock().unwrap().extend(charges.charges.iter().map(name));
    }

    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.names.lock().unwrap())
    }
}

impl CounterStore for Named {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        self.note(charges);
        self.counters.charge_all(charges, now).await
    }
}

impl CounterAdmin for Named {
    async fn reset(&self, charges: &Charges<'_>) -> Result<usize, StoreError> {
        self.note(charges);
        self.counters.reset(charges).await
    }

    async fn pardon(&self, client: &str) -> Result<bool, StoreError> {
        self.counters.pardon(client).await
    }

    async fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> Result<Vec<PenalizedClient>, StoreError> {
        self.counters.penalized_clients(count_max, now).await
    }
}

#[test]
fn overrides_keep_their_counter_across_rules() {
    let rules = r#"
        [[rules]]
        name = "a"
        when = { users = ["alice"] }
        per = ["user"]
        requests_per_hour = 5
    "#;
    let limiter = Limiter::new(RuleSet::from_toml(rules).unwrap(), Named::default());
    let on = |path| Request { user: id("alice"), ..at(path) };
    let checked = || {
        for path in ["/a", "/b"] {
            block_on(limiter.check(&on(path), NOW));
        }
        limiter.counters().take()
    };
    let of_rules = checked();
    assert_eq!(of_rules.len(), 1);
    limiter.update_accounts(|accounts| {
        crate::edited(accounts, |editor| editor.put_user("alice", None, per_hour(4)).unwrap())
    });
    let of_user = checked();
    assert_eq!(of_user.len(), 1, "one counter, on all endpoints: {of_user:?}");
    assert!(of_user.is_disjoint(&of_rules));
    block_on(limiter.snapshot().reset(&on("/a"))).unwrap();
    assert!(limiter.counters().take().is_superset(&of_user), "a reset finds it");
    let config = Override::new(Id::parse("alice").unwrap(), &Endpoint::parse("/a").unwrap(), minute(2), NOW);
    limiter.update_overrides(|overrides| overrides.with(config.clone()));
    let of_endpoint = checked();
    let own = minute(3);
    block_on(limiter.check(&Request { limit_override: Some(&own), ..on("/a") }, NOW));
    assert!(limiter.counters().take().is_disjoint(&of_endpoint), "a check's own limits are others");
    block_on(limiter.snapshot().reset(&on("/a"))).unwrap();
    let reset = limiter.counters().take();
    assert!(reset.is_superset(&of_endpoint), "a reset finds those too: {reset:?} {of_endpoint:?}");
}

#[test]
fn inspection_shows_account_limits() {
    let limiter = limiter(RULES);
    edit(&limiter, |editor| {
        editor.put_user("alice", None, per_hour(4)).unwrap();
        let key = Key { user: Some("alice"), limits: per_hour(3), ..new_key("k1") };
        editor.put_key(&key).unwrap();
    });
    limiter.check_now(&by_key("api_key:k1"), NOW);
    limiter.check_now(&by_user("alice"), NOW);
    limiter.check_now(&by_user("alice"), NOW);
    let seen = block_on(limiter.snapshot().inspect(&by_key("api_key:k1"), EndpointScope::All, NOW)).unwrap();
    let counters: Vec<(&str, u32)> =
        seen.counters.iter().map(|counter| (&*counter.rule, counter.used())).collect();
    assert_eq!(counters, [("default", 0), ("@key", 1), ("@quota", 2)]);
}

#[test]
fn switching_limits_admits_no_more_than_both() {
    let limiter = limiter(RULES);
    let request = by_user("alice");
    let mut total = 0;
    for round in 0..20 {
        edit(&limiter, |editor| {
            if round % 2 == 0 {
                editor.remove_user("alice");
            } else {
                // Other limits, the same counter.
                editor.put_user("alice", None, per_hour(5 + round % 3)).unwrap();
            }
        });
        total += admitted(&limiter, &request);
    }
    assert_eq!(total, 10 + 7);
}

#[test]
fn changed_key_limit_keeps_what_was_used() {
    let limiter = limiter("default_limit = 1000");
    let request = by_key("api_key:k1");
    let mut total = 0;
    for (requests, more) in [(60, 60), (40, 0), (60, 0), (100, 40), (40, 0), (100, 0)] {
        edit(&limiter, |editor| {
            let key = Key { limits: per_hour(requests), ..new_key("k1") };
            editor.put_key(&key).unwrap();
        });
        assert_eq!(admitted(&limiter, &request), more, "limited to {requests}, {total} used");
        total += more;
    }
}

#[test]
fn moves_between_tiers_admit_each_limit_once() {
    let limiter = limiter(
        "[[tiers]]\nname = \"free\"\nlimit = 10\nwindow = 3600\n[[tiers]]\nname = \"pro\"\nlimit = 30\nwindow = 3600",
    );
    let request = by_user("alice");
    let mut total = 0;
    for round in 0..12 {
        let tier = ["free", "pro", "free"][round % 3];
        edit(&limiter, |editor| editor.put_user("alice", Some(tier), AccountLimits::default()).unwrap());
        total += admitted(&limiter, &request);
        assert!(total <= 10 + 30, "round {round}: {total}");
    }
    assert!(total >= 30, "{total}");
}

#[test]
fn invalid_limits_are_rejected_with_their_field() {
    let huge = AccountLimits { requests_per_day: Some(u32::MAX), burst: Some(0), ..AccountLimits::default() };
    let alone = AccountLimits { burst: Some(3), ..AccountLimits::default() };
    let (long, limit) = ("x".repeat(257), |field, reason| AccountError::Limit { field, reason });
    let mut editor = Accounts::default().edit();
    assert_eq!(editor.put_user("a", None, huge), Err(limit("burst", LimitError::BurstZero)));
    assert_eq!(editor.put_user("a", None, alone), Err(AccountError::BurstAlone));
    assert_eq!(alone.check(), Err(AccountError::BurstAlone));
    for (user, tier) in [("", None), (&*long, None), ("a", Some("")), ("a", Some(&*long))] {
        assert!(matches!(
            editor.put_user(user, tier, AccountLimits::default()),
            Err(AccountError::Id { .. })
        ));
    }
    for key in [
        new_key(""),
        new_key(&long),
        Key { user: Some(&long), ..new_key("k") },
        Key { tenant: Some(""), ..new_key("k") },
        Key { tier: Some(""), ..new_key("k") },
        Key { limits: alone, ..new_key("k") },
    ] {
        assert!(editor.put_key(&key).is_err(), "{key:?}");
    }
    assert!(editor.finish().is_empty());
}

#[test]
fn zero_limit_admits_nothing() {
    let limiter = limiter(RULES);
    edit(&limiter, |editor| editor.put_user("alice", None, per_hour(0)).unwrap());
    assert_eq!(admitted(&limiter, &by_user("alice")), 0);
}

#[test]
fn key_and_previous_secret_expire() {
    let at = Timestamp::from_secs(100);
    let mut editor = Accounts::default().edit();
    let key = Key { previous: Some(([1; 32], at)), expires_at: Some(at), scopes: 0xbeef, ..new_key("k1") };
    editor.put_key(&key).unwrap();
    editor.put_block(BlockTarget::User("x"), "", None);
    let accounts = editor.finish();
    let key = accounts.key("k1").unwrap();
    let before = at - Span::from_micros(1);
    assert_eq!((key.previous_verifier(before), key.previous_verifier(at)), (Some(&[1; 32]), None));
    assert_eq!((key.is_expired(before), key.is_expired(at)), (false, true));
    assert_eq!((key.verifier, key.scopes, key.is_revoked), ([7; 32], 0xbeef, false));
}
