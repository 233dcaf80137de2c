//! A client that is kept out is kept out by every node, though nodes hold slices of its counters.

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

/// A client with a limit that it uses busily and one that it soon exceeds.
struct Client {
    watched: Watched,
    busy: Gauge,
    small: Gauge,
}

impl Client {
    fn new() -> Self {
        let (busy, small) =
            (Gauge::a_day(Algorithm::FixedWindow, 1_000_000), Gauge::a_day(Algorithm::FixedWindow, 1));
        Client { watched: Watched::kept_out_for(Span::from_secs(600)), busy, small }
    }

    fn ask(&self, node: &Node, gauge: &Gauge) -> (Verdicts, bool) {
        let penalty = Some(self.watched.penalty(u32::MAX));
        let charges = Charges { penalty, ..charges([gauge], 1) };
        let (verdicts, _) = node.runtime.block_on(node.store.charge_all_timed(&charges, now())).unwrap();
        let admitted = verdicts.cooldown.is_none() && verdicts.admitted(&charges);
        (verdicts, admitted)
    }

    /// Asks until the node holds a slice.
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

    /// Refuses the client for longer than a slice lasts.
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
fn no_lease_serves_a_client_that_its_node_knows_to_be_kept_out() {
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

/// A hint, so it may be lost; then the lease ends after two seconds.
#[test]
fn nodes_that_hold_slices_of_a_client_are_told_that_it_is_kept_out() {
    let server = RedisServer::start();
    let here = Node::of(&server);
    let told = wait_until(PATIENCE, || {
        let (there, client) = (Node::of(&server), Client::new());
        client.is_leased_by(&there);
        client.is_kept_out_by(&here);
        assert!(wait_until(PATIENCE, || !client.ask(&there, &client.busy).1));
        // It would be used up to its end otherwise.
        let while_leased = there.store.leases().units > 0;
        there.keeps_out(&client);
        client.is_pardoned_by(&here);
        assert!(wait_until(PATIENCE, || client.ask(&there, &client.busy).1), "pardoned elsewhere");
        while_leased
    });
    assert!(told);
}

/// Whoever pardons may be another program than ours, and hints may be lost.
#[test]
fn a_record_that_is_gone_is_noticed_without_a_word() {
    let server = RedisServer::start();
    let (node, client) = (Node::of(&server), Client::new());
    client.is_kept_out_by(&node);
    let records = server.cli(&["KEYS", "rl:1p*"]);
    assert_eq!(records.lines().count(), 1, "{records}");
    server.cli(&["DEL", &records]);
    assert!(wait_until(PATIENCE, || client.ask(&node, &client.busy).1));
}
