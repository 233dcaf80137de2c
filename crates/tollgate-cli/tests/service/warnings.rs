//! Warnings about valid changes that may not do what was meant.

use serde_json::{Value, json};

use crate::harness::Service;

const REPORTS: &str = r#"
[[rules]]
name = "reports"
when = { endpoints = ["/reports/*"] }
per = ["user"]
limits = [{ requests = 5, window = "1h" }]
[[rules]]
name = "plan"
per = ["client"]
limits = [{ requests = 100, window = "1h" }]
"#;

fn put(service: &Service, path: &str, body: &Value) -> Value {
    let answer = service.admin("PUT", path, &body.to_string());
    assert!(answer.status == 200 || answer.status == 201, "{}", answer.text);
    answer.json()
}

#[test]
fn rule_that_ends_the_built_in_default_warns() {
    let service = Service::unconfigured();
    let block = json!({ "action": "block", "when": { "users": ["bob"] } });
    assert_eq!(put(&service, "/v1/admin/rules/no-bob", &block)["warnings"], Value::Null);
    assert_eq!(service.check("alice", "/").json()["rule"], "default");
    let pro = json!({ "when": { "tiers": ["pro"] }, "per": ["user"], "requests_per_minute": 600 });
    let path = "/v1/admin/rules/pro";
    let dry_run = put(&service, &format!("{path}?dry_run=true"), &pro);
    for answer in [dry_run, put(&service, path, &pro)] {
        let warning = answer["warnings"][0].as_str().unwrap_or_default();
        assert!(warning.contains("clients that no rule matches are now unlimited"), "{answer}");
    }
    let check = r#"{"user_id":"alice","tier":"pro","endpoint":"/","cost":599}"#;
    assert_eq!(service.post("/v1/rate-limit/check", check).status, 200, "not refused by the default");
    assert_eq!(service.check("carol", "/").json()["rule"], Value::Null);
    assert_eq!(put(&service, path, &pro)["warnings"], Value::Null, "it ended before");
    let everyone = json!({ "per": ["client"], "requests_per_minute": 50 });
    assert_eq!(service.admin("DELETE", path, "").status, 204);
    assert_eq!(service.check("carol", "/").json()["rule"], "default", "applies again");
    assert_eq!(put(&service, "/v1/admin/rules/all", &everyone)["warnings"], Value::Null);
}

#[test]
fn quota_warns_about_stricter_rules() {
    let service = Service::with_config(REPORTS);
    let quota = json!({ "requests_per_hour": 5_000 });
    let warning = "rule \"reports\" remains stricter than the quota of \"alice\": 5 per 1h by user";
    let dry_run = put(&service, "/v1/admin/quotas/alice?dry_run=true", &quota);
    assert_eq!(dry_run["warnings"], json!([warning]));
    assert_eq!(put(&service, "/v1/admin/quotas/alice", &quota)["warnings"], json!([warning]));
    let small = json!({ "requests_per_hour": 5 });
    assert_eq!(put(&service, "/v1/admin/quotas/bob", &small)["warnings"], Value::Null);
    let key = service.admin("POST", "/v1/admin/keys", r#"{"name":"k","requests_per_hour":9}"#).json();
    assert_eq!(key["warnings"].as_array().map(Vec::len), Some(1), "{key}");

    let admitted = (0..20).filter(|_| service.check("alice", "/reports/1").status == 200).count();
    assert_eq!(admitted, 5);
    let explained = service.post("/v1/rate-limit/explain", r#"{"user_id":"alice","endpoint":"/"}"#).json();
    let plan = explained["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == "plan").unwrap();
    assert_eq!(plan["reason"], "matches, but the user's quota (@quota) takes its place");
    assert_eq!(plan["limits"][0]["limit"], 5_000);
}
