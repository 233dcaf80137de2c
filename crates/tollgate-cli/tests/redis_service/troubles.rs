//! Redis answers, and not as it should: operators are told what it is, once, and told nothing that is not so.

use tollgate_testkit::{RedisOptions, RedisServer};

use crate::harness::{Service, wait_for};
use crate::propagation::{limit_of, set};
use crate::{check, service};

/// Without leases and remembered refusals every decision is asked of the server.
fn on(redis: &RedisServer, rule: &str) -> Service {
    let counters =
        format!("url = \"{}\"\ntimeout = \"10s\"\nleases = false\nrefusal_cache = false", redis.url());
    let service = service(1_000_000, &counters, rule);
    wait_for("the counters to be shared", || (check(&service, "alice") == (200, false)).then_some(()));
    wait_for("the service to be ready", || (status(&service).1 == "ready").then_some(()));
    service
}

/// What `/readyz` says: code, status, and what is wrong with the counters.
fn status(service: &Service) -> (u16, String, String) {
    let ready = service.get("/readyz");
    let text = |name: &str| ready.json()[name].as_str().unwrap_or_default().to_owned();
    (ready.status, text("status"), text("store_error"))
}

fn told(service: &Service, words: &str) -> usize {
    service.log().matches(words).count()
}

#[test]
fn settings_that_lead_nowhere_admit_nobody_and_say_what_to_change() {
    let redis = RedisServer::start();
    let nodes = format!("nodes = [\"{}\"]", redis.address());
    for (counters, words) in [
        (format!("topology = \"sentinel\"\nsentinel_master = \"gate\"\n{nodes}"), "no sentinel"),
        (format!("topology = \"cluster\"\n{nodes}"), "topology = \"single\""),
        (format!("url = \"{}/99\"", redis.url()), "DB index is out of range"),
    ] {
        let service = service(100, &counters, "on_store_failure = \"open\"");
        wait_for("the reason to be told", || (status(&service).1 == "misconfigured").then_some(()));
        assert!((0..20).all(|_| check(&service, "alice").0 == 503), "{counters}");
        let (code, _, reason) = status(&service);
        assert!(code == 503 && reason.contains(words), "{reason}");
        wait_for("the log to say so", || service.log().contains("no request is admitted").then_some(()));
        assert!(told(&service, "no sentinel names the master") <= 1, "{}", service.log());
    }
}

#[test]
fn a_full_redis_is_told_of_once_and_in_its_own_words() {
    let redis = RedisServer::with(&["--maxmemory-policy", "noeviction"]);
    let service = on(&redis, "");
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    wait_for("the reason to be told", || {
        check(&service, "alice");
        let (code, status, reason) = status(&service);
        (code == 200 && status == "degraded" && reason.contains("OOM command not allowed")).then_some(())
    });
    // Several probes, each of which a server that is full would answer if it did not have to write.
    for number in 0..200 {
        assert_eq!(check(&service, &format!("user-{number}")), (200, true));
    }
    assert_eq!(status(&service).1, "degraded");
    assert_eq!(told(&service, "circuit breaker open"), 1, "{}", service.log());
    assert!(service.log().contains("OOM command not allowed"), "{}", service.log());
    assert_eq!(told(&service, "circuit breaker closed"), 0, "{}", service.log());
    let server = redis.address();
    let faults = format!("tollgate_store_faults_total{{server=\"{server}\",fault=\"OOM\"}}");
    assert!(service.metric(&faults).is_some_and(|count| count >= 5.0), "{}", service.get("/metrics").text);
    // How full it is, is known just when it is full.
    let room = format!("tollgate_store_memory_bytes_max{{server=\"{server}\"}}");
    wait_for("the server to say how full it is", || (service.metric(&room) == Some(1.0)).then_some(()));
    wait_for("the warning", || service.log().contains("nearly full").then_some(()));
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    wait_for("the counters to be shared again", || (check(&service, "alice") == (200, false)).then_some(()));
    wait_for("the service to be ready", || (status(&service).1 == "ready").then_some(()));
}

#[test]
fn a_redis_that_became_a_replica_is_not_ready_even_if_nobody_asks() {
    let redis = RedisServer::start();
    let service = on(&redis, "");
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    wait_for("the node to find out by itself", || (status(&service).1 == "degraded").then_some(()));
    // The first few decisions are still asked of it. From then on it is left alone.
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
fn a_counter_that_cannot_be_used_is_named_to_operators() {
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
    assert_eq!(told(&service, "unusable counter"), 1, "{}", service.log());
    redis.cli(&["DEL", &key]);
    wait_for("the service to be ready", || {
        assert_eq!(check(&service, "alice"), (200, false));
        (self::status(&service).1 == "ready").then_some(())
    });
}

/// What is done beside decisions is not what admits requests.
#[test]
fn a_right_that_decisions_do_not_need_is_missed_without_a_false_alarm() {
    for right in ["info", "zcard"] {
        let users = vec!["gate on >secret ~* &* +@all".to_owned()];
        let redis = RedisServer::start_with(&RedisOptions { users, ..RedisOptions::default() });
        let counters =
            format!("url = \"redis://gate:secret@{}\"\ntimeout = \"10s\"\nleases = false", redis.address());
        let service = service(1_000_000, &counters, "");
        wait_for("the service to be ready", || (status(&service).1 == "ready").then_some(()));
        redis.cli(&["ACL", "SETUSER", "gate", &format!("-{right}")]);
        wait_for("the missing right to be told", || {
            assert_eq!(check(&service, "alice"), (200, false));
            let (code, status, reason) = status(&service);
            assert_eq!(code, 200, "{reason}");
            (status == "degraded" && reason.contains(right)).then_some(())
        });
        for _ in 0..200 {
            assert_eq!(check(&service, "alice"), (200, false));
            assert_eq!(status(&service).1, "degraded");
        }
        assert_eq!(told(&service, "no request is admitted"), 0, "{}", service.log());
        assert_eq!(told(&service, "does not refuse us any more"), 0, "{}", service.log());
        wait_for("the log to say so", || (told(&service, "needs attention") == 1).then_some(()));
    }
}

/// Nodes that know it go on, and follow each other; one that does not must not count clients under other names.
#[test]
fn a_damaged_seed_is_told_of_and_mended_by_those_who_know_it_once_it_is_deleted() {
    let redis = RedisServer::start();
    let nodes = [on(&redis, ""), on(&redis, "")];
    let seed = redis.command(&[b"GET", b"rl:{fleet}:seed"]);
    redis.cli(&["SET", "rl:{fleet}:seed", "short"]);
    for node in &nodes {
        wait_for("the damage to be told", || {
            assert_eq!(check(node, "alice"), (200, false));
            let (code, status, reason) = status(node);
            assert_eq!(code, 200, "{reason}");
            (status == "degraded" && reason.contains("rl:{fleet}:seed")).then_some(())
        });
        wait_for("the log to say so", || (told(node, "needs attention") == 1).then_some(()));
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
fn a_policy_that_throws_counters_away_is_warned_of_at_the_start() {
    let redis = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let service = on(&redis, "");
    wait_for("the warning", || service.log().contains("evicts counters").then_some(()));
}

#[test]
fn a_channel_that_may_not_be_listened_to_is_told_of_once() {
    let users = vec!["gate on >secret ~* resetchannels +@all".to_owned()];
    let redis = RedisServer::start_with(&RedisOptions { users, ..RedisOptions::default() });
    let service = service(5, &format!("url = \"redis://gate:secret@{}\"", redis.address()), "");
    wait_for("the reason", || service.log().contains("cannot subscribe").then_some(()));
    let line = service.log().lines().find(|line| line.contains("cannot subscribe")).unwrap().to_owned();
    assert!(line.contains("channel"), "{line}");
}
