//! Usage totals per user and key.

use std::time::Duration;

use tollgate_stores::sql::{AccountLimits, Item};
use tollgate_testkit::{PostgresServer, eventually};

use crate::database::{
    Store, alone, check_with, key, node, node_again, now_micros, quota, stop, wait_for_version,
};
use crate::harness::wait_for;

const MICROS_PER_DAY: u64 = 86_400_000_000;

fn requests_of(store: &Store, user: &str) -> (u64, u64) {
    let usage = store.ask(async |database| database.users_usage(&[user.into()]).await.unwrap().pop());
    usage.map_or((0, 0), |usage| (usage.requests_of_month, usage.exceeded_count))
}

#[test]
fn usage_adds_up_over_nodes_and_restarts() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let (first, second) = (node(&url, ""), node(&url, ""));
    let store = Store::open(&url);
    let mut key = key("countedkeyaaaaa2");
    key.item.user = Some("alice".to_owned());
    store.put(Item::Key(key.item.clone()));
    let version =
        store.put(quota("alice", AccountLimits { requests_per_hour: Some(5), ..AccountLimits::default() }));
    wait_for_version(&first, version);
    wait_for_version(&second, version);
    for _ in 0..7 {
        first.check("alice", "/x"); // five pass, two are refused
    }
    for _ in 0..3 {
        check_with(&second, &key.text);
    }
    first.check("nobody", "/x");
    let peek = r#"{"user_id":"alice","endpoint":"/x","cost":0}"#;
    second.post("/v1/rate-limit/check", peek);
    let started = now_micros();
    let folder = stop(first);
    stop(second);
    assert_eq!(requests_of(&store, "alice"), (10, 2));
    let of_key = store.ask(async |database| database.keys_usage(&[key.id]).await.unwrap().pop()).unwrap();
    assert_eq!(of_key.requests, 3);
    assert!(of_key.last_used_at_micros <= started && of_key.last_used_at_micros > started - MICROS_PER_DAY);
    assert_eq!(requests_of(&store, "nobody"), (0, 0), "who has no record is not counted");

    let again = node_again(folder);
    again.check("alice", "/x");
    stop(again);
    assert_eq!(requests_of(&store, "alice").0, 11);
}

#[test]
fn usage_is_flushed_while_serving() {
    let (service, store) = alone("");
    let version = store.put(quota("alice", AccountLimits::default()));
    wait_for_version(&service, version);
    service.check("alice", "/x");
    let arrived = || (requests_of(&store, "alice") == (1, 0)).then_some(());
    assert!(eventually(Duration::from_secs(30), arrived).is_some());
}

#[test]
fn next_process_stores_usage_of_an_outage() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let service = node(&url, "");
    let store = Store::open(&url);
    let version = store.put(quota("alice", AccountLimits::default()));
    wait_for_version(&service, version);
    drop(store);
    for _ in 0..4 {
        service.check("alice", "/x");
    }
    postgres.kill9();
    let folder = stop(service);
    let spool = folder.path().join("data/usage.spool");
    assert!(std::fs::read_to_string(&spool).unwrap().contains("alice"));
    postgres.restart();
    let service = node_again(folder);
    wait_for("the database", || (service.get("/readyz").json()["status"] == "ready").then_some(()));
    stop(service);
    assert_eq!(requests_of(&Store::open(&url), "alice").0, 4);
    assert!(!spool.exists());
}
