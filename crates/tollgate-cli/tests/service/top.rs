//! `GET /v1/admin/top`.

use serde_json::{Value, json};

use crate::harness::{Answer, Service, wait_for};

const CONFIG: &str = "[auth]\nopen_checks = false\n[[rules]]\nname = \"by-user\"\nper = [\"user\"]\n\
                      limits = [{ requests = 3, window = \"30d\" }]\n";

fn send(service: &Service, count: usize, check: &Value) {
    for _ in 0..count {
        let answer = service.admin("POST", "/v1/rate-limit/check", &check.to_string());
        assert!([200, 403, 429].contains(&answer.status), "{}", answer.text);
    }
}

fn top(service: &Service, query: &str) -> Value {
    let answer = service.admin("GET", &format!("/v1/admin/top{query}"), "");
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

/// Requests are counted within a second.
fn wait_for_requests(service: &Service, requests: u64) {
    wait_for("the counts", || {
        let top = top(service, "");
        let of_rules: u64 =
            top["rules"].as_array().into_iter().flatten().filter_map(|rule| rule["requests"].as_u64()).sum();
        (top["requests"] == requests && of_rules > 0).then_some(())
    });
}

/// Users alice and bob of tenant acme, alice without a tenant, an address.
fn busy_service() -> Service {
    let service = Service::with_config(CONFIG);
    send(&service, 5, &json!({"tenant": "acme", "user_id": "alice", "endpoint": "/search"}));
    send(&service, 2, &json!({"tenant": "acme", "user_id": "bob", "endpoint": "/search"}));
    send(&service, 4, &json!({"user_id": "alice", "endpoint": "/login"}));
    send(&service, 1, &json!({"ip": "192.0.2.7", "endpoint": "/login"}));
    wait_for_requests(&service, 12);
    service
}

#[test]
fn top_lists_clients_rules_and_endpoints() {
    let top = top(&busy_service(), "");
    assert_eq!(
        (&top["requests"], &top["refused"], &top["nodes"]),
        (&json!(12), &json!(3), &json!(1)),
        "{top}"
    );
    assert_eq!((&top["nodes_missing"], &top["degraded"]), (&json!(0), &json!(false)));
    let client = |identifier: &str, requests: u32, refused: u32| json!({"identifier": identifier, "requests": requests, "requests_error": 0, "refused": refused});
    let in_acme = |mut client: Value| {
        client["tenant"] = json!("acme");
        client
    };
    let expected = [
        in_acme(client("user:alice", 5, 2)),
        client("user:alice", 4, 1),
        in_acme(client("user:bob", 2, 0)),
        client("ip:192.0.2.7", 1, 0),
    ];
    assert_eq!(top["clients"], json!(expected));
    let refused = [
        json!({"identifier": "user:alice", "tenant": "acme", "refused": 2, "refused_error": 0, "requests": 5}),
        json!({"identifier": "user:alice", "refused": 1, "refused_error": 0, "requests": 4}),
    ];
    assert_eq!(top["most_refused"], json!(refused));
    assert_eq!(
        top["rules"][0],
        json!({"rule": "by-user", "requests": 11, "requests_error": 0, "refused": 3})
    );
    let endpoints = [
        json!({"endpoint": "/search", "requests": 7, "requests_error": 0, "refused": 2}),
        json!({"endpoint": "/login", "requests": 5, "requests_error": 0, "refused": 1}),
    ];
    assert_eq!(top["endpoints"], json!(endpoints));
    assert_eq!(top["refusals"], json!([]));
    let stores = &top["stores"];
    assert_eq!(stores["counters"], json!({"kind": "memory", "state": "up"}));
    assert_eq!(stores["database"], json!({"state": "up"}));
    assert_eq!((&stores["records"]["state"], &stores["records"]["dropped_rows"]), (&json!("up"), &json!(0)));
}

#[test]
fn one_client_is_listed_with_its_latest_refusals() {
    let service = busy_service();
    let block = service.admin("PUT", "/v1/admin/blocks/user:alice?tenant=acme", r#"{"reason":"scraping"}"#);
    assert_eq!(block.status, 201, "{}", block.text);
    send(&service, 1, &json!({"tenant": "acme", "user_id": "alice", "endpoint": "/search"}));
    wait_for_requests(&service, 13);
    let top = top(&service, "?identifier=user:alice&tenant=acme");
    assert_eq!(
        (top["clients"].as_array().unwrap().len(), &top["clients"][0]["requests"]),
        (1, &json!(6)),
        "{top}"
    );
    assert_eq!((&top["rules"], &top["endpoints"], &top["requests"]), (&json!([]), &json!([]), &Value::Null));
    let [latest, first] = &top["refusals"].as_array().unwrap()[..] else { panic!("{top}") };
    assert_eq!(
        (&latest["reason"], &latest["rule"], &latest["times"]),
        (&json!("blocked"), &Value::Null, &json!(1))
    );
    assert_eq!(
        (&first["reason"], &first["rule"], &first["times"]),
        (&json!("over_limit"), &json!("by-user"), &json!(2))
    );
    assert_eq!((&first["endpoint"], &first["tenant"]), (&json!("/search"), &json!("acme")));
    assert!(first["retry_after"].as_u64().is_some_and(|seconds| seconds > 80_000), "{first}");
    assert!(latest["at"].as_u64() >= first["at"].as_u64(), "{top}");
}

#[test]
fn top_of_a_bound_caller_is_of_its_tenant() {
    let service = busy_service();
    let body = json!({"name": "acme", "tenant": "acme", "scopes": ["read"]}).to_string();
    let key = service.admin("POST", "/v1/admin/keys", &body).json()["key"].as_str().unwrap().to_owned();
    let get = |query: &str| -> Answer { service.with_key(&key, "GET", &format!("/v1/admin/top{query}"), "") };
    let own = get("").json();
    let named: Vec<&str> =
        own["clients"].as_array().unwrap().iter().map(|each| each["identifier"].as_str().unwrap()).collect();
    assert_eq!(named, ["user:alice", "user:bob"], "{own}");
    assert_eq!(own["rules"], json!([{"rule": "by-user", "requests": 7, "requests_error": 0, "refused": 2}]));
    assert_eq!(
        own["endpoints"],
        json!([{"endpoint": "/search", "requests": 7, "requests_error": 0, "refused": 2}])
    );
    assert!(["requests", "refused", "stores"].iter().all(|total| own.get(total).is_none()), "{own}");
    let refusals = get("?identifier=user:alice").json();
    assert_eq!((&refusals["refusals"][0]["times"], &refusals["refusals"][1]), (&json!(2), &Value::Null));
    assert_eq!(get("?tenant=beta").status, 403);
    assert_eq!(top(&service, "?tenant=acme")["endpoints"], own["endpoints"]);
}

#[test]
fn invalid_queries_of_top_are_rejected() {
    let service = Service::with_config(CONFIG);
    for query in ["?limit=0", "?limit=101", "?limit=x", "?identifier=", "?by=requests", "?tenant="] {
        assert_eq!(service.admin("GET", &format!("/v1/admin/top{query}"), "").status, 400, "{query}");
    }
    send(&service, 1, &json!({"user_id": "a", "endpoint": "/1"}));
    send(&service, 1, &json!({"user_id": "a", "endpoint": "/2"}));
    wait_for_requests(&service, 2);
    assert_eq!(top(&service, "?limit=1")["endpoints"].as_array().unwrap().len(), 1);
}

#[test]
fn endpoint_of_top_is_the_pattern_and_an_address_its_prefix() {
    let service = Service::with_config(
        "[[rules]]\nname = \"by-client\"\nper = [\"client\"]\nwhen.endpoints = [\"/users/*\"]\nrequests_per_minute = 1\n",
    );
    for host in 1..=3 {
        let (ip, path) = (format!("2001:db8::{host}"), format!("/users/{host}"));
        send(&service, 1, &json!({"ip": ip, "endpoint": path}));
    }
    wait_for_requests(&service, 3);
    let top = top(&service, "?identifier=ip:2001:db8::9");
    assert_eq!(
        top["clients"],
        json!([{"identifier": "ip:2001:db8::/64", "requests": 3, "requests_error": 0, "refused": 2}])
    );
    assert_eq!(top["refusals"][0]["identifier"], "ip:2001:db8::/64");
    let endpoints = self::top(&service, "")["endpoints"].clone();
    assert_eq!((&endpoints[0]["endpoint"], &endpoints[1]), (&json!("/users/*"), &Value::Null));
}
