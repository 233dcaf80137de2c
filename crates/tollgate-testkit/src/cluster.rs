//! A Redis Cluster of three masters with one replica each.
//!
//! Built without `redis-cli --cluster create`: every node meets every other at once, without waiting for gossip or sleeping.
//! A new cluster master still refuses commands for two seconds (`CLUSTER_WRITABLE_DELAY` in the source of Redis).

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::poll::wait_until;
use crate::redis::{RedisOptions, RedisServer, Role, fields, logs_of};
use crate::resp::Reply;

const MASTERS: usize = 3;
const NODES: usize = 2 * MASTERS;
const SLOTS: u16 = 16384;
const SLOTS_PER_MASTER: u16 = SLOTS.div_ceil(3);
const START_DEADLINE: Duration = Duration::from_secs(20);
const MIGRATION_DEADLINE: Duration = Duration::from_secs(10);

// - node-timeout: a master that a busy machine does not schedule for a while is not dead.
// - replica-validity-factor: a replica may be promoted however old its data is.
// - allow-replica-migration: replicas stay with their masters.
// - repl-ping-replica-period: `CLUSTER SLOTS` omits a replica until its master has pinged it, ten seconds by default.
const SETTINGS: [&str; 8] = [
    "--cluster-node-timeout",
    "10000",
    "--cluster-replica-validity-factor",
    "0",
    "--cluster-allow-replica-migration",
    "no",
    "--repl-ping-replica-period",
    "1",
];

/// A running cluster, killed on drop. A master is considered dead after ten seconds.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

/// A slot in the middle of a migration, see [`RedisCluster::migrate_slot`].
#[derive(Clone, Debug)]
pub struct SlotMigration {
    /// The slot.
    pub slot: u16,
    /// The current owner; answers `ASK` for keys that have moved.
    pub from: SocketAddr,
    /// The next owner; serves keys of the slot only after `ASKING`.
    pub to: SocketAddr,
    /// Keys that have moved; at least one, if the slot held any.
    pub moved: Vec<Vec<u8>>,
    /// Keys that have not moved yet.
    pub remaining: Vec<Vec<u8>>,
}

/// The slot map of one node: first slot, last slot, master.
type Owners = Vec<(u16, u16, SocketAddr)>;

impl RedisCluster {
    /// Starts a cluster; returns when all nodes agree that it is complete and the replicas are in sync.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a cluster that considers a master dead after one second, for tests that kill one. On a busy machine it may also
    /// replace a master that is alive.
    pub fn with_quick_failover() -> Self {
        Self::with(&["--cluster-node-timeout", "1000"])
    }

    /// Starts a cluster with more settings, written as command line arguments.
    pub fn with(args: &[&str]) -> Self {
        let options = RedisOptions::with_args(&[&SETTINGS, args].concat());
        let nodes = thread::scope(|scope| {
            let starts =
                [(); NODES].map(|()| scope.spawn(|| RedisServer::start_as(Role::ClusterNode, &options)));
            starts.map(|start| start.join().unwrap()).into()
        });
        let cluster = Self { nodes };
        cluster.assign_slots();
        cluster.introduce_nodes();
        cluster.assign_replicas();
        let complete = || cluster.is_ok() && cluster.nodes.iter().all(sees_every_replica);
        cluster.expect_soon(START_DEADLINE, complete, "the cluster is not complete");
        cluster
    }

    /// The addresses of all nodes, running or not.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(RedisServer::address).collect()
    }

    /// All nodes, running or not.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The masters that own slots, ordered by slot.
    pub fn masters(&self) -> Vec<SocketAddr> {
        let mut masters: Vec<SocketAddr> = Vec::new();
        for (_, _, master) in self.owners() {
            if !masters.contains(&master) {
                masters.push(master);
            }
        }
        masters
    }

    /// The master of a slot, as a running node sees it.
    pub fn slot_owner(&self, slot: u16) -> SocketAddr {
        let owners = self.owners();
        let owner = owners.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        owner.unwrap_or_else(|| panic!("slot {slot} has no master")).2
    }

    /// The node at this address.
    pub fn server_at(&self, address: SocketAddr) -> &RedisServer {
        self.nodes.iter().find(|node| node.address() == address).expect("an address of the cluster")
    }

    /// Waits until all running nodes agree that running masters serve all slots and their replicas are in sync.
    pub fn wait_until_healthy(&self, timeout: Duration) {
        self.expect_soon(timeout, || self.is_ok(), "the cluster is not healthy");
    }

    /// Moves a slot to another master, and calls `halfway` when half of its keys, rounded up, have moved.
    pub fn migrate_slot(&self, slot: u16, to: SocketAddr, halfway: impl FnOnce(&SlotMigration)) {
        let from = self.slot_owner(slot);
        let (source, target) = (self.server_at(from), self.server_at(to));
        set_slot(target, slot, &["IMPORTING", &id_of(source)]);
        set_slot(source, slot, &["MIGRATING", &id_of(target)]);

        let mut moved = keys_in(source, slot);
        let remaining = moved.split_off(moved.len().div_ceil(2));
        move_keys(source, to, &moved);
        halfway(&SlotMigration { slot, from, to, moved, remaining });

        // Listed again: the test may have added or deleted keys.
        move_keys(source, to, &keys_in(source, slot));
        self.give_slot(slot, source, target);
        let arrived = || self.slot_owner(slot) == to && self.is_ok();
        self.expect_soon(MIGRATION_DEADLINE, arrived, "not all nodes know the new owner of the slot");
    }

    /// The new owner first: otherwise the slot would have no owner if the new one died in between.
    fn give_slot(&self, slot: u16, source: &RedisServer, target: &RedisServer) {
        let masters = self.masters();
        let others = masters.iter().map(|master| self.server_at(*master));
        let others = others.filter(|other| ![source.port(), target.port()].contains(&other.port()));
        for master in [target, source].into_iter().chain(others) {
            set_slot(master, slot, &["NODE", &id_of(target)]);
        }
    }

    fn assign_slots(&self) {
        for (number, master) in (0..).zip(&self.nodes[..MASTERS]) {
            let first = number * SLOTS_PER_MASTER;
            let last = (first + SLOTS_PER_MASTER).min(SLOTS) - 1;
            // Distinct epochs, so that the masters have no conflict to resolve.
            expect_ok(master, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            expect_ok(master, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
    }

    fn introduce_nodes(&self) {
        for (number, one) in self.nodes.iter().enumerate() {
            for other in &self.nodes[number + 1..] {
                let (port, bus_port) = (other.port().to_string(), other.bus_port().to_string());
                expect_ok(one, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]);
            }
        }
        let knows_all = |node: &RedisServer| {
            let known = node.cli(&["CLUSTER", "NODES"]);
            known.lines().count() == NODES && !known.contains("handshake")
        };
        self.expect_soon(START_DEADLINE, || self.nodes.iter().all(knows_all), "not all nodes have met");
    }

    fn assign_replicas(&self) {
        let (masters, replicas) = self.nodes.split_at(MASTERS);
        for (master, replica) in masters.iter().zip(replicas) {
            expect_ok(replica, &["CLUSTER", "REPLICATE", &id_of(master)]);
        }
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    fn owners(&self) -> Owners {
        self.running().find_map(owners_seen_by).expect("a running node")
    }

    fn is_ok(&self) -> bool {
        let Some(owners) = self.running().next().and_then(owners_seen_by) else { return false };
        let covered: u32 = owners.iter().map(|(first, last, _)| u32::from(last - first) + 1).sum();
        covered == u32::from(SLOTS)
            // The other nodes notice a dead master only after a timeout.
            && owners.iter().all(|(_, _, master)| self.server_at(*master).is_running())
            && self.running().all(|node| is_in_sync(node) && owners_seen_by(node).as_ref() == Some(&owners))
    }

    fn expect_soon(&self, timeout: Duration, condition: impl FnMut() -> bool, complaint: &str) {
        assert!(wait_until(timeout, condition), "{complaint}:\n{}", logs_of(&self.nodes));
    }
}

/// The slot of a key: CRC16 of its hash tag, the non-empty text in the first `{}`, or of the whole key.
pub fn key_slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % SLOTS
}

fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = &key[open + 1..];
    let close = rest.iter().position(|byte| *byte == b'}')?;
    (close > 0).then_some(&rest[..close])
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| (crc << 1) ^ (0x1021 * (crc >> 15)))
    })
}

fn id_of(node: &RedisServer) -> String {
    node.cli(&["CLUSTER", "MYID"])
}

fn set_slot(node: &RedisServer, slot: u16, state: &[&str]) {
    expect_ok(node, &[&["CLUSTER", "SETSLOT", &slot.to_string()], state].concat());
}

fn keys_in(node: &RedisServer, slot: u16) -> Vec<Vec<u8>> {
    let keys = node.command(&[b"CLUSTER", b"GETKEYSINSLOT", slot.to_string().as_bytes(), b"1000000"]);
    keys.items().iter().map(|key| key.bytes().to_vec()).collect()
}

fn move_keys(source: &RedisServer, to: SocketAddr, keys: &[Vec<u8>]) {
    let port = to.port().to_string();
    for some in keys.chunks(100) {
        let mut command: Vec<&[u8]> =
            vec![b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", b"5000", b"KEYS"];
        command.extend(some.iter().map(Vec::as_slice));
        let reply = source.command(&command).to_string();
        assert!(["OK", "NOKEY"].contains(&&*reply), "MIGRATE: {reply}"); // a key may have expired
    }
}

#[track_caller]
fn expect_ok(node: &RedisServer, command: &[&str]) {
    assert_eq!(node.cli(command), "OK", "{command:?}");
}

fn owners_seen_by(node: &RedisServer) -> Option<Owners> {
    let slots = node.try_command(&[b"CLUSTER", b"SLOTS"]).ok()?;
    let mut owners: Owners = slots.items().iter().map(owner).collect();
    owners.sort_unstable();
    Some(owners)
}

/// One range of `CLUSTER SLOTS`: first, last, master, replicas.
fn owner(range: &Reply) -> (u16, u16, SocketAddr) {
    let [first, last, master, ..] = range.items() else { panic!("not a range of slots: {range:?}") };
    let slot = |reply: &Reply| u16::try_from(reply.int()).expect("a slot");
    let address = format!("{}:{}", master.items()[0], master.items()[1]);
    (slot(first), slot(last), address.parse().expect("an address"))
}

fn sees_every_replica(node: &RedisServer) -> bool {
    let slots = node.command(&[b"CLUSTER", b"SLOTS"]);
    slots.items().iter().all(|range| range.items().len() == 4)
}

/// Whether a node serves commands and, as a replica, is in sync.
fn is_in_sync(node: &RedisServer) -> bool {
    let serves =
        fields(&node.cli(&["CLUSTER", "INFO"])).get("cluster_state").is_some_and(|state| state == "ok");
    serves && node.info("replication").get("master_link_status").is_none_or(|status| status == "up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_slot_matches_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(key_slot(b"foo"), 12182);
        assert_eq!(key_slot(b"a{foo}b{bar}"), 12182);
        assert_eq!(key_slot(b"{}foo"), crc16(b"{}foo") % SLOTS, "an empty tag is ignored");
        assert_eq!(key_slot(b"foo{{bar}}zap"), key_slot(b"{bar"));
        assert_eq!(key_slot(b""), 0);
    }
}
