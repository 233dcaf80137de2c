//! Redirections and failovers of a real cluster.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::net::SocketAddr;
use std::time::Duration;

use tollgate_testkit::{RedisCluster, RespClient, key_slot};

const PATIENCE: Duration = Duration::from_secs(20);

fn client(address: SocketAddr) -> RespClient {
    RespClient::connect(address, PATIENCE).unwrap()
}

fn get(client: &mut RespClient, key: &[u8]) -> String {
    client.command(&[b"GET", key]).unwrap().to_string()
}

#[test]
fn masters_agree_on_key_slots() {
    let cluster = RedisCluster::start();
    assert_eq!((cluster.addresses().len(), cluster.masters().len()), (6, 3));
    for key in ["a", "b", "c", "{user}:1", "d{}e"] {
        let slot = key_slot(key.as_bytes());
        let owner = cluster.server_at(cluster.slot_owner(slot));
        assert_eq!(owner.cli(&["CLUSTER", "KEYSLOT", key]), slot.to_string());
        assert_eq!(owner.cli(&["SET", key, "here"]), "OK");
    }
}

#[test]
fn migrating_slot_redirects_with_ask() {
    let cluster = RedisCluster::start();
    let slot = key_slot(b"{t}");
    let old = cluster.slot_owner(slot);
    let new = *cluster.masters().iter().find(|master| **master != old).unwrap();
    for key in ["{t}1", "{t}2", "{t}3"] {
        cluster.server_at(old).cli(&["SET", key, "v"]);
    }
    let mut was_halfway = false;
    cluster.migrate_slot(slot, new, |halfway| {
        was_halfway = true;
        assert_eq!((halfway.from, halfway.to), (old, new));
        assert_eq!((halfway.moved.len(), halfway.remaining.len()), (2, 1));
        let (mut source, mut target) = (client(old), client(new));
        assert_eq!(get(&mut source, &halfway.remaining[0]), "v");
        assert_eq!(get(&mut source, &halfway.moved[0]), format!("ASK {slot} {new}"));
        assert_eq!(get(&mut target, &halfway.moved[0]), format!("MOVED {slot} {old}"));
        target.command(&[b"ASKING"]).unwrap();
        assert_eq!(get(&mut target, &halfway.moved[0]), "v");
        let both = source.command(&[b"MGET", &halfway.moved[0], &halfway.remaining[0]]).unwrap();
        assert!(both.to_string().starts_with("TRYAGAIN"), "{both}");
    });
    assert!(was_halfway);
    assert_eq!(cluster.slot_owner(slot), new);
    assert_eq!(get(&mut client(new), b"{t}3"), "v");
    assert_eq!(get(&mut client(old), b"{t}3"), format!("MOVED {slot} {new}"));
}

#[test]
fn replica_is_promoted_and_old_master_demoted() {
    let cluster = RedisCluster::with_quick_failover();
    let slot = key_slot(b"a");
    let master = cluster.server_at(cluster.slot_owner(slot));
    assert_eq!(master.cli(&["SET", "a", "here"]), "OK");
    assert_eq!(master.cli(&["WAIT", "1", "5000"]), "1");
    let dead = cluster.slot_owner(slot);
    cluster.server_at(dead).kill9();
    cluster.wait_until_healthy(PATIENCE);
    let new = cluster.slot_owner(slot);
    assert_ne!(new, dead);
    assert_eq!(get(&mut client(new), b"a"), "here");
    cluster.server_at(dead).restart();
    cluster.wait_until_healthy(PATIENCE);
    assert_eq!(get(&mut client(dead), b"a"), format!("MOVED {slot} {new}"));
}
