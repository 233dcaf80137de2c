//! The CPU time of a REST check with records, compared with `records.enabled = false`.
//!
//! A server with records and one without run on core 0 at the same time, and wrk on core 1 loads them in turn, for a few seconds each:
//! the speed of a shared machine changes within minutes. The CPU time of a server includes the writers, spool and SQLite, also
//! while it is the turn of the other.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tollgate_bench::process::{Server, free_address};
use tollgate_bench::report::{Table, Targets};
use tollgate_bench::wrk;

use crate::Plan;

const SERVER_CORE: usize = 0;
const LOAD_CORE: usize = 1;
/// Longer than the interval at which window records are stored, so that this work is in the measurement.
const WARM_UP: Duration = Duration::from_secs(12);
const RATIO_MAX: f64 = 1.08;

/// The clients, as `check.lua` names them.
const CLIENTS: [(&str, &str); 2] = [("10,000", "tollgate"), ("1 million", "tollgate_million")];
const OFF: &str = "[records]\nenabled = false\n";
const SETTINGS: [(&str, &str); 2] = [("on", ""), ("all logged", "[records]\nsample_allowed = \"all\"\n")];

pub fn run(plan: &Plan) -> Result<()> {
    println!(
        "\nCPU time of a REST check: {} connections, {} turns of {} s; without records = 1\n",
        wrk::CONNECTIONS,
        plan.rounds,
        plan.turn.as_secs()
    );
    let mut table = Table::new(["clients", "records", "CPU µs/request", "off", "÷ off", "RSS MB"]);
    let mut targets = Targets::default();
    for (clients, shape) in CLIENTS {
        for (name, settings) in SETTINGS {
            let pair = Pair::start(plan, settings)?;
            let [off, cpu_us] = pair.measure(plan, shape).with_context(|| name.to_owned())?;
            table.row([
                clients.to_owned(),
                name.to_owned(),
                format!("{cpu_us:.2}"),
                format!("{off:.2}"),
                format!("{:.3}", cpu_us / off),
                format!("{:.0}", pair.with.resident_mb()?),
            ]);
            if (clients, name) == ("10,000", "on") {
                targets.at_most("CPU with records, 10,000 clients, ÷ off", cpu_us / off, RATIO_MAX);
            }
        }
    }
    println!("{table}\n{targets}");
    Ok(())
}

/// Servers without and with records.
struct Pair {
    without: Contender,
    with: Contender,
}

impl Pair {
    fn start(plan: &Plan, settings: &str) -> Result<Self> {
        Ok(Pair { without: Contender::start(plan, OFF)?, with: Contender::start(plan, settings)? })
    }

    /// CPU microseconds per request, without and with records.
    fn measure(&self, plan: &Plan, shape: &str) -> Result<[f64; 2]> {
        let pair = [&self.without, &self.with];
        for contender in pair {
            wrk::run(contender.server.address, &[shape], LOAD_CORE, WARM_UP)?;
        }
        let before = [self.without.server.cpu()?, self.with.server.cpu()?];
        let mut requests = [0.0; 2];
        for turn in 1..=plan.rounds {
            for (contender, requests) in pair.into_iter().zip(&mut requests) {
                *requests += wrk::run(contender.server.address, &[shape], LOAD_CORE, plan.turn)?.requests;
            }
            eprintln!("turn {turn} of {}", plan.rounds);
        }
        let mut cpu_us = [0.0; 2];
        for (index, contender) in pair.into_iter().enumerate() {
            let used = contender.server.cpu()? - before[index];
            cpu_us[index] = used.as_secs_f64() * 1e6 / requests[index];
        }
        Ok(cpu_us)
    }
}

/// A server with its settings.
struct Contender {
    server: Server,
    _dir: TempDir,
}

impl Contender {
    fn start(plan: &Plan, settings: &str) -> Result<Self> {
        let (dir, address) = (TempDir::new()?, free_address()?);
        let config = dir.path().join("tollgate.toml");
        fs::write(&config, format!("default_limit = 1000000\ndefault_window = 60\n{settings}"))?;
        let command = [
            plan.tollgate.clone().into(),
            "serve".into(),
            "--config".into(),
            config.into(),
            "--listen".into(),
            address.to_string().into(),
            "--data-dir".into(),
            dir.path().join("data").into(),
        ];
        let server = Server::start(&command, SERVER_CORE, address, dir.path())?;
        Ok(Contender { server, _dir: dir })
    }

    fn resident_mb(&self) -> Result<f64> {
        #[expect(clippy::cast_precision_loss, reason = "megabytes are enough")]
        let bytes = self.server.resident_bytes()?.0 as f64;
        Ok(bytes / 1e6)
    }
}
