//! One counter used by twenty nodes at once: the number of calls, and the accuracy of the count.
//!
//! One memory store decides the same requests for comparison: what it admits could have been admitted. All algorithms
//! run at the same time, each on its own server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tollgate::counters::CounterStore;
use tollgate::{Algorithm, MemoryCounters, Timestamp};
use tollgate_bench::report::{Table, Targets};
use tollgate_stores::redis::RedisCounters;
use tollgate_testkit::RedisServer;

use crate::Plan;
use crate::host::{self, script_calls};
use crate::load::{self, Limits};

const NODES: usize = 20;
const REQUESTS: u32 = 100_000;
const WINDOW_SECONDS: u64 = 60;
const WINDOW_MICROS: u64 = WINDOW_SECONDS * 1_000_000;
/// Requests per second of all nodes together: far above the limit, below it, at it.
const RATES: [u32; 3] = [20_000, 1_500, 1_700];
const ALGORITHMS: [(Algorithm, &str); 3] = [
    (Algorithm::FixedWindow, "fixed window"),
    (Algorithm::SlidingWindowCounter, "sliding window counter"),
    (Algorithm::TokenBucket, "token bucket"),
];
/// How often a node sends what is due.
const STEP: Duration = Duration::from_millis(5);
/// The resolution in which admissions are counted.
const PIECE_MICROS: u64 = 100_000;
const PIECES_PER_WINDOW: usize = 600;
/// How long before the end of a window a run across it starts: little is used by then, so leases are large.
const BEFORE_END: Duration = Duration::from_secs(1);

/// When a run starts.
#[derive(Copy, Clone)]
enum Start {
    AtOnce,
    /// At the start of a window, to see whether it is used up.
    WithWindow,
    /// Just before the end of a window, to see the effect of outstanding leases on the next one.
    BeforeWindowEnds,
}

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let short = Duration::from_secs(10);
    let (lasting, start) = if plan.quick {
        (short, Start::AtOnce)
    } else {
        (Duration::from_secs(WINDOW_SECONDS + 2), Start::WithWindow)
    };
    let runtime = host::runtime()?;
    let mut table = Table::new([
        "requests/s",
        "requests",
        "admitted",
        "possible",
        "calls",
        "requests/call",
        "after 2 s",
        "over",
        "under %",
        "",
    ]);
    let runs = RATES.map(|rate| (rate, lasting, start, ""));
    let across = (RATES[0], short, Start::BeforeWindowEnds, ", over the end of a window");
    for (rate, lasting, start, when) in runs.into_iter().chain([across]) {
        let servers = ALGORITHMS.map(|_| host::start_server());
        let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
        let all = runtime.block_on(run(&servers, rate, lasting, start))?;
        for ((_, name), figures) in ALGORITHMS.iter().zip(all) {
            table.row(figures.cells(rate, &format!("{name}{when}")));
            figures.evaluate(&format!("{name}, {rate}/s{when}"), targets);
        }
    }
    println!(
        "\nOne key, {NODES} nodes, {REQUESTS} per {WINDOW_SECONDS} s, default settings, {} s each ({} s over the end of a window)\n\n{table}",
        lasting.as_secs(),
        short.as_secs()
    );
    Ok(())
}

async fn run(servers: &[RedisServer], rate: u32, lasting: Duration, start: Start) -> Result<Vec<Figures>> {
    let mut cases = Vec::new();
    for ((algorithm, _), server) in ALGORITHMS.into_iter().zip(servers) {
        cases.push(Case::open(algorithm, server).await?);
    }
    match start {
        Start::AtOnce => {}
        Start::WithWindow => tokio::time::sleep(until_next_window()).await,
        Start::BeforeWindowEnds => tokio::time::sleep(until_next_window().saturating_sub(BEFORE_END)).await,
    }
    let start = Instant::now();
    let runs = cases.iter().zip(servers).map(|(case, server)| case.run(server, rate, start, lasting));
    let mut all = Vec::new();
    for figures in futures(runs).await {
        all.push(figures?);
    }
    Ok(all)
}

/// All of them at once, on this task.
async fn futures<T>(runs: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut runs: Vec<_> = runs.map(|run| (Box::pin(run), None)).collect();
    std::future::poll_fn(|context| {
        for (run, done) in &mut runs {
            if done.is_none()
                && let std::task::Poll::Ready(value) = run.as_mut().poll(context)
            {
                *done = Some(value);
            }
        }
        if runs.iter().all(|(_, done)| done.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    runs.into_iter().filter_map(|(_, done)| done).collect()
}

fn until_next_window() -> Duration {
    Duration::from_micros(WINDOW_MICROS - load::now().as_micros() % WINDOW_MICROS)
}

/// One algorithm under load.
struct Case {
    limits: Arc<Limits>,
    nodes: Vec<RedisCounters>,
    seen: Arc<Seen>,
}

/// The result.
struct Seen {
    algorithm: Algorithm,
    ideal: MemoryCounters,
    possible: AtomicU64,
    requests: AtomicU64,
    /// Admissions per unit of the resolution.
    pieces: Vec<AtomicU64>,
    first_piece: u64,
}

impl Case {
    async fn open(algorithm: Algorithm, server: &RedisServer) -> Result<Self> {
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(host::open(&host::patient(server)).await?);
        }
        // So that each node knows the others.
        while nodes.iter().any(|node| (node.nodes().get() as usize) < NODES) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let limits = Arc::new(Limits::one(load::limit(algorithm, REQUESTS, WINDOW_SECONDS)?));
        let seen = Arc::new(Seen::new(algorithm));
        Ok(Self { limits, nodes, seen })
    }

    async fn run(
        &self,
        server: &RedisServer,
        rate: u32,
        start: Instant,
        lasting: Duration,
    ) -> Result<Figures> {
        let (before, _) = script_calls(server)?;
        let each = f64::from(rate) / NODES as f64;
        let nodes = self.nodes.iter().enumerate().map(|(number, node)| {
            let (limits, seen, node) = (Arc::clone(&self.limits), Arc::clone(&self.seen), node.clone());
            let offset = STEP.mul_f64(number as f64 / NODES as f64);
            tokio::spawn(async move {
                tokio::time::sleep(offset).await;
                ask_steadily(&node, &limits, &seen, each, start, lasting).await
            })
        });
        let nodes: Vec<_> = nodes.collect();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let early = (self.seen.requests.load(Ordering::Relaxed), script_calls(server)?.0);
        for node in nodes {
            node.await??;
        }
        let requests = self.seen.requests.load(Ordering::Relaxed);
        let calls = script_calls(server)?.0;
        Ok(Figures {
            requests,
            admitted: self.seen.admitted(),
            possible: self.seen.possible.load(Ordering::Relaxed),
            calls: calls - before,
            later_per_call: (requests - early.0) as f64 / (calls - early.1).max(1.0),
            over: self.seen.over(),
        })
    }
}

/// One node's share of the requests, evenly distributed in time; delays are made up for.
async fn ask_steadily(
    node: &RedisCounters,
    limits: &Limits,
    seen: &Seen,
    rate: f64,
    start: Instant,
    lasting: Duration,
) -> Result<()> {
    let mut sent = 0.0;
    while start.elapsed() < lasting {
        let due = start.elapsed().as_secs_f64() * rate;
        while sent < due {
            sent += 1.0;
            let (charges, now) = (limits.charges(0), load::now());
            let (verdicts, decided_at) = node.charge_all_timed(&charges, now).await?;
            let decided_at = decided_at.unwrap_or(now);
            seen.note(verdicts.admitted(&charges), decided_at);
            let ideal = seen.ideal.charge_all_now(&charges, decided_at).admitted(&charges);
            seen.possible.fetch_add(u64::from(ideal), Ordering::Relaxed);
        }
        tokio::time::sleep(STEP).await;
    }
    Ok(())
}

impl Seen {
    fn new(algorithm: Algorithm) -> Self {
        let now = load::now().as_micros();
        Self {
            algorithm,
            ideal: MemoryCounters::default(),
            possible: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            pieces: (0..4 * PIECES_PER_WINDOW).map(|_| AtomicU64::new(0)).collect(),
            first_piece: (now - now % WINDOW_MICROS) / PIECE_MICROS,
        }
    }

    fn note(&self, admitted: bool, at: Timestamp) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let piece = at.as_micros() / PIECE_MICROS - self.first_piece;
        if admitted && let Some(count) = self.pieces.get(usize::try_from(piece).unwrap_or(usize::MAX)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> Vec<u64> {
        self.pieces.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    fn admitted(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// By how much the bound of the algorithm was exceeded: the limit per window, or for a bucket its capacity and refill
    /// in any span.
    fn over(&self) -> f64 {
        let counts = self.counts();
        if self.algorithm != Algorithm::TokenBucket {
            let windows = counts.chunks(PIECES_PER_WINDOW);
            let fullest = windows.map(|window| window.iter().sum::<u64>()).max().unwrap_or(0);
            return fullest.saturating_sub(REQUESTS.into()) as f64;
        }
        let comes_in = f64::from(REQUESTS) / PIECES_PER_WINDOW as f64;
        let (mut most, mut here) = (0.0_f64, 0.0_f64);
        for count in counts {
            here = here.max(0.0) + count as f64 - comes_in;
            most = most.max(here);
        }
        (most - f64::from(REQUESTS)).max(0.0).ceil()
    }
}

struct Figures {
    requests: u64,
    admitted: u64,
    possible: u64,
    calls: f64,
    later_per_call: f64,
    over: f64,
}

impl Figures {
    fn per_call(&self) -> f64 {
        self.requests as f64 / self.calls.max(1.0)
    }

    fn under_percent(&self) -> f64 {
        100.0 * (self.possible as f64 - self.admitted as f64).max(0.0) / self.possible as f64
    }

    fn cells(&self, rate: u32, name: &str) -> [String; 10] {
        [
            rate.to_string(),
            self.requests.to_string(),
            self.admitted.to_string(),
            self.possible.to_string(),
            format!("{:.0}", self.calls),
            format!("{:.0}", self.per_call()),
            format!("{:.0}", self.later_per_call),
            format!("{:.0}", self.over),
            format!("{:.3}", self.under_percent()),
            name.to_owned(),
        ]
    }

    fn evaluate(&self, what: &str, targets: &mut Targets) {
        targets.at_least(format!("hot key, requests per call: {what}"), self.per_call(), 70.0);
        targets.at_least(format!("hot key, the same after 2 s: {what}"), self.later_per_call, 70.0);
        targets.at_most(format!("hot key, admitted too many: {what}"), self.over, 0.0);
        targets.at_most(format!("hot key, admitted too few, %: {what}"), self.under_percent(), 0.5);
    }
}
