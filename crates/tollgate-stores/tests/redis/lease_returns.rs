//! Unused units of leases return after a freeze of the server, once.

use std::time::{Duration, Instant};

use tollgate::Span;
use tollgate::counters::{CounterStore as _, StoreError};
use tollgate::limit::Algorithm;
use tollgate_stores::redis::{RedisCounters, RedisSettings};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges, day, limit};
use crate::harness::{now, open, patient, runtime, single};

const LIMIT: u32 = 3_000;
const FREEZE: Duration = Duration::from_secs(3);

/// What a caller saw of one counter.
#[derive(Debug, Default)]
struct Tally {
    admitted: u32,
    /// Requests that the server may have charged without a reply.
    unknown: u32,
}

impl Tally {
    async fn charge(&mut self, store: &RedisCounters, gauge: &Gauge) -> bool {
        let charges = charges([gauge], 1);
        match store.charge_all(&charges, now()).await {
            Ok(verdicts) if verdicts.admitted(&charges) => {
                self.admitted += 1;
                return true;
            }
            Err(StoreError::Timeout { .. }) => self.unknown += 1,
            _ => {}
        }
        false
    }

    /// Charges at about this rate on all nodes in turn, for this long.
    async fn charge_for(&mut self, nodes: &[RedisCounters], gauge: &Gauge, lasting: Duration) {
        let start = Instant::now();
        for store in nodes.iter().cycle() {
            self.charge(store, gauge).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
            if start.elapsed() > lasting {
                return;
            }
        }
    }

    /// Charges until nothing was admitted for two seconds.
    async fn use_up(&mut self, nodes: &[RedisCounters], gauge: &Gauge) {
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_secs(2) {
            for store in nodes {
                if self.charge(store, gauge).await {
                    last = Instant::now();
                }
            }
            tokio::task::yield_now().await;
            if last.elapsed() > Duration::from_millis(20) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

fn settings(server: &RedisServer) -> RedisSettings {
    RedisSettings { timeout: Duration::from_millis(100), ..patient(single(server.address())) }
}

/// Everything that is left of a limit after a freeze under load.
async fn usable(server: &RedisServer, algorithm: Algorithm, count: usize) -> Tally {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(open(&settings(server)).await);
    }
    let gauge = Gauge::new(limit(algorithm, LIMIT, day()));
    let mut tally = Tally::default();
    tally.charge_for(&nodes, &gauge, Duration::from_secs(1)).await;
    assert!(nodes.iter().any(|node| node.leases().units > 0), "nothing is leased: nothing is proved");
    server.freeze();
    tally.charge_for(&nodes, &gauge, FREEZE).await;
    server.thaw();
    for node in &nodes {
        assert!(node.connected(Duration::from_secs(10)).await);
    }
    tally.use_up(&nodes, &gauge).await;
    eprintln!("{algorithm}: {tally:?}");
    tally
}

#[test]
fn leased_units_return_after_a_freeze() {
    let server = RedisServer::start();
    runtime().block_on(async {
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
            for nodes in [1, 3] {
                let tally = usable(&server, algorithm, nodes).await;
                assert!(tally.admitted <= LIMIT, "{tally:?}");
                assert!(tally.admitted + tally.unknown >= LIMIT, "{algorithm}, {nodes} nodes: {tally:?}");
            }
        }
    });
}

/// Those of a bucket return less what was refilled after they lapsed: of a day's limit, nothing.
#[test]
fn leased_bucket_units_return_after_a_freeze() {
    let server = RedisServer::start();
    runtime().block_on(async {
        for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
            let tally = usable(&server, algorithm, 3).await;
            // Less than one unit is restored while the test runs, and each lease that lapsed returns that much less.
            assert!(tally.admitted <= LIMIT + 1, "{tally:?}");
            assert!(tally.admitted + tally.unknown + 3 >= LIMIT, "{algorithm}: {tally:?}");
        }
    });
}

#[test]
fn nothing_returns_to_a_restarted_server() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let node = open(&settings(&server)).await;
        let gauge = Gauge::new(limit(Algorithm::FixedWindow, LIMIT, Span::from_secs(86_400)));
        let mut before = Tally::default();
        before.charge_for(std::slice::from_ref(&node), &gauge, Duration::from_secs(1)).await;
        assert!(node.leases().units > 0);
        server.kill9();
        // Past the life of the lease.
        before.charge_for(std::slice::from_ref(&node), &gauge, FREEZE).await;
        server.restart();
        assert!(node.connected(Duration::from_secs(10)).await);
        // Another node uses the whole limit of the server, which has lost its counters; the old lease adds nothing.
        let other = open(&settings(&server)).await;
        let mut after = Tally::default();
        after.use_up(&[other, node], &gauge).await;
        assert_eq!(after.admitted + after.unknown.min(LIMIT - after.admitted), LIMIT);
    });
}
