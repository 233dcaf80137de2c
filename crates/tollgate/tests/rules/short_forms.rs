//! Short forms compile to rules.

use tollgate::rules::Action;
use tollgate::{Request, RuleSet};

use crate::{admitted, asked, blocks, id, limiter, look, request};

/// A rule set in one line per rule: name, action and limits.
fn compiled(toml: &str) -> Vec<String> {
    let set = RuleSet::from_toml(toml).unwrap_or_else(|problems| panic!("{problems}"));
    let rules = set.rules().iter().map(|rule| {
        let limits: Vec<String> = (rule.limits.iter())
            .map(|one| {
                let burst = one.limit.burst().map(|burst| format!("^{burst}")).unwrap_or_default();
                format!("{} {}/{}{burst}", one.limit.algorithm(), one.limit.requests(), one.limit.window())
            })
            .collect();
        format!("{} {}: {} in {}", rule.action.as_str(), rule.name, limits.join(", "), rule.layer)
    });
    rules.collect()
}

#[test]
fn default_is_100_per_minute_per_client() {
    assert_eq!(compiled(""), ["reject default: token_bucket 100/1m in client"]);
}

#[test]
fn short_forms_become_ordered_rules_of_one_layer() {
    let toml = r#"
        default_limit = 100
        default_window = 60
        [[tiers]]
        name = "free"
        limit = 50
        window = "1h"
        [[endpoints]]
        pattern = "search/"
        methods = ["get", "POST"]
        limit = 10
        window = 60
        algorithm = "sliding_window"
        [[endpoints]]
        pattern = "/api/*"
        requests_per_second = 5
        requests_per_day = 1000
        burst_size = 7
        [[exemptions]]
        type = "user_id"
        value = "root"
    "#;
    assert_eq!(
        compiled(toml),
        [
            "allow exempt:user_id:root:  in client",
            "reject endpoint:GET,POST /search: sliding_window_counter 10/1m in client",
            "reject endpoint:/api/*: token_bucket 5/1s^7, token_bucket 1000/1d in client",
            "reject tier:free: token_bucket 50/1h in client",
            "reject default: token_bucket 100/1m in client",
        ]
    );
}

#[test]
fn precedence_is_exemption_endpoint_tier_default() {
    let limiter = limiter(
        r#"
        default_limit = 4
        default_window = 60
        [[tiers]]
        name = "free"
        limit = 3
        window = 60
        [[endpoints]]
        pattern = "/search"
        limit = 2
        window = 60
        [[exemptions]]
        type = "tenant"
        value = "acme"
        "#,
    );
    let free = |path, user| Request { tier: id("free"), ..request(path, user) };
    assert_eq!(asked(&look(&limiter, &free("/search", "a"))), ["endpoint:/search"]);
    assert_eq!(admitted(&limiter, &free("/search", "a")), 2);
    assert_eq!(admitted(&limiter, &free("/other", "a")), 3, "counted apart from the endpoint");
    assert_eq!(admitted(&limiter, &request("/other", "b")), 4);
    let exempt = Request { tenant: id("acme"), ..free("/search", "c") };
    assert_eq!(admitted(&limiter, &exempt), 100);
    assert!(asked(&look(&limiter, &exempt)).is_empty());
}

#[test]
fn user_and_tenant_of_one_name_can_be_exempt() {
    let exempt = |kind: &str| format!("[[exemptions]]\ntype = \"{kind}\"\nvalue = \"acme\"\n");
    let limiter = limiter(&[exempt("user_id"), exempt("tenant")].concat());
    let by_tenant = Request { tenant: id("acme"), ..request("/", "alice") };
    assert!([request("/", "acme"), by_tenant].iter().all(|one| asked(&look(&limiter, one)).is_empty()));
    assert!(!asked(&look(&limiter, &request("/", "alice"))).is_empty());
}

#[test]
fn short_forms_come_after_rules() {
    let limiter = limiter(
        r#"
        default_limit = 9
        default_window = 60
        [[rules]]
        name = "own"
        per = ["client"]
        when = { users = ["alice"] }
        limits = [{ requests = 1, window = "1m" }]
        [[rules]]
        name = "all"
        per = ["global"]
        limits = [{ requests = 50, window = "1m" }]
        "#,
    );
    assert_eq!(asked(&look(&limiter, &request("/", "alice"))), ["own", "all"]);
    assert_eq!(asked(&look(&limiter, &request("/", "bob"))), ["all", "default"]);
}

#[test]
fn first_limiting_rule_ends_the_built_in_default() {
    let rule = |rest: &str| format!("[[rules]]\nname = \"a\"\nwhen = {{ users = [\"bob\"] }}\n{rest}");
    let limited = "per = [\"user\"]\nrequests_per_hour = 1";
    for (rest, is_default) in [
        ("action = \"block\"".to_owned(), true),
        ("action = \"allow\"".to_owned(), true),
        (format!("action = \"log_only\"\n{limited}"), true),
        (format!("enabled = false\n{limited}"), true),
        (limited.to_owned(), false),
        (format!("action = \"throttle\"\n{limited}"), false),
    ] {
        let rules = limiter(&rule(&rest));
        let alice = look(&rules, &request("/", "alice"));
        assert_eq!(asked(&alice), if is_default { &["default"][..] } else { &[] }, "{rest}");
        assert_eq!(alice.rules().has_built_in_default(), is_default, "{rest}");
    }
    assert!(blocks(&limiter(&rule("action = \"block\"")), &request("/", "bob")));
    let tier = "[[tiers]]\nname = \"free\"\nlimit = 1\nwindow = 60";
    assert!(look(&limiter(tier), &request("/", "alice")).reports.is_empty());
}

#[test]
fn file_with_all_keys_is_accepted() {
    let set = RuleSet::from_toml(include_str!("../valid_rules/everything.toml")).unwrap();
    assert_eq!(set.rules().len(), 17);
    assert!(set.penalties().is_some());
    let count = |action| set.rules().iter().filter(|rule| rule.action == action).count();
    assert_eq!((count(Action::Allow), count(Action::Block), count(Action::LogOnly)), (4, 1, 1));
}

#[test]
fn truncated_file_is_rejected_or_a_whole_rule_set() {
    let good = include_str!("../valid_rules/everything.toml");
    let mut refused = 0;
    for seed in 0..1_000_usize {
        let mut bytes = good.as_bytes().to_vec();
        let at = seed.wrapping_mul(2_654_435_761) % bytes.len();
        match seed % 4 {
            0 => bytes.truncate(at),
            1 => bytes[at] = b"\"[]{}=,\n0a"[seed % 10],
            2 => drop(bytes.drain(at..(at + seed % 60).min(good.len()))),
            _ => bytes.extend_from_within(at..(at + 200).min(good.len())),
        }
        let text = String::from_utf8_lossy(&bytes);
        match RuleSet::from_toml(&text) {
            Ok(set) => assert!(!set.rules().is_empty()),
            Err(problems) => {
                assert!(!problems.0.is_empty());
                refused += 1;
            }
        }
    }
    assert!(refused > 500, "{refused} of 1000 refused");
}
