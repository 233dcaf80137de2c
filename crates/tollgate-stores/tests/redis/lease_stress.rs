//! Searches for over-admission: nodes that come and go lease small limits of every kind from a server that loses its
//! scripts, freezes and kills connections, so that leases and returns lose their replies, and every admission is checked against the limit.
//!
//! An admission counts at some instant between request and reply, on the clock that server and test share. It is counted
//! against a window or interval only if it cannot lie outside; nothing else is tolerated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tollgate::Span;
use tollgate::counters::{CounterAdmin, CounterStore};
use tollgate::limit::Algorithm;
use tollgate_stores::redis::{RedisCounters, RedisSettings};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Dice, Gauge, charges, limit};
use crate::harness::{now, open, patient, runtime, single};

const NODES: usize = 4;
const CALLERS_PER_NODE: usize = 4;
const LASTING: Duration = Duration::from_secs(10);
const LEASABLE: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingWindowCounter];

/// An admission: request and reply in microseconds, and the cost.
#[derive(Copy, Clone, Debug)]
struct Admission {
    from: u64,
    to: u64,
    cost: u64,
}

/// The state of one run.
struct Stage {
    nodes: Vec<Mutex<RedisCounters>>,
    /// Limits per client, shared limits, and one that is reset at times and not checked.
    own: Vec<Gauge>,
    shared: Vec<Gauge>,
    reset: Gauge,
    admissions: Vec<Mutex<Vec<Admission>>>,
    served_by_dead: Mutex<u64>,
    start: Instant,
}

impl Stage {
    async fn new(settings: &RedisSettings) -> Self {
        let mut dice = Dice::new(7);
        let mut gauge = |requests: (u32, u32), turn: usize| {
            let window = Span::from_millis(u64::from(dice.between(1_000, 5_000)));
            Gauge::new(limit(LEASABLE[turn % 4], dice.between(requests.0, requests.1), window))
        };
        let own: Vec<Gauge> =
            (0..8).map(|turn| gauge((if turn < 4 { 20 } else { 200 }, 400), turn)).collect();
        let shared: Vec<Gauge> = (0..4).map(|turn| gauge((400, 500), turn)).collect();
        let reset = gauge((20, 300), 0);
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(Mutex::new(open(settings).await));
        }
        let admissions = (0..own.len() + shared.len()).map(|_| Mutex::default()).collect();
        Stage { nodes, own, shared, reset, admissions, served_by_dead: Mutex::new(0), start: Instant::now() }
    }

    /// All callers use the same counters at the same time: first one node a little, so that a lease is granted and left
    /// unused; after a while all nodes as much as there is, that node slightly earlier.
    async fn call(self: Arc<Self>, node: usize, seed: u64) {
        let (mut rounds, mut dice) = (Dice::new(5), Dice::new(seed));
        let mut round_at = self.start;
        while self.start.elapsed() < LASTING {
            let keys = [rounds.below(8) as usize, self.own.len() + rounds.below(4) as usize];
            let first = rounds.below(4) as usize == node;
            let pause = Duration::from_millis(rounds.between(200, 1_500).into());
            tokio::time::sleep_until(round_at.into()).await;
            self.burst(node, keys, if first { 10 } else { 0 }, &mut dice).await;
            let later = Duration::from_millis(if first { 0 } else { 30 });
            tokio::time::sleep_until((round_at + pause + later).into()).await;
            self.burst(node, keys, 100, &mut dice).await;
            round_at += pause + Duration::from_millis(300);
        }
    }

    async fn burst(&self, node: usize, keys: [usize; 2], count: u32, dice: &mut Dice) {
        let store = self.nodes[node].lock().clone();
        let gauges = keys.map(|key| self.own.iter().chain(&self.shared).nth(key).unwrap());
        for _ in 0..count {
            let cost = dice.between(1, 3);
            let charges = charges(gauges, cost);
            let from = now();
            let result = store.charge_all(&charges, from).await;
            if result.is_ok_and(|verdicts| verdicts.admitted(&charges)) {
                let (from, to) = (from.as_micros(), now().as_micros());
                for key in keys {
                    self.admissions[key].lock().push(Admission { from, to, cost: cost.into() });
                }
            }
            // Cached refusals do not wait: let others run.
            tokio::task::yield_now().await;
        }
        let _ = store.charge_all(&crate::harness::limits::charges([&self.reset], 1), now()).await;
    }

    /// Drops nodes, resets counters, flushes scripts, freezes the server.
    async fn inject_faults(self: Arc<Self>, server: Arc<RedisServer>, settings: RedisSettings) {
        let mut dice = Dice::new(99);
        while self.start.elapsed() < LASTING {
            tokio::time::sleep(Duration::from_millis(dice.between(200, 500).into())).await;
            let node = dice.below(4) as usize;
            match dice.below(9) {
                0 => drop(on_server(&server, &["SCRIPT", "FLUSH"]).await),
                1 => drop(on_server(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await),
                2..=4 => {
                    let store = self.nodes[node].lock().clone();
                    let _ = store.reset(&charges([&self.reset], 1)).await;
                }
                5..=7 => {
                    server.freeze();
                    tokio::time::sleep(Duration::from_millis(dice.between(50, 600).into())).await;
                    server.thaw();
                }
                _ => {
                    let next = open(&settings).await;
                    let dead = std::mem::replace(&mut *self.nodes[node].lock(), next);
                    *self.served_by_dead.lock() += dead.leases().served;
                }
            }
        }
    }

    /// Violated guarantees.
    fn broken_promises(&self) -> Vec<String> {
        let gauges = self.own.iter().chain(&self.shared);
        let broken = gauges.zip(&self.admissions).filter_map(|(gauge, admissions)| {
            let mut admissions = admissions.lock().clone();
            admissions.sort_unstable_by_key(|admission| admission.to);
            let broken = match gauge.limit.algorithm() {
                Algorithm::FixedWindow => fuller_window(gauge, &admissions),
                Algorithm::SlidingWindowCounter => {
                    fuller_window(gauge, &admissions).or_else(|| fuller_slide(gauge, &admissions))
                }
                _ => fuller_bucket(gauge, &admissions),
            };
            broken.map(|what| format!("{}: {what}", gauge.limit))
        });
        broken.collect()
    }
}

async fn on_server(server: &Arc<RedisServer>, command: &'static [&'static str]) -> String {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || server.cli(command)).await.unwrap()
}

/// A window that admitted more than the limit, wherever admissions that span two windows are counted.
fn fuller_window(gauge: &Gauge, admissions: &[Admission]) -> Option<String> {
    let (length, most) = (gauge.limit.window_length().as_micros(), u64::from(gauge.limit.requests()));
    let mut starting: BTreeMap<u64, Vec<Admission>> = BTreeMap::new();
    for admission in admissions {
        starting.entry(admission.from / length).or_default().push(*admission);
    }
    let (first, last) = (*starting.keys().next()?, admissions.last()?.to / length);
    // Units to be placed, by the last window that may hold them: the most urgent first.
    let mut waiting: BTreeMap<u64, u64> = BTreeMap::new();
    for window in first..=last {
        for admission in starting.get(&window).into_iter().flatten() {
            *waiting.entry(admission.to / length).or_default() += admission.cost;
        }
        let mut room = most;
        for units in waiting.values_mut() {
            let placed = room.min(*units);
            (room, *units) = (room - placed, *units - placed);
        }
        if let Some(over) = waiting.remove(&window).filter(|over| *over > 0) {
            return Some(format!("{over} beyond {most} in window {window}"));
        }
    }
    None
}

/// An instant by which more was admitted in its window than the fading previous window allows. Everything admitted by
/// an instant was charged by then, when the previous window had faded less.
fn fuller_slide(gauge: &Gauge, admissions: &[Admission]) -> Option<String> {
    let (length, most) = (gauge.limit.window_length().as_micros(), u64::from(gauge.limit.requests()));
    let mut by_window: BTreeMap<u64, u64> = BTreeMap::new();
    for admission in admissions.iter().filter(|admission| admission.from / length == admission.to / length) {
        let window = admission.to / length;
        let previous = window.checked_sub(1).and_then(|before| by_window.get(&before)).copied().unwrap_or(0);
        let current = by_window.entry(window).or_default();
        *current += admission.cost;
        let fading = u128::from(previous) * u128::from(length - admission.to % length);
        if fading + u128::from(*current) * u128::from(length) > u128::from(most) * u128::from(length) {
            let at = admission.to % length;
            return Some(format!("{current} and {previous} before, {at} us into window {window} of {most}"));
        }
    }
    None
}

/// An interval that admitted more than a full bucket plus its refill.
fn fuller_bucket(gauge: &Gauge, admissions: &[Admission]) -> Option<String> {
    let limit = &gauge.limit;
    let (rate, window) = (u128::from(limit.requests()), u128::from(limit.window_length().as_micros()));
    for first in admissions {
        let mut admitted = 0;
        let later = &admissions[admissions.partition_point(|admission| admission.to < first.from)..];
        for last in later.iter().take_while(|last| last.to < first.from + 4_000_000) {
            admitted += if last.from >= first.from { u128::from(last.cost) } else { 0 };
            // The interval may contain the start of one more tick than its length.
            let time = u128::from(last.to - first.from + limit.tick().micros());
            if admitted * window > u128::from(limit.capacity()) * window + time * rate {
                let most = u128::from(limit.capacity()) + time * rate / window;
                return Some(format!("{admitted} instead of {most} within {time} us"));
            }
        }
    }
    None
}

#[test]
fn no_lease_over_admits_under_faults() {
    let server = Arc::new(RedisServer::start());
    runtime().block_on(async {
        let settings = RedisSettings {
            timeout: Duration::from_millis(100),
            lease_capacity_min: 1,
            ..patient(single(server.address()))
        };
        let stage = Arc::new(Stage::new(&settings).await);
        let callers: Vec<JoinHandle<()>> = (0..NODES * CALLERS_PER_NODE)
            .map(|caller| tokio::spawn(Arc::clone(&stage).call(caller % NODES, caller as u64 + 1)))
            .collect();
        Arc::clone(&stage).inject_faults(Arc::clone(&server), settings).await;
        for caller in callers {
            caller.await.unwrap();
        }
        let live: u64 = stage.nodes.iter().map(|node| node.lock().leases().served).sum();
        let leased = live + *stage.served_by_dead.lock();
        let admitted: usize = stage.admissions.iter().map(|admissions| admissions.lock().len()).sum();
        eprintln!("{admitted} charges admitted, {leased} from leases");
        assert!(leased > 1_000, "{leased} charges were served from leases: nothing is proved");
        let broken = stage.broken_promises();
        assert!(broken.is_empty(), "{broken:#?}");
    });
}
