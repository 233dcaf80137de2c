//! Leases of busy counters: far fewer calls, and never a unit too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use tollgate::counters::{Charge, Charges, CounterId, CounterStore as _, Effect};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Limit, Span, Timestamp, Window};
use tollgate_stores::redis::{RedisCounters, RedisSettings, Topology};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges, limit};
use crate::harness::{address, patient};

/// One counter under load from many nodes.
struct Load {
    limit: Limit,
    subject: Subject,
    nodes: usize,
    /// Requests per second of all nodes together.
    rate: u32,
    /// By how much each node is busier than the next, in percent.
    skew_percent: u32,
    lasting: Duration,
}

#[derive(Debug, Default)]
struct Figures {
    lasted: Duration,
    requests: u64,
    admitted: u64,
    calls: u64,
    /// The same two from the third second on, when leases are in use.
    later: (u64, u64),
    /// Admitted in each window, by the server's clock.
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
            refundable: false,
        };
        Charges { charges: [charge].into_iter().collect(), ..Charges::default() }
    }

    /// The share of each node.
    fn shares(&self) -> Vec<f64> {
        let weight =
            |node: usize| (1.0 - f64::from(self.skew_percent) / 100.0).powi(i32::try_from(node).unwrap());
        let total: f64 = (0..self.nodes).map(weight).sum();
        (0..self.nodes).map(|node| weight(node) / total).collect()
    }

    fn run(self, server: &RedisServer, killed_after: Option<Duration>) -> Figures {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let load = Arc::new(self);
        runtime.block_on(async {
            let settings = patient(Topology::Single(address(server.address())));
            let mut stores = Vec::new();
            for _ in 0..load.nodes {
                let store = RedisCounters::open(&settings).unwrap();
                assert!(store.connected(Duration::from_secs(10)).await);
                stores.push(store);
            }
            // Until each node counts the others.
            while stores.iter().any(|store| (store.nodes().get() as usize) < load.nodes) {
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
                            let (verdicts, decided_at) = store.charge_all_timed(&charges, now).await.unwrap();
                            let now = decided_at.unwrap_or(now);
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
            let nodes: Vec<_> = nodes.collect();
            tokio::time::sleep(Duration::from_secs(2)).await;
            let at_first = (requests.load(Ordering::Relaxed), server.commandstats("evalsha"));
            for node in nodes {
                node.await.unwrap();
            }
            let lasted = start.elapsed();
            let requests = requests.load(Ordering::Relaxed);
            let calls = server.commandstats("evalsha");
            let by_window: Vec<u64> = windows.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            Figures {
                lasted,
                requests,
                admitted: by_window.iter().sum(),
                calls: calls - before,
                later: (requests - at_first.0, calls - at_first.1),
                by_window,
            }
        })
    }
}

/// Twenty nodes, a limit of 100,000 per minute, 20,000 requests per second.
const HUNDRED_THOUSAND: u32 = 100_000;
const MINUTE: Span = Span::from_secs(60);

impl Figures {
    fn show(&self, what: &str) {
        let windows: Vec<&u64> = self.by_window.iter().filter(|admitted| **admitted > 0).collect();
        println!(
            "{what}: {} requests, {} admitted {windows:?}, {} calls: one in {}, later one in {}",
            self.requests,
            self.admitted,
            self.calls,
            self.requests / self.calls.max(1),
            self.later.0 / self.later.1.max(1)
        );
    }
}

#[test]
fn busy_window_is_filled_with_few_calls() {
    let server = RedisServer::start();
    let figures = Load::new(Algorithm::FixedWindow, HUNDRED_THOUSAND, MINUTE).run(&server, None);
    figures.show("fixed window");
    assert!(figures.by_window.iter().all(|admitted| *admitted <= HUNDRED_THOUSAND.into()));
    // The run may span two windows; in either case all that was available, or requested, is admitted.
    let possible = figures.requests.min(HUNDRED_THOUSAND.into());
    assert!(figures.admitted * 1_000 >= possible * 995);
    assert!(figures.calls * 70 <= figures.requests);
}

#[test]
fn short_windows_are_never_exceeded() {
    let server = RedisServer::start();
    let figures = Load::new(Algorithm::FixedWindow, 5_000, Span::from_secs(3)).run(&server, None);
    figures.show("short fixed windows");
    assert!(figures.by_window.iter().all(|admitted| *admitted <= 5_000));
    assert!(figures.by_window.iter().filter(|admitted| **admitted >= 4_900).count() >= 2);
}

#[test]
fn leased_bucket_admits_capacity_plus_refill() {
    let server = RedisServer::start();
    let load = Load { skew_percent: 20, ..Load::new(Algorithm::TokenBucket, HUNDRED_THOUSAND, MINUTE) };
    let lasting = load.lasting;
    let figures = load.run(&server, None);
    figures.show("token bucket, one node busier than the next");
    let in_time = |time: Duration| 100_000 + 100_000 * u64::try_from(time.as_millis()).unwrap() / 60_000;
    // A slow machine ends the run late. The server's clock may stand still for a moment.
    assert!(figures.admitted <= in_time(figures.lasted + Duration::from_millis(100)));
    let possible = figures.requests.min(in_time(lasting));
    assert!(figures.admitted * 1_000 >= possible * 990);
    assert!(figures.calls * 50 <= figures.requests);
}

#[test]
fn crashed_nodes_never_add_units() {
    let server = RedisServer::start();
    let load = Load::new(Algorithm::SlidingWindowCounter, HUNDRED_THOUSAND, MINUTE);
    let figures = load.run(&server, Some(Duration::from_secs(3)));
    figures.show("sliding window, every other node dies");
    assert!(figures.by_window.iter().all(|admitted| *admitted <= HUNDRED_THOUSAND.into()));
}

#[test]
fn leases_refuse_nobody_below_the_limit() {
    let server = RedisServer::start();
    let load = Load { rate: 1_500, ..Load::new(Algorithm::FixedWindow, HUNDRED_THOUSAND, MINUTE) };
    let figures = load.run(&server, None);
    figures.show("below the limit");
    assert_eq!(figures.admitted, figures.requests);
    assert!(figures.later.1 * 50 <= figures.later.0);
}

/// Leased units that are unused while the bucket refills still count as part of its capacity.
#[test]
fn late_lease_use_does_not_refill_twice() {
    let server = RedisServer::start();
    let load = Load::new(Algorithm::TokenBucket, 1_000, Span::from_secs(2));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = crate::harness::open(&patient(Topology::Single(address(server.address())))).await;
        let admits = async || {
            let charges = load.charges();
            store.charge_all(&charges, crate::harness::now()).await.unwrap().admitted(&charges)
        };
        while store.leases().units < 100 {
            assert!(admits().await);
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let (start, mut admitted) = (Instant::now(), 0_u128);
        while admits().await {
            admitted += 1;
        }
        let possible = 1_000 + start.elapsed().as_micros() / 2_000 + 1;
        assert!(admitted <= possible, "{admitted} instead of {possible}");
    });
}

#[test]
fn zero_cost_check_sees_leased_units() {
    let server = RedisServer::start();
    let load = Load::new(Algorithm::FixedWindow, 1_000, Span::from_secs(30 * 86_400));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = crate::harness::open(&patient(Topology::Single(address(server.address())))).await;
        let remaining = async |cost| {
            let mut charges = load.charges();
            charges.charges[0].cost = cost;
            let result = store.charge_all(&charges, crate::harness::now()).await.unwrap();
            (result.admitted(&charges), result.verdicts[0].remaining)
        };
        let mut used = 0;
        while store.leases().units < 100 {
            assert!(remaining(1).await.0);
            used += 1;
        }
        assert_eq!(remaining(0).await, (true, 1_000 - used));
        while remaining(1).await.0 {
            used += 1;
        }
        assert_eq!((used, remaining(0).await), (1_000, (false, 0)));
    });
}

/// A client that disconnects during a lease request must not prevent later leases.
#[test]
fn canceled_requests_keep_leasing() {
    let server = RedisServer::start();
    let load = Load::new(Algorithm::FixedWindow, HUNDRED_THOUSAND, MINUTE);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = crate::harness::open(&patient(Topology::Single(address(server.address())))).await;
        for _ in 0..200 {
            let charges = load.charges();
            // Canceled before the reply.
            let _ = store.charge_all(&charges, crate::harness::now()).now_or_never();
        }
        for _ in 0..200 {
            store.charge_all(&load.charges(), crate::harness::now()).await.unwrap();
        }
        assert!(store.leases().served > 50, "{:?}", store.leases());
    });
}

/// A burst ends before the leases that it started. What they hold comes back within a second.
#[test]
fn leases_of_bursty_clients_return_whole() {
    const CLIENTS: usize = 20;
    let server = RedisServer::start();
    let settings = patient(Topology::Single(address(server.address())));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = crate::harness::open(&settings).await;
        let exact = crate::harness::open(&RedisSettings { leases: false, ..settings }).await;
        for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
            let month = Span::from_secs(30 * 86_400);
            let gauges: Vec<Gauge> =
                (0..CLIENTS).map(|_| Gauge::new(limit(algorithm, HUNDRED_THOUSAND, month))).collect();
            // Leases lapse by periods of two seconds: those granted last have the least time to return.
            let into_period = crate::harness::now().as_micros() % 2_000_000;
            tokio::time::sleep(Duration::from_micros((3_500_000 - into_period) % 2_000_000)).await;
            let (start, mut bursts) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_millis(640) {
                for gauge in &gauges {
                    let charges = charges([gauge], 1);
                    assert!(
                        store.charge_all(&charges, crate::harness::now()).await.unwrap().admitted(&charges)
                    );
                }
                bursts += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert!(store.leases().units > 0, "nothing is leased: nothing is proved");
            tokio::time::sleep(Duration::from_secs(3)).await;
            for gauge in &gauges {
                let charges = charges([gauge], 0);
                let verdicts = exact.charge_all(&charges, crate::harness::now()).await.unwrap().verdicts;
                assert_eq!(HUNDRED_THOUSAND - verdicts[0].remaining, bursts, "{algorithm}");
            }
        }
        assert_eq!(store.leases().lost, 0);
    });
}
