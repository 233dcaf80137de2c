//! The CPU time of a REST check with records, compared with `records.enabled = false`.
//!
//! The server runs on core 0, wrk on core 1; servers with and without records alternate. The CPU time of the server includes the
//! writers: spool and SQLite.

use std::fs;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tollgate_bench::process::{Server, free_address};
use tollgate_bench::report::{Table, Targets, median, median_ratio};
use tollgate_bench::wrk;

use crate::Plan;

const SERVER_CORE: usize = 0;
const LOAD_CORE: usize = 1;
/// Longer than the interval at which window records are stored, so that this work is in the measurement.
const WARM_UP: std::time::Duration = std::time::Duration::from_secs(12);
const RATIO_MAX: f64 = 1.08;

/// The clients, as `check.lua` names them.
const CLIENTS: [(&str, &str); 2] = [("10,000", "tollgate"), ("1 million", "tollgate_million")];
const SETTINGS: [(&str, &str); 3] = [
    ("off", "[records]\nenabled = false\n"),
    ("on", ""),
    ("all logged", "[records]\nsample_allowed = \"all\"\n"),
];

pub fn run(plan: &Plan) -> Result<()> {
    println!(
        "\nCPU time of a REST check: {} connections, median of {} round(s) of {} s; without records = 1\n",
        wrk::CONNECTIONS,
        plan.rounds,
        plan.duration.as_secs()
    );
    let (mut table, mut targets) =
        (Table::new(["clients", "records", "CPU µs/request", "÷ off", "RSS MB"]), Targets::default());
    for (clients, shape) in CLIENTS {
        let mut samples: [Vec<(f64, f64)>; SETTINGS.len()] = Default::default();
        for round in 1..=plan.rounds {
            for ((name, settings), samples) in SETTINGS.iter().zip(&mut samples) {
                let (cpu_us, resident_mb) =
                    measure(plan, settings, shape).with_context(|| (*name).to_owned())?;
                eprintln!("round {round}: {clients} clients, records {name}: {cpu_us:.2} µs");
                samples.push((cpu_us, resident_mb));
            }
        }
        for ((name, _), rounds) in SETTINGS.iter().zip(&samples) {
            let cpu = |rounds: &[(f64, f64)]| rounds.iter().map(|(cpu, _)| *cpu).collect::<Vec<_>>();
            let ratio = median_ratio(cpu(rounds), cpu(&samples[0]));
            let resident = median(rounds.iter().map(|(_, resident)| *resident));
            let figures = [median(cpu(rounds)), ratio, resident];
            table.row([
                clients.to_owned(),
                (*name).to_owned(),
                format!("{:.2}", figures[0]),
                format!("{:.3}", figures[1]),
                format!("{:.0}", figures[2]),
            ]);
            if (clients, *name) == ("10,000", "on") {
                targets.at_most("CPU with records, 10,000 clients, ÷ off", ratio, RATIO_MAX);
            }
        }
    }
    println!("{table}\n{targets}");
    Ok(())
}

/// CPU microseconds per request and resident megabytes.
fn measure(plan: &Plan, settings: &str, shape: &str) -> Result<(f64, f64)> {
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
    wrk::run(address, &[shape], LOAD_CORE, WARM_UP)?;
    let before = server.cpu()?;
    let load = wrk::run(address, &[shape], LOAD_CORE, plan.duration)?;
    let cpu = (server.cpu()? - before).as_secs_f64();
    let resident = server.resident_bytes()?.0;
    #[expect(clippy::cast_precision_loss, reason = "megabytes are enough")]
    let resident_mb = resident as f64 / 1e6;
    Ok((cpu * 1e6 / load.requests, resident_mb))
}
