//! What one node is told, all of them follow.

use std::time::{Duration, Instant};

use tollgate_testkit::RedisServer;

use crate::harness::{Service, wait_for};
use crate::{admitted, check, service};

/// So long at worst, when every message is lost.
const WORST: Duration = Duration::from_secs(5);

fn fleet(redis: &RedisServer, limit: u32) -> [Service; 3] {
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    [(); 3].map(|()| service(limit, &counters, ""))
}

/// How long until it holds on all nodes.
fn until(nodes: &[Service], what: &str, holds: impl Fn(&Service) -> bool) -> Duration {
    let started = Instant::now();
    for node in nodes {
        wait_for(what, || holds(node).then_some(()));
    }
    started.elapsed()
}

#[test]
fn a_reset_on_one_node_is_in_force_on_all() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 20);
    assert_eq!(admitted(&nodes[0], "alice", 30), 20);
    // Each node knows by itself that she is refused.
    assert!(nodes.iter().all(|node| check(node, "alice").0 == 429));
    let reset = nodes[2].admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"alice","endpoint":"/x"}"#);
    assert_eq!(reset.status, 200, "{}", reset.text);
    let took = until(&nodes, "the reset", |node| check(node, "alice").0 == 200);
    println!("reset in force on three nodes after {took:?}");
    assert!(took < WORST);
}

#[test]
fn numbers_set_on_one_node_are_in_force_on_all_and_stay_when_redis_forgets_messages() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 1_000);
    let limit_of = |node: &Service| node.check("bob", "/x").json()["limit"].as_u64();
    assert!(nodes.iter().all(|node| limit_of(node) == Some(1_000)));
    let set = |limit: u32| {
        let body = format!(
            r#"{{"user_id":"bob","endpoint":"/x","limit":{limit},"window_seconds":60,"strategy":"fixed_window"}}"#
        );
        let answer = nodes[0].admin("PUT", "/v1/rate-limit/config", &body);
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    set(70);
    let took = until(&nodes, "the numbers", |node| limit_of(node) == Some(70));
    println!("numbers in force on three nodes after {took:?}");
    assert!(took < WORST);

    // Whoever listens is thrown out: what is polled is the truth.
    redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    set(80);
    let took = until(&nodes, "the numbers without a message", |node| limit_of(node) == Some(80));
    println!("without messages after {took:?}");
    assert!(took < WORST);

    let removed = nodes[1].admin("DELETE", "/v1/rate-limit/config?user_id=bob&endpoint=/x", "");
    assert_eq!(removed.status, 204, "{}", removed.text);
    until(&nodes, "their removal", |node| limit_of(node) == Some(1_000));

    set(90);
    let late = fleet(&redis, 1_000);
    until(&late, "the numbers on nodes that came later", |node| limit_of(node) == Some(90));
}

#[test]
fn a_batch_sent_to_two_nodes_with_one_key_is_decided_once() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 10);
    let batch = |key: &str, user: &str| {
        format!(r#"{{"idempotency_key":"{key}","checks":[{{"user_id":"{user}","endpoint":"/x","cost":4}}]}}"#)
    };
    let send = |node: &Service, body: &str| node.post("/v1/rate-limit/batch-check", body);
    let first = send(&nodes[0], &batch("k", "carol")).json();
    assert_eq!((&first["replayed"], &first["results"][0]["remaining"]), (&false.into(), &6.into()));
    for node in &nodes {
        let again = send(node, &batch("k", "carol")).json();
        assert_eq!((&again["replayed"], &again["results"][0]["remaining"]), (&true.into(), &6.into()));
    }
    assert_eq!(send(&nodes[1], &batch("k", "dave")).error().1, "IDEMPOTENCY_MISMATCH");
    assert_eq!(send(&nodes[1], &batch("other", "carol")).json()["results"][0]["remaining"], 2);
}

#[test]
fn t59_a_node_that_ends_gives_its_leases_back() {
    let redis = RedisServer::start();
    let [node, other, _] = fleet(&redis, 1_000);
    // Enough at once for a lease, and then no more.
    assert_eq!(admitted(&node, "erin", 100), 100);
    node.signal("-TERM");
    assert!(node.ended().0.success());
    // Of a busy counter that nodes share, the last half percent may have to be asked for twice.
    let left = admitted(&other, "erin", 1_100);
    assert!((895..=900).contains(&left), "{left}");
}
