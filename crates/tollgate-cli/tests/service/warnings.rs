//! Requests that are served with a warning, and limits that a check names without overriding them.

use serde_json::{Value, json};

use crate::cli;
use crate::harness::Service;

const CHECK: &str = "/v1/rate-limit/check";

/// The bodies of the API description that tollgate follows.
const SEED_CHECK: &str = r#"{"user_id":"user_123","endpoint":"/api/v1/users","strategy":"token_bucket","limit":1000,"window_seconds":60}"#;
const SEED_CONFIG: &str = r#"{"user_id":"user_123","endpoint":"/api/v1/users","limit":2000,"window_seconds":60,"strategy":"token_bucket","burst_capacity":100}"#;
const SEED_RESET: &str = r#"{"user_id":"user_123","endpoint":"/api/v1/users"}"#;
const SEED_STATUS: &str = "/v1/rate-limit/status/user_123/%2Fapi%2Fv1%2Fusers?strategy=token_bucket";

fn warnings(body: &Value) -> Vec<String> {
    let all = body["warnings"].as_array().cloned().unwrap_or_default();
    all.iter().map(|warning| warning.as_str().unwrap().to_owned()).collect()
}

#[test]
fn check_status_config_and_reset_bodies_fit_together() {
    let service = Service::with_config("default_limit = 1000\ndefault_window = 60");
    let check = || service.post(CHECK, SEED_CHECK).json();
    // At one instant: a thousand per minute are restored quickly.
    let use_900 = || {
        let checks = vec![SEED_CHECK; 900].join(",");
        let batch = format!(r#"{{"checks":[{checks}]}}"#);
        assert_eq!(service.post("/v1/rate-limit/batch-check", &batch).status, 200);
    };
    let first = check();
    assert_eq!(
        (&first["limit"], &first["remaining"], &first["rule"]),
        (&json!(1000), &json!(999), &json!("default"))
    );
    use_900();
    let status = service.get(SEED_STATUS).json();
    assert_eq!((&status["limit"], &status["strategy"]), (&json!(1000), &json!("token_bucket")));
    assert!(status["remaining"].as_u64().unwrap() < 900, "the counter of the checks: {status}");

    let configured = service.admin("PUT", "/v1/rate-limit/config", SEED_CONFIG);
    assert_eq!((configured.status, &configured.json()["limit"]), (200, &json!(2000)));
    let status = service.get(SEED_STATUS).json();
    assert_eq!((&status["limit"], &status["capacity"]), (&json!(2000), &json!(100)), "{status}");

    // Now the check asks for another limit than the one in force, which is an override.
    assert_eq!(check()["limit"], 1000);
    use_900();
    assert_eq!(service.admin("POST", "/v1/rate-limit/reset", SEED_RESET).status, 200);
    assert_eq!(check()["remaining"], 999, "the reset clears the counter of the override, too");
    assert_eq!(service.get(SEED_STATUS).json()["remaining"], 100);
}

#[test]
fn values_in_force_are_no_override() {
    let rule = "[[rules]]\nname = \"users\"\nper = [\"user\"]\nlimits = [{ requests = 60, window = \"30d\", burst = 3 }]";
    let service = Service::on_every_address(rule);
    let check = |more: &str| service.post(CHECK, &format!(r#"{{"user_id":"a","endpoint":"/x"{more}}}"#));
    for (more, left) in
        [(r#","strategy":"token_bucket""#, 2), (r#","limit":60,"window_seconds":2592000"#, 1), ("", 0)]
    {
        let body = check(more).json();
        assert_eq!((&body["remaining"], &body["rule"]), (&json!(left), &json!("users")), "{more}: {body}");
        assert!(warnings(&body).is_empty(), "{body}");
    }
    assert_eq!(check(r#","strategy":"token_bucket""#).status, 429);
    assert_eq!(check(r#","limit":61"#).status, 401, "another limit needs the scope");
    assert_eq!(check(r#","strategy":"gcra","limit":60"#).status, 401);
}

#[test]
fn other_strategy_without_the_scope_is_ignored_with_a_warning() {
    let service = Service::on_every_address("default_limit = 100\ndefault_window = \"30d\"");
    let body = r#"{"user_id":"a","endpoint":"/x","strategy":"sliding_window_log"}"#;
    for left in [99, 98] {
        let answer = service.post(CHECK, body).json();
        assert_eq!((&answer["remaining"], &answer["strategy"]), (&json!(left), &json!("token_bucket")));
        let warned = warnings(&answer);
        assert!(warned.len() == 1 && warned[0].starts_with("strategy was ignored"), "{answer}");
    }
}

const TIERS: &str = "[[tiers]]\nname = \"gold\"\nlimit = 100\nwindow = 60\n";

#[test]
fn unknown_tier_is_reported_in_every_response() {
    let service = Service::with_config(TIERS);
    let check = |tier: &str| {
        service.post(CHECK, &format!(r#"{{"user_id":"a","endpoint":"/x","tier":"{tier}"}}"#)).json()
    };
    assert!(warnings(&check("gold")).is_empty());
    let warned = warnings(&check("goldd"));
    assert!(warned.len() == 1 && warned[0].starts_with("no rule names the tier \"goldd\""), "{warned:?}");

    for path in ["/v1/admin/quotas/bob", "/v1/admin/quotas/bob?dry_run=true"] {
        assert_eq!(warnings(&service.admin("PUT", path, r#"{"tier":"goldd"}"#).json()).len(), 1, "{path}");
    }
    assert!(warnings(&service.admin("PUT", "/v1/admin/quotas/eve", r#"{"tier":"gold"}"#).json()).is_empty());
    let import = r#"{"quotas":[{"user_id":"carol","tier":"goldd"},{"user_id":"dan","tier":"silver"}],
                     "tiers":[{"name":"silver","limit":5,"window":60}]}"#;
    let imported = service.admin("POST", "/v1/admin/import", import).json();
    assert_eq!(warnings(&imported).len(), 1, "silver is part of the import: {imported}");
    let status = service.get("/v1/rate-limit/status?user_id=bob&endpoint=/x").json();
    assert!(warnings(&status)[0].contains("\"goldd\" of the client's account"), "{status}");
}

#[test]
fn commands_print_warnings_to_standard_error() {
    let service = Service::with_config(TIERS);
    for command in [
        &["check", "--user", "a", "--endpoint", "/x", "--tier", "goldd"][..],
        &["quotas", "set", "bob", "--tier", "goldd"],
        &["keys", "create", "ci", "--tier", "goldd"],
    ] {
        let output = cli::run(&service, command);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command:?}: {errors}");
        assert!(errors.contains("warning: no rule names the tier \"goldd\""), "{command:?}: {errors}");
    }
}

#[test]
fn unknown_tier_can_be_rejected() {
    let service = Service::with_config(&format!("{TIERS}[identity]\nunknown_tier = \"reject\"\n"));
    let invalid = (400, "INVALID_INPUT".to_owned(), "tier".to_owned());
    assert_eq!(service.post(CHECK, r#"{"user_id":"a","endpoint":"/x","tier":"goldd"}"#).error(), invalid);
    assert_eq!(service.post(CHECK, r#"{"user_id":"a","endpoint":"/x","tier":"gold"}"#).status, 200);
    assert_eq!(service.admin("PUT", "/v1/admin/quotas/bob", r#"{"tier":"goldd"}"#).error(), invalid);
    assert_eq!(service.admin("GET", "/v1/admin/quotas/bob", "").status, 404, "nothing was changed");
    assert_eq!(service.admin("POST", "/v1/admin/keys", r#"{"name":"k","tier":"goldd"}"#).error(), invalid);
}

#[test]
fn unknown_fields_of_a_check_are_listed() {
    let misspelt = r#"{"user_id":"a","endpoint":"/x","teir":"gold","Cost":2}"#;
    let batch = format!(r#"{{"checks":[{misspelt},{{"user_id":"a","endpoint":"/x"}}]}}"#);
    let service = Service::unconfigured();
    let expected = ["unknown field \"teir\" was ignored", "unknown field \"Cost\" was ignored"];
    for path in [CHECK, "/v1/rate-limit/explain"] {
        assert_eq!(warnings(&service.post(path, misspelt).json()), expected, "{path}");
    }
    let results = &service.post("/v1/rate-limit/batch-check", &batch).json()["results"];
    assert_eq!(warnings(&results[0]), expected);
    assert!(results[1].get("warnings").is_none());

    let strict = Service::with_config("[api]\nstrict = true\n");
    for path in [CHECK, "/v1/rate-limit/explain"] {
        let refused = strict.post(path, misspelt).error();
        assert_eq!(refused, (400, "INVALID_INPUT".to_owned(), "teir".to_owned()), "{path}");
    }
    let results = &strict.post("/v1/rate-limit/batch-check", &batch).json()["results"];
    assert_eq!(results[0]["error"]["details"]["field"], "checks[0].teir");
    assert_eq!(results[1]["remaining"], 99, "the invalid check was not charged");
}

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
fn flat_names_are_stored_as_nested_ones() {
    let service = Service::with_config("default_limit = 100");
    let flat = json!({
        "rule_name": "free", "priority": 700, "user_tier": "free", "requests_per_hour": 1000, "burst_size": 20,
        "action": "throttle",
    });
    let made = service.admin("POST", "/v1/admin/rules", &flat.to_string());
    assert_eq!(made.status, 201, "{}", made.text);
    let warnings = made.json()["warnings"].to_string();
    assert!(warnings.contains("is read as") && warnings.contains("lower numbers"), "{warnings}");
    let definition = json!({
        "name": "free", "priority": 700, "when": { "tiers": ["free"] }, "per": ["client"],
        "limits": [{ "requests": 1000, "window": "1h", "burst": 20 }],
    });
    assert_eq!(service.admin("GET", "/v1/admin/rules/free", "").json()["definition"], definition);
    let refused = service.admin("POST", "/v1/admin/quotas", r#"{"user_id":"a","custom_limit_per_hour":5}"#);
    assert!(refused.status == 400 && refused.text.contains("write requests_per_hour"), "{}", refused.text);
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

#[test]
fn warnings_about_settings_are_printed_once() {
    let service = Service::with_config(
        "default_limit = 10\ntrusted_proxy_depth = 1\n[rate_limit]\nredis_pool_size = 20\n\
         [[rules]]\nrule_name = \"slow\"\nlimit_count = 5\nwindow_seconds = 60\naction = \"throttle\"\n",
    );
    let file = service.config_file();
    let file = file.to_str().unwrap();
    let lint = cli::run(&service, &["rules", "lint", file]).stdout;
    let shown = cli::run(&service, &["config", "show", "--config", file]);
    let json = cli::run(&service, &["config", "show", "--config", file, "--json"]);
    let parsed: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(parsed["identity"]["client_address"], "peer");
    let lint = String::from_utf8(lint).unwrap();
    for output in [
        lint,
        service.log(),
        String::from_utf8(shown.stderr).unwrap(),
        String::from_utf8(json.stderr).unwrap(),
    ] {
        for warning in [
            "trusted_proxy_depth has no effect without identity.trusted_proxies",
            "redis_pool_size is ignored: ",
            "has action ",
        ] {
            assert_eq!(output.matches(warning).count(), 1, "{warning}\n{output}");
        }
    }
}
