//! Checks, status and explain.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Answer, Service};

const THREE_PER_MINUTE: &str = "default_limit = 3\ndefault_window = 60";

#[test]
fn default_limit_is_a_hundred_per_minute() {
    let service = Service::unconfigured();
    let started = Instant::now();
    let first = service.check("user_123", "/api/v1/users");
    assert_eq!(first.status, 200);
    let body = first.json();
    assert_eq!(body["allowed"], true);
    assert_eq!((&body["limit"], &body["remaining"]), (&json!(100), &json!(99)));
    assert_eq!((&body["strategy"], &body["rule"]), (&json!("token_bucket"), &json!("default")));
    assert!(body["reset_at"].as_u64().unwrap() > 1_700_000_000);
    assert!(body.get("retry_after").is_none());
    let endpoints = ["/other", "/api/v1/users"].into_iter().cycle().take(10_000);
    let admitted = 1 + endpoints.take_while(|endpoint| admits(&service, endpoint)).count();
    // One request is restored every 0.6 s, so a slow machine is admitted more.
    let come_back = usize::try_from(started.elapsed().as_millis() / 600).unwrap();
    assert!((100..=100 + come_back).contains(&admitted), "{admitted}, {come_back} came back");
    assert_eq!(service.check("user_456", "/api/v1/users").status, 200, "another client");
}

fn admits(service: &Service, endpoint: &str) -> bool {
    let status = service.check("user_123", endpoint).status;
    assert!(status == 200 || status == 429, "{status}");
    status == 200
}

#[test]
fn only_refusals_have_retry_after() {
    let service = Service::with_config(THREE_PER_MINUTE);
    for remaining in ["2", "1", "0"] {
        let answer = service.check("a", "/x");
        assert_eq!(answer.header("x-ratelimit-limit"), Some("3"));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(answer.header("x-ratelimit-strategy"), Some("token_bucket"));
        assert!(answer.header("x-ratelimit-reset").unwrap().parse::<u64>().unwrap() > 1_700_000_000);
        assert_eq!(answer.header("retry-after"), None);
    }
    let refused = service.check("a", "/x");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&wait));
    let body = refused.json();
    assert_eq!((&body["allowed"], &body["reason"]), (&json!(false), &json!("over_limit")));
    assert_eq!(body["retry_after"], json!(wait));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
}

#[test]
fn request_is_admitted_after_retry_after() {
    let service = Service::with_config("default_limit = 2\ndefault_window = 6");
    for _ in 0..2 {
        assert_eq!(service.check("a", "/x").status, 200);
    }
    let refused = service.check("a", "/x");
    let wait = refused.header("retry-after").unwrap().parse().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(wait));
    assert_eq!(service.check("a", "/x").status, 200);
}

#[test]
fn header_profiles_are_a_setting() {
    let service = Service::with_config("[server]\nheaders = [\"x-ratelimit\", \"draft-10\"]");
    let answer = service.check("a", "/x");
    assert_eq!(answer.header("ratelimit-policy"), Some("\"default\";q=100;w=60"));
    assert_eq!(answer.header("ratelimit"), Some("\"default\";r=99;t=1"));
    assert_eq!(answer.header("x-ratelimit-limit"), Some("100"));
}

#[test]
fn cooldown_reports_one_limit_and_lists_all() {
    let service = Service::with_config(
        r#"
        [server]
        headers = ["draft-03", "draft-10"]
        [progressive_penalties]
        enabled = true
        violation_threshold = 1
        [[rules]]
        name = "u"
        per = ["user"]
        limits = [{ requests = 50, window = "20d" }, { requests = 4, window = "30d" }]
    "#,
    );
    let policies = |answer: &Answer| {
        ["x-ratelimit-limit", "ratelimit-policy"].map(|name| answer.header(name).unwrap().to_owned())
    };
    let first = policies(&service.check("a", "/x"));
    assert_eq!(first[1], "\"u/20d\";q=50;w=1728000, \"u/30d\";q=4;w=2592000");
    (0..4).for_each(|_| drop(service.check("a", "/x")));
    let check = service.check("a", "/x");
    let explained = service.post("/v1/rate-limit/explain", r#"{"user_id":"a","endpoint":"/x"}"#).json();
    assert_eq!((&check.json()["reason"], policies(&check)), (&json!("cooldown"), first));
    assert!(check.header("ratelimit").unwrap().starts_with("\"u/30d\";r=0;t="));
    for (key, expected) in [("limit", json!(4)), ("remaining", json!(0)), ("rule", json!("u"))] {
        assert_eq!((&check.json()[key], &explained[key]), (&expected, &expected), "{key}");
    }
    let limits = explained["rules"][0]["limits"].as_array().unwrap();
    let left: Vec<u64> = limits.iter().map(|limit| limit["remaining"].as_u64().unwrap()).collect();
    assert_eq!(left, [46, 0], "must match the counters");
}

#[test]
fn cost_above_the_limit_has_no_retry_after() {
    let service = Service::with_config(THREE_PER_MINUTE);
    let answer = service.post("/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x","cost":4}"#);
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));
    assert_eq!(answer.json()["reason"], "cost_exceeds_limit");
    let whole = service.post("/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x","cost":3}"#);
    assert_eq!(whole.status, 200);
}

#[test]
fn cost_zero_charges_nothing() {
    let service = Service::with_config(THREE_PER_MINUTE);
    let peek = r#"{"user_id":"a","endpoint":"/x","cost":0}"#;
    for _ in 0..5 {
        assert_eq!(service.post("/v1/rate-limit/check", peek).json()["remaining"], 3);
    }
    for _ in 0..3 {
        service.check("a", "/x");
    }
    assert_eq!(service.post("/v1/rate-limit/check", peek).status, 429);
}

#[test]
fn each_client_identifier_has_its_own_counter() {
    let service = Service::with_config("default_limit = 1");
    for who in
        [r#""user_id":"x""#, r#""api_key":"x""#, r#""ip":"192.0.2.1""#, r#""tenant":"x""#, r#""login":"x""#]
    {
        let body = format!(r#"{{{who},"endpoint":"/e"}}"#);
        let statuses = [(); 2].map(|()| service.post("/v1/rate-limit/check", &body).status);
        assert_eq!(statuses, [200, 429], "{who}");
    }
}

#[test]
fn api_alias_shares_counters_with_the_path() {
    let service = Service::with_config("default_limit = 1");
    assert_eq!(service.check("a", "/x").status, 200);
    let alias = service.post("/api/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x"}"#);
    assert_eq!(alias.status, 429);
}

#[test]
fn actions_and_layers_work_end_to_end() {
    let service = Service::with_config(
        r#"
        [[rules]]
        name = "no-admin"
        priority = 1
        when = { endpoints = ["/admin/*"] }
        action = "block"
        response = { message = "not for you" }
        [[rules]]
        name = "partners"
        priority = 2
        when = { tenants = ["partner"] }
        action = "allow"
        [[rules]]
        name = "slow-search"
        priority = 10
        when = { endpoints = ["/search"] }
        per = ["user"]
        limits = [{ requests = 1, window = "1h" }]
        [[rules]]
        name = "everything"
        per = ["user"]
        limits = [{ requests = 2, window = "1h" }]
        [[rules]]
        name = "whole-site"
        per = ["global"]
        limits = [{ requests = 4, window = "1h" }]
    "#,
    );
    let blocked = service.check("a", "/admin/users");
    assert_eq!(blocked.status, 403);
    let body = blocked.json();
    assert_eq!((&body["decision"], &body["reason"]), (&json!("blocked"), &json!("not for you")));
    assert!(body.as_object().unwrap().contains_key("blocked_until"));

    let partner = r#"{"user_id":"p","tenant":"partner","endpoint":"/search"}"#;
    let free = service.post("/v1/rate-limit/check", partner);
    assert_eq!((free.status, &free.json()["limit"]), (200, &json!(null)));

    let rule_of = |answer: crate::harness::Answer| (answer.status, answer.json()["rule"].clone());
    assert_eq!(rule_of(service.check("a", "/search")), (200, json!("slow-search")));
    assert_eq!(rule_of(service.check("a", "/search")), (429, json!("slow-search")));
    assert_eq!(rule_of(service.check("a", "/list")), (200, json!("everything")));
    assert_eq!(rule_of(service.check("a", "/list")), (200, json!("everything")));
    assert_eq!(rule_of(service.check("b", "/list")), (200, json!("whole-site")));
    assert_eq!(rule_of(service.check("c", "/list")), (429, json!("whole-site")));
}

#[test]
fn log_only_rule_refuses_nothing_and_is_counted() {
    let service = Service::with_config(
        r#"
        [[rules]]
        name = "trial"
        action = "log_only"
        per = ["user"]
        limits = [{ requests = 1, window = "1h" }]
        [[rules]]
        name = "real"
        per = ["user"]
        limits = [{ requests = 3, window = "1h" }]
        response = { status = 503, message = "busy" }
    "#,
    );
    for _ in 0..3 {
        assert_eq!(service.check("a", "/x").status, 200);
    }
    assert_eq!(service.metric(r#"tollgate_shadow_refusals_total{rule="trial"}"#), Some(2.0));
    let refused = service.check("a", "/x");
    let body = refused.json();
    assert_eq!((refused.status, &body["rule"], &body["message"]), (429, &json!("real"), &json!("busy")));
    assert_eq!(body["response_status"], 503);
}

#[test]
fn throttle_rule_returns_a_delay() {
    let service = Service::with_config(
        r#"
        [[rules]]
        name = "steady"
        per = ["user"]
        algorithm = "leaky_bucket"
        max_delay = "20s"
        limits = [{ requests = 6, window = "1m" }]
    "#,
    );
    assert!(service.check("a", "/x").json().get("delay_ms").is_none());
    let delay = service.check("a", "/x").json()["delay_ms"].as_u64().unwrap();
    assert!((1..=10_000).contains(&delay), "{delay}");
}

#[test]
fn penalized_client_can_be_pardoned() {
    let service = Service::with_config(
        r#"
        default_limit = 1
        default_window = "3s"
        [progressive_penalties]
        enabled = true
        violation_threshold = 1
        base_cooldown = "1h"
    "#,
    );
    service.check("a", "/x");
    assert_eq!(service.check("a", "/x").json()["reason"], "over_limit");
    let kept_out = service.check("a", "/x");
    assert_eq!((kept_out.status, &kept_out.json()["reason"]), (429, &json!("cooldown")));
    assert_eq!(
        (kept_out.header("x-ratelimit-remaining"), &kept_out.json()["rule"]),
        (Some("0"), &json!("default"))
    );
    let listed = service.admin("GET", "/v1/admin/penalties", "").json();
    assert_eq!(listed["penalties"][0]["client"], "user:a");
    assert_eq!(service.admin("DELETE", "/v1/admin/penalties/user%3Aa", "").status, 204);
    assert_eq!(service.admin("GET", "/v1/admin/penalties", "").json()["penalties"], json!([]));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(service.check("a", "/x").status, 200);
}

#[test]
fn status_never_charges() {
    let service = Service::with_config(THREE_PER_MINUTE);
    service.check("user 1", "/api/v1/users");
    for path in [
        "/v1/rate-limit/status/user%201/%2Fapi%2Fv1%2Fusers",
        "/v1/rate-limit/status/user%201/api/v1/users",
        "/api/v1/rate-limit/status/user%201/api/v1/users?tier=free",
        "/v1/rate-limit/status?user_id=user%201&endpoint=/api/v1/users",
        "/v1/rate-limit/status?user_id=user+1&endpoint=%2Fapi%2Fv1%2Fusers&cost=2&descriptor.plan=eu",
    ] {
        let answer = service.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let body = answer.json();
        assert_eq!((&body["user_id"], &body["remaining"]), (&json!("user 1"), &json!(2)), "{path}");
        assert_eq!((&body["limit"], &body["usage_percentage"]), (&json!(3), &json!(33.3)), "{path}");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some("2"));
    }
}

#[test]
fn explain_pages_rules_and_charges_nothing() {
    let service = Service::with_config(
        r#"
        default_limit = 5
        [[tiers]]
        name = "gold"
        limit = 50
        window = 60
        [[rules]]
        name = "off"
        enabled = false
        per = ["user"]
        limits = [{ requests = 1, window = 1 }]
        [[rules]]
        name = "site"
        per = ["global"]
        limits = [{ requests = 7, window = "1m" }, { requests = 9, window = "1h" }]
    "#,
    );
    let ask = r#"{"user_id":"a","endpoint":"//x/../y/"}"#;
    service.post("/v1/rate-limit/explain", ask);
    let matching = service.post("/v1/rate-limit/explain", ask).json();
    let names = |body: &Value| -> Vec<String> {
        body["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (names(&matching), &matching["unmatched"]),
        (vec!["site".to_owned(), "default".to_owned()], &json!(2))
    );
    let page = service.post("/v1/rate-limit/explain?all=true&limit=3", ask).json();
    assert_eq!((names(&page).len(), &page["next"]), (3, &json!("3")));
    let last = service.post("/v1/rate-limit/explain?all=true&limit=3&after=3", ask).json();
    assert_eq!((names(&last), &last["next"]), (vec!["default".to_owned()], &Value::Null));
    for (query, field) in [("all=1", "all"), ("limit=0", "limit"), ("after=x", "after"), ("page=2", "page")] {
        let refused = service.post(&format!("/v1/rate-limit/explain?{query}"), ask).error();
        assert_eq!(refused, (400, "INVALID_INPUT".to_owned(), field.to_owned()));
    }
    let body = service.post("/v1/rate-limit/explain?all=true", ask).json();
    assert_eq!(
        (&body["allowed"], &body["rule"], &body["remaining"]),
        (&json!(true), &json!("default"), &json!(5))
    );
    assert_eq!((&body["client"], &body["normalized_endpoint"]), (&json!("user:a"), &json!("/y")));
    assert!(body["next_allowed_at_us"].is_u64());
    let rules = body["rules"].as_array().unwrap();
    let summary: Vec<(&str, bool, &str)> = rules
        .iter()
        .map(|rule| {
            let text = |key: &str| rule[key].as_str().unwrap();
            (text("name"), rule["matched"].as_bool().unwrap(), text("reason"))
        })
        .collect();
    assert_eq!(
        summary,
        [
            ("off", false, "disabled"),
            ("site", true, "matches: its limits apply"),
            ("tier:gold", false, "the request has no tier"),
            ("default", true, "matches: its limits apply"),
        ]
    );
    let limits = rules[1]["limits"].as_array().unwrap();
    assert_eq!((&limits[0]["limit"], &limits[1]["remaining"]), (&json!(7), &json!(9)));
    assert!(limits[0]["reset_at"].is_u64() && limits[0]["retry_after"].is_null());
    assert_eq!(rules[3]["binding"], true);
}

#[test]
fn shared_limits_cause_no_penalty() {
    let service = Service::with_config(
        r#"
        [progressive_penalties]
        enabled = true
        violation_threshold = 1
        [[rules]]
        name = "shared"
        when = { endpoints = ["/shared"] }
        per = ["global"]
        limits = [{ requests = 1, window = "1h" }]
        [[rules]]
        name = "own"
        when = { endpoints = ["/own"] }
        per = ["user"]
        limits = [{ requests = 1, window = "1h" }]
        [[rules]]
        name = "watch"
        action = "log_only"
        when = { endpoints = ["/free"] }
        per = ["user"]
        limits = [{ requests = 1, window = "1h" }]
    "#,
    );
    service.check("bad", "/shared");
    assert_eq!(service.check("innocent", "/shared").status, 429);
    assert_eq!(service.check("innocent", "/own").status, 200, "a shared limit must not penalize");
    assert_eq!(service.check("innocent", "/own").status, 429);
    assert_eq!(service.check("innocent", "/shared").json()["reason"], "cooldown");
    assert_eq!(service.check("innocent", "/free").status, 200, "a log_only rule must refuse nothing");
}

#[test]
fn penalized_key_is_pardoned_by_its_listed_id() {
    let service = Service::with_config(
        "default_limit = 1\n[progressive_penalties]\nenabled = true\nviolation_threshold = 1",
    );
    let check = r#"{"api_key":"secret-key","endpoint":"/x"}"#;
    for _ in 0..2 {
        service.post("/v1/rate-limit/check", check);
    }
    let listed = service.admin("GET", "/v1/admin/penalties", "");
    let client = listed.json()["penalties"][0]["client"].as_str().unwrap().replace('#', "%23");
    assert!(!listed.text.contains("secret-key"));
    assert_eq!(listed.header("cache-control"), Some("no-store"));
    assert_eq!(service.admin("DELETE", &format!("/v1/admin/penalties/{client}"), "").status, 204);
    assert_eq!(service.admin("DELETE", &format!("/v1/admin/penalties/{client}"), "").error().0, 404);
}

#[test]
fn nat64_address_counts_as_its_ipv4_address() {
    let service = Service::with_config("default_limit = 5\n[identity]\nnat64 = true\n");
    let left = |ip: &str| {
        let answer = service.post("/v1/rate-limit/check", &format!(r#"{{"ip":"{ip}","endpoint":"/x"}}"#));
        answer.json()["remaining"].as_u64().unwrap()
    };
    assert_eq!([left("192.0.2.1"), left("64:ff9b::192.0.2.1"), left("64:ff9b::c000:201")], [4, 3, 2]);
    assert_eq!([left("64:ff9b::192.0.2.2"), left("64:ff9b:1::1")], [4, 4]);
    let reset =
        service.admin("POST", "/v1/rate-limit/reset", r#"{"ip":"64:ff9b::192.0.2.1","endpoint":"/x"}"#);
    assert_eq!(reset.status, 200, "{}", reset.text);
    assert_eq!(left("192.0.2.1"), 4);
}
