//! The busiest clients of a fleet.

use serde_json::{Value, json};
use tollgate_testkit::RedisServer;

use crate::harness::{Service, wait_for};
use crate::{admitted, sharing, wait_until_it_is};

fn top(service: &Service, query: &str) -> Value {
    service.admin("GET", &format!("/v1/admin/top{query}"), "").json()
}

#[test]
fn top_is_of_all_nodes() {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    let nodes = [sharing(10, &counters, ""), sharing(10, &counters, "")];
    assert_eq!(admitted(&nodes[0], "alice", 8), 8);
    assert_eq!(admitted(&nodes[1], "alice", 5), 2);
    assert_eq!(admitted(&nodes[1], "bob", 1), 1);
    for node in &nodes {
        let seen = wait_for("the counts of both nodes", || {
            let top = top(node, "");
            (top["requests"] == 14 && top["rules"][0]["requests"] == 14).then_some(top)
        });
        assert_eq!(
            (&seen["nodes"], &seen["nodes_missing"], &seen["degraded"]),
            (&json!(2), &json!(0), &json!(false))
        );
        let alice = json!({"identifier": "user:alice", "requests": 13, "requests_error": 0, "refused": 3});
        let bob = json!({"identifier": "user:bob", "requests": 1, "requests_error": 0, "refused": 0});
        assert_eq!(seen["clients"], json!([alice, bob]));
        assert_eq!(
            seen["rules"],
            json!([{"rule": "by-user", "requests": 14, "requests_error": 0, "refused": 3}])
        );
        let refusals = top(node, "?identifier=user:alice")["refusals"].clone();
        assert_eq!(
            (&refusals[0]["times"], &refusals[0]["reason"]),
            (&json!(3), &json!("over_limit")),
            "{refusals}"
        );
    }
}

#[test]
fn top_is_of_this_node_while_redis_is_unreachable() {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"", redis.url());
    let node = sharing(10, &counters, "");
    drop(redis);
    wait_until_it_is(&node, "degraded");
    node.check("alice", "/x");
    let seen = wait_for("the counts", || Some(top(&node, "")).filter(|top| top["requests"] == 1));
    assert_eq!((&seen["nodes"], &seen["degraded"]), (&json!(1), &json!(true)), "{seen}");
    assert_eq!(seen["clients"][0]["identifier"], "user:alice");
    let counters = &seen["stores"]["counters"];
    assert_eq!((&counters["kind"], &counters["state"]), (&json!("redis"), &json!("unreachable")), "{seen}");
    assert!(counters["error"].as_str().is_some_and(|error| error.contains("counts its share")), "{seen}");
}
