//! A cooldown applies on every node, also on those with leases of the client's counters.

use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tollgate::Span;
use tollgate::counters::{Charges, CounterAdmin, Verdicts};
use tollgate::limit::Algorithm;
use tollgate_stores::redis::{RedisCounters, RedisSettings};
use tollgate_testkit::{RedisServer, wait_until};

use crate::harness::limits::{Gauge, Watched, charges};
use crate::harness::{now, open, patient, runtime, single};

const PATIENCE: Duration = Duration::from_secs(30);

/// A client with a busy limit and one that it soon exceeds.
struct Client {
    watched: Watched,
    busy: Gauge,
    small: Gauge,
}

impl Client {
    fn new() -> Self {
        let (busy, small) =
            (Gauge::a_day(Algorithm::FixedWindow, 1_000_000), Gauge::a_day(Algorithm::FixedWindow, 1));
        Client { watched: Watched::cooldown_for(Span::from_secs(600)), busy, small }
    }

    fn ask(&self, node: &Node, gauge: &Gauge) -> (Verdicts, bool) {
        let penalty = Some(self.watched.penalty(u32::MAX));
        let charges = Charges { penalty, ..charges([gauge], 1) };
        let (verdicts, _) = node.runtime.block_on(node.store.charge_all_timed(&charges, now())).unwrap();
        let admitted = verdicts.cooldown.is_none() && verdicts.admitted(&charges);
        (verdicts, admitted)
    }

    /// Sends requests until the node has a lease.
    fn is_leased_by(&self, node: &Node) {
        let leased = wait_until(PATIENCE, || {
            self.ask(node, &self.busy);
            node.store.leases().units > 0
        });
        assert!(leased);
    }

    /// Exceeds the small limit.
    fn is_kept_out_by(&self, node: &Node) {
        assert!(self.ask(node, &self.small).1);
        assert!(self.ask(node, &self.small).0.cooldown.is_some());
    }

    fn is_pardoned_by(&self, node: &Node) {
        let name = format!("user:{}", self.watched.name);
        assert_eq!(node.runtime.block_on(node.store.pardon(&name)), Ok(true));
    }
}

struct Node {
    runtime: Runtime,
    store: RedisCounters,
}

impl Node {
    fn new(settings: &RedisSettings) -> Self {
        let runtime = runtime();
        let store = runtime.block_on(open(settings));
        Node { runtime, store }
    }

    fn of(server: &RedisServer) -> Self {
        Self::new(&patient(single(server.address())))
    }

    /// Checks that the client is refused for longer than a lease lasts.
    fn keeps_out(&self, client: &Client) {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            let (verdicts, admitted) = client.ask(self, &client.busy);
            assert!(!admitted && verdicts.cooldown.is_some(), "{verdicts:?} after {:?}", began.elapsed());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn client_in_cooldown_is_not_served_from_leases() {
    let server = RedisServer::start();
    for refusal_cache in [true, false] {
        let node = Node::new(&RedisSettings { refusal_cache, ..patient(single(server.address())) });
        let client = Client::new();
        client.is_leased_by(&node);
        client.is_kept_out_by(&node);
        node.keeps_out(&client);
        client.is_pardoned_by(&node);
        assert!(wait_until(PATIENCE, || client.ask(&node, &client.busy).1), "pardoned");
        client.is_leased_by(&node);
    }
}

/// The message may be lost; then the lease expires after two seconds.
#[test]
fn cooldown_is_published_to_nodes_with_leases() {
    let server = RedisServer::start();
    let here = Node::of(&server);
    let result = wait_until(PATIENCE, || {
        let (there, client) = (Node::of(&server), Client::new());
        client.is_leased_by(&there);
        client.is_kept_out_by(&here);
        assert!(wait_until(PATIENCE, || !client.ask(&there, &client.busy).1));
        // Otherwise the lease would be used to its end.
        let while_leased = there.store.leases().units > 0;
        there.keeps_out(&client);
        client.is_pardoned_by(&here);
        assert!(wait_until(PATIENCE, || client.ask(&there, &client.busy).1), "pardoned elsewhere");
        while_leased
    });
    assert!(result);
}

/// A record may be deleted by another program, and messages may be lost.
#[test]
fn deleted_record_is_noticed_without_message() {
    let server = RedisServer::start();
    let (node, client) = (Node::of(&server), Client::new());
    client.is_kept_out_by(&node);
    let records = server.cli(&["KEYS", "rl:1p*"]);
    assert_eq!(records.lines().count(), 1, "{records}");
    server.cli(&["DEL", &records]);
    assert!(wait_until(PATIENCE, || client.ask(&node, &client.busy).1));
}
