//! Parquet files of records: bytes and CPU time per row, from rows in memory to files in a folder.
//!
//! `parquet [--quick]`, run by `bench/run`. Everything runs on core 0.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use tollgate_bench::machine::{disk_folder, pin_to};
use tollgate_bench::report::{Table, median};
use tollgate_stores::archive::{ArchivePlace, ArchiveSettings};
use tollgate_stores::record_files::{RangeEncoder, RecordFiles};
use tollgate_stores::sql::records::{DecisionKind, DecisionRow, RowRange, SourceId, WindowRow};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// 2026-09-21T13:00:00Z
const START_MICROS: u64 = 1_789_995_600_000_000;
const KINDS: [&str; 3] = ["log, with request ids", "log, without request ids", "windows"];

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Few small numbers are frequent, many large ones are rare.
    fn skewed(&mut self, bound: u64) -> u64 {
        let range = 1 + self.below(bound);
        self.below(range)
    }
}

enum Row {
    Decision(Box<DecisionRow>),
    Window(WindowRow),
}

struct Measured {
    bytes_per_row: f64,
    cpu_ns_per_row: f64,
    rows_per_sec: f64,
    files: usize,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (rounds, rows) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (3, 1_000_000),
        ["--quick"] => (1, 200_000),
        _ => bail!("usage: parquet [--quick]"),
    };
    pin_to(0)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut table = Table::new(["rows", "bytes/row", "CPU ns/row", "rows/s on one core", "files", "MB/file"]);
    for kind in 0..KINDS.len() {
        let folder = disk_folder()?;
        let measured = (0..rounds)
            .map(|_| runtime.block_on(measure(folder.path(), kind, rows)))
            .collect::<Result<Vec<_>>>()?;
        let first = measured.first().context("no rounds")?;
        table.row([
            KINDS[kind].to_owned(),
            format!("{:.1}", first.bytes_per_row),
            format!("{:.0}", median(measured.iter().map(|round| round.cpu_ns_per_row))),
            format!("{:.0}", median(measured.iter().map(|round| round.rows_per_sec))),
            first.files.to_string(),
            format!("{:.1}", first.bytes_per_row * rows as f64 / first.files as f64 / 1e6),
        ]);
    }
    println!("\nParquet files of {rows} rows, encoded and written to a folder\n\n{table}");
    Ok(())
}

async fn measure(folder: &Path, kind: usize, rows: u64) -> Result<Measured> {
    let place = ArchivePlace::parse(&format!("file://{}", folder.display()))?;
    let files = RecordFiles::open(&ArchiveSettings::new(place))?;
    let mut random = Random(1);
    let input: Vec<Row> = (0..rows).map(|number| row(&mut random, kind, number)).collect();
    let source = SourceId([9; 16]);
    let (cpu, started) = (process_cpu_ns(), Instant::now());
    let mut encoder = RangeEncoder::new(source, START_MICROS);
    for (number, row) in (0..).zip(input) {
        match row {
            Row::Decision(row) => encoder.add_decision(number, *row)?,
            Row::Window(row) => encoder.add_window(row)?,
        }
    }
    let encoded = encoder.finish(RowRange { source, first: 0, end: rows })?;
    for file in &encoded {
        files.write(file).await?;
    }
    let (cpu, elapsed) = (process_cpu_ns() - cpu, started.elapsed());
    ensure!(encoded.iter().map(|file| file.rows).sum::<u64>() == rows, "rows are missing");
    let bytes: u64 = encoded.iter().map(|file| file.bytes).sum();
    Ok(Measured {
        bytes_per_row: bytes as f64 / rows as f64,
        cpu_ns_per_row: cpu as f64 / rows as f64,
        rows_per_sec: rows as f64 / elapsed.as_secs_f64(),
        files: encoded.len(),
    })
}

fn process_cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The mix of the test `log_rows_take_few_bytes`: refused requests, and some of those that were admitted.
fn row(random: &mut Random, kind: usize, number: u64) -> Row {
    let (client, rule) = (random.skewed(20_000), random.skewed(12));
    let limit = [10, 60, 100, 1_000][usize::try_from(rule % 4).unwrap_or(0)];
    let is_allowed = random.below(10) < 3;
    let endpoint = format!("/api/v1/resource-{}", random.skewed(40));
    let identifier = format!("user:customer-{client}");
    if kind == 2 {
        let minute = number / 200_000;
        return Row::Window(WindowRow {
            start_micros: START_MICROS + minute * 60_000_000,
            identifier: format!("user:customer-{}", random.below(2_000_000)),
            tenant: None,
            route: endpoint,
            allowed: 1 + random.skewed(50),
            refused: random.skewed(5),
            limit_value: Some(limit),
        });
    }
    let count = if is_allowed { random.below(limit) } else { limit };
    let decision = if is_allowed { DecisionKind::Allowed } else { DecisionKind::Throttled };
    Row::Decision(Box::new(DecisionRow {
        at_micros: START_MICROS + number * 20,
        identifier,
        tenant: None,
        user_id: Some(format!("customer-{client}")),
        api_key_id: None,
        ip_address: Some(format!("203.0.{}.{}", client / 250, client % 250)),
        endpoint,
        http_method: Some(["GET", "POST", "PUT"][usize::try_from(random.skewed(3)).unwrap_or(0)].to_owned()),
        rule: Some(format!("rule-{rule}")),
        decision,
        current_count: Some(count),
        limit_value: Some(limit),
        remaining: Some(limit - count),
        cost: 1,
        response_status: if is_allowed { 200 } else { 429 },
        retry_after_seconds: (!is_allowed).then(|| 1 + random.skewed(60)),
        latency_micros: 3 + random.skewed(40),
        request_id: (kind == 0).then(|| format!("req_{:016x}", random.below(u64::MAX))),
        degraded: false,
        region: "eu-west-1".to_owned(),
        server_id: "node-1".to_owned(),
    }))
}
