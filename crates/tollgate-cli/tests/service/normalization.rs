//! Normalization of identifiers, paths and methods on every surface.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Answer, Service, wait_for};

const NORMALIZING: &str = r#"
default_limit = 5
default_window = "1h"
[identity]
normalize = { user_id = "nfc+casefold", tenant = "nfc+casefold", login = "nfc+casefold", descriptors = "nfc+casefold" }
"#;

/// One user id in four variants.
const VARIANTS: [&str; 4] =
    ["Zo\u{eb} Stra\u{df}e", "zoe\u{308} strasse", "ZO\u{cb} STRASSE", "zo\u{eb} strasse"];
/// The normalized form.
const NORMALIZED: &str = VARIANTS[3];

fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut path, byte| {
        let _ = write!(path, "%{byte:02X}");
        path
    })
}

fn check(service: &Service, facts: &Value) -> Answer {
    let mut body = json!({ "endpoint": "/x" });
    body.as_object_mut().unwrap().extend(facts.as_object().unwrap().clone());
    service.post("/v1/rate-limit/check", &body.to_string())
}

fn remaining_after_check(service: &Service, facts: &Value) -> u64 {
    let answer = check(service, facts);
    answer.json()["remaining"].as_u64().unwrap_or_else(|| panic!("{}", answer.text))
}

fn user(name: &str) -> Value {
    json!({ "user_id": name })
}

#[test]
fn ids_are_byte_exact_unless_normalized() {
    let exact = Service::with_config("default_limit = 5\ndefault_window = \"1h\"");
    assert_eq!(VARIANTS.map(|name| remaining_after_check(&exact, &user(name))), [4, 4, 4, 4]);
    let normalizing = Service::with_config(&format!(
        "{NORMALIZING}[[rules]]\nname = \"mail\"\nper = [\"descriptor:mail\"]\nrequests_per_hour = 50\n"
    ));
    assert_eq!(VARIANTS.map(|name| remaining_after_check(&normalizing, &user(name))), [4, 3, 2, 1]);
    assert_eq!(
        VARIANTS.map(|name| remaining_after_check(&normalizing, &json!({ "tenant": name }))),
        [4, 3, 2, 1]
    );
    assert_eq!(
        VARIANTS.map(|name| remaining_after_check(&normalizing, &json!({ "login": name }))),
        [4, 3, 2, 1]
    );
    assert_eq!(
        VARIANTS.map(|name| remaining_after_check(&normalizing, &json!({ "api_key": name }))),
        [4, 4, 4, 4],
        "never keys"
    );
    let mail = |name: &str| json!({ "ip": "192.0.2.1", "descriptors": { "mail": name } });
    for (number, name) in (0..).zip(VARIANTS) {
        let explained = normalizing.post(
            "/v1/rate-limit/explain",
            &json!({ "ip": "192.0.2.1", "endpoint": "/x", "descriptors": { "mail": name } }).to_string(),
        );
        let rules = explained.json();
        let rule =
            rules["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == "mail").unwrap().clone();
        assert_eq!(rule["limits"][0]["remaining"], 50 - number);
        check(&normalizing, &mail(name));
    }
}

#[test]
fn normalization_applies_to_every_surface() {
    let service = Service::with_config(NORMALIZING);
    let batch: Vec<Value> = VARIANTS.map(|name| json!({ "user_id": name, "endpoint": "/x" })).into();
    let answer = service.post("/v1/rate-limit/batch-check", &json!({ "checks": batch }).to_string()).json();
    let remaining = |item: &Value| item["remaining"].as_u64().unwrap();
    let remaining_of_each: Vec<u64> = answer["results"].as_array().unwrap().iter().map(remaining).collect();
    assert_eq!(remaining_of_each, [4, 3, 2, 1]);
    assert_eq!(answer["results"][0]["user_id"], VARIANTS[0], "as it was sent");
    for name in VARIANTS {
        let status = service.get(&format!("/v1/rate-limit/status?user_id={}&endpoint=/x", escaped(name)));
        assert_eq!(status.json()["remaining"], 1, "{}", status.text);
        let by_path = service.get(&format!("/v1/rate-limit/status/{}/x", escaped(name)));
        assert_eq!(by_path.json()["remaining"], 1, "{}", by_path.text);
        let body = json!({ "user_id": name, "endpoint": "/x" }).to_string();
        let explained = service.post("/v1/rate-limit/explain", &body).json();
        assert_eq!(
            (&explained["client"], &explained["remaining"]),
            (&json!(format!("user:{NORMALIZED}")), &json!(1))
        );
        let inspected = service
            .admin("GET", &format!("/v1/admin/counters?user={}&endpoint=/x", escaped(name)), "")
            .json();
        assert_eq!(inspected["client"], format!("user:{NORMALIZED}"));
        assert_eq!(inspected["counters"][0]["used"], 4, "{inspected}");
    }
    let reset = json!({ "user_id": VARIANTS[1], "endpoint": "/x" }).to_string();
    assert_eq!(service.admin("POST", "/v1/rate-limit/reset", &reset).json()["counters"], 1);
    assert_eq!(remaining_after_check(&service, &user(VARIANTS[2])), 4);
}

#[test]
fn user_limits_match_in_every_variant() {
    let service = Service::with_config(NORMALIZING);
    let user_limit = |name: &str, limit: u32| {
        json!({ "user_id": name, "endpoint": "/x", "limit": limit, "window_seconds": 3600, "strategy": "token_bucket" })
            .to_string()
    };
    let set = service.admin("PUT", "/v1/rate-limit/config", &user_limit(VARIANTS[0], 3));
    assert_eq!((set.status, &set.json()["user_id"]), (200, &json!(NORMALIZED)), "{}", set.text);
    assert_eq!(remaining_after_check(&service, &user(VARIANTS[1])), 2);
    assert_eq!(service.admin("PUT", "/v1/rate-limit/config", &user_limit(VARIANTS[2], 9)).status, 200);
    let path = |name: &str| format!("/v1/rate-limit/config?user_id={}&endpoint=/x", escaped(name));
    for name in VARIANTS {
        assert_eq!(service.admin("GET", &path(name), "").json()["limit"], 9);
    }
    assert_eq!(remaining_after_check(&service, &user(VARIANTS[1])), 7, "usage must carry over");
    assert_eq!(service.admin("DELETE", &path(VARIANTS[1]), "").status, 204);
    assert_eq!(service.admin("GET", &path(VARIANTS[0]), "").status, 404);
}

#[test]
fn quotas_blocks_and_keys_match_in_every_variant() {
    let service = Service::with_config(NORMALIZING);
    let quota = |name: &str| format!("/v1/admin/quotas/{}", escaped(name));
    let made = service.admin("PUT", &quota(VARIANTS[0]), r#"{"requests_per_hour":7}"#);
    assert_eq!((made.status, &made.json()["user_id"]), (201, &json!(NORMALIZED)), "{}", made.text);
    let named = json!({ "user_id": VARIANTS[2], "requests_per_hour": 8 }).to_string();
    assert_eq!(
        service.admin("PUT", &quota(VARIANTS[1]), &named).status,
        200,
        "must replace the quota of the same user"
    );
    assert_eq!(service.admin("PUT", &quota("somebody else"), &named).error().2, "user_id");
    assert_eq!(service.admin("POST", "/v1/admin/quotas", &named).status, 409);
    for name in VARIANTS {
        assert_eq!(service.admin("GET", &quota(name), "").json()["requests_per_hour"], 8);
    }
    assert_eq!(remaining_after_check(&service, &user(VARIANTS[1])), 7);

    let key =
        service.admin("POST", "/v1/admin/keys", &json!({ "name": "k", "user_id": VARIANTS[2] }).to_string());
    assert_eq!(key.status, 201, "{}", key.text);
    assert_eq!(remaining_after_check(&service, &json!({ "api_key": key.json()["key"] })), 6, "the same user");
    let listed = service.admin("GET", &format!("/v1/admin/keys?user_id={}", escaped(VARIANTS[1])), "").json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 1);

    for kind in ["tenant", "login", "user"] {
        let block = |name: &str| format!("/v1/admin/blocks/{kind}:{}", escaped(name));
        assert_eq!(service.admin("PUT", &block(VARIANTS[0]), r#"{"reason":"unpaid"}"#).status, 201);
        assert_eq!(service.admin("PUT", &block(VARIANTS[1]), r#"{"reason":"unpaid"}"#).status, 200);
        let fact = if kind == "user" { "user_id" } else { kind };
        assert_eq!(VARIANTS.map(|name| check(&service, &json!({ fact: name })).status), [403; 4], "{kind}");
        assert_eq!(service.admin("GET", &block(VARIANTS[3]), "").status, 200);
        assert_eq!(service.admin("DELETE", &block(VARIANTS[2]), "").status, 204);
        assert_eq!(check(&service, &json!({ fact: VARIANTS[0] })).status, 200);
    }
    assert_eq!(service.admin("DELETE", &quota(VARIANTS[2]), "").status, 204);
    assert_eq!(service.admin("GET", &quota(NORMALIZED), "").status, 404);
}

#[test]
fn import_rejects_one_user_in_two_variants() {
    let service = Service::with_config(NORMALIZING);
    let two = json!({ "quotas": [
        { "user_id": VARIANTS[0], "requests_per_hour": 7 }, { "user_id": VARIANTS[1], "requests_per_hour": 8 },
    ] });
    let refused = service.admin("POST", "/v1/admin/import", &two.to_string());
    assert_eq!(
        refused.error(),
        (400, "INVALID_INPUT".into(), "quotas[1].user_id".into()),
        "{}",
        refused.text
    );
    let one = json!({ "quotas": [{ "user_id": VARIANTS[0], "requests_per_hour": 7 }] }).to_string();
    assert_eq!(service.admin("POST", "/v1/admin/import", &one).json()["created"], 1);
    let again = json!({ "quotas": [{ "user_id": VARIANTS[2], "requests_per_hour": 7 }] }).to_string();
    let again = service.admin("POST", "/v1/admin/import?prune=true", &again).json();
    assert_eq!((&again["unchanged"], &again["deleted"]), (&json!(1), &json!(0)), "{again}");
}

#[test]
fn penalties_are_pardoned_in_any_variant() {
    let service = Service::with_config(&format!(
        "{NORMALIZING}[progressive_penalties]\nenabled = true\nviolation_threshold = 1\nbase_cooldown = \"1h\"\n"
    ));
    for name in VARIANTS.into_iter().chain(VARIANTS) {
        check(&service, &user(name));
    }
    let listed = service.admin("GET", "/v1/admin/penalties", "").json();
    assert_eq!(listed["penalties"].as_array().unwrap().len(), 1);
    assert_eq!(listed["penalties"][0]["client"], format!("user:{NORMALIZED}"));
    let pardon =
        |name: &str| service.admin("DELETE", &format!("/v1/admin/penalties/user:{}", escaped(name)), "");
    assert_eq!(pardon(VARIANTS[0]).status, 204);
    assert_eq!(pardon(VARIANTS[1]).status, 404);
}

#[test]
fn rules_match_users_in_every_variant() {
    let config = format!("{NORMALIZING}[[exemptions]]\ntype = \"user_id\"\nvalue = \"{}\"\n", VARIANTS[2]);
    let service = Service::with_config(&config);
    assert!(VARIANTS.iter().all(|name| check(&service, &user(name)).json()["limit"].is_null()), "exempt");
    let rule = json!({ "when": { "tenants": [VARIANTS[2]], "descriptors": { "mail": VARIANTS[0] } }, "action": "block" });
    assert_eq!(service.admin("PUT", "/v1/admin/rules/out", &rule.to_string()).status, 201);
    let blocked = |name: &str| json!({ "user_id": "a", "tenant": name, "descriptors": { "mail": name } });
    assert_eq!(VARIANTS.map(|name| check(&service, &blocked(name)).status), [403; 4]);
    assert_eq!(check(&service, &blocked("other")).status, 200);
    let shown = service.admin("GET", "/v1/admin/rules/out", "").json();
    assert_eq!(shown["when"]["tenants"][0], VARIANTS[2], "must be shown as written");
}

#[test]
fn id_above_256_bytes_when_normalized_is_rejected() {
    let service = Service::with_config(NORMALIZING);
    // Each has three bytes, and five when normalized.
    let long = "\u{1f80}".repeat(60);
    for (fact, field) in [("user_id", "user_id"), ("tenant", "tenant"), ("login", "login")] {
        let refused = check(&service, &json!({ "ip": "192.0.2.1", fact: long }));
        assert_eq!(refused.error(), (400, "INVALID_INPUT".into(), field.into()), "{}", refused.text);
        assert!(
            refused.text.contains("is 300 bytes long after normalization; the maximum is 256"),
            "{}",
            refused.text
        );
    }
    let refused = check(&service, &json!({ "user_id": "a", "descriptors": { "mail": long } }));
    assert_eq!(refused.error().2, "descriptors");
    let quota = service.admin("PUT", &format!("/v1/admin/quotas/{}", escaped(&long)), "{}");
    assert_eq!(quota.error(), (400, "INVALID_INPUT".into(), "user_id".into()), "{}", quota.text);
    let user_limit =
        json!({ "user_id": long, "endpoint": "/x", "limit": 1, "window_seconds": 60, "strategy": "gcra" });
    let user_limit = service.admin("PUT", "/v1/rate-limit/config", &user_limit.to_string());
    assert_eq!(user_limit.error(), (400, "INVALID_INPUT".into(), "user_id".into()), "{}", user_limit.text);
    let exact = Service::with_config("");
    assert_eq!(check(&exact, &user(&long)).status, 200);
}

#[test]
fn bound_tenant_matches_in_any_variant() {
    let service = Service::with_config(NORMALIZING);
    let body = json!({ "name": "gateway", "tenant": "Acme", "scopes": ["check"] }).to_string();
    let made = service.admin("POST", "/v1/admin/keys", &body).json();
    let key = made["key"].as_str().unwrap();
    for (tenant, status) in [("ACME", 200), ("acme", 200), ("other", 403)] {
        let body = json!({ "user_id": "a", "endpoint": "/x", "tenant": tenant }).to_string();
        assert_eq!(service.with_key(key, "POST", "/v1/rate-limit/check", &body).status, status, "{tenant}");
    }
}

#[test]
fn reload_can_change_normalization() {
    let exact = "default_limit = 5\ndefault_window = \"1h\"";
    let service = Service::with_config(exact);
    let [written, other, ..] = VARIANTS;
    let user_limit =
        json!({ "user_id": written, "endpoint": "/y", "limit": 3, "window_seconds": 60, "strategy": "gcra" });
    assert_eq!(service.admin("PUT", "/v1/rate-limit/config", &user_limit.to_string()).status, 200);
    let quota = |name: &str| format!("/v1/admin/quotas/{}", escaped(name));
    assert_eq!(service.admin("PUT", &quota(written), r#"{"requests_per_hour":7}"#).status, 201);
    let block = |name: &str| format!("/v1/admin/blocks/login:{}", escaped(name));
    assert_eq!(service.admin("PUT", &block(written), "{}").status, 201);
    let key =
        service.admin("POST", "/v1/admin/keys", &json!({ "name": "k", "user_id": written }).to_string());
    assert_eq!(key.status, 201, "{}", key.text);
    assert_eq!(remaining_after_check(&service, &user(written)), 6);

    fs::write(service.config_file(), NORMALIZING).unwrap();
    assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 200);
    wait_for("the accounts to be reloaded", || {
        assert_eq!(check(&service, &json!({ "login": written })).status, 403, "must be blocked at all times");
        (check(&service, &json!({ "login": other })).status == 403).then_some(())
    });
    assert_eq!(check(&service, &json!({ "login": written })).status, 403);
    assert_eq!(remaining_after_check(&service, &user(other)), 6, "another id starts with a full counter");
    assert_eq!(remaining_after_check(&service, &user(written)), 5);
    let on_y = json!({ "user_id": other, "endpoint": "/y" }).to_string();
    assert_eq!(service.post("/v1/rate-limit/check", &on_y).json()["limit"], 3);
    // Items stored before keep their ids; a change creates one with the normalized id.
    let changed = service.admin("PUT", &quota(other), r#"{"requests_per_hour":8}"#);
    assert_eq!((changed.status, &changed.json()["user_id"]), (201, &json!(NORMALIZED)), "{}", changed.text);
    wait_for("the new quota", || (check(&service, &user(NORMALIZED)).json()["limit"] == 8).then_some(()));

    fs::write(service.config_file(), exact).unwrap();
    assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 200);
    wait_for("the accounts to be reloaded", || {
        let explained = |name: &str| {
            service.post("/v1/rate-limit/explain", &json!({ "user_id": name, "endpoint": "/x" }).to_string())
        };
        assert_eq!(check(&service, &json!({ "login": written })).status, 403, "must be blocked at all times");
        (explained(other).json()["limit"] == 5 && explained(written).json()["limit"] == 7).then_some(())
    });
}

#[test]
fn longer_of_two_merged_blocks_applies() {
    let service = Service::with_config("default_limit = 5");
    for (name, body) in [("Alice", "{}"), ("alice", r#"{"for":"1h"}"#)] {
        assert_eq!(service.admin("PUT", &format!("/v1/admin/blocks/user:{name}"), body).status, 201);
    }
    fs::write(service.config_file(), NORMALIZING).unwrap();
    assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 200);
    wait_for("the accounts to be reloaded", || {
        service.log().contains("stored under other [identity] settings").then_some(())
    });
    wait_for("the longer block", || {
        let blocked = check(&service, &user("ALICE"));
        (blocked.status == 403 && blocked.json()["blocked_until"].is_null()).then_some(())
    });
    assert_eq!(service.admin("DELETE", "/v1/admin/blocks/user:alice", "").status, 204);
    assert_eq!(check(&service, &user("alice")).status, 403, "the other is still there");
}

#[test]
fn paths_are_case_sensitive_by_default() {
    let rules = "default_limit = 5\ndefault_window = \"1h\"\n[[rules]]\nname = \"search\"\npriority = 1\nlayer = \"x\"\n\
                 when = { endpoints = [\"/API/Search/*\"] }\nper = [\"user\", \"endpoint\"]\nrequests_per_hour = 2\n";
    let exact = Service::with_config(rules);
    assert_eq!(exact.check("a", "/api/search/1").json()["rule"], "default");
    let service = Service::with_config(&format!("{rules}[identity]\nignore_path_case = true\n"));
    assert_eq!(service.check("a", "/api/search/\u{c9}").json()["remaining"], 1);
    assert_eq!(service.check("a", "/API/SEARCH/%C3%A9").json()["remaining"], 0);
    assert_eq!(service.check("a", "/Api/Search/\u{e9}").status, 429);
    let status = service.get("/v1/rate-limit/status/a/API%2FsearcH%2F%C3%89").json();
    assert_eq!((&status["allowed"], &status["rule"]), (&json!(false), &json!("search")), "{status}");
    let explained =
        service.post("/v1/rate-limit/explain", r#"{"user_id":"a","endpoint":"/API/search/X"}"#).json();
    assert_eq!(explained["normalized_endpoint"], "/api/search/x");
    let reset =
        service.admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"a","endpoint":"/aPI/search/\u00c9"}"#);
    assert_eq!(reset.json()["counters"], 2, "{}", reset.text);
    assert_eq!(service.check("a", "/Api/Search/\u{e9}").json()["remaining"], 1);

    let user_limit =
        r#"{"user_id":"b","endpoint":"/Only/Here","limit":3,"window_seconds":60,"strategy":"gcra"}"#;
    assert_eq!(service.admin("PUT", "/v1/rate-limit/config", user_limit).json()["endpoint"], "/only/here");
    assert_eq!(service.check("b", "/ONLY/here").json()["limit"], 3);
    let there = "/v1/rate-limit/config?user_id=b&endpoint=/only/HERE";
    assert_eq!(service.admin("GET", there, "").json()["limit"], 3);
    assert_eq!(service.admin("DELETE", there, "").status, 204);
}

#[test]
fn head_counts_as_get_by_default() {
    let rules = "[[rules]]\nname = \"get\"\nwhen = { methods = [\"GET\"] }\nper = [\"user\", \"method\"]\nrequests_per_hour = 5\n\
                 [[rules]]\nname = \"head\"\nwhen = { methods = [\"HEAD\"] }\nper = [\"user\", \"method\"]\nrequests_per_hour = 9\n";
    let with = |service: &Service, method: &str| {
        let answer = check(service, &json!({ "user_id": "a", "method": method })).json();
        (answer["rule"].as_str().unwrap().to_owned(), answer["remaining"].as_u64().unwrap())
    };
    let as_get = Service::with_config(rules);
    assert_eq!((with(&as_get, "GET"), with(&as_get, "head")), (("get".into(), 4), ("get".into(), 3)));
    let own = Service::with_config(&format!("{rules}[identity]\nhead = \"separate\"\n"));
    assert_eq!((with(&own, "GET"), with(&own, "head")), (("get".into(), 4), ("head".into(), 8)));
    let reset =
        own.admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"a","endpoint":"/x","method":"HEAD"}"#);
    assert_eq!(reset.status, 200, "{}", reset.text);
    assert_eq!(
        (with(&own, "GET"), with(&own, "HEAD")),
        (("get".into(), 3), ("head".into(), 8)),
        "{}",
        reset.text
    );
}

#[test]
fn config_show_prints_normalization_settings() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tollgate.toml");
    let written = "[identity]\nnormalize = { user_id = \"nfc\", descriptors = { \"e mail\" = \"casefold\" } }\nhead = \"separate\"\n";
    fs::write(&file, written).unwrap();
    let show = || {
        let shown = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["config", "show", "--config"])
            .arg(&file)
            .env("TOLLGATE_IDENTITY__IGNORE_PATH_CASE", "true")
            .output()
            .unwrap();
        assert!(shown.status.success(), "{shown:?}");
        String::from_utf8(shown.stdout).unwrap()
    };
    let shown = show();
    for line in [
        r#"normalize = { user_id = "nfc", descriptors = { "e mail" = "casefold" }, login = "exact", tenant = "exact" }"#,
        "ignore_path_case = true",
        r#"head = "separate""#,
    ] {
        assert!(shown.lines().any(|each| each == line), "{line}\n{shown}");
    }
    fs::write(&file, &shown).unwrap();
    assert_eq!(show(), shown);
}
