//! Names of other schemas in rules, tiers, quotas and keys: stored in our names, or refused with the name to write.

use serde_json::{Value, json};

use crate::cli;
use crate::harness::Service;

fn create(service: &Service, kind: &str, body: &Value) -> Value {
    let answer = service.admin("POST", &format!("/v1/admin/{kind}"), &body.to_string());
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.json()
}

#[test]
fn aliases_are_stored_in_our_names() {
    let service = Service::with_config("default_limit = 100");
    let rule =
        json!({ "name": "r", "per": ["user"], "requests_per_hour": 5, "on_store_failure": "fail_closed" });
    let made = create(&service, "rules", &rule);
    assert_eq!(
        (&made["on_store_failure"], &made["definition"]["on_store_failure"]),
        (&json!("closed"), &json!("closed"))
    );
    let tier = json!({
        "name": "gold", "description": "d", "algorithm": "gcra", "limit_count": 50, "window_seconds": 60, "burst_limit": 9,
        "failure_mode": "fail_open",
    });
    let made = create(&service, "tiers", &tier);
    let limits = json!([{ "requests": 50, "window": "1m", "burst": 9 }]);
    assert_eq!(
        (&made["limits"], &made["algorithm"], &made["description"]),
        (&limits, &json!("gcra"), &json!("d"))
    );
    assert_eq!(made["on_store_failure"], "open");
    let check =
        service.post("/v1/rate-limit/check", r#"{"ip":"192.0.2.1","endpoint":"/x","tier":"gold"}"#).json();
    assert_eq!((&check["limit"], &check["capacity"]), (&json!(50), &json!(9)), "{check}");

    let import = json!({ "rules": [rule], "tiers": [tier] });
    let again = service.admin("POST", "/v1/admin/import", &import.to_string());
    assert_eq!((again.status, &again.json()["unchanged"]), (200, &json!(2)), "{}", again.text);
}

#[test]
fn commands_accept_flat_names_with_their_warnings() {
    let service = Service::with_config("default_limit = 100");
    let file = service.data_dir().join("flat.toml");
    let rule = "[[rules]]\nrule_name = \"free\"\nuser_tier = \"free\"\nrequests_per_hour = 9\naction = \"throttle\"\n";
    std::fs::write(&file, rule).unwrap();
    for command in [["rules", "put"], ["rules", "apply"]] {
        let output = cli::run(&service, &[&command[..], &[file.to_str().unwrap(), "--dry-run"]].concat());
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && printed.contains("+ rule free"), "{command:?}: {output:?}");
    }
    let import = json!({ "rules": [{ "rule_name": "free", "requests_per_hour": 9, "action": "throttle" }] });
    for query in ["?dry_run=true", ""] {
        let answer = service.admin("POST", &format!("/v1/admin/import{query}"), &import.to_string()).json();
        let warnings = answer["warnings"].to_string();
        assert!(
            warnings.contains("rule \\\"free\\\" has action") && warnings.contains("is read as"),
            "{answer}"
        );
    }
}

#[test]
fn columns_are_refused_with_the_name_to_write() {
    let service = Service::with_config("default_limit = 100");
    for (kind, field, value, reason) in [
        ("quotas", "custom_limit_per_hour", json!(5), "write requests_per_hour"),
        ("quotas", "custom_limit_per_day", json!(5), "write requests_per_day"),
        ("quotas", "custom_burst_size", json!(5), "write burst"),
        ("quotas", "burst_size", json!(5), "write burst"),
        ("quotas", "requests_per_minute", json!(5), "write a rule"),
        ("quotas", "requests_per_second", json!(5), "write a rule"),
        ("quotas", "total_requests_today", json!(5), "usage is recorded"),
        ("quotas", "quota_exceeded_count", json!(5), "usage is recorded"),
        ("quotas", "is_blocked", json!(true), "tollgate users block"),
        ("keys", "key_name", json!("n"), "write name"),
        ("keys", "burst_size", json!(5), "write burst"),
        ("keys", "requests_per_minute", json!(5), "write a rule"),
        ("keys", "total_requests", json!(5), "usage is recorded"),
        ("keys", "is_active", json!(false), "revoke the key"),
        ("keys", "api_key_id", json!("x"), "leave it out"),
        ("keys", "api_key_hash", json!("x"), "write key_sha256"),
        ("rules", "id", json!("x"), "leave it out"),
        ("rules", "strategy", json!("gcra"), "write algorithm"),
        ("rules", "http_method", json!("*"), "no condition for every method"),
        ("tiers", "refill_rate", json!(1.5), "leave it out"),
    ] {
        let mut body = match kind {
            "quotas" => json!({ "user_id": "u" }),
            "keys" => json!({ "name": "k" }),
            "rules" => json!({ "name": "r", "per": ["user"], "requests_per_hour": 5 }),
            _ => json!({ "name": "t", "limit": 5, "window": 60 }),
        };
        body[field] = value;
        let answer = service.admin("POST", &format!("/v1/admin/{kind}"), &body.to_string());
        assert!(answer.status == 400 && answer.text.contains(field), "{kind}.{field}: {}", answer.text);
        assert!(answer.text.contains(reason), "{kind}.{field}: {}", answer.text);
    }
}

#[test]
fn api_has_one_name_and_type_for_each_thing() {
    let service = Service::with_config("default_limit = 100\ndefault_window = \"1d\"");
    let check = |user: Value| {
        let body = json!({ "user_id": user, "endpoint": "/x" });
        service.post("/v1/rate-limit/check", &body.to_string())
    };
    assert_eq!(check(json!(12345)).error(), (400, "INVALID_INPUT".to_owned(), "user_id".to_owned()));
    let remaining = [0, 1].map(|_| check(json!("12345")).json()["remaining"].clone());
    assert_eq!(remaining, [json!(99), json!(98)], "the same check is charged each time");

    let config = json!({ "user_id": "a", "endpoint": "/x", "limit": 5, "window_seconds": 60, "strategy": "sliding_window" });
    let put = service.admin("PUT", "/v1/rate-limit/config", &config.to_string()).json();
    let get = service.admin("GET", "/v1/rate-limit/config?user_id=a&endpoint=/x", "").json();
    assert_eq!([&put["strategy"], &get["strategy"]], ["sliding_window_counter"; 2]);

    let reset =
        service.admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"12345","endpoint":"/x"}"#).json();
    assert!(reset["done_at"].is_string() && reset.get("reset_at").is_none(), "{reset}");
}

#[test]
fn other_names_of_fields_are_read_or_refused_by_name() {
    let service = Service::with_config("default_limit = 100");
    let checked = service
        .post("/v1/rate-limit/check", r#"{"user":"a","endpoint":"/x","algorithm":"token_bucket"}"#)
        .json();
    assert_eq!(checked["remaining"], 99, "{checked}");
    assert_eq!(
        checked["warnings"],
        json!([r#""user" is read as "user_id""#, r#""algorithm" is read as "strategy""#])
    );
    assert_eq!(service.admin("GET", "/v1/admin/counters?user=a", "").json()["counters"][0]["used"], 1);
    let both = service.post("/v1/rate-limit/check", r#"{"user":"a","user_id":"b","endpoint":"/x"}"#);
    assert!(both.status == 400 && both.text.contains("given twice"), "{}", both.text);
    let burst = service.post("/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x","burst":5}"#).json();
    assert_eq!(burst["warnings"], json!([r#"unknown field "burst" was ignored"#]));
    for (name, field) in [("user", "user_id"), ("algorithm", "strategy"), ("burst", "burst_capacity")] {
        let mut body =
            json!({"user_id": "a", "endpoint": "/x", "limit": 9, "window_seconds": 60, "strategy": "gcra"});
        body[name] = 5.into();
        let refused = service.admin("PUT", "/v1/rate-limit/config", &body.to_string());
        assert_eq!((refused.status, &*refused.error().2), (400, name), "{}", refused.text);
        assert!(refused.text.contains(&format!("write {field}")), "{}", refused.text);
    }
}

#[test]
fn tables_name_the_key_to_write() {
    let service = Service::with_config("default_limit = 100");
    for (kind, body, reason) in [
        ("quotas", json!({"user": "u", "user_id": "u"}), "write user_id"),
        ("rules", json!({"name": "r", "requests_per_hour": 5, "burst": 2}), "write burst_size"),
        (
            "rules",
            json!({"name": "r", "limits": [{"requests": 5, "window": 60, "burst_size": 2}]}),
            "write burst",
        ),
    ] {
        let answer = service.admin("POST", &format!("/v1/admin/{kind}"), &body.to_string());
        assert!(answer.status == 400 && answer.text.contains(reason), "{reason}: {}", answer.text);
    }
    let limit = json!({"user_id": "u", "endpoint": "/", "limit": 1, "window_seconds": 1, "strategy": "gcra", "algorithm": "gcra"});
    let answer = service.admin("POST", "/v1/admin/import", &json!({"limits": [limit]}).to_string());
    assert!(answer.status == 400 && answer.text.contains("write strategy"), "{}", answer.text);
}
