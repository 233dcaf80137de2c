//! Changes made on one node apply on all.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tollgate_testkit::{Fault, FaultProxy, RedisServer};

use crate::harness::{Answer, Service, wait_for};
use crate::{admitted, check, service, sharing};

/// The longest wait, when every message is lost on a busy machine.
const WORST: Duration = Duration::from_secs(15);

fn fleet(redis: &RedisServer, limit: u32) -> [Service; 3] {
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    [(); 3].map(|()| sharing(limit, &counters, ""))
}

/// The time until the condition holds on all nodes.
fn until(nodes: &[Service], what: &str, holds: impl Fn(&Service) -> bool) -> Duration {
    let started = Instant::now();
    for node in nodes {
        wait_for(what, || holds(node).then_some(()));
    }
    started.elapsed()
}

#[test]
fn reset_applies_on_all_nodes() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 20);
    assert_eq!(admitted(&nodes[0], "alice", 30), 20);
    // Each node has cached the refusal.
    assert!(nodes.iter().all(|node| check(node, "alice").0 == 429));
    let reset = nodes[2].admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"alice","endpoint":"/x"}"#);
    assert_eq!(reset.status, 200, "{}", reset.text);
    let took = until(&nodes, "the reset", |node| check(node, "alice").0 == 200);
    println!("reset in force on three nodes after {took:?}");
    assert!(took < WORST);
}

#[test]
fn reset_discards_fallback_charges_of_other_nodes() {
    let redis = RedisServer::start();
    let nodes = [(); 2].map(|()| service(100, &format!("url = \"{}\"\ntimeout = \"2s\"", redis.url()), ""));
    until(&nodes, "shared counters", |node| check(node, "other") == (200, false));
    let left_after_reset = |user: &str| {
        redis.freeze();
        wait_for("the outage to be noticed", || check(&nodes[1], "other").1.then_some(()));
        assert_eq!(admitted(&nodes[1], user, 20), 20);
        redis.thaw();
        until(&nodes, "shared counters", |node| check(node, "other") == (200, false));
        let body = format!(r#"{{"user_id":"{user}","endpoint":"/x"}}"#);
        let reset = nodes[0].admin("POST", "/v1/rate-limit/reset", &body);
        assert_eq!(reset.status, 200, "{}", reset.text);
        // What the node counted alone is either reset or reconciled.
        let pending = || nodes[1].metric("tollgate_store_reconcile_pending");
        wait_for("the reset", || (pending() == Some(0.0)).then_some(()));
        std::thread::sleep(Duration::from_secs(2));
        nodes[1].check(user, "/x").json()["remaining"].clone()
    };
    // A charge in flight during the reset may arrive after it, which is rare.
    assert!(["alice", "bob", "carol"].into_iter().any(|user| left_after_reset(user) == 99));
}

#[test]
fn user_limits_reach_all_nodes_without_pubsub() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 1_000);
    let limit_of = |node: &Service| limit_of(node, "bob");
    assert!(nodes.iter().all(|node| limit_of(node) == Some(1_000)));
    let set = |limit: u32| assert_eq!(set(&nodes[0], "bob", limit).status, 200);
    set(70);
    let took = until(&nodes, "the limits", |node| limit_of(node) == Some(70));
    println!("numbers in force on three nodes after {took:?}");
    assert!(took < WORST);

    // Disconnect subscribers: nodes must find the change by polling.
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
fn nodes_share_normalized_clients() {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    let exact = service(1_000, &counters, "");
    let nodes =
        [(); 2].map(|()| service(1_000, &counters, "[identity.normalize]\nuser_id = \"nfc+casefold\""));
    assert_eq!(set(&nodes[0], "Bob", 70).json()["user_id"], "bob");
    until(&nodes, "the override", |node| limit_of(node, "BOB") == Some(70));
    assert_eq!(set(&nodes[0], "bOB", 80).json()["user_id"], "bob");
    until(&nodes, "the new override", |node| limit_of(node, "Bob") == Some(80));
    assert_eq!(limit_of(&exact, "BOB"), Some(1_000), "byte-exact on a node without normalization");
    let removed = nodes[1].admin("DELETE", "/v1/rate-limit/config?user_id=bob&endpoint=/x", "");
    assert_eq!(removed.status, 204, "{}", removed.text);
    until(&nodes, "their removal", |node| limit_of(node, "Bob") == Some(1_000));

    let left = |node: &Service, user: &str| node.check(user, "/x").json()["remaining"].as_u64().unwrap();
    assert_eq!(
        [left(&nodes[0], "Alice"), left(&nodes[1], "ALICE"), left(&nodes[0], "alice")],
        [999, 998, 997]
    );
    let reset = nodes[1].admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"aLiCe","endpoint":"/x"}"#);
    assert_eq!(reset.json()["counters"], 1, "{}", reset.text);
    assert_eq!(left(&nodes[0], "Alice"), 999);
}

/// Sets the limit of a user on a node.
pub(crate) fn set(node: &Service, user: &str, limit: u32) -> Answer {
    let body = format!(
        r#"{{"user_id":"{user}","endpoint":"/x","limit":{limit},"window_seconds":60,"strategy":"fixed_window"}}"#
    );
    node.admin("PUT", "/v1/rate-limit/config", &body)
}

pub(crate) fn limit_of(node: &Service, user: &str) -> Option<u64> {
    node.check(user, "/x").json()["limit"].as_u64()
}

/// Changes of window and algorithm carry over what a user has consumed, once, whichever node makes them.
#[test]
fn changed_limits_count_no_request_twice() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 100);
    let mut used = 0;
    let changes = [
        ("fixed_window", 10),
        ("fixed_window", 5),
        ("fixed_window", 10),
        ("token_bucket", 400),
        ("fixed_window", 5),
    ];
    for (turn, (strategy, days)) in changes.into_iter().enumerate() {
        let body = format!(
            r#"{{"user_id":"alice","endpoint":"/x","limit":100,"window_seconds":{},"strategy":"{strategy}"}}"#,
            days * 86_400
        );
        let node = &nodes[turn % 3];
        assert_eq!(node.admin("PUT", "/v1/rate-limit/config", &body).status, 200);
        for _ in 0..3 {
            used += 1;
            let left = node.check("alice", "/x").json()["remaining"].as_u64();
            assert_eq!(left, Some(100 - used), "{strategy} over {days} days");
        }
    }
}

#[test]
fn user_limits_survive_a_flush() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 1_000);
    assert_eq!(set(&nodes[0], "bob", 70).status, 200);
    until(&nodes, "the limits", |node| limit_of(node, "bob") == Some(70));

    redis.flush_all();
    let known = || !redis.cli(&["HGETALL", "rl:{fleet}:config"]).is_empty();
    wait_for("the limits to be restored", || known().then_some(()));
    assert!(nodes.iter().all(|node| limit_of(node, "bob") == Some(70)));

    // Another limit is set before a node has noticed.
    redis.flush_all();
    assert_eq!(set(&nodes[1], "carol", 80).status, 200);
    until(&nodes, "both numbers", |node| {
        limit_of(node, "carol") == Some(80) && limit_of(node, "bob") == Some(70)
    });
    let late = fleet(&redis, 1_000);
    until(&late, "both on nodes that came later", |node| {
        limit_of(node, "carol") == Some(80) && limit_of(node, "bob") == Some(70)
    });
}

/// At any step of a node: reading the limits, restoring them, or counting the change.
#[test]
fn user_limits_survive_repeated_flushes() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 1_000);
    assert_eq!(set(&nodes[0], "bob", 70).status, 200);
    until(&nodes, "the limits", |node| limit_of(node, "bob") == Some(70));

    let mut forgetful = TcpStream::connect(redis.address()).unwrap();
    for pause in (0..1_500).map(|n| Duration::from_micros(n * 7 % 2_000)) {
        forgetful.write_all(b"FLUSHALL\r\nPUBLISH rl:{fleet}:changes version\r\n").unwrap();
        std::thread::sleep(pause);
    }
    drop(forgetful);
    assert_eq!(set(&nodes[1], "carol", 80).status, 200);
    until(&nodes, "both numbers", |node| {
        limit_of(node, "carol") == Some(80) && limit_of(node, "bob") == Some(70)
    });
    let [one, two, three] = &nodes;
    wait_for_one_count([one, two, three], 1_000);
}

/// An older snapshot, or a replica that lagged.
#[test]
fn user_limits_survive_a_restore_of_older_data() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 1_000);
    assert_eq!(set(&nodes[0], "bob", 50).status, 200);
    until(&nodes, "the limits", |node| limit_of(node, "bob") == Some(50));
    assert_eq!(redis.cli(&["SAVE"]), "OK");
    assert_eq!(set(&nodes[0], "bob", 5).status, 200);
    until(&nodes, "the lower limits", |node| limit_of(node, "bob") == Some(5));
    redis.restart();
    let stores = |text: &str| redis.cli(&["HGETALL", "rl:{fleet}:config"]).contains(text);
    wait_for("the limits to be restored", || stores("\"requests\":5,").then_some(()));
    until(&nodes, "the lower numbers again", |node| limit_of(node, "bob") == Some(5));

    // Other limits are set before a node notices, until the version is what it was.
    assert_eq!(redis.cli(&["SAVE"]), "OK");
    assert_eq!(set(&nodes[0], "alice", 7).status, 200);
    until(&nodes, "the numbers of alice", |node| limit_of(node, "alice") == Some(7));
    redis.restart();
    for limit in [2, 3] {
        wait_for("a change", || (set(&nodes[1], "carol", limit).status == 200).then_some(()));
    }
    let all = |node: &Service| {
        ["alice", "bob", "carol"].map(|user| limit_of(node, user)) == [Some(7), Some(5), Some(3)]
    };
    wait_for("all limits to be restored", || stores("alice").then_some(()));
    until(&nodes, "all limits", all);
    until(&fleet(&redis, 1_000), "all on nodes that came later", all);
}

#[test]
fn reset_survives_reconciliation_of_a_partitioned_node() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::in_front_of(redis.address());
    let cut_off = format!("url = \"redis://{}/0\"\ntimeout = \"10s\"", proxy.address());
    let nodes = [cut_off, format!("url = \"{}\"\ntimeout = \"10s\"", redis.url())]
        .map(|counters| service(100, &counters, ""));
    until(&nodes, "shared counters", |node| check(node, "other") == (200, false));
    wait_for("both nodes", || (nodes[0].metric("tollgate_store_nodes") == Some(2.0)).then_some(()));
    assert_eq!(admitted(&nodes[0], "alice", 5), 5);
    proxy.set(Fault::Drop);
    wait_for("the outage to be noticed", || check(&nodes[0], "other").1.then_some(()));
    for user in ["alice", "dave"] {
        assert_eq!(admitted(&nodes[0], user, 20), 20);
    }
    let reset = nodes[1].admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"alice","endpoint":"/x"}"#);
    assert_eq!(reset.status, 200, "{}", reset.text);
    proxy.set(Fault::None);
    let left = |user: &str| {
        let status = nodes[1].get(&format!("/v1/rate-limit/status?user_id={user}&endpoint=/x"));
        status.json()["remaining"].as_u64()
    };
    wait_for("what is not reset", || (left("dave") == Some(80)).then_some(()));
    let done = || nodes[0].metric("tollgate_store_reconcile_pending") == Some(0.0);
    wait_for("all charges to be reconciled", || done().then_some(()));
    assert_eq!(left("alice"), Some(100));
    // Charges of an outage after the reset are reconciled.
    proxy.set(Fault::Drop);
    wait_for("the outage to be noticed", || check(&nodes[0], "other").1.then_some(()));
    assert_eq!(admitted(&nodes[0], "alice", 10), 10);
    proxy.set(Fault::None);
    wait_for("what was counted since", || (left("alice") == Some(90)).then_some(()));
}

#[test]
fn user_limit_that_cannot_be_shared_is_not_set() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 1_000);
    assert_eq!(set(&nodes[0], "bob", 70).status, 200);
    until(&nodes, "the limits", |node| limit_of(node, "bob") == Some(70));
    redis.kill9();
    let refused = set(&nodes[0], "bob", 90);
    assert_eq!(
        (refused.status, refused.error().1.as_str()),
        (503, "SERVICE_UNAVAILABLE"),
        "{}",
        refused.text
    );
    assert_eq!(limit_of(&nodes[0], "bob"), Some(70));
    let removed = nodes[0].admin("DELETE", "/v1/rate-limit/config?user_id=bob&endpoint=/x", "");
    assert_eq!(removed.status, 503, "{}", removed.text);
    assert_eq!(limit_of(&nodes[0], "bob"), Some(70));
}

#[test]
fn new_node_with_its_own_seed_does_not_split_the_fleet() {
    let redis = RedisServer::start();
    let [node, other, _] = fleet(&redis, 20);
    assert_eq!(admitted(&node, "alice", 5), 5);
    redis.cli(&["SET", "rl:{fleet}:seed", "0123456789abcdef"]);
    let newcomer = service(20, &format!("url = \"{}\"\ntimeout = \"10s\"", redis.url()), "");
    wait_for_one_count([&newcomer, &node, &other], 20);
}

/// Waits until the nodes use one seed and share counters.
fn wait_for_one_count(nodes: [&Service; 3], limit: u64) {
    let mut users = 0..;
    wait_for("one count for all", || {
        let user = format!("user-{}", users.next()?);
        let remaining = |node: &Service| node.check(&user, "/x").json()["remaining"].as_u64();
        (nodes.map(remaining) == [1, 2, 3].map(|used| Some(limit - used))).then_some(())
    });
}

#[test]
fn batch_with_one_key_is_decided_once_across_nodes() {
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

/// Sends a batch and disconnects while it is decided.
fn hang_up_on(node: &Service, redis: &RedisServer, batch: &str) {
    let claimed = || !redis.cli(&["KEYS", "rl:*i{*"]).is_empty();
    let mut caller = TcpStream::connect(node.address).unwrap();
    let head =
        "POST /v1/rate-limit/batch-check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    write!(caller, "{head}content-length: {}\r\n\r\n{batch}", batch.len()).unwrap();
    wait_for("the claim", || claimed().then_some(()));
}

fn batch_of_carol(checks: usize) -> String {
    let checks = vec![r#"{"user_id":"carol","endpoint":"/x"}"#; checks].join(",");
    format!(r#"{{"idempotency_key":"k","checks":[{checks}]}}"#)
}

/// The remaining limit, and whether the response was replayed.
fn log_lines(answer: &Answer) -> (bool, u64) {
    let body = answer.json();
    let last = body["results"].as_array().unwrap().last().unwrap();
    (body["replayed"] == true, last["remaining"].as_u64().unwrap())
}

#[test]
fn abandoned_batch_is_finished_and_replayed_by_any_node() {
    let redis = RedisServer::start();
    // One unit is restored every 26 s: not during this test.
    let nodes = fleet(&redis, 100_000);
    let batch = batch_of_carol(1_000);
    hang_up_on(&nodes[0], &redis, &batch);
    for node in [&nodes[1], &nodes[0], &nodes[2]] {
        let answer = wait_for("the batch to be decided", || {
            let answer = node.post("/v1/rate-limit/batch-check", &batch);
            (answer.status != 409).then_some(answer)
        });
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(log_lines(&answer), (true, 99_000));
    }
    let peek = r#"{"user_id":"carol","endpoint":"/x","cost":0}"#;
    // While the deciding node returns its lease, less is left.
    wait_for("1,000 to be charged, once", || {
        (nodes[0].post("/v1/rate-limit/check", peek).json()["remaining"] == 99_000).then_some(())
    });
}

/// A node that is killed while it decides leaves the key locked for half a minute; then another node decides, once. What the
/// killed node had charged stays charged.
#[test]
fn batch_of_a_killed_node_is_decided_again_later() {
    let redis = RedisServer::start();
    let nodes = fleet(&redis, 100_000);
    let batch = batch_of_carol(1_000);
    hang_up_on(&nodes[0], &redis, &batch);
    nodes[0].signal("-KILL");
    let send = |node: &Service| node.post("/v1/rate-limit/batch-check", &batch);
    let deadline = Instant::now() + Duration::from_secs(90);
    let answer = loop {
        let answer = send(&nodes[1]);
        if answer.status != 409 {
            break answer;
        }
        assert!(Instant::now() < deadline, "{}", answer.text);
        std::thread::sleep(Duration::from_millis(500));
    };
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = answer.json();
    let admitted = body["results"].as_array().unwrap().iter().filter(|result| result["allowed"] == true);
    assert_eq!(admitted.count(), 1_000);
    let (_, left) = log_lines(&answer);
    assert!(left <= 99_000, "{left}");
    assert_eq!(log_lines(&send(&nodes[2])), (true, left));
}

#[test]
fn shutdown_finishes_an_abandoned_batch() {
    let redis = RedisServer::start();
    let [node, other, _] = fleet(&redis, 100_000);
    let batch = batch_of_carol(1_000);
    hang_up_on(&node, &redis, &batch);
    node.signal("-TERM");
    assert!(node.ended().0.success());
    let answer = other.post("/v1/rate-limit/batch-check", &batch);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(log_lines(&answer), (true, 99_000));
}

#[test]
fn shutdown_returns_leases() {
    let redis = RedisServer::start();
    let [node, other, _] = fleet(&redis, 1_000);
    // Enough requests for a lease, then none.
    assert_eq!(admitted(&node, "erin", 100), 100);
    node.signal("-TERM");
    assert!(node.ended().0.success());
    // The last half percent of a busy shared counter may need a second request.
    let left = admitted(&other, "erin", 1_100);
    assert!((895..=900).contains(&left), "{left}");
}
