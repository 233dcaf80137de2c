//! Tenants are isolated: a key bound to one tenant against every route, generated from the description (threat 31).

use serde_json::{Value, json};
use tollgate_stores::sql::records::DecisionKind;

use crate::harness::Service;
use crate::record_rows::{RecordRows, now_micros};

const SCOPES: [&str; 6] = ["check", "read", "config", "reset", "override", "admin"];
/// A number that only limits of tenant beta contain.
const NUMBER: u32 = 4_123_456_789;
/// In the tier, the block reason and the traffic of tenant beta.
const CANARY: &str = "canary";

fn key(service: &Service, tenant: &str, name: &str) -> Value {
    let body = json!({"name": name, "tenant": tenant, "scopes": SCOPES}).to_string();
    let made = service.admin("POST", "/v1/admin/keys", &body);
    assert_eq!(made.status, 201, "{}", made.text);
    made.json()
}

/// What tenant beta has: a quota, a block, a limit, usage, records.
fn put_items_of_beta(service: &Service) {
    let items = [
        ("/v1/admin/quotas/bob?tenant=beta", json!({"tier": "canary-tier", "requests_per_hour": NUMBER})),
        ("/v1/admin/blocks/login:bob?tenant=beta", json!({"reason": "canary-reason"})),
        (
            "/v1/rate-limit/config",
            json!({"tenant": "beta", "user_id": "bob", "endpoint": "/x", "limit": NUMBER,
                   "window_seconds": 3600, "strategy": "fixed_window"}),
        ),
    ];
    for (path, body) in items {
        let put = service.admin("PUT", path, &body.to_string());
        assert!(put.status == 200 || put.status == 201, "{path}: {}", put.text);
    }
    let mut records = RecordRows::default();
    records.add("canary", Some("beta"), now_micros(), DecisionKind::Throttled);
    records.store(&service.data_dir());
    for (user, endpoint) in [("bob", "/x"), ("bob", "/y"), ("canary-user", "/canary-endpoint")] {
        let body = json!({"tenant": "beta", "user_id": user, "endpoint": endpoint}).to_string();
        assert_eq!(service.admin("POST", "/v1/rate-limit/check", &body).status, 200);
    }
}

/// Everything that tenant beta has, as an operator sees it.
fn state_of_beta(service: &Service) -> Vec<Value> {
    let fields = |path: &str, names: &[&str]| {
        let body = service.admin("GET", path, "").json();
        names.iter().map(|name| body[*name].clone()).collect::<Value>()
    };
    vec![
        fields(
            "/v1/admin/quotas/bob?tenant=beta",
            &["tenant", "tier", "requests_per_hour", "version", "blocked"],
        ),
        fields("/v1/admin/blocks/login:bob?tenant=beta", &["client", "tenant", "reason", "version"]),
        fields(
            "/v1/rate-limit/config?tenant=beta&user_id=bob&endpoint=/x",
            &["tenant", "limit", "updated_at"],
        ),
        fields("/v1/rate-limit/status?tenant=beta&user_id=bob&endpoint=/x", &["limit", "remaining"]),
        // The quota is a bucket that fills up at once, so only the limit is compared.
        fields("/v1/rate-limit/status?tenant=beta&user_id=bob&endpoint=/y", &["limit"]),
        fields("/v1/admin/quotas?tenant=beta", &["next"]),
    ]
}

/// Every described route that takes a key: method, path and, for writes, bodies about bob.
fn attacks(service: &Service, key_of_beta: &str) -> Vec<(String, String, Vec<String>)> {
    let description = service.get("/openapi.json").json();
    let mut attacks = Vec::new();
    for (path, operations) in description["paths"].as_object().unwrap() {
        for (verb, operation) in operations.as_object().unwrap() {
            if operation["security"].as_array().unwrap().is_empty() {
                continue;
            }
            let values = [
                ("{client}", "login:bob"),
                ("{endpoint}", "x"),
                ("{user_id}", "bob"),
                ("{id}", key_of_beta),
                ("{identifier}", "user:bob"),
            ];
            let path = values.iter().fold(path.clone(), |path, (name, value)| path.replace(name, value));
            let path = path.replace("{name}", "canary-tier");
            let bodies = if matches!(&**verb, "post" | "put") { bodies() } else { vec![String::new()] };
            attacks.push((verb.to_uppercase(), path, bodies));
        }
    }
    assert!(attacks.len() > 40, "{}", attacks.len());
    attacks
}

/// Bodies that some route takes, each with and without the other tenant.
fn bodies() -> Vec<String> {
    let one = |tenant: Value| {
        let check =
            json!({"user_id": "bob", "endpoint": "/x", "tenant": tenant, "login": "bob", "ip": "192.0.2.7"});
        [
            json!({"checks": [check]}),
            check,
            json!({"user_id": "bob", "endpoint": "/y", "tenant": tenant}),
            json!({"user_id": "bob", "tier": "stolen", "tenant": tenant}),
            json!({"client": "login:bob", "reason": "stolen", "tenant": tenant}),
            json!({"user_id": "bob", "endpoint": "/x", "limit": 1, "window_seconds": 60, "strategy": "gcra", "tenant": tenant}),
            json!({"quotas": [{"user_id": "bob", "tier": "stolen", "tenant": tenant}]}),
            json!({"name": "stolen", "tenant": tenant, "scopes": SCOPES}),
        ]
    };
    [Value::Null, json!("beta")].into_iter().flat_map(one).map(|body| body.to_string()).collect()
}

const QUERIES: [&str; 9] = [
    "",
    "?tenant=beta",
    "?user_id=bob&endpoint=/x&login=bob",
    "?user_id=bob&endpoint=/x&tenant=beta",
    "?user=bob",
    "?identifier=user:canary-user",
    "?login=bob&tenant=beta",
    "?dry_run=true",
    "?dry_run=true&tenant=beta",
];

#[test]
fn no_route_leaks_or_changes_another_tenant() {
    let service = Service::with_config("[auth]\nopen_checks = false");
    let (of_acme, of_beta) = (key(&service, "acme", "a"), key(&service, "beta", "b"));
    put_items_of_beta(&service);
    let before = state_of_beta(&service);
    assert!(
        before.iter().all(|part| part[0] != Value::Null || part.as_array().unwrap().len() == 1),
        "{before:?}"
    );
    let (own_key, number) = (of_acme["key"].as_str().unwrap(), NUMBER.to_string());
    let mut served = 0;
    for (method, path, bodies) in attacks(&service, of_beta["id"].as_str().unwrap()) {
        for query in QUERIES {
            for body in &bodies {
                let answer = service.with_key(own_key, &method, &format!("{path}{query}"), body);
                let label = format!("{method} {path}{query} {body}: {} {}", answer.status, answer.text);
                assert!((200..500).contains(&answer.status), "{label}");
                // What the attacker sent may be repeated: the name in the path or the query.
                let text = answer.text.replace("canary-tier", "").replace("user:canary-user", "");
                assert!(!text.contains(CANARY) && !text.contains(&number), "{label}");
                assert!(!answer.text.contains("\"tenant\":\"beta\""), "{label}");
                served += usize::from(answer.status < 300);
            }
        }
    }
    assert!(served > 30, "only {served} requests were served");
    assert_eq!(state_of_beta(&service), before);
}

#[test]
fn bound_caller_manages_its_own_tenant() {
    let service = Service::with_config("[auth]\nopen_checks = false");
    let own = key(&service, "acme", "a");
    put_items_of_beta(&service);
    let send = |method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        service.with_key(own["key"].as_str().unwrap(), method, path, &body)
    };
    let quota = send("PUT", "/v1/admin/quotas/bob", json!({"requests_per_hour": 5}));
    assert_eq!((quota.status, &quota.json()["tenant"]), (201, &json!("acme")), "{}", quota.text);
    assert_eq!(quota.header("location"), Some("/v1/admin/quotas/bob?tenant=acme"));
    let block = send("POST", "/v1/admin/blocks", json!({"client": "ip:192.0.2.7", "reason": "abuse"}));
    assert_eq!((block.status, &block.json()["tenant"]), (201, &json!("acme")), "{}", block.text);
    for (kind, id) in [("quotas", "user_id"), ("blocks", "client")] {
        let listed = send("GET", &format!("/v1/admin/{kind}"), Value::Null).json();
        let items = listed[kind].as_array().unwrap();
        assert!(items.len() == 1 && items[0]["tenant"] == "acme" && !items[0][id].is_null(), "{listed}");
    }
    let check = json!({"user_id": "bob", "endpoint": "/y"});
    assert_eq!(send("POST", "/v1/rate-limit/check", check.clone()).json()["remaining"], 4);
    let counters = send("GET", "/v1/admin/counters?user=bob", Value::Null).json();
    assert_eq!(
        (&counters["tenant"], &counters["counters"][1]["used"]),
        (&json!("acme"), &json!(1)),
        "{counters}"
    );
    assert_eq!(send("POST", "/v1/rate-limit/reset", check.clone()).status, 200);
    assert_eq!(send("POST", "/v1/rate-limit/check", check.clone()).json()["remaining"], 4);
    let from = json!({"user_id": "x", "endpoint": "/y", "ip": "192.0.2.7"});
    assert_eq!(send("POST", "/v1/rate-limit/check", from.clone()).status, 403);
    let elsewhere = json!({"user_id": "x", "endpoint": "/y", "ip": "192.0.2.7", "tenant": "beta"});
    assert_eq!(service.admin("POST", "/v1/rate-limit/check", &elsewhere.to_string()).status, 200);
    assert_eq!(send("DELETE", "/v1/admin/blocks/ip:192.0.2.7", Value::Null).status, 204);
    assert_eq!(send("DELETE", "/v1/admin/quotas/bob", Value::Null).status, 204);
    for refused in ["api_key:abcdefghijklmn27", "tenant:acme"] {
        let block = send("POST", "/v1/admin/blocks", json!({"client": refused, "reason": ""}));
        assert_eq!(
            (block.status, block.json()["error"]["details"]["field"].clone()),
            (400, json!("tenant")),
            "{}",
            block.text
        );
    }
}

#[test]
fn operator_is_told_which_tenants_have_the_user() {
    let service = Service::unconfigured();
    put_items_of_beta(&service);
    let bob = r#"{"user_id":"bob","endpoint":"/y"}"#;
    for answer in [
        service.admin("GET", "/v1/rate-limit/status?user_id=bob&endpoint=/y", ""),
        service.admin("POST", "/v1/rate-limit/explain", bob),
        service.admin("POST", "/v1/rate-limit/reset", bob),
        service.admin("GET", "/v1/admin/counters?user=bob", ""),
        service.admin("GET", "/v1/admin/quotas/bob", ""),
    ] {
        assert!(answer.text.contains("send tenant to select one of \\\"beta\\\""), "{}", answer.text);
    }
    let named = service.admin("GET", "/v1/rate-limit/status?user_id=bob&endpoint=/y&tenant=beta", "");
    let anyone = service.get("/v1/rate-limit/status?user_id=bob&endpoint=/y");
    for answer in [named, anyone] {
        assert!(answer.status == 200 && !answer.text.contains("send tenant"), "{}", answer.text);
    }
}

#[test]
fn tenant_of_the_clients_key_wins_over_the_check() {
    let service = Service::with_config(
        "[[rules]]\nname = \"t\"\nper = [\"tenant\"]\nlimits = [{ requests = 5, window = \"1h\" }]",
    );
    let client = key(&service, "acme", "client");
    let check = |tenant: Value| {
        let body = json!({"api_key": client["key"], "endpoint": "/x", "tenant": tenant}).to_string();
        service.post("/v1/rate-limit/check", &body).json()
    };
    assert_eq!(check(json!("acme"))["remaining"], 4);
    let other = check(json!("beta"));
    assert_eq!(other["remaining"], 3);
    assert!(other["warnings"][0].as_str().unwrap().contains("tenant was ignored"), "{other}");
    assert_eq!(check(Value::Null)["remaining"], 2);
}

#[test]
fn tenant_of_body_and_query_must_agree() {
    let service = Service::with_config("default_limit = 100");
    let body = r#"{"user_id": "bob", "requests_per_hour": 5, "tenant": "acme"}"#;
    let refused = service.admin("POST", "/v1/admin/quotas?tenant=beta", body);
    assert_eq!(
        (refused.status, &refused.json()["error"]["details"]["field"]),
        (400, &"tenant".into()),
        "{}",
        refused.text
    );
    assert_eq!(service.admin("POST", "/v1/admin/quotas?tenant=acme", body).status, 201);
}
