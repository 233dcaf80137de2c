//! Failover by real sentinels.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use tollgate_testkit::{SentinelFleet, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn replica_with_data_is_promoted_when_master_dies() {
    let fleet = SentinelFleet::with_quick_failover();
    assert_eq!((fleet.sentinels().len(), fleet.master_name()), (3, "gate"));
    let first = fleet.server_at(fleet.master());
    assert_eq!(first.cli(&["SET", "k", "v"]), "OK");
    assert_eq!(first.cli(&["WAIT", "2", "5000"]), "2");

    let old = fleet.kill_master();
    let new = fleet.wait_for_new_master(old, PATIENCE);
    assert_ne!(new, old);
    assert_eq!(fleet.master(), new);
    assert_eq!(fleet.server_at(new).cli(&["GET", "k"]), "v");
    assert_eq!(fleet.server_at(new).cli(&["SET", "k", "w"]), "OK");

    fleet.server_at(old).restart();
    assert!(wait_until(PATIENCE, || fleet.server_at(old).info("replication")["role"] == "slave"));
}

#[test]
fn master_without_replicas_refuses_writes() {
    let fleet = SentinelFleet::with(&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"]);
    let master = fleet.server_at(fleet.master());
    assert!(wait_until(PATIENCE, || master.cli(&["SET", "k", "v"]) == "OK"));
    for replica in fleet.servers().iter().filter(|server| server.port() != master.port()) {
        replica.kill9();
    }
    assert!(wait_until(PATIENCE, || master.cli(&["SET", "k", "v"]).starts_with("NOREPLICAS")));
}
