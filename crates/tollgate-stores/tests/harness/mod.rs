//! Drives the conformance suite against counters with a clock of their own.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part of it; a test may panic")]

use std::future::Future;
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::runtime::Runtime;
use tollgate::counters::conformance::Harness;
use tollgate::{Span, Timestamp};
use tollgate_stores::redis::{Address, RedisCounters, RedisSettings, Topology};
use tollgate_testkit::RedisServer;

/// A store, the runtime it lives in, and what keeps its servers running.
pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) store: RedisCounters,
    servers: Box<dyn std::any::Any + Sync>,
}

impl Shared {
    pub(crate) fn new(settings: &RedisSettings, servers: impl std::any::Any + Sync) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let store = runtime.block_on(async { RedisCounters::open(settings) }).unwrap();
        assert!(runtime.block_on(store.connected(Duration::from_secs(10))), "{:?}", store.links());
        Shared { runtime, store, servers: Box::new(servers) }
    }

    /// On one server.
    pub(crate) fn single() -> Self {
        let server = RedisServer::start();
        Self::new(&patient(Topology::Single(address(server.address()))), server)
    }
}

/// Settings for tests: machines under test are slow, and nothing is proved by a time-out.
pub(crate) fn patient(topology: Topology) -> RedisSettings {
    RedisSettings { timeout: Duration::from_secs(2), ..RedisSettings::new(topology) }
}

pub(crate) fn address(address: std::net::SocketAddr) -> Address {
    Address::Tcp { host: address.ip().to_string(), port: address.port() }
}

impl Harness for Shared {
    type Store = RedisCounters;

    fn store(&self) -> &RedisCounters {
        &self.store
    }

    fn now(&self) -> Timestamp {
        Timestamp::from(SystemTime::now())
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
