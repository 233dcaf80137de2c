//! The CPU time of a REST check with records, compared with `records.enabled = false`.
//!
//! A server with records and one without run on core 0, loaded at the same time. The CPU time of a server includes the writers, spool
//! and SQLite. Starts of the same two servers differ by a few percent, so each figure is the median of several.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tollgate_bench::process::{Server, free_address};
use tollgate_bench::report::{Table, Targets};
use tollgate_bench::side_by_side::{Comparison, Loaded};

use crate::Plan;

const SERVER_CORE: usize = 0;
const LOAD_CORE: usize = 1;
/// Longer than the interval at which window records are stored, so that this work is in the measurement.
const WARM_UP: Duration = Duration::from_secs(22);
const RATIO_MAX: f64 = 1.08;

/// The clients, as `check.lua` names them.
const CLIENTS: [(&str, &str); 2] = [("10,000", "tollgate"), ("1 million", "tollgate_million")];
const OFF: &str = "[records]\nenabled = false\n";
const SETTINGS: [(&str, &str); 2] = [("on", ""), ("all logged", "[records]\nsample_allowed = \"all\"\n")];

pub fn run(plan: &Plan) -> Result<()> {
    println!(
        "\nCPU time of a REST check, both servers loaded at once for {} s per start; without records = 1\n",
        plan.turn.as_secs()
    );
    let mut table = Table::new(["clients", "records", "starts", "CPU µs/request", "off", "÷ off", "RSS MB"]);
    let mut targets = Targets::default();
    for (clients, shape) in CLIENTS {
        for (name, settings) in SETTINGS {
            let has_target = (clients, name) == ("10,000", "on");
            let starts = if has_target { plan.starts } else { plan.starts.div_ceil(4) };
            let (cost, resident_mb) =
                compare(plan, settings, shape, starts).with_context(|| name.to_owned())?;
            let [off, cpu_us] = cost.cpu_us();
            table.row([
                clients.to_owned(),
                name.to_owned(),
                starts.to_string(),
                format!("{cpu_us:.2}"),
                format!("{off:.2}"),
                cost.text(),
                format!("{resident_mb:.0}"),
            ]);
            if has_target {
                targets.at_most("CPU with records, 10,000 clients, ÷ off", cost.ratio(), RATIO_MAX);
            }
        }
    }
    println!("{table}\n{targets}");
    Ok(())
}

/// A server without records and one with them, started several times. Returns the resident memory of the last one, too.
fn compare(plan: &Plan, settings: &str, shape: &str, starts: u32) -> Result<(Comparison, f64)> {
    let (mut cost, mut resident_mb) = (Comparison::default(), 0.0);
    for start in 1..=starts {
        let (without, with) = (Contender::start(plan, OFF)?, Contender::start(plan, settings)?);
        let loaded = |contender| Loaded::new(contender, shape);
        let (off, on) = (loaded(&without.server), loaded(&with.server));
        Comparison::default().add_turn(&off, &on, LOAD_CORE, WARM_UP)?;
        cost.add_turn(&off, &on, LOAD_CORE, plan.turn)?;
        resident_mb = with.resident_mb()?;
        eprintln!("start {start} of {starts}: {}", cost.text());
    }
    Ok((cost, resident_mb))
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
