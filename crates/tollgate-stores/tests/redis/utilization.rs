//! Leases refuse nobody for long: under overload, and for clients that come in bursts, about as much is admitted as without.
//! At the end, units of leases are not used yet: with `LONG_TESTS` the run is longer, and their part smaller.
//!
//! Nodes with leases and nodes without get the same requests for two clients with the same limit, at the same time on the
//! same server. The ratio of what they admit does not depend on the speed of the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::Span;
use tollgate::limit::{Algorithm, Limit, Window};
use tollgate_stores::redis::{RedisCounters, RedisSettings};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges};
use crate::harness::{now, open, patient, runtime, single};

const NODES: usize = 3;

/// Requests for one limit.
#[derive(Clone)]
struct Demand {
    limit: Limit,
    /// Requests per second of all nodes together while there are any.
    rate: u32,
    /// Requests come for this long, then pause for this long.
    burst: Duration,
    pause: Duration,
    lasting: Duration,
    /// Clients, each with its own counter.
    clients: usize,
}

impl Demand {
    fn steady(algorithm: Algorithm, requests: u32, millis: u64, burst: Option<u32>, rate: u32) -> Self {
        let window = Window::Length(Span::from_millis(millis));
        Demand {
            limit: Limit::with_options(algorithm, requests, window, burst, None).unwrap(),
            rate,
            burst: Duration::from_mins(1),
            pause: Duration::ZERO,
            lasting: Duration::from_secs(if std::env::var_os("LONG_TESTS").is_some() { 15 } else { 3 }),
            clients: 1,
        }
    }

    /// What one client gets admitted.
    async fn admitted(self, nodes: Arc<Vec<RedisCounters>>, client: usize, start: Instant) -> u64 {
        let gauge = Gauge::new(self.limit.clone());
        let admitted = AtomicU64::new(0);
        let period = self.burst + self.pause;
        let offset = period * u32::try_from(client).unwrap() / u32::try_from(self.clients).unwrap();
        let mut sent = 0.0;
        let mut node = client;
        let mut last = Duration::ZERO;
        while last < self.lasting {
            let elapsed = start.elapsed();
            let phase = Duration::from_nanos(
                u64::try_from((elapsed + offset).as_nanos() % period.as_nanos()).unwrap(),
            );
            if phase < self.burst {
                sent += elapsed.saturating_sub(last).as_secs_f64() * f64::from(self.rate);
            }
            last = elapsed;
            while sent >= 1.0 && start.elapsed() < self.lasting {
                sent -= 1.0;
                node += 1;
                let charges = charges([&gauge], 1);
                let verdicts = nodes[node % NODES].charge_all_timed(&charges, now()).await.unwrap().0;
                admitted.fetch_add(verdicts.admitted(&charges).into(), Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        admitted.into_inner()
    }

    async fn all_admitted(&self, nodes: &Arc<Vec<RedisCounters>>, start: Instant) -> u64 {
        let clients = (0..self.clients).map(|client| {
            let (demand, nodes) = (self.clone(), Arc::clone(nodes));
            tokio::spawn(demand.admitted(nodes, client, start))
        });
        let clients: Vec<_> = clients.collect();
        let mut sum = 0;
        for client in clients {
            sum += client.await.unwrap();
        }
        sum
    }
}

async fn nodes(settings: &RedisSettings) -> Arc<Vec<RedisCounters>> {
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(open(settings).await);
    }
    Arc::new(nodes)
}

fn compare(demands: &[Demand]) {
    let server = RedisServer::start();
    let settings = RedisSettings { lease_capacity_min: 100, ..patient(single(server.address())) };
    runtime().block_on(async {
        let leasing = nodes(&settings).await;
        let exact = nodes(&RedisSettings { leases: false, ..settings }).await;
        for demand in demands {
            let start = Instant::now();
            let (with, without) =
                tokio::join!(demand.all_admitted(&leasing, start), demand.all_admitted(&exact, start));
            let percent = with * 100 / without;
            println!(
                "{} at {}/s: {with} with leases, {without} without, {percent} %",
                demand.limit, demand.rate
            );
            assert!(percent >= 95, "{}: {percent} %", demand.limit);
        }
    });
}

#[test]
fn overload_admits_as_much_with_leases() {
    compare(&[
        // Restored in less than a node pauses for.
        Demand::steady(Algorithm::TokenBucket, 4_000, 1_000, Some(100), 6_000),
        Demand::steady(Algorithm::SlidingWindowCounter, 200, 100, None, 4_000),
        Demand::steady(Algorithm::TokenBucket, 1_000, 1_000, None, 3_000),
        Demand::steady(Algorithm::Gcra, 5_000, 2_000, None, 6_000),
        Demand::steady(Algorithm::FixedWindow, 2_000, 1_000, None, 6_000),
        Demand::steady(Algorithm::SlidingWindowCounter, 2_000, 1_000, None, 6_000),
        Demand::steady(Algorithm::TokenBucket, 60_000, 60_000, Some(2_000), 3_000),
    ]);
}

#[test]
fn bursty_clients_get_as_much_with_leases() {
    let bursty = |algorithm, requests, millis, burst_millis, pause_millis| Demand {
        burst: Duration::from_millis(burst_millis),
        pause: Duration::from_millis(pause_millis),
        clients: 10,
        lasting: Duration::from_secs(10),
        ..Demand::steady(algorithm, requests, millis, None, 1_000)
    };
    compare(&[
        bursty(Algorithm::TokenBucket, 2_000, 20_000, 500, 2_100),
        bursty(Algorithm::Gcra, 1_500, 10_000, 300, 1_000),
    ]);
}
