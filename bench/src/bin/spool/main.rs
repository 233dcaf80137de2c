//! The disk spool of records: tollgate's segments against queue-file and SQLite, and how fast it is drained into PostgreSQL.
//!
//! `spool [--quick] [append|drain]`, run by `bench/run`. Everything runs on core 0, PostgreSQL on core 1.

mod contenders;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use tollgate_bench::machine::pin_to;
use tollgate_bench::report::{Table, Targets, median};
use tollgate_server::bench::{Spool, push_decision};
use tollgate_testkit::PostgresServer;

use self::contenders::{Queue, open_queue};

const CONTENDERS: [&str; 3] = ["segments", "queue-file", "SQLite"];
const FRAME_ROWS: u32 = 1_000;
const SYNC_EVERY: Duration = Duration::from_millis(200);
const START_MICROS: u64 = 1_700_000_000_000_000;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = args.iter().any(|arg| arg == "--quick");
    let sections: Vec<&str> = args.iter().map(String::as_str).filter(|arg| *arg != "--quick").collect();
    if sections.iter().any(|section| !["append", "drain"].contains(section)) {
        bail!("usage: spool [--quick] [append|drain]");
    }
    let mut targets = Targets::default();
    if sections.is_empty() || sections.contains(&"append") {
        measure_append(is_quick, &mut targets)?;
    }
    if sections.is_empty() || sections.contains(&"drain") {
        measure_drain(is_quick, &mut targets)?;
    }
    println!("{targets}");
    Ok(())
}

/// On the disk of the build, because `/tmp` may be in memory.
fn folder() -> Result<TempDir> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    std::fs::create_dir_all(&target)?;
    TempDir::new_in(target).context("cannot create a folder")
}

#[derive(Default)]
struct Samples {
    appended_per_sec: Vec<f64>,
    cpu_ns_per_row: Vec<f64>,
    removed_per_sec: Vec<f64>,
}

fn measure_append(is_quick: bool, targets: &mut Targets) -> Result<()> {
    pin_to(0)?;
    let (rounds, duration) = if is_quick { (1, 1) } else { (5, 3) };
    let mut samples: [Samples; 3] = Default::default();
    for _ in 0..rounds {
        for (name, samples) in CONTENDERS.iter().zip(&mut samples) {
            let folder = folder()?;
            let mut queue = open_queue(name, folder.path())?;
            fill(queue.as_mut(), Duration::from_secs(duration), samples)
                .with_context(|| (*name).to_owned())?;
        }
    }
    let mut table = Table::new(["spool", "rows/s appended", "CPU ns/row", "rows/s read and removed"]);
    for (name, samples) in CONTENDERS.iter().zip(&samples) {
        table.row([
            (*name).to_owned(),
            format!("{:.0}", median(samples.appended_per_sec.iter().copied())),
            format!("{:.0}", median(samples.cpu_ns_per_row.iter().copied())),
            format!("{:.0}", median(samples.removed_per_sec.iter().copied())),
        ]);
    }
    let row_bytes = frame(0).len() / FRAME_ROWS as usize;
    println!(
        "rows of {row_bytes} bytes in frames of {FRAME_ROWS}, synced every {SYNC_EVERY:?}, one core\n{table}"
    );
    targets.at_least(
        "rows/s appended to the spool",
        median(samples[0].appended_per_sec.iter().copied()),
        100_000.0,
    );
    Ok(())
}

/// Appends for some time, then reads and removes everything.
fn fill(queue: &mut dyn Queue, duration: Duration, samples: &mut Samples) -> Result<()> {
    let payload = frame(0);
    let (started, cpu_before, mut synced, mut rows) =
        (Instant::now(), process_cpu_ns(), Instant::now(), 0_u64);
    while started.elapsed() < duration {
        queue.append(FRAME_ROWS, &payload)?;
        rows += u64::from(FRAME_ROWS);
        if synced.elapsed() >= SYNC_EVERY {
            queue.sync()?;
            synced = Instant::now();
        }
    }
    queue.sync()?;
    samples.appended_per_sec.push(rows as f64 / started.elapsed().as_secs_f64());
    samples.cpu_ns_per_row.push((process_cpu_ns() - cpu_before) as f64 / rows as f64);
    let (started, mut removed) = (Instant::now(), 0);
    loop {
        match queue.take()? {
            0 => break,
            more => removed += more,
        }
    }
    ensure!(removed == rows, "{removed} rows read, {rows} appended");
    samples.removed_per_sec.push(rows as f64 / started.elapsed().as_secs_f64());
    Ok(())
}

/// A frame of decisions.
fn frame(first: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    for row in first..first + u64::from(FRAME_ROWS) {
        push_decision(&mut payload, START_MICROS + row, row % 10_000);
    }
    payload
}

fn measure_drain(is_quick: bool, targets: &mut Targets) -> Result<()> {
    let frames = if is_quick { 100 } else { 1_000 };
    pin_to(1)?;
    let server = PostgresServer::start();
    pin_to(0)?;
    let folder = folder()?;
    let mut spool = Spool::open(&folder.path().join("log"), u64::MAX)?;
    for number in 0..frames {
        spool.append(FRAME_ROWS, &frame(number * u64::from(FRAME_ROWS)));
    }
    spool.sync();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (url, quarantine) = (server.create_database(), folder.path().join("quarantine.ndjson"));
    let started = Instant::now();
    let stored = runtime.block_on(spool.drain(&url, &quarantine))?;
    let per_sec = stored as f64 / started.elapsed().as_secs_f64();
    ensure!(stored == frames * u64::from(FRAME_ROWS), "{stored} rows stored");
    let count = server.execute("test_0", "SELECT COUNT(*) FROM rate_limit_audit_logs");
    ensure!(count.trim() == stored.to_string(), "{} rows in the table", count.trim());
    println!("{stored} decisions drained into PostgreSQL, {per_sec:.0} rows/s\n");
    targets.at_least("rows/s drained into PostgreSQL", per_sec, 20_000.0);
    Ok(())
}

/// CPU time of all threads.
fn process_cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
