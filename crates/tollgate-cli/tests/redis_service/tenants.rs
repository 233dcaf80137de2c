//! Tenants on shared counters.

use serde_json::json;
use tollgate_testkit::RedisServer;

use crate::harness::Service;
use crate::sharing;

const TENANTS: [Option<&str>; 3] = [Some("acme"), Some("beta"), None];

/// How many of ten checks of bob are admitted.
fn admitted(service: &Service, tenant: Option<&str>, endpoint: &str) -> usize {
    let body = json!({"user_id": "bob", "endpoint": endpoint, "tenant": tenant}).to_string();
    (0..10).filter(|_| service.post("/v1/rate-limit/check", &body).status == 200).count()
}

#[test]
fn tenants_never_share_a_counter_on_redis() {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    let across = "[[rules]]\nname = \"all\"\nlayer = \"all\"\npriority = 1\nper = [\"user\"]\nacross_tenants = true\n\
                  when = { endpoints = [\"/shared\"] }\nlimits = [{ requests = 2, window = \"30d\" }]";
    let nodes = [sharing(3, &counters, across), sharing(3, &counters, across)];
    assert_eq!(TENANTS.map(|tenant| admitted(&nodes[0], tenant, "/x")), [3, 3, 3]);
    assert_eq!(TENANTS.map(|tenant| admitted(&nodes[1], tenant, "/x")), [0, 0, 0]);
    let reset = json!({"user_id": "bob", "endpoint": "/x", "tenant": "acme"}).to_string();
    assert_eq!(nodes[1].admin("POST", "/v1/rate-limit/reset", &reset).status, 200);
    assert_eq!(TENANTS.map(|tenant| admitted(&nodes[0], tenant, "/shared")), [2, 0, 0]);
}

#[test]
fn shared_override_carries_its_tenant() {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    let nodes = [sharing(3, &counters, ""), sharing(3, &counters, "")];
    let set = json!({"tenant": "acme", "user_id": "bob", "endpoint": "/x", "limit": 7, "window_seconds": 3600,
                     "strategy": "fixed_window"});
    let set = nodes[0].admin("PUT", "/v1/rate-limit/config", &set.to_string());
    assert_eq!((set.status, &set.json()["tenant"]), (200, &json!("acme")), "{}", set.text);
    let read = |node: &Service, tenant: &str| {
        node.admin("GET", &format!("/v1/rate-limit/config?user_id=bob&endpoint=/x{tenant}"), "")
    };
    crate::harness::wait_for("the override", || {
        (read(&nodes[1], "&tenant=acme").status == 200).then_some(())
    });
    assert_eq!((read(&nodes[1], "").status, read(&nodes[1], "&tenant=beta").status), (404, 404));
    assert_eq!(TENANTS.map(|tenant| admitted(&nodes[1], tenant, "/x")), [7, 3, 3]);
    let gone = nodes[1].admin("DELETE", "/v1/rate-limit/config?user_id=bob&endpoint=/x&tenant=acme", "");
    assert_eq!(gone.status, 204, "{}", gone.text);
}
