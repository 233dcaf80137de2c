//! Per-user limits, resets, overrides, and the service's own endpoints.

use serde_json::json;

use crate::harness::Service;
use crate::harness::openapi_validator::DOCS_FILES;

const CONFIG: &str = "/v1/rate-limit/config";

fn user_limit(limit: u32) -> String {
    format!(
        r#"{{"user_id":"a","endpoint":"/api/v1/users","limit":{limit},"window_seconds":60,"strategy":"token_bucket"}}"#
    )
}

#[test]
fn metrics_are_openmetrics_text() {
    let service = Service::unconfigured();
    service.check("a", "/x");
    let metrics = service.send("GET", "/metrics", &[], "");
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(metrics.header("content-type"), Some(content_type));
    assert!(
        metrics.text.contains("\n# TYPE tollgate_decisions counter\n") && metrics.text.ends_with("# EOF\n")
    );
    let sample = "\ntollgate_decisions_total{rule=\"default\",decision=\"admitted\"} 1\n";
    assert!(metrics.text.contains(sample), "{}", metrics.text);
}

#[test]
fn user_limit_applies_to_its_endpoint_only() {
    let service = Service::unconfigured();
    let body = r#"{"user_id":"a","endpoint":"/api/v1/users/","limit":2,"window_seconds":60,"strategy":"sliding_window"}"#;
    let set = service.admin("PUT", CONFIG, body);
    assert_eq!(set.status, 200, "{}", set.text);
    let shown = set.json();
    assert_eq!((&shown["endpoint"], &shown["limit"]), (&json!("/api/v1/users"), &json!(2)));
    assert_eq!(
        (&shown["strategy"], &shown["burst_capacity"]),
        (&json!("sliding_window_counter"), &json!(null))
    );
    assert!(shown["updated_at"].as_str().unwrap().ends_with('Z'));

    let there = service.check("a", "/api/v1/users");
    assert_eq!((there.status, &there.json()["limit"]), (200, &json!(2)));
    service.check("a", "/api/v1/users");
    assert_eq!(service.check("a", "/api/v1/users").status, 429);
    assert_eq!(service.check("a", "/elsewhere").json()["limit"], 100);
    assert_eq!(service.check("b", "/api/v1/users").json()["limit"], 100);

    let path = format!("{CONFIG}?user_id=a&endpoint=/api/v1/users");
    assert_eq!(service.admin("GET", &path, "").json(), shown);
    assert_eq!(service.admin("DELETE", &path, "").status, 204);
    assert_eq!(service.admin("DELETE", &path, "").error().1, "NOT_FOUND");
    assert_eq!(service.admin("GET", &path, "").error().0, 404);
    assert_eq!(service.check("a", "/api/v1/users").json()["limit"], 100);
}

#[test]
fn usage_carries_over_when_limits_change() {
    let service = Service::with_config("default_limit = 100\ndefault_window = 86400");
    for _ in 0..60 {
        service.check("a", "/api/v1/users");
    }
    let user_limit = |limit| user_limit(limit).replace("60,", "86400,");
    assert_eq!(service.admin("PUT", CONFIG, &user_limit(100)).status, 200);
    assert_eq!(service.check("a", "/api/v1/users").json()["remaining"], 39);
    service.admin("PUT", CONFIG, &user_limit(200));
    assert_eq!(service.check("a", "/api/v1/users").json()["remaining"], 138);
    service.admin("PUT", CONFIG, &user_limit(50));
    assert_eq!(service.check("a", "/api/v1/users").status, 429);
}

/// Whatever becomes of the limit of a user, each request counts once.
#[test]
fn changed_limits_count_no_request_twice() {
    let service = Service::with_config("default_limit = 100\ndefault_window = \"7d\"");
    let body = |strategy: &str, days: u32| {
        let body = user_limit(100).replace("60,", &format!("{},", days * 86_400));
        body.replace("token_bucket", strategy)
    };
    let path = format!("{CONFIG}?user_id=a&endpoint=/api/v1/users");
    let mut used = 0;
    let mut check = |after: &str| {
        used += 1;
        assert_eq!(service.check("a", "/api/v1/users").json()["remaining"], 100 - used, "after {after}");
    };
    check("the start");
    for (strategy, days) in [
        ("fixed_window", 10),
        ("fixed_window", 5),
        ("fixed_window", 10),
        ("token_bucket", 400),
        ("sliding_window_log", 10),
        ("fixed_window", 5),
    ] {
        assert_eq!(service.admin("PUT", CONFIG, &body(strategy, days)).status, 200);
        check(&format!("{strategy} over {days} days"));
    }
    assert_eq!(service.admin("DELETE", &path, "").status, 204);
    check("the deletion");
    assert_eq!(service.admin("PUT", CONFIG, &body("fixed_window", 5)).status, 200);
    check("it was set again");
}

#[test]
fn reset_affects_only_its_client() {
    let service = Service::with_config(
        "default_limit = 1\n[[tiers]]\nname = \"free\"\nlimit = 1\nwindow = 60\n[[rules]]\nname = \"all\"\nper = [\"global\"]\nlimits = [{ requests = 100, window = 60 }]",
    );
    let free = r#"{"user_id":"a","tier":"free","endpoint":"/x"}"#;
    assert_eq!(service.post("/v1/rate-limit/check", free).status, 200);
    assert_eq!(service.post("/v1/rate-limit/check", free).status, 429);
    service.check("b", "/x");
    let reset = service.admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"a","endpoint":"/x"}"#);
    assert_eq!(reset.status, 200, "{}", reset.text);
    let body = reset.json();
    assert_eq!(
        (&body["user_id"], &body["endpoint"], &body["counters"]),
        (&json!("a"), &json!("/x"), &json!(1))
    );
    assert!(body["done_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(
        service.post("/v1/rate-limit/check", free).status,
        200,
        "a reset without tier must clear it too"
    );
    assert_eq!(service.check("b", "/x").status, 429);
}

#[test]
fn override_is_allowed_on_loopback() {
    let service = Service::unconfigured();
    let body =
        r#"{"user_id":"a","endpoint":"/x","limit":2,"window_seconds":2592000,"strategy":"fixed_window"}"#;
    let first = service.post("/v1/rate-limit/check", body);
    assert_eq!((&first.json()["limit"], &first.json()["strategy"]), (&json!(2), &json!("fixed_window")));
    service.post("/v1/rate-limit/check", body);
    assert_eq!(service.post("/v1/rate-limit/check", body).status, 429);
    assert_eq!(
        service.check("a", "/x").json()["remaining"],
        99,
        "an override must not charge the rule's counter"
    );
    let partly = service.post("/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x","limit":7}"#).json();
    assert_eq!((&partly["limit"], &partly["strategy"]), (&json!(7), &json!("token_bucket")));
}

#[test]
fn partial_override_is_completed_by_the_rule() {
    let service = Service::with_config(
        r#"
        [[rules]]
        name = "site"
        per = ["global"]
        algorithm = "fixed_window"
        limits = [{ requests = 1000, window = "1h" }]
        [[rules]]
        name = "users"
        per = ["user"]
        algorithm = "gcra"
        limits = [{ requests = 5000, window = "1m" }]
    "#,
    );
    let body = service.post("/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x","limit":7}"#).json();
    assert_eq!(
        (&body["limit"], &body["strategy"], &body["rule"]),
        (&json!(7), &json!("gcra"), &json!("users"))
    );
}

#[test]
fn rules_in_force_can_be_read() {
    let service = Service::unconfigured();
    let rules = service.admin("GET", "/v1/admin/rules", "").json();
    assert_eq!(rules["rules"][0]["name"], "default");
    assert_eq!(
        rules["rules"][0]["limits"][0],
        json!({"requests":100,"window":"1m","burst":null,"algorithm":"token_bucket"})
    );
}

#[test]
fn health_readiness_metrics_and_documentation_need_no_key() {
    // The counter must not refill and be evicted during the test.
    let service = Service::with_config("default_limit = 100\ndefault_window = \"1d\"");
    assert_eq!(service.get("/healthz").json()["status"], "ok");
    assert_eq!(service.get("/readyz").json()["status"], "ready");
    service.check("a", "/x");
    assert_eq!(service.metric(r#"tollgate_decisions_total{rule="default",decision="admitted"}"#), Some(1.0));
    assert_eq!(service.metric("tollgate_config_last_reload_success"), Some(1.0));
    assert_eq!(service.metric("tollgate_counters"), Some(1.0));
    let description = service.get("/openapi.json").json();
    assert!(description["openapi"].as_str().unwrap().starts_with("3.1"));
    assert!(description["paths"]["/v1/rate-limit/check"]["post"].is_object());
    let docs = service.get("/docs");
    assert_eq!(docs.status, 200);
    assert!(
        !docs.text.contains("http://") && !docs.text.contains("https://"),
        "the page must load nothing from other hosts"
    );
    for asset in DOCS_FILES {
        let answer = service.get(asset);
        assert_eq!((answer.status, answer.header("x-content-type-options")), (200, Some("nosniff")));
    }
    let policy = docs.header("content-security-policy").unwrap();
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe-inline"));
    assert_eq!(service.get("/").status, 303);
}

#[test]
fn client_names_create_no_metric_series() {
    let service = Service::unconfigured();
    let series = || service.get("/metrics").text.lines().filter(|line| !line.starts_with('#')).count();
    service.check("a", "/x");
    service.get("/nothing");
    series(); // the first scrape is counted, too
    let before = series();
    for n in 0..200 {
        service.check(&format!("user{n}\\\"}}"), &format!("/path/{n}"));
        service.get(&format!("/nothing/{n}"));
    }
    assert_eq!(series(), before);
}

#[test]
fn user_limit_replaces_only_the_user_rule() {
    let service = Service::with_config(
        r#"
        [[rules]]
        name = "ip-guard"
        priority = 10
        per = ["ip"]
        limits = [{ requests = 50, window = "1m" }]
        [[rules]]
        name = "users"
        per = ["user"]
        limits = [{ requests = 5, window = "1m" }]
    "#,
    );
    assert_eq!(service.admin("PUT", CONFIG, &user_limit(1_000)).status, 200);
    let ask = r#"{"user_id":"a","ip":"192.0.2.1","endpoint":"/api/v1/users"}"#;
    let rules = service.post("/v1/rate-limit/explain", ask).json()["rules"].clone();
    let limit = |n: usize| (rules[n]["name"].clone(), rules[n]["limits"][0]["limit"].clone());
    assert_eq!(limit(0), (json!("ip-guard"), json!(50)));
    assert_eq!(limit(1), (json!("users"), json!(1_000)));
}

#[test]
fn user_limit_applies_without_a_rule() {
    let service = Service::with_config(
        "[[rules]]\nname = \"t\"\nper = [\"tenant\"]\nlimits = [{ requests = 9, window = 60 }]",
    );
    service.admin("PUT", CONFIG, &user_limit(1));
    let statuses = [(); 2].map(|()| service.check("a", "/api/v1/users").status);
    assert_eq!(statuses, [200, 429]);
}

#[test]
fn changed_window_or_strategy_keeps_usage() {
    let service = Service::unconfigured();
    service.admin("PUT", CONFIG, &user_limit(3).replace("60", "3600"));
    for _ in 0..3 {
        assert_eq!(service.check("a", "/api/v1/users").status, 200);
    }
    service.admin("PUT", CONFIG, &user_limit(3).replace("60", "3601"));
    assert_eq!(service.check("a", "/api/v1/users").status, 429);
}

#[test]
fn user_limit_rejects_endpoint_patterns() {
    let service = Service::unconfigured();
    for pattern in ["/a/*", "*", "/a/{id}"] {
        let body = user_limit(1).replace("/api/v1/users", pattern);
        assert_eq!(service.admin("PUT", CONFIG, &body).error().2, "endpoint", "{pattern}");
    }
}

#[test]
fn reset_lists_rules_it_could_not_reset() {
    let service = Service::with_config(
        r#"
        [[rules]]
        name = "by-method"
        per = ["user", "method"]
        limits = [{ requests = 1, window = "1h" }]
        [[rules]]
        name = "by-tenant"
        per = ["tenant"]
        limits = [{ requests = 1, window = "1h" }]
    "#,
    );
    let reset = |body: &str| service.admin("POST", "/v1/rate-limit/reset", body).json();
    let get = r#"{"user_id":"a","method":"GET","endpoint":"/x"}"#;
    service.post("/v1/rate-limit/check", get);
    assert_eq!(reset(r#"{"user_id":"a","endpoint":"/x"}"#)["skipped"], json!(["by-method"]));
    let whole = reset(get);
    assert_eq!((&whole["counters"], &whole["skipped"]), (&json!(1), &json!([])));
    let tenant = r#"{"tenant":"acme","endpoint":"/x"}"#;
    service.post("/v1/rate-limit/check", tenant);
    assert_eq!(reset(tenant)["counters"], 1);
    let unknown =
        service.admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"a","endpoint":"/x","cost":1}"#);
    assert_eq!(unknown.error().2, "cost");
}

#[test]
fn deleted_rules_leave_no_metric_series() {
    let service = Service::unconfigured();
    let series = || {
        let text = service.get("/metrics").text;
        text.lines().filter(|line| line.starts_with("tollgate_decisions_total{")).count()
    };
    let before = series();
    for number in 0..60 {
        let path = format!("/v1/admin/rules/rule-{number}");
        let rule = r#"{"per":["user"],"limits":[{"requests":5,"window":"1m"}]}"#;
        assert_eq!(service.admin("PUT", &path, rule).status, 201);
        assert_eq!(service.admin("DELETE", &path, "").status, 204);
    }
    assert_eq!(series(), before);
}
