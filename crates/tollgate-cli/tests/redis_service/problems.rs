//! Redis problems are reported to operators once, with their cause.

use std::thread;
use std::time::Duration;

use tollgate_testkit::{RedisOptions, RedisServer};

use crate::harness::{Service, wait_for};
use crate::propagation::{limit_of, set};
use crate::{check, service};

/// Without leases and cached refusals, every decision calls the server.
fn on(redis: &RedisServer, rule: &str) -> Service {
    let counters =
        format!("url = \"{}\"\ntimeout = \"10s\"\nleases = false\nrefusal_cache = false", redis.url());
    let service = service(1_000_000, &counters, rule);
    wait_for("the counters to be shared", || (check(&service, "alice") == (200, false)).then_some(()));
    wait_for("the service to be ready", || (status(&service).1 == "ready").then_some(()));
    service
}

/// The response of `/readyz`: code, status, `store_error`.
fn status(service: &Service) -> (u16, String, String) {
    let ready = service.get("/readyz");
    let text = |name: &str| ready.json()[name].as_str().unwrap_or_default().to_owned();
    (ready.status, text("status"), text("store_error"))
}

fn log_lines(service: &Service, words: &str) -> usize {
    service.log().matches(words).count()
}

#[test]
fn unusable_settings_admit_nobody_and_name_the_fix() {
    let redis = RedisServer::start();
    let nodes = format!("nodes = [\"{}\"]", redis.address());
    for (counters, words) in [
        (format!("topology = \"sentinel\"\nsentinel_master = \"gate\"\n{nodes}"), "no sentinel"),
        (format!("topology = \"cluster\"\n{nodes}"), "topology = \"single\""),
        (format!("url = \"{}/99\"", redis.url()), "DB index is out of range"),
    ] {
        let service = service(100, &counters, "on_store_failure = \"open\"");
        wait_for("the reason to be reported", || (status(&service).1 == "misconfigured").then_some(()));
        assert!((0..20).all(|_| check(&service, "alice").0 == 503), "{counters}");
        let (code, _, reason) = status(&service);
        assert!(code == 503 && reason.contains(words), "{reason}");
        wait_for("the log to say so", || service.log().contains("no request is admitted").then_some(()));
        assert!(log_lines(&service, "no sentinel names the master") <= 1, "{}", service.log());
    }
}

#[test]
fn full_redis_is_logged_once_with_its_error() {
    let redis = RedisServer::with(&["--maxmemory-policy", "noeviction"]);
    let service = on(&redis, "");
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    wait_for("the reason to be reported", || {
        check(&service, "alice");
        let (code, status, reason) = status(&service);
        (code == 200 && status == "degraded" && reason.contains("OOM command not allowed")).then_some(())
    });
    // Several probes; each must write, because a full server still answers reads.
    for number in 0..200 {
        assert_eq!(check(&service, &format!("user-{number}")), (200, true));
    }
    assert_eq!(status(&service).1, "degraded");
    assert_eq!(log_lines(&service, "circuit breaker open"), 1, "{}", service.log());
    assert!(service.log().contains("OOM command not allowed"), "{}", service.log());
    assert_eq!(log_lines(&service, "circuit breaker closed"), 0, "{}", service.log());
    let server = redis.address();
    let faults = format!("tollgate_store_faults_total{{server=\"{server}\",fault=\"OOM\"}}");
    assert!(service.metric(&faults).is_some_and(|count| count >= 5.0), "{}", service.get("/metrics").text);
    // Memory figures are available while the server is full.
    let room = format!("tollgate_store_memory_max_bytes{{server=\"{server}\"}}");
    wait_for("the server to say how full it is", || (service.metric(&room) == Some(1.0)).then_some(()));
    wait_for("the warning", || service.log().contains("server memory is full").then_some(()));
    assert_eq!(log_lines(&service, "nearly full"), 0, "{}", service.log());
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    wait_for("the counters to be shared again", || (check(&service, "alice") == (200, false)).then_some(()));
    wait_for("the service to be ready", || (status(&service).1 == "ready").then_some(()));
}

/// Reads succeed in between, so the circuit breaker need not open.
#[test]
fn degraded_states_are_logged_once_at_low_traffic() {
    let redis = RedisServer::with(&["--maxmemory-policy", "noeviction"]);
    let service = on(&redis, "");
    let enter: [(&[&str], &str); 2] =
        [(&["CONFIG", "SET", "maxmemory", "1"], "OOM"), (&["REPLICAOF", "127.0.0.1", "1"], "READONLY")];
    let leave: [&[&str]; 2] = [&["CONFIG", "SET", "maxmemory", "0"], &["REPLICAOF", "NO", "ONE"]];
    for (number, ((enter, reason), leave)) in enter.into_iter().zip(leave).enumerate() {
        redis.cli(enter);
        wait_for("the outage to be logged", || {
            check(&service, "alice");
            thread::sleep(Duration::from_millis(500));
            (log_lines(&service, "counter store unavailable") == number + 1).then_some(())
        });
        let log = service.log();
        let line = log.lines().rfind(|line| line.contains("counter store unavailable")).unwrap();
        assert!(line.contains(reason), "{line}");
        redis.cli(leave);
        wait_for("the recovery to be logged", || {
            check(&service, "alice");
            thread::sleep(Duration::from_millis(500));
            (log_lines(&service, "the counter store recovered") == number + 1).then_some(())
        });
        assert_eq!(log_lines(&service, "counter store unavailable"), number + 1, "{}", service.log());
    }
}

#[test]
fn demoted_master_is_not_ready_without_traffic() {
    let redis = RedisServer::start();
    let service = on(&redis, "");
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    wait_for("the node to find out by itself", || (status(&service).1 == "degraded").then_some(()));
    // The first decisions still call it, then the breaker opens.
    for _ in 0..50 {
        assert_eq!(check(&service, "alice"), (200, true));
        let (code, status, reason) = status(&service);
        assert_eq!((code, &*status), (200, "degraded"));
        assert!(reason.contains("READONLY"), "{reason}");
    }
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    wait_for("the service to be ready", || {
        check(&service, "alice");
        (status(&service).1 == "ready").then_some(())
    });
}

#[test]
fn unusable_counter_is_named() {
    let redis = RedisServer::start();
    let service = on(&redis, "");
    let key = redis.cli(&["KEYS", "rl:1*:by-user:*"]);
    assert_eq!(key.lines().count(), 1, "{key}");
    redis.cli(&["DEL", &key]);
    redis.cli(&["SET", &key, "somebody else's"]);
    assert!((0..20).all(|_| check(&service, "alice").0 == 503));
    let (code, status, reason) = status(&service);
    assert_eq!((code, &*status), (200, "degraded"), "others are served: {reason}");
    for words in ["WRONGTYPE", "by-user", &key] {
        assert!(reason.contains(words), "{reason}");
    }
    assert_eq!(log_lines(&service, "unusable counter"), 1, "{}", service.log());
    redis.cli(&["DEL", &key]);
    wait_for("the service to be ready", || {
        assert_eq!(check(&service, "alice"), (200, false));
        (self::status(&service).1 == "ready").then_some(())
    });
}

/// Background calls do not decide requests.
#[test]
fn missing_optional_permission_raises_no_false_alarm() {
    for right in ["info", "zcard"] {
        let users = vec!["gate on >secret ~* &* +@all".to_owned()];
        let redis = RedisServer::start_with(&RedisOptions { users, ..RedisOptions::default() });
        let counters =
            format!("url = \"redis://gate:secret@{}\"\ntimeout = \"10s\"\nleases = false", redis.address());
        let service = service(1_000_000, &counters, "");
        wait_for("the service to be ready", || (status(&service).1 == "ready").then_some(()));
        redis.cli(&["ACL", "SETUSER", "gate", &format!("-{right}")]);
        wait_for("the missing permission to be reported", || {
            assert_eq!(check(&service, "alice"), (200, false));
            let (code, status, reason) = status(&service);
            assert_eq!(code, 200, "{reason}");
            (status == "degraded" && reason.contains(right)).then_some(())
        });
        for _ in 0..200 {
            assert_eq!(check(&service, "alice"), (200, false));
            assert_eq!(status(&service).1, "degraded");
        }
        assert_eq!(log_lines(&service, "no request is admitted"), 0, "{}", service.log());
        assert_eq!(log_lines(&service, "accepts this node again"), 0, "{}", service.log());
        wait_for("the log to say so", || (log_lines(&service, "needs attention") == 1).then_some(()));
    }
}

/// Nodes that know the seed continue; a new one must not hash clients with another.
#[test]
fn damaged_seed_is_reported_and_restored_after_deletion() {
    let redis = RedisServer::start();
    let nodes = [on(&redis, ""), on(&redis, "")];
    let seed = redis.command(&[b"GET", b"rl:{fleet}:seed"]);
    redis.cli(&["SET", "rl:{fleet}:seed", "short"]);
    for node in &nodes {
        wait_for("the damage to be reported", || {
            assert_eq!(check(node, "alice"), (200, false));
            let (code, status, reason) = status(node);
            assert_eq!(code, 200, "{reason}");
            (status == "degraded" && reason.contains("rl:{fleet}:seed")).then_some(())
        });
        wait_for("the log to say so", || (log_lines(node, "needs attention") == 1).then_some(()));
    }
    assert_eq!(set(&nodes[0], "bob", 7).status, 200);
    wait_for("the numbers on the other node", || (limit_of(&nodes[1], "bob") == Some(7)).then_some(()));
    let counts = || (redis.commandstats("zadd"), redis.commandstats("get"));
    let (beats, asked) = counts();
    wait_for("some beats", || (redis.commandstats("zadd") > beats + 8).then_some(()));
    let (beats, asked) = (counts().0 - beats, counts().1 - asked);
    assert!(asked < 5 * beats, "{asked} times in {beats} beats");

    let newcomer = service(10, &format!("url = \"{}\"", redis.url()), "");
    wait_for("the newcomer to say so", || {
        let (code, status, reason) = status(&newcomer);
        (code == 503 && status == "misconfigured" && reason.contains("rl:{fleet}:seed")).then_some(())
    });
    assert_eq!(check(&newcomer, "alice").0, 503);
    redis.cli(&["DEL", "rl:{fleet}:seed"]);
    for node in nodes.iter().chain([&newcomer]) {
        wait_for("the service to be ready", || (status(node).1 == "ready").then_some(()));
        wait_for("shared counters", || (check(node, "carol") == (200, false)).then_some(()));
    }
    assert_eq!(redis.command(&[b"GET", b"rl:{fleet}:seed"]), seed);
}

#[test]
fn evicting_maxmemory_policy_warns_at_start() {
    let redis = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let service = on(&redis, "");
    wait_for("the warning", || service.log().contains("evicts counters").then_some(()));
}

#[test]
fn denied_channel_is_logged_once() {
    let users = vec!["gate on >secret ~* resetchannels +@all".to_owned()];
    let redis = RedisServer::start_with(&RedisOptions { users, ..RedisOptions::default() });
    let service = service(5, &format!("url = \"redis://gate:secret@{}\"", redis.address()), "");
    wait_for("the reason", || service.log().contains("cannot subscribe").then_some(()));
    let line = service.log().lines().find(|line| line.contains("cannot subscribe")).unwrap().to_owned();
    assert!(line.contains("channel"), "{line}");
}
