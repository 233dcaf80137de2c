//! The REST check on shared counters: CPU time of the service and of Redis per request.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tollgate_bench::machine::pin_to;
use tollgate_bench::process::{Server, free_address};
use tollgate_bench::report::{Table, median};
use tollgate_bench::wrk::{self, Load};
use tollgate_testkit::RedisServer;

use crate::Plan;
use crate::host::{REDIS_CORE, Used};

// The service and Redis share one core, as the peers do; the load has the other.
const SERVER_CORE: usize = REDIS_CORE;
const LOAD_CORE: usize = 1;
const WARM_UP: Duration = Duration::from_secs(1);
const STORES: [(&str, &str); 3] =
    [("memory", ""), ("Redis, exact", "leases = false\n"), ("Redis, leases on", "leases = true\n")];

pub fn measure(plan: &Plan) {
    let lasting = Duration::from_secs(if plan.quick { 2 } else { 8 });
    let rounds = plan.rounds.min(3);
    let mut samples: [Vec<Sample>; STORES.len()] = Default::default();
    for round in 1..=rounds {
        for (place, (name, setting)) in STORES.iter().enumerate() {
            match Sample::take(&plan.tollgate, setting, lasting) {
                Ok(sample) => {
                    let Sample { server_us, redis_us, .. } = sample;
                    eprintln!(
                        "round {round}: {name:<16} {server_us:6.2} µs here, {redis_us:6.2} µs in Redis"
                    );
                    samples[place].push(sample);
                }
                Err(error) => eprintln!("service on {name} is left out: {error:#}"),
            }
        }
    }
    let mut table =
        Table::new(["counters", "service µs", "Redis µs", "calls/request", "requests/s", "p50 µs", "p99 µs"]);
    for ((name, _), rounds) in STORES.iter().zip(&samples) {
        let middle = |figure: fn(&Sample) -> f64| median(rounds.iter().map(figure));
        table.row([
            (*name).to_owned(),
            format!("{:.2}", middle(|s| s.server_us)),
            format!("{:.2}", middle(|s| s.redis_us)),
            format!("{:.3}", middle(|s| s.calls)),
            format!("{:.0}", middle(|s| s.load.requests_per_second)),
            format!("{:.0}", middle(|s| s.load.p50_us)),
            format!("{:.0}", middle(|s| s.load.p99_us)),
        ]);
    }
    println!(
        "\nOne REST check: {} connections, 10,000 clients, service and Redis on one core; CPU per request, median of \
         {rounds} round(s) of {} s\n\n{table}",
        wrk::CONNECTIONS,
        lasting.as_secs()
    );
}

struct Sample {
    server_us: f64,
    redis_us: f64,
    calls: f64,
    load: Load,
}

impl Sample {
    fn take(tollgate: &Path, setting: &str, lasting: Duration) -> Result<Self> {
        pin_to(REDIS_CORE)?;
        let redis = RedisServer::start();
        pin_to(LOAD_CORE)?;
        let dir = TempDir::new()?;
        let server = start(tollgate, setting, &redis, dir.path())?;
        wrk::run(server.address, &["tollgate"], LOAD_CORE, WARM_UP)?;
        let (before, used) = (server.cpu()?, Used::so_far(&redis)?);
        let load = wrk::run(server.address, &["tollgate"], LOAD_CORE, lasting)?;
        let (after, used) = (server.cpu()?, Used::so_far(&redis)?.since(&used));
        let calls = used.calls / load.requests;
        ensure!(setting.is_empty() || calls > 0.0, "the service did not ask Redis");
        Ok(Self {
            server_us: after.saturating_sub(before).as_secs_f64() * 1e6 / load.requests,
            redis_us: used.redis_us / load.requests,
            calls,
            load,
        })
    }
}

/// Limits whose counters do not expire: see `load.rs`.
fn start(tollgate: &Path, setting: &str, redis: &RedisServer, dir: &Path) -> Result<Server> {
    ensure!(tollgate.is_file(), "there is no binary at {}", tollgate.display());
    let config = dir.join("tollgate.toml");
    let counters = if setting.is_empty() {
        "[counters]\nstore = \"memory\"\n".to_owned()
    } else {
        format!("[counters]\nstore = \"redis\"\nurl = \"{}\"\ntimeout = \"1s\"\n{setting}", redis.url())
    };
    fs::write(&config, format!("default_limit = 10000\ndefault_window = 86400\n{counters}"))?;
    let address = free_address()?;
    let command = [
        tollgate.as_os_str().to_owned(),
        "serve".into(),
        "--config".into(),
        config.into(),
        "--listen".into(),
        address.to_string().into(),
        "--data-dir".into(),
        dir.join("data").into(),
    ];
    Server::start(&command, SERVER_CORE, address, dir).context("cannot start tollgate")
}
