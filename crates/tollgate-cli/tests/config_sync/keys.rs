//! API keys of the database, as limited clients and as callers.

use tollgate_stores::sql::{AccountLimits, Item};

use crate::database::{alone, check_with, key, node_again, now_micros, quota, stop, wait_for_version};
use crate::harness::Answer;

const CHECK: &str = r#"{"user_id":"a","endpoint":"/x"}"#;

fn blocked(answer: &Answer) -> (u16, String) {
    let json = answer.json();
    assert_eq!((&json["decision"], &json["allowed"]), (&"blocked".into(), &false.into()), "{}", answer.text);
    (answer.status, json["reason"].as_str().unwrap().to_owned())
}

#[test]
fn key_without_scopes_is_a_limited_client() {
    let (service, store) = alone("");
    let mut key = key("limitedclientaa2");
    key.item.limits = AccountLimits { requests_per_hour: Some(3), ..AccountLimits::default() };
    let version = store.put(Item::Key(key.item.clone()));
    wait_for_version(&service, version);
    let statuses: Vec<u16> = (0..5).map(|_| check_with(&service, &key.text).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(
        check_with(&service, "somebody-else").json()["limit"],
        100,
        "an opaque key is limited by the rule"
    );
    let listed = service.post(
        "/v1/rate-limit/batch-check",
        &format!(r#"{{"checks":[{{"api_key":"{}","endpoint":"/x"}}]}}"#, key.text),
    );
    assert_eq!(listed.json()["results"][0]["limit"], 3, "{}", listed.text);
}

#[test]
fn operators_inspect_and_reset_a_key_by_its_id() {
    let (service, store) = alone("");
    let mut key = key("knownbyitsidaaa2");
    key.item.limits = AccountLimits { requests_per_hour: Some(3), ..AccountLimits::default() };
    let version = store.put(Item::Key(key.item.clone()));
    wait_for_version(&service, version);
    assert_eq!(check_with(&service, &key.text).status, 200);
    let look = || service.admin("GET", "/v1/admin/counters?api_key=knownbyitsidaaa2", "").json();
    let used = |body: &serde_json::Value| {
        let counters = body["counters"].as_array().unwrap().iter();
        counters.filter(|each| each["rule"] == "@key").map(|each| each["used"].as_u64().unwrap()).sum::<u64>()
    };
    let body = look();
    assert_eq!((&body["client"], used(&body)), (&"api_key:knownbyitsidaaa2".into(), 1), "{body}");
    let reset = r#"{"api_key":"knownbyitsidaaa2","endpoint":"/x"}"#;
    assert_eq!(service.admin("POST", "/v1/rate-limit/reset", reset).status, 200);
    assert_eq!(used(&look()), 0);
    let check = r#"{"api_key":"knownbyitsidaaa2","endpoint":"/x"}"#;
    let answer = service.post("/v1/rate-limit/check", check).json();
    assert_eq!(answer["limit"], 100, "a client needs the whole key");
}

#[test]
fn key_supplies_its_user_and_quota() {
    let (service, store) = alone("");
    let mut key = key("ofalicekeyaaaaa2");
    key.item.user = Some("alice".to_owned());
    store.put(Item::Key(key.item.clone()));
    let version =
        store.put(quota("alice", AccountLimits { requests_per_day: Some(9), ..AccountLimits::default() }));
    wait_for_version(&service, version);
    assert_eq!(check_with(&service, &key.text).json()["limit"], 9);
    assert_eq!(service.check("alice", "/x").json()["remaining"], 7, "it is the same user");
}

#[test]
fn invalid_key_is_blocked_without_revealing_why() {
    let (service, store) = alone("");
    let mut expired = key("expiredkeyaaaaa2");
    expired.item.expires_at_micros = Some(now_micros() - 1_000_000);
    let mut revoked = key("revokedkeyaaaaa2");
    revoked.item.revoked_at_micros = Some(now_micros());
    revoked.item.revoked_by = Some("test".to_owned());
    store.put(Item::Key(expired.item.clone()));
    let version = store.put(Item::Key(revoked.item.clone()));
    wait_for_version(&service, version);
    let unknown = key("unknownkeyaaaaa2");
    let wrong = |text: &str| text.replace("s3cretCanary", "wrongsCanary");
    for (text, reason) in [
        (expired.text.clone(), "api_key_expired"),
        (revoked.text.clone(), "api_key_revoked"),
        (unknown.text, "api_key_unknown"),
        (wrong(&expired.text), "api_key_unknown"),
        (wrong(&revoked.text), "api_key_unknown"),
    ] {
        assert_eq!(blocked(&check_with(&service, &text)), (403, reason.to_owned()));
        let body = format!(r#"{{"checks":[{{"api_key":"{text}","endpoint":"/x"}}]}}"#);
        let batch = service.post("/v1/rate-limit/batch-check", &body).json();
        let item = &batch["results"][0];
        assert_eq!((&item["reason"], &item["endpoint"]), (&reason.into(), &"/x".into()), "{batch}");
    }
    assert_eq!(service.metric("tollgate_counters"), Some(0.0), "nothing was charged");
    assert_eq!(service.metric(r#"tollgate_keys_refused_total{reason="api_key_unknown"}"#), Some(6.0));
}

#[test]
fn only_keys_with_scopes_are_callers() {
    let (service, store) = alone("");
    let mut checker = key("callercheckaaaa2");
    checker.item.scopes = vec!["check".to_owned(), "read".to_owned()];
    let mut admin = key("calleradminaaaa2");
    admin.item.scopes = vec!["admin".to_owned()];
    let client = key("justaclientaaaa2");
    for item in [&checker.item, &admin.item, &client.item] {
        store.put(Item::Key(item.clone()));
    }
    let version = store.ask(async |database| database.version().await.unwrap());
    wait_for_version(&service, version);
    let config = "/v1/rate-limit/config?user_id=a&endpoint=/x";
    assert_eq!(service.with_key(&checker.text, "GET", config, "").status, 404, "it may read");
    let refused = service.with_key(&checker.text, "DELETE", config, "");
    assert_eq!((refused.status, refused.error().1), (403, "FORBIDDEN".to_owned()));
    assert_eq!(service.with_key(&admin.text, "GET", "/v1/admin/penalties", "").status, 200);
    let refused = service.with_key(&client.text, "POST", "/v1/rate-limit/check", CHECK);
    assert_eq!((refused.status, refused.error().1), (403, "FORBIDDEN".to_owned()), "{}", refused.text);
    let unknown = service.with_key(&key("nobodyskeyaaaaa2").text, "GET", config, "");
    assert_eq!((unknown.status, unknown.error().1), (401, "UNAUTHORIZED".to_owned()));
}

#[test]
fn bound_caller_sees_only_its_tenant() {
    let (service, store) =
        alone("[[rules]]\nname = \"t\"\nper = [\"tenant\"]\nlimits = [{ requests = 5, window = \"1h\" }]");
    let mut bound = key("boundcalleraaaa2");
    bound.item.scopes = vec!["admin".to_owned()];
    bound.item.tenant = Some("acme".to_owned());
    let mut other = key("ofanotheraaaaaa2");
    other.item.tenant = Some("globex".to_owned());
    store.put(Item::Key(other.item.clone()));
    let version = store.put(Item::Key(bound.item.clone()));
    wait_for_version(&service, version);
    let post = |path: &str, body: &str| service.with_key(&bound.text, "POST", path, body);
    let check = "/v1/rate-limit/check";
    assert_eq!(post(check, CHECK).json()["remaining"], 4);
    assert_eq!(post(check, r#"{"user_id":"a","endpoint":"/x","tenant":"acme"}"#).json()["remaining"], 3);
    for path in [check, "/v1/rate-limit/explain"] {
        let refused = post(path, r#"{"user_id":"a","endpoint":"/x","tenant":"globex"}"#);
        assert_eq!((refused.status, refused.error().1), (403, "FORBIDDEN".to_owned()), "{path}");
    }
    let body = format!(r#"{{"api_key":"{}","endpoint":"/x"}}"#, other.text);
    assert_eq!(post(check, &body).status, 403, "a key of another tenant");
    let batch = post(
        "/v1/rate-limit/batch-check",
        r#"{"checks":[{"user_id":"a","endpoint":"/x","tenant":"globex"}]}"#,
    );
    assert_eq!(batch.json()["results"][0]["error"]["code"], "FORBIDDEN");
    let get = |path: &str| service.with_key(&bound.text, "GET", path, "").status;
    assert_eq!(get("/v1/rate-limit/status?user_id=a&endpoint=/x"), 200);
    assert_eq!(get("/v1/rate-limit/status?user_id=a&endpoint=/x&tenant=globex"), 403);
    for (method, path, body) in [
        ("GET", "/v1/admin/penalties", ""),
        ("GET", "/v1/admin/rules", ""),
        ("GET", "/v1/admin/counters?user=a&tenant=globex", ""),
        ("POST", "/v1/admin/reload", ""),
        ("GET", "/v1/rate-limit/config?user_id=a&endpoint=/x&tenant=globex", ""),
        ("DELETE", "/v1/rate-limit/config?user_id=a&endpoint=/x&tenant=globex", ""),
        ("POST", "/v1/rate-limit/reset", r#"{"user_id":"a","endpoint":"/x","tenant":"globex"}"#),
    ] {
        assert_eq!(service.with_key(&bound.text, method, path, body).status, 403, "{method} {path}");
    }
}

#[test]
fn keys_survive_a_restart_with_default_settings() {
    let service = crate::harness::Service::unconfigured();
    assert!(service.data_dir().join("tollgate.db").exists());
    let secret = service.data_dir().join("keys.secret");
    let first = std::fs::read_to_string(&secret).unwrap();
    let folder = stop(service);
    for name in ["keys.secret", "tollgate.db", "config.snap"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(folder.path().join("data").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    std::fs::write(folder.path().join("tollgate.toml"), "").unwrap();
    let service = node_again(folder);
    assert_eq!(std::fs::read_to_string(service.data_dir().join("keys.secret")).unwrap(), first);
    assert_eq!(service.get("/readyz").json()["status"], "ready");
}
