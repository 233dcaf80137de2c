//! Redis outages: slow, down, full, recovered.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::RedisServer;

use crate::harness::{Service, wait_for};
use crate::{admitted, check, service, wait_until_it_is};

/// A timeout that a busy machine does not reach, so that no decision is degraded because of it. No leases, because they still
/// admit in an outage.
fn on(redis: &RedisServer, limit: u32, rule: &str) -> Service {
    service(limit, &format!("url = \"{}\"\ntimeout = \"10s\"\nleases = false", redis.url()), rule)
}

/// For a server that will be frozen: several requests wait for the whole timeout.
fn on_one_that_freezes(redis: &RedisServer, limit: u32) -> Service {
    service(limit, &format!("url = \"{}\"\ntimeout = \"2s\"\nleases = false", redis.url()), "")
}

fn wait_until_shared(service: &Service, user: &str) {
    wait_for("the counters to be shared again", || (check(service, user) == (200, false)).then_some(()));
}

#[test]
fn starts_without_redis_and_joins_later() {
    let redis = RedisServer::start();
    redis.kill9();
    // More than the checks sent while waiting.
    let service = on(&redis, 1_000_000, "");
    assert_eq!(check(&service, "alice"), (200, true));
    let batch = service.post(
        "/v1/rate-limit/batch-check",
        r#"{"checks":[{"user_id":"a","endpoint":"/x"},{"user_id":"b","endpoint":"/x"}]}"#,
    );
    let degraded = batch.text.matches("\"degraded\":true").count();
    assert_eq!((batch.status, degraded), (200, 2), "{}", batch.text);
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (200, &"degraded".into()), "{}", ready.text);
    let reason = ready.json()["store_error"].as_str().unwrap().to_owned();
    assert!(reason.contains(&redis.address().to_string()), "{reason}");
    assert!(service.log().contains("using the local fallback until it recovers"), "{}", service.log());
    redis.restart();
    wait_until_shared(&service, "alice");
    wait_until_it_is(&service, "ready");
}

#[test]
fn frozen_redis_loses_no_response_and_refuses_nobody() {
    let redis = RedisServer::start();
    let service = service(1_000_000, &format!("url = \"{}\"\nleases = false", redis.url()), "");
    let (stop, slow) = (AtomicBool::new(false), Duration::from_secs(10));
    let asked = |number: usize| {
        let mut answers = 0;
        while !stop.load(Ordering::Relaxed) {
            let started = Instant::now();
            assert_eq!(check(&service, &format!("user-{number}")).0, 200);
            assert!(started.elapsed() < slow, "{:?}", started.elapsed());
            answers += 1;
        }
        answers
    };
    let asked = &asked;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|number| scope.spawn(move || asked(number))).collect();
        thread::sleep(Duration::from_millis(200));
        redis.freeze();
        wait_for("the outage to be noticed", || check(&service, "witness").1.then_some(()));
        thread::sleep(Duration::from_millis(500));
        assert_eq!(service.get("/readyz").status, 200);
        redis.thaw();
        wait_until_shared(&service, "witness");
        stop.store(true, Ordering::Relaxed);
        assert!(clients.into_iter().all(|client| client.join().unwrap() > 0));
    });
    let degraded = "tollgate_degraded_decisions_total{rule=\"by-user\",mode=\"local\"}";
    assert!(service.metric(degraded).is_some_and(|count| count > 0.0));
    assert!(service.metric("tollgate_degraded_seconds_total").is_some_and(|seconds| seconds > 0.2));
}

#[test]
fn outage_gives_no_second_allowance() {
    let redis = RedisServer::start();
    let service = on_one_that_freezes(&redis, 100);
    wait_until_shared(&service, "other");
    assert_eq!(admitted(&service, "alice", 30), 30);
    redis.freeze();
    // A call without a reply counts on both sides, which errs on the safe side. Other clients make those calls.
    let left_alone = format!("tollgate_store_breaker_open{{server=\"{}\"}}", redis.address());
    wait_for("the outage to be noticed", || {
        check(&service, "other");
        (service.metric(&left_alone) == Some(1.0)).then_some(())
    });
    let alone = (0..40).filter(|_| check(&service, "alice") == (200, true)).count();
    assert_eq!(alone, 40);
    redis.thaw();
    wait_until_shared(&service, "other");
    let after = admitted(&service, "alice", 100);
    assert_eq!(30 + alone + after, 100);
}

#[test]
fn restarted_redis_is_used_again() {
    let redis = RedisServer::start();
    let service = on(&redis, 1_000, "");
    wait_until_shared(&service, "alice");
    redis.kill9();
    wait_for("the outage to be noticed", || (check(&service, "alice") == (200, true)).then_some(()));
    let alone = admitted(&service, "bob", 600);
    assert_eq!(alone, 600);
    redis.restart();
    wait_until_shared(&service, "alice");
    // The server lost its data, but this node reconciles its own charges.
    assert_eq!(admitted(&service, "bob", 600), 400);
}

/// Two nodes of one fleet whose Redis is down.
fn two_nodes_in_an_outage(redis: &RedisServer) -> [Service; 2] {
    let nodes = [(); 2].map(|()| on_one_that_freezes(redis, 100));
    wait_for("the nodes to know of each other", || {
        let known = |node: &Service| node.metric("tollgate_store_nodes") == Some(2.0);
        nodes.iter().all(known).then_some(())
    });
    redis.freeze();
    nodes.iter().for_each(notice_outage);
    nodes
}

/// Waits until the breaker opens: calls sent to a frozen server are executed later.
fn notice_outage(service: &Service) {
    notice_outage_by(service, "witness");
}

fn notice_outage_by(service: &Service, witness: &str) {
    wait_for("the outage to be noticed", || check(service, witness).1.then_some(()));
    assert!((0..10).all(|_| check(service, witness).1));
}

#[test]
fn outage_gives_no_second_allowance_on_another_node() {
    let redis = RedisServer::start();
    let nodes = two_nodes_in_an_outage(&redis);
    assert_eq!(nodes.each_ref().map(|node| admitted(node, "alice", 80)), [50, 50]);
    redis.thaw();
    // The client visits neither node: its charges are reconciled all the same.
    for node in &nodes {
        wait_for("the charges of both clients to be reconciled", || {
            let brought_in = node.metric("tollgate_store_reconciled_counters_total");
            brought_in.is_some_and(|count| count >= 2.0).then_some(())
        });
        assert_eq!(node.metric("tollgate_store_reconcile_pending"), Some(0.0));
    }
    assert_eq!(nodes.each_ref().map(|node| admitted(node, "alice", 5)), [0, 0]);
}

#[test]
fn failed_reset_clears_and_audits_nothing() {
    let redis = RedisServer::start();
    let service = on_one_that_freezes(&redis, 100);
    wait_until_shared(&service, "other");
    let body = r#"{"user_id":"alice","endpoint":"/x"}"#;
    let resets = || {
        let trail = service.admin("GET", "/v1/admin/audit?kind=counters", "");
        trail.json()["entries"].as_array().unwrap().len()
    };
    for is_killed in [false, true] {
        if is_killed {
            redis.kill9();
        } else {
            redis.freeze();
        }
        notice_outage(&service);
        let before = admitted(&service, "alice", 5);
        let answer = service.admin("POST", "/v1/rate-limit/reset", body);
        assert_eq!((answer.status, answer.error().1.as_str()), (503, "SERVICE_UNAVAILABLE"));
        assert_eq!((before, resets()), (5, 0));
        if is_killed {
            redis.restart();
        } else {
            redis.thaw();
        }
        wait_until_shared(&service, "other");
    }
    let left = service.get("/v1/rate-limit/status/alice/x").json()["remaining"].as_u64().unwrap();
    assert!(left <= 95, "{left}: what was counted before the reset still counts");
    assert_eq!(service.admin("POST", "/v1/rate-limit/reset", body).status, 200);
    assert_eq!((resets(), admitted(&service, "alice", 120)), (1, 100));
}

/// A client that one of three nodes has refused sends to all of them through six freezes.
#[test]
fn repeated_freezes_admit_one_extra_allowance() {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"\ntimeout = \"200ms\"\nleases = false", redis.url());
    let nodes = [(); 3].map(|()| service(60, &counters, ""));
    wait_for("the nodes to know of each other", || {
        nodes.iter().all(|node| node.metric("tollgate_store_nodes") == Some(3.0)).then_some(())
    });
    let mut total = admitted(&nodes[0], "alice", 70);
    for round in 0..6 {
        redis.freeze();
        let witness = format!("witness-{round}");
        for node in &nodes {
            notice_outage_by(node, &witness);
        }
        let in_outage = nodes.each_ref().map(|node| admitted(node, "alice", 30));
        assert_eq!(in_outage[0], 0, "refused just before the freeze");
        redis.thaw();
        for node in &nodes {
            wait_until_shared(node, &format!("other-{round}"));
        }
        let after = nodes.each_ref().map(|node| admitted(node, "alice", 5));
        total += in_outage.iter().chain(&after).sum::<usize>();
    }
    assert!((60..=120).contains(&total), "{total}");
}

#[test]
fn shutdown_reconciles_charges_of_an_outage() {
    let redis = RedisServer::start();
    let [ending, staying] = two_nodes_in_an_outage(&redis);
    assert_eq!(admitted(&ending, "alice", 80), 50);
    redis.thaw();
    ending.signal("-TERM");
    assert!(ending.ended().0.success());
    wait_until_shared(&staying, "bob");
    assert_eq!(admitted(&staying, "alice", 100), 50);
}

#[test]
fn node_restarted_in_an_outage_admits_only_its_share() {
    let redis = RedisServer::start();
    let nodes = [(); 2].map(|()| on(&redis, 100, ""));
    let kept = nodes[0].data_dir().join("fleet.nodes");
    wait_for("the number of nodes to be kept", || {
        fs::read_to_string(&kept).is_ok_and(|text| text == "2\n").then_some(())
    });
    redis.kill9();
    let [restarted, _other] = nodes;
    restarted.signal("-TERM");
    let (_, folder) = restarted.ended();
    let config = folder.path().join("tollgate.toml");
    let restarted = Service::start(folder, Some(&config), &[]);
    assert_eq!(admitted(&restarted, "alice", 100), 50);
}

#[test]
fn status_after_an_outage_includes_fallback_charges() {
    let redis = RedisServer::start();
    let service = on_one_that_freezes(&redis, 100);
    wait_until_shared(&service, "witness");
    redis.freeze();
    notice_outage(&service);
    assert_eq!(admitted(&service, "alice", 30), 30);
    redis.thaw();
    // A charge that is being reconciled may arrive after the first status.
    wait_for("what was counted, on shared counters", || {
        let status = service.get("/v1/rate-limit/status/alice/x").json();
        let left = status["remaining"].as_u64().filter(|_| status["degraded"] != true)?;
        (69..=70).contains(&left).then_some(())
    });
}

#[test]
fn closed_rule_is_503_and_open_rule_admits() {
    let redis = RedisServer::start();
    redis.kill9();
    let closed = on(&redis, 5, "on_store_failure = \"closed\"");
    let answer = closed.check("alice", "/x");
    assert_eq!(answer.error().1, "SERVICE_UNAVAILABLE");
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    let open = on(&redis, 5, "on_store_failure = \"open\"");
    assert!((0..20).all(|_| check(&open, "alice") == (200, true)));
    assert_eq!(open.get("/v1/rate-limit/status/alice/x").json()["degraded"], true);
    let count = |service: &Service, mode: &str| {
        let line = format!("tollgate_degraded_decisions_total{{rule=\"by-user\",mode=\"{mode}\"}}");
        service.metric(&line)
    };
    assert_eq!((count(&closed, "closed"), count(&open, "open")), (Some(1.0), Some(20.0)));
}

#[test]
fn outage_logs_no_line_per_request() {
    let redis = RedisServer::start();
    redis.kill9();
    let closed = on(&redis, 5, "on_store_failure = \"closed\"");
    let lines = || closed.log().lines().count();
    let before = lines();
    assert!((0..100).all(|_| check(&closed, "alice").0 == 503));
    assert!(lines() < before + 10, "{}", closed.log());
}

#[test]
fn batch_undecided_by_an_outage_can_be_retried() {
    let redis = RedisServer::start();
    let service = on(&redis, 5, "on_store_failure = \"closed\"");
    wait_until_shared(&service, "other");
    redis.kill9();
    let batch = r#"{"idempotency_key":"k","checks":[{"user_id":"alice","endpoint":"/x"}]}"#;
    let send = || service.post("/v1/rate-limit/batch-check", batch).json();
    assert_eq!(send()["results"][0]["error"]["code"], "SERVICE_UNAVAILABLE");
    redis.restart();
    wait_until_shared(&service, "other");
    let again = send();
    assert_eq!(
        (&again["replayed"], &again["results"][0]["allowed"]),
        (&false.into(), &true.into()),
        "{again}"
    );
}

#[test]
fn idempotent_batch_respects_the_budget_on_frozen_redis() {
    let redis = RedisServer::start();
    let service = service(1_000, &format!("url = \"{}\"", redis.url()), "");
    wait_until_shared(&service, "other");
    redis.freeze();
    let batch = r#"{"idempotency_key":"k","checks":[{"user_id":"alice","endpoint":"/x"}]}"#;
    let started = Instant::now();
    let answer = service.post("/v1/rate-limit/batch-check", batch).json();
    assert_eq!(answer["results"][0]["degraded"], true, "{answer}");
    // A frozen server never replies: anything above the budget of 20 ms is due to the machine.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn full_redis_fails_no_request() {
    let redis = RedisServer::with(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let service = on(&redis, 20, "");
    wait_until_shared(&service, "alice");
    let filling = "x".repeat(100_000);
    let full =
        (0..1_000).any(|number| redis.cli(&["SET", &format!("fill-{number}"), &filling]).starts_with("OOM"));
    assert!(full || redis.cli(&["SET", "one-more", &filling]).contains("OOM"));
    for number in 0..200 {
        let (status, _) = check(&service, &format!("user-{}", number % 5));
        assert!(status == 200 || status == 429, "{status}");
    }
    assert_eq!(check(&service, "newcomer").0, 200);
    redis.flush_all();
    wait_until_shared(&service, "late");
}

/// The counters of one request are on two servers and one of them is down: the other still counts.
#[test]
fn ring_with_one_server_down_leaves_no_client_unlimited() {
    for away in 0..2 {
        let servers = [RedisServer::start(), RedisServer::start()];
        let nodes = servers.each_ref().map(|server| format!("\"{}\"", server.address())).join(", ");
        let counters = format!("topology = \"ring\"\nnodes = [{nodes}]\ntimeout = \"10s\"\nleases = false");
        let global = "[[rules]]\nname = \"all\"\nper = [\"global\"]\n\
                      limits = [{ requests = 1000000, window = \"30d\" }]";
        let service = service(30, &counters, global);
        let users: Vec<String> = (0..6).map(|number| format!("user-{number}")).collect();
        wait_for("both servers", || (service.get("/readyz").json()["status"] == "ready").then_some(()));
        for user in &users {
            assert_eq!(admitted(&service, user, 35), 30);
        }
        servers[away].kill9();
        for user in &users {
            // Clients counted on the unreachable server start from zero once, by design.
            let again = admitted(&service, user, 200);
            assert!(again <= 30, "{user}: {again}");
        }
    }
}
