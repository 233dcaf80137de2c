//! The disk spool of records: tollgate's segments against queue-file and SQLite.
//!
//! `spool [--quick]`, run by `bench/run`. Everything runs on core 0.

mod contenders;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use tollgate_bench::frames::{FRAME_ROWS, frame};
use tollgate_bench::machine::{disk_folder, pin_to};
use tollgate_bench::report::{Table, Targets, median};

use self::contenders::{Queue, open_queue};

const CONTENDERS: [&str; 3] = ["segments", "queue-file", "SQLite"];
const SYNC_EVERY: Duration = Duration::from_millis(200);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg != "--quick") {
        bail!("usage: spool [--quick]");
    }
    let mut targets = Targets::default();
    measure_append(!args.is_empty(), &mut targets)?;
    println!("{targets}");
    Ok(())
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
            let folder = disk_folder()?;
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

/// CPU time of all threads.
fn process_cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
