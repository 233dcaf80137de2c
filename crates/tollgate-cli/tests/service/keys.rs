//! API keys: creation, use, rotation and revocation.

use serde_json::{Value, json};

use crate::harness::{Answer, Service, wait_for};

const KEYS: &str = "/v1/admin/keys";

fn send(service: &Service, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    service.admin(method, path, &body)
}

fn create_key(service: &Service, body: &Value) -> Value {
    let made = send(service, "POST", KEYS, body);
    assert_eq!(made.status, 201, "{}", made.text);
    made.json()
}

fn check(service: &Service, key: &Value) -> Answer {
    service.post("/v1/rate-limit/check", &json!({"api_key": key, "endpoint": "/x"}).to_string())
}

#[test]
fn key_is_shown_once_and_identifies_its_owner() {
    let service = Service::unconfigured();
    let body = json!({"name": "mobile app", "user_id": "alice", "requests_per_hour": 3, "scopes": ["read", "check"],
                      "expires_in": "90d"});
    let made = create_key(&service, &body);
    let (key, id) = (made["key"].clone(), made["id"].as_str().unwrap().to_owned());
    assert!(key.as_str().unwrap().starts_with(&format!("tg_{id}_")));
    assert_eq!((&made["status"], &made["scopes"]), (&json!("active"), &json!(["check", "read"])));
    assert!(made["expires_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(check(&service, &key).json()["limit"], 3);
    let path = format!("{KEYS}/{id}");
    let read = service.admin("GET", &path, "");
    assert_eq!(read.json()["name"], "mobile app");
    assert_eq!(read.json()["requests_total"].as_u64().map(|total| total <= 1), Some(true));
    let everything = [
        read.text,
        service.admin("GET", KEYS, "").text,
        service.admin("GET", "/v1/admin/audit", "").text,
        service.admin("GET", "/v1/admin/export", "").text,
        service.log(),
        service.get("/metrics").text,
    ]
    .concat();
    let secret = key.as_str().unwrap().rsplit_once(&format!("{id}_")).unwrap().1;
    assert!(!everything.contains(secret) && !everything.contains("\"hash"), "{everything}");

    let changed = json!({"name": "app", "tier": "gold"});
    let put = send(&service, "PUT", &path, &changed);
    assert_eq!(
        (put.status, &put.json()["tier"], &put.json()["user_id"]),
        (200, &json!("gold"), &json!(null))
    );
    assert_eq!(check(&service, &key).status, 200, "the secret must not change");
    assert_eq!(service.admin("DELETE", &path, "").status, 204);
    assert_eq!(check(&service, &key).json()["reason"], "api_key_unknown");
    for (method, place) in [("GET", &path), ("DELETE", &path)] {
        assert_eq!(service.admin(method, place, "").error().1, "NOT_FOUND");
    }
    assert_eq!(send(&service, "PUT", &path, &changed).error().1, "NOT_FOUND");
    assert_eq!(service.admin("POST", &format!("{path}/rotate"), "").error().1, "NOT_FOUND");
    assert_eq!(service.admin("POST", &format!("{path}/revoke"), "").error().1, "NOT_FOUND");
}

#[test]
fn rotation_keeps_the_old_secret_during_overlap() {
    let service = Service::unconfigured();
    let made = create_key(&service, &json!({"name": "k", "requests_per_hour": 5}));
    let path = format!("{KEYS}/{}", made["id"].as_str().unwrap());
    assert_eq!(check(&service, &made["key"]).json()["remaining"], 4);
    let rotated = send(&service, "POST", &format!("{path}/rotate"), &json!({"overlap": "1h"}));
    assert_eq!(rotated.status, 200, "{}", rotated.text);
    let second = rotated.json();
    assert_eq!(second["id"], made["id"]);
    assert_ne!(second["key"], made["key"]);
    assert!(second["previous_until"].is_string());
    assert_eq!(check(&service, &made["key"]).json()["remaining"], 3);
    assert_eq!(check(&service, &second["key"]).json()["remaining"], 2, "the same counters");
    let third = send(&service, "POST", &format!("{path}/rotate"), &json!({"overlap": "0s"})).json();
    assert_eq!(third["previous_until"], json!(null));
    for old in [&made["key"], &second["key"]] {
        assert_eq!(check(&service, old).json()["reason"], "api_key_unknown");
    }
    assert_eq!(check(&service, &third["key"]).status, 200);
    assert_eq!(service.admin("POST", &format!("{path}/rotate"), "").status, 200, "the body is optional");
    for wrong in [json!({"overlap": "31d"}), json!({"overlap": 5}), json!({"colour": 1})] {
        assert_eq!(send(&service, "POST", &format!("{path}/rotate"), &wrong).error().0, 400, "{wrong}");
    }
    let before = service.admin("GET", &path, "").json();
    let tried = send(&service, "POST", &format!("{path}/rotate?dry_run=true"), &json!({}));
    assert_eq!((tried.status, tried.json()["key"].is_null()), (200, true), "{}", tried.text);
    assert_eq!(service.admin("GET", &path, "").json()["version"], before["version"]);
}

#[test]
fn revoked_key_stays_invalid() {
    let service = Service::unconfigured();
    let made = create_key(&service, &json!({"name": "k", "scopes": ["admin"]}));
    let (key, path) = (made["key"].as_str().unwrap(), format!("{KEYS}/{}", made["id"].as_str().unwrap()));
    assert_eq!(service.with_key(key, "GET", KEYS, "").status, 200);
    let revoked = service.with_key(key, "POST", &format!("{path}/revoke"), "");
    assert_eq!((revoked.status, &revoked.json()["status"]), (200, &json!("revoked")), "{}", revoked.text);
    assert_eq!(revoked.json()["revoked_by"], json!(format!("key:{}", made["id"].as_str().unwrap())));
    assert_eq!(service.with_key(key, "GET", KEYS, "").status, 401);
    assert_eq!(check(&service, &made["key"]).json()["reason"], "api_key_revoked");
    let again = service.admin("POST", &format!("{path}/revoke"), "");
    assert_eq!((again.status, again.json()), (200, revoked.json()), "a second revocation changes nothing");
    let renamed = send(&service, "PUT", &path, &json!({"name": "z"}));
    assert_eq!((renamed.status, &renamed.json()["status"]), (200, &json!("revoked")));
    assert_eq!(service.admin("POST", &format!("{path}/rotate"), "").error().1, "CONFLICT");
    let by =
        service.admin("GET", &format!("/v1/admin/audit?by=key:{}", made["id"].as_str().unwrap()), "").json();
    assert_eq!(by["entries"].as_array().unwrap().len(), 1);
}

#[test]
fn invalid_key_fields_are_named() {
    let service = Service::unconfigured();
    for (body, field) in [
        (json!({}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"name": "k", "scopes": ["root"]}), "scopes[0]"),
        (json!({"name": "k", "hash": "x"}), "hash"),
        (json!({"name": "k", "key": "tg_x"}), "key"),
        (json!({"name": "k", "expires_at": "2001-01-01T00:00:00Z"}), "expires_at"),
        (json!({"name": "k", "expires_at": "2101-01-01T00:00:00Z", "expires_in": "1d"}), "expires_in"),
        (json!({"name": "k", "expires_in": "1000000d"}), "expires_in"),
        (json!({"name": "k", "burst": 5}), "burst"),
        (json!({"name": "k", "requests_per_hour": -1}), "requests_per_hour"),
        (json!({"name": "k", "user_id": "x".repeat(257)}), "user_id"),
        (json!({"name": "k", "tenant": "a\u{0}"}), "tenant"),
    ] {
        let answer = send(&service, "POST", KEYS, &body);
        assert_eq!((answer.error().0, answer.error().2), (400, field.to_owned()), "{}", answer.text);
    }
    assert_eq!(service.admin("GET", KEYS, "").json(), json!({"keys": [], "next": null}));
}

#[test]
fn keys_are_filtered_by_owner_and_state() {
    let service = Service::unconfigured();
    let a = create_key(&service, &json!({"name": "a", "user_id": "alice", "tenant": "acme"}));
    let b = create_key(&service, &json!({"name": "b", "user_id": "bob", "tier": "gold"}));
    service.admin("POST", &format!("{KEYS}/{}/revoke", b["id"].as_str().unwrap()), "");
    let found = |query: &str| {
        let page = service.admin("GET", &format!("{KEYS}?{query}"), "");
        assert_eq!(page.status, 200, "{}", page.text);
        page.json()["keys"].as_array().unwrap().iter().map(|key| key["id"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!(found("user_id=alice"), [a["id"].clone()]);
    assert_eq!(found("tenant=acme"), [a["id"].clone()]);
    assert_eq!(found("tier=gold"), [b["id"].clone()]);
    assert_eq!(found("active=true"), [a["id"].clone()]);
    assert_eq!(found(&format!("prefix={}", b["id"].as_str().unwrap())), [b["id"].clone()]);
    assert_eq!(found("").len(), 2);
    let c = create_key(&service, &json!({"name": "c", "expires_in": "10d"}));
    let at = c["expires_at"].as_str().unwrap();
    assert_eq!(found("expires_before=11d"), [c["id"].clone()]);
    assert_eq!(found("expires_before=9d"), [json!(null); 0], "the others do not expire");
    assert_eq!(found(&format!("expires_before={at}")), [json!(null); 0]);
    let answer = service.admin("GET", &format!("{KEYS}?expires_before=soon"), "");
    assert_eq!(answer.error(), (400, "INVALID_INPUT".to_owned(), "expires_before".to_owned()));
}

#[test]
fn caller_keys_record_their_usage() {
    let service = Service::unconfigured();
    let made = create_key(&service, &json!({"name": "dashboard", "scopes": ["read"]}));
    let bearer = format!("Bearer {}", made["key"].as_str().unwrap());
    for _ in 0..3 {
        let read = service.send("GET", "/v1/admin/rules", &[("authorization", &bearer)], "");
        assert_eq!(read.status, 200, "{}", read.text);
    }
    let path = format!("{KEYS}/{}", made["id"].as_str().unwrap());
    let key = wait_for("the totals to be written", || {
        let key = service.admin("GET", &path, "").json();
        (key["requests_total"] == 3).then_some(key)
    });
    assert!(key["last_used_at"].as_str().is_some(), "{key}");
}

#[test]
fn whole_key_in_place_of_an_id_is_refused_and_not_repeated() {
    let service = Service::unconfigured();
    let made = create_key(&service, &json!({"name": "app", "user_id": "alice"}));
    let key = made["key"].as_str().unwrap();
    let id = made["id"].as_str().unwrap();
    let secret = &key[20..40];
    let (truncated, in_text) = (&key[..key.len() - 5], format!("Bearer {key}"));
    let mut answers = Vec::new();
    let mut admin = |method: &str, path: &str, body: Value| {
        let answer = send(&service, method, path, &body);
        assert_eq!(answer.status, 400, "{method} {path}: {}", answer.text);
        answers.push(answer.text);
    };
    for method in ["GET", "DELETE"] {
        for kind in ["keys", "quotas", "rules", "tiers", "blocks/user:", "penalties/user:"] {
            let path = format!("/v1/admin/{}{}{key}", kind, if kind.ends_with(':') { "" } else { "/" });
            if !(method == "GET" && kind.starts_with("penalties")) {
                admin(method, &path, Value::Null);
            }
        }
    }
    admin("PUT", &format!("/v1/admin/quotas/{key}"), json!({"tier": "gold"}));
    admin("PUT", &format!("/v1/admin/quotas/{truncated}"), json!({"tier": "gold"}));
    admin("PUT", &format!("/v1/admin/keys/{key}"), json!({"name": "app"}));
    admin("POST", &format!("/v1/admin/keys/{key}/revoke"), Value::Null);
    admin("POST", "/v1/admin/quotas", json!({"user_id": key}));
    admin("POST", "/v1/admin/quotas", json!({"user_id": in_text}));
    admin("POST", "/v1/admin/keys", json!({"name": key}));
    admin("POST", "/v1/admin/blocks", json!({"client": format!("api_key:{key}")}));
    admin("POST", "/v1/admin/rules", json!({"name": "r", "action": "block", "when": {"users": [key]}}));
    admin("POST", "/v1/admin/import", json!({"quotas": [{"user_id": key}]}));
    admin("GET", &format!("/v1/admin/keys?user_id={key}"), Value::Null);
    admin("GET", &format!("/v1/admin/audit?subject={key}"), Value::Null);
    admin("GET", &format!("/v1/admin/counters?user={key}"), Value::Null);
    admin("GET", &format!("/v1/rate-limit/status/{key}/x"), Value::Null);
    for field in ["user_id", "tenant", "tier", "login"] {
        for route in ["check", "explain", "reset"] {
            let body = json!({"ip": "192.0.2.1", "endpoint": "/x", field: key});
            admin("POST", &format!("/v1/rate-limit/{route}"), body);
        }
    }
    let limit =
        json!({"user_id": key, "endpoint": "/x", "limit": 1, "window_seconds": 1, "strategy": "gcra"});
    admin("PUT", "/v1/rate-limit/config", limit);
    let path = format!("/v1/admin/keys/{id}");
    let bearer = format!("Bearer {}", service.admin_key());
    let answer = service.send("GET", &path, &[("x-request-id", key), ("authorization", &bearer)], "");
    assert_eq!(answer.status, 200, "another request id is generated");

    answers.extend(answer.headers.into_iter().map(|(_, value)| value));
    answers.push(send(&service, "GET", "/v1/admin/audit", &Value::Null).text);
    answers.push(service.log());
    for text in &answers {
        assert!(!text.contains(secret), "{text}");
    }
    for file in std::fs::read_dir(service.data_dir()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap_or_default();
        assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()));
    }
    assert_eq!(check(&service, &json!(key)).status, 200, "a check takes the whole key as api_key");
}
