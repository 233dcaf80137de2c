//! How fast the decision log is drained from the spool into a PostgreSQL server that calls fsync.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tollgate_bench::frames::{FRAME_ROWS, START_MICROS, frame};
use tollgate_bench::machine::{disk_folder, pin_to};
use tollgate_bench::report::{Targets, median};
use tollgate_server::bench::Spool;
use tollgate_testkit::PostgresServer;

use crate::postgres;

const SERVER_CORE: usize = 1;
const DRAIN_CORE: usize = 0;
const ROWS_PER_SEC_MIN: f64 = 20_000.0;

pub fn run(is_quick: bool) -> Result<()> {
    let (rounds, frames) = if is_quick { (1, 200) } else { (3, 1_000) };
    pin_to(SERVER_CORE)?;
    let server = PostgresServer::start_durable();
    pin_to(DRAIN_CORE)?;
    let rates: Vec<f64> = (0..rounds).map(|round| drain(&server, round, frames)).collect::<Result<_>>()?;
    let (per_sec, rows) = (median(rates.iter().copied()), frames * u64::from(FRAME_ROWS));
    println!("\n{rows} decisions drained into PostgreSQL with fsync, median of {rounds} round(s)\n");
    let mut targets = Targets::default();
    targets.at_least("rows/s drained into PostgreSQL", per_sec, ROWS_PER_SEC_MIN);
    println!("{targets}");
    Ok(())
}

/// Fills a spool, then drains it into a new database. Returns rows per second.
fn drain(server: &PostgresServer, round: u32, frames: u64) -> Result<f64> {
    let folder = disk_folder()?;
    let mut spool = Spool::open(&folder.path().join("log"), u64::MAX)?;
    for number in 0..frames {
        ensure!(spool.append(FRAME_ROWS, &frame(number * u64::from(FRAME_ROWS))), "not written");
    }
    ensure!(spool.sync(), "not synced");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (url, quarantine) = (server.create_database(), folder.path().join("quarantine.ndjson"));
    runtime.block_on(postgres::create_tables(&url, START_MICROS))?;
    let started = Instant::now();
    let stored = runtime.block_on(spool.drain(&url, &quarantine))?;
    let took = started.elapsed();
    ensure!(stored == frames * u64::from(FRAME_ROWS), "{stored} rows stored");
    let count = server.execute(&format!("test_{round}"), "SELECT COUNT(*) FROM rate_limit_audit_logs");
    ensure!(count.trim() == stored.to_string(), "{} rows in the table", count.trim());
    Ok(per_sec(stored, took))
}

fn per_sec(rows: u64, took: Duration) -> f64 {
    rows as f64 / took.as_secs_f64()
}
