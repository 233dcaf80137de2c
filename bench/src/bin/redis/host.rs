//! A Redis server on a core of its own, and what it and we have used.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tollgate_bench::machine::pin_to;
use tollgate_stores::redis::{Address, RedisCounters, RedisSettings, Topology};
use tollgate_testkit::RedisServer;

pub const REDIS_CORE: usize = 0;
const CLIENT_CORE: usize = 1;

/// Starts a server on its core; the caller goes on from the other.
pub fn start_server() -> Result<RedisServer> {
    pin_to(REDIS_CORE)?; // a child runs where its parent does
    let server = RedisServer::start();
    pin_to(CLIENT_CORE)?;
    Ok(server)
}

/// A runtime on the core of the caller, hence with one worker, as a service on one core has.
pub fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Default settings, except that nothing is given up for being slow: the machine may be busy.
pub fn patient(server: &RedisServer) -> RedisSettings {
    RedisSettings { timeout: Duration::from_secs(5), ..settings(server) }
}

/// Default settings.
pub fn settings(server: &RedisServer) -> RedisSettings {
    let address = server.address();
    RedisSettings::new(Topology::Single(Address::Tcp {
        host: address.ip().to_string(),
        port: address.port(),
    }))
}

/// A store that is connected.
pub async fn open(settings: &RedisSettings) -> Result<RedisCounters> {
    let store = RedisCounters::open(settings)?;
    anyhow::ensure!(
        store.connected(Duration::from_secs(10)).await,
        "cannot connect to the server just started"
    );
    Ok(store)
}

/// CPU time and calls so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub client_us: f64,
    pub redis_us: f64,
    pub script_us: f64,
    pub calls: f64,
}

impl Used {
    pub fn so_far(server: &RedisServer) -> Result<Self> {
        let cpu = server.info("cpu");
        let seconds = |name: &str| -> Result<f64> {
            Ok(cpu.get(name).with_context(|| format!("INFO cpu has no {name}"))?.parse()?)
        };
        let (calls, script_us) = script_calls(server)?;
        Ok(Self {
            client_us: process_cpu_us(),
            redis_us: (seconds("used_cpu_user")? + seconds("used_cpu_sys")?) * 1e6,
            script_us,
            calls,
        })
    }

    pub fn since(&self, before: &Self) -> Self {
        Self {
            client_us: self.client_us - before.client_us,
            redis_us: self.redis_us - before.redis_us,
            script_us: self.script_us - before.script_us,
            calls: self.calls - before.calls,
        }
    }
}

/// Calls of scripts, and the microseconds that Redis says they took.
pub fn script_calls(server: &RedisServer) -> Result<(f64, f64)> {
    let stats = server.info("commandstats");
    let Some(line) = stats.get("cmdstat_evalsha") else { return Ok((0.0, 0.0)) };
    let field = |name: &str| -> Result<f64> {
        let value = line.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        Ok(value.with_context(|| format!("commandstats has no {name}"))?.parse()?)
    };
    Ok((field("calls")?, field("usec")?))
}

fn process_cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
