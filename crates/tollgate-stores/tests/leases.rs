//! Busy counters are leased: far fewer calls, and never a unit too many.

mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tollgate::counters::{Charge, Charges, CounterId, CounterStore, Effect};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Limit, Span, Timestamp, Window};
use tollgate_stores::redis::{RedisCounters, Topology};
use tollgate_testkit::RedisServer;

use self::harness::{address, patient};

/// One counter that many nodes are asked for.
struct Load {
    limit: Limit,
    subject: Subject,
    nodes: usize,
    /// Requests a second of all nodes together.
    rate: u32,
    /// How much busier each node is than the next, in percent.
    skew_percent: u32,
    lasting: Duration,
}

#[derive(Debug, Default)]
struct Figures {
    requests: u64,
    admitted: u64,
    calls: u64,
    /// Admitted in each window of the limit, by the server's clock at the time.
    by_window: Vec<u64>,
}

impl Load {
    fn new(algorithm: Algorithm, requests: u32, window: Span) -> Self {
        let limit = Limit::new(algorithm, requests, Window::Length(window)).unwrap();
        let subject = Subject(0x5eed_0000 + algorithm as u128);
        Load { limit, subject, nodes: 20, rate: 20_000, skew_percent: 0, lasting: Duration::from_secs(9) }
    }

    fn charges(&self) -> Charges<'_> {
        let charge = Charge {
            subject: self.subject,
            counter: CounterId(1),
            rule: "hot",
            limit: &self.limit,
            cost: 1,
            effect: Effect::Enforce,
            leases: true,
        };
        Charges { charges: [charge].into_iter().collect(), penalty: None, dry_run: false }
    }

    /// The share of each node, in parts of all.
    fn shares(&self) -> Vec<f64> {
        let weight = |node: usize| (1.0 - f64::from(self.skew_percent) / 100.0).powi(i32::try_from(node).unwrap());
        let total: f64 = (0..self.nodes).map(weight).sum();
        (0..self.nodes).map(|node| weight(node) / total).collect()
    }

    fn run(self, server: &RedisServer, killed_after: Option<Duration>) -> Figures {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let load = Arc::new(self);
        runtime.block_on(async {
            let settings = patient(Topology::Single(address(server.address())));
            let mut stores = Vec::new();
            for _ in 0..load.nodes {
                let store = RedisCounters::open(&settings).unwrap();
                assert!(store.connected(Duration::from_secs(10)).await);
                stores.push(store);
            }
            // So that each knows of the others.
            while stores.iter().any(|store| (store.nodes() as usize) < load.nodes) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let before = server.commandstats("evalsha");
            let window = load.limit.window_length().as_micros();
            let windows: Arc<Vec<AtomicU64>> = Arc::new((0..64).map(|_| AtomicU64::new(0)).collect());
            let start = Instant::now();
            let first = Timestamp::from(SystemTime::now()).as_micros() / window;
            let requests = Arc::new(AtomicU64::new(0));
            let nodes = stores.iter().zip(load.shares()).enumerate().map(|(number, (store, share))| {
                let (load, store) = (Arc::clone(&load), store.clone());
                let (windows, requests) = (Arc::clone(&windows), Arc::clone(&requests));
                let lasting = killed_after.filter(|_| number % 2 == 1).unwrap_or(load.lasting);
                tokio::spawn(async move {
                    let mut sent = 0.0;
                    while start.elapsed() < lasting {
                        let due = start.elapsed().as_secs_f64() * f64::from(load.rate) * share;
                        while sent < due {
                            sent += 1.0;
                            let charges = load.charges();
                            let now = Timestamp::from(SystemTime::now());
                            let verdicts = store.charge_all(&charges, now).await.unwrap();
                            requests.fetch_add(1, Ordering::Relaxed);
                            if verdicts.admitted(&charges) {
                                let turn = usize::try_from(now.as_micros() / window - first).unwrap();
                                windows[turn].fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                })
            });
            for node in nodes.collect::<Vec<_>>() {
                node.await.unwrap();
            }
            let by_window: Vec<u64> = windows.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            Figures {
                requests: requests.load(Ordering::Relaxed),
                admitted: by_window.iter().sum(),
                calls: server.commandstats("evalsha") - before,
                by_window,
            }
        })
    }
}

#[test]
fn a_fixed_window_is_never_exceeded_and_hardly_undershot() {
    let server = RedisServer::start();
    let load = Load::new(Algorithm::FixedWindow, 5_000, Span::from_secs(3));
    let figures = load.run(&server, None);
    println!("{figures:?}, {} requests a call", figures.requests / figures.calls);
    assert!(figures.by_window.iter().all(|admitted| *admitted <= 5_000), "{figures:?}");
    assert!(figures.by_window.iter().filter(|admitted| **admitted >= 4_975).count() >= 2, "{figures:?}");
    assert!(figures.calls * 70 <= figures.requests, "{figures:?}");
}

#[test]
fn a_bucket_gives_out_what_it_holds_and_what_comes_in_and_no_more() {
    let server = RedisServer::start();
    let load = Load::new(Algorithm::TokenBucket, 100_000, Span::from_secs(60));
    let lasting = load.lasting;
    let figures = load.run(&server, None);
    println!("{figures:?}, {} requests a call", figures.requests / figures.calls);
    let most = 100_000 + 100_000 * (lasting.as_millis() + 200) / 60_000;
    assert!(u128::from(figures.admitted) <= most, "{figures:?} of {most}");
    assert!(figures.calls * 70 <= figures.requests, "{figures:?}");
}
