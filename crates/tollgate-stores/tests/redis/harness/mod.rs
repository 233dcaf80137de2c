//! Runs the conformance suite against stores with a real clock; helpers for the other tests.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "each test file uses a part of it; a test may panic"
)]

pub(crate) mod limits;

use std::future::Future;
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::runtime::Runtime;
use tollgate::counters::conformance::Harness;
use tollgate::{Span, Timestamp};
use tollgate_stores::redis::{Address, RedisCounters, RedisSettings, Topology};
use tollgate_testkit::RedisServer;

/// A store, its runtime, and its servers.
pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) store: RedisCounters,
    servers: Box<dyn std::any::Any + Send + Sync>,
}

impl Shared {
    pub(crate) fn new(settings: &RedisSettings, servers: impl std::any::Any + Send + Sync) -> Self {
        let runtime = runtime();
        let store = runtime.block_on(open(settings));
        Shared { runtime, store, servers: Box::new(servers) }
    }

    /// A store on one server.
    pub(crate) fn single() -> Self {
        let server = RedisServer::start();
        Self::new(&patient(Topology::Single(address(server.address()))), server)
    }
}

/// A runtime like that of the service.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Opens a store and waits until it is connected.
pub(crate) async fn open(settings: &RedisSettings) -> RedisCounters {
    let store = RedisCounters::open(settings).unwrap();
    assert!(store.connected(Duration::from_secs(10)).await, "{:?}", store.servers());
    store
}

/// The local time.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

/// Settings without leases and refusal cache: every decision is a call.
pub(crate) fn exact(topology: Topology) -> RedisSettings {
    RedisSettings { leases: false, refusal_cache: false, ..patient(topology) }
}

/// One server as a topology.
pub(crate) fn single(server: std::net::SocketAddr) -> Topology {
    Topology::Single(address(server))
}

/// Settings for tests, with timeouts long enough for a slow machine.
pub(crate) fn patient(topology: Topology) -> RedisSettings {
    RedisSettings { timeout: Duration::from_secs(5), ..RedisSettings::new(topology) }
}

pub(crate) fn address(address: std::net::SocketAddr) -> Address {
    Address::Tcp { host: address.ip().to_string(), port: address.port() }
}

/// Cases that let time pass: seconds on a real clock.
const WAITING: [&str; 6] = [
    "burst_returns_after_idle_window",
    "waiting_for_retry_after_is_enough",
    "cooldown_refuses_whatever_the_limits_admit",
    "refusal_that_starts_a_cooldown_reports_it",
    "refund_after_the_window_is_dropped",
    "callers_with_different_limits_get_the_largest",
];

/// A case of the conformance suite and its name.
type Case = (&'static str, fn(&Shared));

fn cases(waiting: bool) -> Vec<Case> {
    let mut cases: Vec<Case> = tollgate::counters::conformance!(cases).into();
    let is_case = |waiting: &&str| cases.iter().any(|(name, _)| name == waiting);
    assert!(WAITING.iter().all(is_case), "a case was renamed");
    cases.retain(|(name, _)| WAITING.contains(name) == waiting);
    cases
}

/// Runs the cases that do not wait on one store.
pub(crate) fn conforms(harness: &Shared) {
    for (name, case) in cases(false) {
        eprintln!("{name}");
        case(harness);
    }
}

/// Runs the other cases concurrently on several stores.
pub(crate) fn all_conform_in_time(harnesses: &[(&'static str, Shared)]) {
    thread::scope(|scope| {
        for (topology, harness) in harnesses {
            for (name, case) in cases(true) {
                let thread = thread::Builder::new().name(format!("{topology}: {name}"));
                thread.spawn_scoped(scope, move || case(harness)).unwrap();
            }
        }
    });
}

impl Harness for Shared {
    type Store = RedisCounters;

    fn store(&self) -> &RedisCounters {
        &self.store
    }

    fn now(&self) -> Timestamp {
        now()
    }

    fn advance(&self, span: Span) {
        thread::sleep(Duration::from(span));
    }

    fn drift(&self) -> Span {
        Span::from_millis(400)
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}
