//! Leases at the end of a window: unused units are not counted against the next window, and used ones are.
//!
//! Calls are sequential, and a memory store is charged with what was admitted, so the expected count is known to the
//! unit. Server and test share a clock.

use std::time::{Duration, Instant};

use tollgate::counters::CounterStore as _;
use tollgate::counters::memory::MemoryCounters;
use tollgate::limit::Algorithm;
use tollgate::{Span, Timestamp};
use tollgate_stores::redis::RedisCounters;
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges, limit};
use crate::harness::{exact, now, open, patient, runtime, single};

const NODES: usize = 4;
const REQUESTS: u32 = 2_000;
const WINDOW: Span = Span::from_secs(4);

/// Nodes with leases, and one without.
struct Fleet {
    server: RedisServer,
    nodes: Vec<RedisCounters>,
    exact: RedisCounters,
}

/// A client whose counter every node has leased, and what it has used.
struct Client {
    gauge: Gauge,
    used: MemoryCounters,
    /// End of the window of the leases, in microseconds.
    end: u64,
}

impl Fleet {
    async fn new() -> Self {
        let server = RedisServer::start();
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(open(&patient(single(server.address()))).await);
        }
        let exact = open(&exact(single(server.address()))).await;
        // Until each node counts the others.
        while nodes.iter().any(|node| (node.nodes().get() as usize) <= NODES) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Fleet { server, nodes, exact }
    }

    fn units(&self) -> u64 {
        self.nodes.iter().map(|node| node.leases().units).sum()
    }

    /// A client with leases that end with their window.
    async fn client_with_slices(&self) -> Client {
        // A slow machine may not manage all of it within the window.
        for _ in 0..5 {
            let client = Client::new(limit(Algorithm::SlidingWindowCounter, REQUESTS, WINDOW));
            sleep_until(client.end - 1_200_000).await;
            for node in &self.nodes {
                for _ in 0..30 {
                    assert!(client.admits(node, 1).await);
                }
            }
            if now().as_micros() < client.end - 200_000 {
                return client;
            }
            sleep_until(client.end + 300_000).await;
        }
        panic!("far too slow")
    }

    /// Waits until the server counts exactly what was used, long before the counter expires. Returns by how much it
    /// counted too much at first.
    async fn comes_to_count_truly(&self, client: &Client) -> u32 {
        sleep_until(client.end).await;
        let mut at_first = None;
        loop {
            let look = charges([&client.gauge], 0);
            let (result, at) = self.exact.charge_all_timed(&look, now()).await.unwrap();
            let at = at.unwrap();
            let (result, true_one) = (result.verdicts[0], client.used.charge_all_now(&look, at).verdicts[0]);
            assert!(
                result.remaining <= true_one.remaining,
                "{} instead of {}",
                result.remaining,
                true_one.remaining
            );
            let short = true_one.remaining - result.remaining;
            let short_at_first = *at_first.get_or_insert(short);
            assert!(at.as_micros() < client.end + 3_000_000, "{short} are not given back");
            if result == true_one {
                return short_at_first;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Client {
    /// A client whose next window ends in more than 1.2 s.
    fn new(limit: tollgate::Limit) -> Self {
        let window = limit.window_length().as_micros();
        let end = ((now().as_micros() + 1_250_000) / window + 1) * window;
        Client { gauge: Gauge::new(limit), used: MemoryCounters::default(), end }
    }

    /// Sends a request to a node and records what was used.
    async fn admits(&self, node: &RedisCounters, cost: u32) -> bool {
        let (charges, from) = (charges([&self.gauge], cost), now());
        let (verdicts, at) = node.charge_all_timed(&charges, from).await.unwrap();
        let admitted = verdicts.admitted(&charges);
        if admitted {
            assert!(self.used.charge_all_now(&charges, at.unwrap_or(from)).admitted(&charges));
        }
        admitted
    }
}

async fn sleep_until(micros: u64) {
    let left = micros.saturating_sub(now().as_micros());
    tokio::time::sleep(Duration::from_micros(left)).await;
}

#[test]
fn unused_lease_is_not_counted_in_the_next_window() {
    runtime().block_on(async {
        let fleet = Fleet::new().await;
        let client = fleet.client_with_slices().await;
        let units = fleet.units();
        assert!(units > 100, "{units} units in slices: nothing is proved");
        let short = fleet.comes_to_count_truly(&client).await;
        eprintln!("{units} units in slices, {short} of them missed when the next window began");
    });
}

/// A node that missed a reset returns units that the new counter never granted.
#[test]
fn lease_before_reset_is_not_returned_after() {
    for leased_again in [false, true] {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let late = open(&patient(single(fleet.server.address()))).await;
            let before = fleet.client_with_slices().await;
            assert!(fleet.units() > 100, "nothing is proved");
            let name = fleet.server.cli(&["KEYS", &format!("rl:*:{}:*", before.gauge.rule)]);
            assert_eq!(fleet.server.cli(&["DEL", name.trim()]).trim(), "1");
            let after = Client { used: MemoryCounters::default(), ..before };
            assert!(after.admits(&fleet.exact, 500).await);
            while leased_again && late.leases().units == 0 && now().as_micros() < after.end - 50_000 {
                assert!(after.admits(&late, 1).await);
            }
            fleet.comes_to_count_truly(&after).await;
            // A late return finds the same.
            tokio::time::sleep(Duration::from_millis(600)).await;
            fleet.comes_to_count_truly(&after).await;
        });
    }
}

/// The first lease follows the rate of twenty calls: at most 400 per second, so 800 for two seconds and 120 for 0.3 s.
#[test]
fn lease_near_window_end_is_smaller() {
    runtime().block_on(async {
        let fleet = Fleet::new().await;
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
            // On a slow machine the window may end first, and the lease belongs to the next one.
            for _ in 0..5 {
                let client = Client::new(limit(algorithm, 100_000, WINDOW));
                sleep_until(client.end - 300_000).await;
                while fleet.nodes[0].leases().units == 0 && now().as_micros() < client.end {
                    client.admits(&fleet.nodes[0], 1).await;
                }
                let (units, in_time) = (fleet.nodes[0].leases().units, now().as_micros() < client.end);
                assert!(!in_time || units <= 120, "{algorithm:?}: {units} for less than 0.3 s");
                sleep_until(client.end + 300_000).await;
                if in_time {
                    break;
                }
            }
        }
    });
}

/// The admissions of one client in order, checked against the formula of the sliding window.
#[derive(Default)]
struct Slide {
    window: u64,
    current: u64,
    previous: u64,
    admitted: u64,
}

impl Slide {
    /// An admission within this span. One that may lie in either of two windows is counted in neither.
    fn admit(&mut self, limit: &tollgate::Limit, from: Timestamp, to: Timestamp) {
        let length = limit.window_length().as_micros();
        let (window, until) = (from.as_micros() / length, to.as_micros() / length);
        self.admitted += 1;
        if window != until {
            return;
        }
        if window != self.window {
            self.previous = if window == self.window + 1 { self.current } else { 0 };
            (self.window, self.current) = (window, 0);
        }
        self.current += 1;
        let fading = u128::from(self.previous) * u128::from(length - to.as_micros() % length);
        let taken = fading + u128::from(self.current) * u128::from(length);
        assert!(
            taken <= u128::from(limit.requests()) * u128::from(length),
            "{} and {} of the window before, {} us into the window",
            self.current,
            self.previous,
            to.as_micros() % length
        );
    }
}

/// Demand above the limit over many windows: never one too many by the formula, and few too few.
#[test]
fn leases_over_many_windows_are_exact() {
    let limit = limit(Algorithm::SlidingWindowCounter, 4_000, Span::from_secs(2));
    runtime().block_on(async {
        let fleet = Fleet::new().await;
        let (gauge, ideal) = (Gauge::new(limit.clone()), MemoryCounters::default());
        let (mut slide, mut possible, mut asked) = (Slide::default(), 0_u64, 0_u32);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(11) {
            // The demand varies, so that nodes cannot predict their use.
            let pause = if start.elapsed().as_secs().is_multiple_of(3) { 4 } else { 1 };
            for _ in 0..8 {
                asked += 1;
                let (charges, from) = (charges([&gauge], 1), now());
                let node = &fleet.nodes[asked as usize % NODES];
                let (verdicts, at) = node.charge_all_timed(&charges, from).await.unwrap();
                if verdicts.admitted(&charges) {
                    slide.admit(&limit, from, now());
                }
                let could = ideal.charge_all_now(&charges, at.unwrap_or(from)).admitted(&charges);
                possible += u64::from(could);
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let missed = possible.saturating_sub(slide.admitted);
        eprintln!("{asked} asked, {} admitted of {possible} possible, {missed} too few", slide.admitted);
        // About two percent are expected; a slow machine asks less often.
        assert!(missed * 5 <= possible, "{missed} too few of {possible}");
    });
}
