//! Conservation: whatever clients and operators do, what a counter holds is what was admitted.
//!
//! Random histories without faults on real servers: costs from 1 to 1,000, bursts and pauses, several limits of which some
//! refuse, callers with different limits, limits that change, resets, nodes that come and go, clients that move between
//! nodes. One quiet second later every counter is compared with what was admitted, to the unit, and no counter has admitted
//! more than the largest of its limits.
//!
//! A failing history is rerun in smaller forms; the smallest that still fails is printed. `HISTORY_SEED=7` runs one seed,
//! `HISTORY_DECISIONS=1000000` runs seeds until that many decisions were made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::RwLock;
use tollgate::Span;
use tollgate::counters::{Charge, Charges, CounterAdmin};
use tollgate::limit::{Algorithm, Limit};
use tollgate_stores::redis::{RedisCounters, RedisSettings, Topology, VIRTUAL_NODES_DEFAULT};
use tollgate_testkit::{RedisCluster, RedisServer};

use crate::harness::limits::{Dice, Gauge, day, limit};
use crate::harness::{address, exact, now, open, patient, runtime, single};

/// Histories that run at the same time on the same servers.
const AT_ONCE: u64 = 8;
const LASTING: Duration = Duration::from_millis(1_500);
const MONTH: Span = Span::from_secs(30 * 86_400);
const LEASABLE: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingWindowCounter];

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Complication {
    /// A log beside the other limits, which refuses and refills.
    Log,
    /// Every other node has two thirds of the limits.
    MixedLimits,
    /// All nodes change between the limits and two thirds of them.
    ChangingLimits,
    Resets,
    /// Nodes stop, and others start in their place.
    Restarts,
}

/// What happens in one history. Everything but the timing follows from it.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    nodes: usize,
    callers: usize,
    cost_max: u32,
    /// Of the counter that all callers share.
    shared: (Algorithm, u32),
    /// Of the counters of single clients. Many of them refuse.
    own: (Algorithm, u32),
    with: Vec<Complication>,
    /// The longest pause between two bursts: some outlast a lease.
    pause_max: Duration,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        Plan {
            seed,
            nodes: dice.between(1, 8) as usize,
            callers: dice.between(2, 32) as usize,
            cost_max: *dice.pick(&[1, 1, 3, 1_000]),
            shared: (*dice.pick(&LEASABLE), *dice.pick(&[1_500, 20_000, 1_000_000])),
            own: (*dice.pick(&LEASABLE), *dice.pick(&[50, 1_000, 100_000])),
            with: [
                (Complication::Log, 2),
                (Complication::MixedLimits, 3),
                (Complication::ChangingLimits, 3),
                (Complication::Resets, 4),
                (Complication::Restarts, 4),
            ]
            .into_iter()
            .filter(|(_, one_in)| dice.one_in(*one_in))
            .map(|(complication, _)| complication)
            .collect(),
            pause_max: Duration::from_millis(*dice.pick(&[700, 700, 2_800])),
        }
    }

    fn lasting(&self) -> Duration {
        LASTING + self.pause_max * 2
    }

    fn has(&self, complication: Complication) -> bool {
        self.with.contains(&complication)
    }

    /// Forms with less in them.
    fn smaller(&self) -> Vec<Plan> {
        let without = (0..self.with.len()).map(|position| {
            let mut plan = self.clone();
            plan.with.remove(position);
            plan
        });
        let mut smaller: Vec<Plan> = without.collect();
        if self.nodes > 1 {
            smaller.push(Plan { nodes: self.nodes / 2, ..self.clone() });
        }
        if self.callers > 1 {
            smaller.push(Plan { callers: self.callers / 2, ..self.clone() });
        }
        if self.cost_max > 1 {
            smaller.push(Plan { cost_max: 1, ..self.clone() });
        }
        smaller
    }
}

/// A counter, the limits under which it is charged, and what was admitted.
struct Watched {
    gauge: Gauge,
    /// What some callers hold instead.
    lower: Limit,
    admitted: AtomicU64,
}

impl Watched {
    fn new((algorithm, requests): (Algorithm, u32)) -> Self {
        let window =
            if matches!(algorithm, Algorithm::TokenBucket | Algorithm::Gcra) { MONTH } else { day() };
        let (high, lower) = (limit(algorithm, requests, window), limit(algorithm, requests * 2 / 3, window));
        Watched { gauge: Gauge::new(high), lower, admitted: AtomicU64::new(0) }
    }

    fn charge(&self, cost: u32, lowered: bool) -> Charge<'_> {
        let charge = self.gauge.charge(cost);
        Charge { limit: if lowered { &self.lower } else { charge.limit }, ..charge }
    }
}

/// A history while it runs.
struct History {
    plan: Plan,
    settings: RedisSettings,
    nodes: Vec<RwLock<RedisCounters>>,
    shared: Watched,
    own: Vec<Watched>,
    log: Gauge,
    /// Held for reading during a request, for writing during a reset.
    running: RwLock<()>,
    decisions: AtomicU64,
    lost: AtomicU64,
    start: Instant,
}

impl History {
    async fn new(plan: Plan, settings: &RedisSettings) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..plan.nodes {
            nodes.push(RwLock::new(open(settings).await));
        }
        History {
            settings: settings.clone(),
            nodes,
            shared: Watched::new(plan.shared),
            own: (0..4).map(|_| Watched::new(plan.own)).collect(),
            log: Gauge::new(limit(Algorithm::SlidingWindowLog, 1_000, Span::from_secs(1))),
            running: RwLock::default(),
            decisions: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            start: Instant::now(),
            plan,
        }
    }

    /// A client: bursts and pauses, most of them on the node of the burst before.
    async fn call(self: Arc<Self>, caller: usize) {
        let mut dice = Dice::new(self.plan.seed << 8 | caller as u64);
        let own = &self.own[caller % self.own.len()];
        let mut node = caller % self.nodes.len();
        while self.start.elapsed() < self.plan.lasting() {
            if dice.one_in(5) {
                node = dice.below(u32::try_from(self.nodes.len()).unwrap()) as usize;
            }
            for _ in 0..dice.between(1, 300) {
                self.request(node, own, &mut dice).await;
                if dice.one_in(10) {
                    tokio::time::sleep(Duration::from_micros(dice.between(50, 3_000).into())).await;
                }
            }
            tokio::time::sleep(self.plan.pause_max * dice.below(1_000) / 1_000).await;
        }
    }

    async fn request(&self, node: usize, own: &Watched, dice: &mut Dice) {
        let _running = self.running.read().await;
        let store = self.nodes[node].read().await;
        let cost = dice.between(1, self.plan.cost_max);
        let is_changed =
            self.plan.has(Complication::ChangingLimits) && self.start.elapsed().as_millis() / 400 % 2 == 1;
        let is_lowered = is_changed || self.plan.has(Complication::MixedLimits) && node % 2 == 1;
        let mut charges = Charges::default();
        charges.charges.push(self.shared.charge(cost, is_lowered));
        let with_own = !dice.one_in(4);
        if with_own {
            charges.charges.push(own.charge(cost, is_lowered));
        }
        if self.plan.has(Complication::Log) {
            charges.charges.push(self.log.charge(cost));
        }
        let (verdicts, _) = store.charge_all_timed(&charges, now()).await.unwrap();
        self.decisions.fetch_add(1, Ordering::Relaxed);
        if verdicts.admitted(&charges) {
            self.shared.admitted.fetch_add(cost.into(), Ordering::Relaxed);
            if with_own {
                own.admitted.fetch_add(cost.into(), Ordering::Relaxed);
            }
        }
        // Decisions from leases do not wait: let others run.
        tokio::task::yield_now().await;
    }

    /// Resets counters, and stops nodes and starts others in their place.
    async fn administer(self: Arc<Self>) {
        let mut dice = Dice::new(self.plan.seed ^ 0xad31);
        while self.start.elapsed() < self.plan.lasting() {
            tokio::time::sleep(Duration::from_millis(dice.between(100, 800).into())).await;
            let node = dice.below(u32::try_from(self.nodes.len()).unwrap()) as usize;
            if self.plan.has(Complication::Restarts) && dice.one_in(2) {
                let mut store = self.nodes[node].write().await;
                store.close().await;
                self.lost.fetch_add(store.leases().lost, Ordering::Relaxed);
                *store = open(&self.settings).await;
            } else if self.plan.has(Complication::Resets) {
                let _stopped = self.running.write().await;
                let reset = dice.pick(&self.own);
                let store = self.nodes[node].read().await;
                let charges =
                    Charges { charges: [reset.charge(1, false)].into_iter().collect(), ..Charges::default() };
                store.reset(&charges).await.unwrap();
                // Until the other nodes know, also those that have just started and poll.
                tokio::time::sleep(Duration::from_millis(1_300)).await;
                reset.admitted.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The most that a bucket restores while the history runs.
    fn restored(&self, limit: &Limit) -> u64 {
        let elapsed = u64::try_from(self.start.elapsed().as_micros()).unwrap();
        1 + u64::from(limit.requests()) * elapsed / limit.window_length().as_micros()
    }

    /// What is wrong after the quiet second.
    async fn deviations(&self) -> Vec<String> {
        let exact = open(&exact(self.settings.topology.clone())).await;
        let mut deviations = Vec::new();
        for watched in self.own.iter().chain([&self.shared]) {
            let limit = &watched.gauge.limit;
            let charges =
                Charges { charges: [watched.charge(0, false)].into_iter().collect(), ..Charges::default() };
            let remaining = exact.charge_all_timed(&charges, now()).await.unwrap().0.verdicts[0].remaining;
            let admitted = watched.admitted.load(Ordering::Relaxed);
            let held = u64::from(limit.capacity() - remaining);
            let restored = if limit.algorithm().has_burst() { self.restored(limit) } else { 0 };
            if held > admitted || held + restored < admitted {
                deviations.push(format!("{limit}: charged {held}, admitted {admitted}"));
            }
            if admitted > u64::from(limit.capacity()) + restored {
                deviations.push(format!("{limit}: admitted {admitted}"));
            }
        }
        let mut lost = self.lost.load(Ordering::Relaxed);
        for node in &self.nodes {
            lost += node.read().await.leases().lost;
        }
        if lost > 0 {
            deviations.push(format!("{lost} leased units are lost"));
        }
        deviations
    }
}

/// What a history consisted of, and what was wrong.
#[derive(Debug, Default)]
struct Outcome {
    decisions: u64,
    leased: u64,
    deviations: Vec<String>,
}

async fn run(plan: Plan, settings: &RedisSettings) -> Outcome {
    let history = Arc::new(History::new(plan, settings).await);
    let callers = (0..history.plan.callers).map(|caller| tokio::spawn(Arc::clone(&history).call(caller)));
    let mut tasks: Vec<_> = callers.collect();
    if history.plan.has(Complication::Resets) || history.plan.has(Complication::Restarts) {
        tasks.push(tokio::spawn(Arc::clone(&history).administer()));
    }
    for task in tasks {
        task.await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut deviations = history.deviations().await;
    if !deviations.is_empty() {
        // A machine that stands still is late with everything; what is lost does not come back.
        tokio::time::sleep(Duration::from_secs(2)).await;
        deviations = history.deviations().await;
    }
    let mut leased = 0;
    for node in &history.nodes {
        let node = node.read().await;
        leased += node.leases().served;
        node.close().await;
    }
    Outcome { decisions: history.decisions.load(Ordering::Relaxed), leased, deviations }
}

/// The smallest form of a failing history that still fails.
async fn shrink(mut plan: Plan, settings: &RedisSettings) -> (Plan, Vec<String>) {
    let mut found = Vec::new();
    'smaller: loop {
        for smaller in plan.smaller() {
            let outcome = run(smaller.clone(), settings).await;
            if !outcome.deviations.is_empty() {
                (plan, found) = (smaller, outcome.deviations);
                continue 'smaller;
            }
        }
        return (plan, found);
    }
}

fn wanted(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs histories until there were enough decisions; each seed once.
fn histories(name: &str, settings: &RedisSettings, seeds: std::ops::Range<u64>) {
    let decisions_min = wanted("HISTORY_DECISIONS").unwrap_or(0);
    let seeds = match wanted("HISTORY_SEED") {
        Some(seed) => seed..seed + 1,
        None => seeds,
    };
    let started = Instant::now();
    let first = seeds.start;
    let (mut decisions, mut leased, mut next) = (0, 0, first);
    runtime().block_on(async {
        while next < seeds.end || decisions < decisions_min {
            let at_once = if next < seeds.end { AT_ONCE.min(seeds.end - next) } else { AT_ONCE };
            let batch: Vec<u64> = (next..next + at_once).collect();
            next += at_once;
            let runs = batch.iter().map(|seed| run(Plan::new(*seed), settings));
            for (seed, outcome) in batch.iter().zip(futures_util::future::join_all(runs).await) {
                decisions += outcome.decisions;
                leased += outcome.leased;
                if !outcome.deviations.is_empty() {
                    let plan = Plan::new(*seed);
                    eprintln!("{name}: {:?}\nin {plan:?}", outcome.deviations);
                    let (smallest, found) = shrink(plan, settings).await;
                    panic!("{name}: {:?}; smallest: {smallest:?}: {found:?}", outcome.deviations);
                }
            }
        }
    });
    eprintln!(
        "{name}, seeds {first} to {}: {decisions} decisions, {leased} charges from leases, 0 deviations, {:?}",
        next - 1,
        started.elapsed()
    );
    assert!(!settings.leases || leased > decisions / 20, "{leased} charges from leases: nothing is proved");
}

#[test]
fn charged_equals_admitted_on_one_server() {
    let server = RedisServer::start();
    histories("single", &patient(single(server.address())), 0..12);
}

#[test]
fn charged_equals_admitted_without_leases() {
    let server = RedisServer::start();
    let settings = RedisSettings { leases: false, ..patient(single(server.address())) };
    histories("single, no leases", &settings, 100..104);
}

#[test]
fn charged_equals_admitted_on_a_cluster() {
    let cluster = RedisCluster::start();
    let topology = Topology::Cluster(cluster.addresses().into_iter().map(address).collect());
    histories("cluster", &patient(topology), 200..208);
}

#[test]
fn charged_equals_admitted_on_a_ring() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let addresses = servers.iter().map(|server| address(server.address())).collect();
    let topology = Topology::Ring { servers: addresses, virtual_nodes: VIRTUAL_NODES_DEFAULT };
    histories("ring", &patient(topology), 300..308);
}
