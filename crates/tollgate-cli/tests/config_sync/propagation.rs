//! Changes reach every node: pushed at once, or polled.

use std::time::{Duration, Instant};

use tollgate_stores::sql::{Item, KeyItem};
use tollgate_testkit::{MariaDbServer, PostgresServer, RedisServer};

use crate::database::{NewKey, Store, check_with, key, node, now_micros, rule, version_of, wait_for_version};
use crate::harness::{Service, wait_for};

/// Repetitions of a measurement.
const ROUNDS: u32 = 5;

fn until_all(nodes: &[Service], what: &str, holds: impl Fn(&Service) -> bool) -> Duration {
    let started = Instant::now();
    for node in nodes {
        wait_for(what, || holds(node).then_some(()));
    }
    started.elapsed()
}

fn revoked(key: &NewKey) -> Item {
    let at = Some(now_micros());
    Item::Key(KeyItem { revoked_at_micros: at, revoked_by: Some("test".to_owned()), ..key.item.clone() })
}

/// Changes a rule and revokes a key repeatedly; returns the longest time until both are in force everywhere.
fn follow_changes(nodes: &[Service], store: &Store) -> Duration {
    let key = key("revokedsoonaaaa2");
    let mut longest = Duration::ZERO;
    for round in 1..=ROUNDS {
        let version = store.put(Item::Key(key.item.clone()));
        for node in nodes {
            wait_for_version(node, version);
        }
        assert!(nodes.iter().all(|node| check_with(node, &key.text).status == 200));
        store.put(revoked(&key));
        let took = until_all(nodes, "the revocation", |node| check_with(node, &key.text).status == 403);
        longest = longest.max(took);
        store.put(rule("by-user", 10 + round));
        let limit = |node: &Service| node.check("alice", "/x").json()["limit"].as_u64();
        let took = until_all(nodes, "the rule", |node| limit(node) == Some(u64::from(10 + round)));
        longest = longest.max(took);
    }
    longest
}

#[test]
fn changes_are_pushed_by_postgresql() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let nodes = [(); 3].map(|()| node(&url, ""));
    let longest = follow_changes(&nodes, &Store::open(&url));
    println!("PostgreSQL, three nodes: at most {longest:?}");
}

#[test]
fn changes_are_polled_from_mariadb() {
    let mariadb = MariaDbServer::start();
    let url = mariadb.create_database();
    let nodes = [(); 3].map(|()| node(&url, ""));
    let longest = follow_changes(&nodes, &Store::open(&url));
    println!("MariaDB, polled every 500 ms, three nodes: at most {longest:?}");
    assert!(longest < Duration::from_secs(10));
}

#[test]
fn changes_are_announced_through_redis() {
    let (mariadb, redis) = (MariaDbServer::start(), RedisServer::start());
    let url = mariadb.create_database();
    // Polling alone would take five seconds.
    let counters = format!("[counters]\nstore = \"redis\"\nurl = \"{}\"", redis.url());
    let config = crate::database::config(&url, &counters).replace("\"500ms\"", "\"5s\"");
    let nodes = [(); 3].map(|()| Service::with_config(&config));
    for node in &nodes {
        wait_for("shared counters", || (node.get("/readyz").json()["status"] == "ready").then_some(()));
    }
    let mut longest = Duration::ZERO;
    for limit in 1..=ROUNDS {
        let body = format!(
            r#"{{"user_id":"bob","endpoint":"/x","limit":{limit},"window_seconds":60,"strategy":"fixed_window"}}"#
        );
        let set = nodes[0].admin("PUT", "/v1/rate-limit/config", &body);
        assert_eq!(set.status, 200, "{}", set.text);
        let in_force =
            |node: &Service| node.check("bob", "/x").json()["limit"].as_u64() == Some(limit.into());
        longest = longest.max(until_all(&nodes, "the numbers", in_force));
    }
    println!("MariaDB with hints through Redis, three nodes: at most {longest:?}");
    wait_for("one version", || {
        let versions: Vec<u64> = nodes.iter().map(version_of).collect();
        versions.iter().all(|version| *version == versions[0]).then_some(())
    });
}

#[test]
fn redis_data_loss_is_logged_with_a_database_too() {
    let (mariadb, redis) = (MariaDbServer::start(), RedisServer::start());
    let counters = format!("[counters]\nstore = \"redis\"\nurl = \"{}\"", redis.url());
    let node = Service::with_config(&crate::database::config(&mariadb.create_database(), &counters));
    wait_for("shared counters", || (node.get("/readyz").json()["status"] == "ready").then_some(()));
    let mut lost = Instant::now();
    wait_for("the line in the log", || {
        // A node that has not seen the data yet cannot notice its loss: retry.
        if lost.elapsed() > Duration::from_secs(3) && redis.cli(&["EXISTS", "rl:{fleet}:version"]) == "1" {
            redis.flush_all();
            lost = Instant::now();
        }
        node.log().contains("lost its data or was restored").then_some(())
    });
}

#[test]
fn items_reach_other_nodes_with_their_tenant() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let nodes = [(); 2].map(|()| node(&url, ""));
    let put = |path: &str, body: &str| {
        let put = nodes[0].admin("PUT", path, body);
        assert!(put.status < 300, "{path}: {}", put.text);
    };
    put("/v1/admin/quotas/bob?tenant=acme", r#"{"requests_per_hour":77}"#);
    put("/v1/admin/blocks/login:bob?tenant=acme", r#"{"reason":"abuse"}"#);
    let config = r#"{"tenant":"acme","user_id":"bob","endpoint":"/x","limit":88,"window_seconds":60,"strategy":"gcra"}"#;
    put("/v1/rate-limit/config", config);
    let status = |query: &str| {
        let path = format!("/v1/rate-limit/status?user_id=bob&{query}");
        let body = nodes[1].admin("GET", &path, "").json();
        (body["limit"].as_u64(), body["decision"] == "blocked")
    };
    let of_acme = |query: &str| status(&format!("{query}&tenant=acme"));
    wait_for("the quota", || (of_acme("endpoint=/y").0 == Some(77)).then_some(()));
    wait_for("the block", || of_acme("endpoint=/y&login=bob").1.then_some(()));
    wait_for("the limit", || (of_acme("endpoint=/x").0 == Some(88)).then_some(()));
    for elsewhere in ["", "&tenant=beta"] {
        let (limit, blocked) = status(&format!("endpoint=/x&login=bob{elsewhere}"));
        assert!(!blocked && limit != Some(77) && limit != Some(88), "{elsewhere}: {limit:?}");
    }
    for path in ["/v1/admin/quotas/bob?tenant=acme", "/v1/admin/blocks/login:bob?tenant=acme"] {
        assert_eq!(nodes[0].admin("DELETE", path, "").status, 204);
    }
    wait_for("the deletions", || {
        (of_acme("endpoint=/y").0 != Some(77) && !of_acme("endpoint=/y&login=bob").1).then_some(())
    });
}
