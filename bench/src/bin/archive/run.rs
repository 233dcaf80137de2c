//! One run of the archive, with the CPU time of its steps.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tollgate_bench::machine::{process_cpu, thread_cpu_ns};
use tollgate_bench::process::cpu_of;
use tollgate_bench::report::Table;
use tollgate_stores::archive::{Archive, ArchivePlace, ArchiveSettings};
use tollgate_stores::sql::SqlSettings;
use tollgate_stores::sql::records::{ArchiveStep, RecordsDatabase};
use tollgate_testkit::PostgresServer;

use crate::log::{EXPIRED_MICROS, RETENTION};

/// What was archived, and the CPU time of tollgate by step and of PostgreSQL.
pub struct Done {
    pub rows: u64,
    pub bytes: u64,
    took: Duration,
    /// Decoding rows of the database, on the thread that waits for it.
    read: Duration,
    /// Sorting, checksums, encoding and writing, on other threads.
    encoded: Duration,
    read_back: Duration,
    removed: Duration,
    server: Duration,
}

/// CPU time so far.
#[derive(Copy, Clone)]
struct Cpu {
    process: Duration,
    thread: Duration,
}

impl Cpu {
    fn now() -> Self {
        let thread = Duration::from_nanos(u64::try_from(thread_cpu_ns()).unwrap_or(0));
        Cpu { process: process_cpu(), thread }
    }
}

pub fn archive(server: &PostgresServer, url: &str, folder: &Path) -> Result<Done> {
    let data = server.execute("postgres", "SHOW data_directory");
    let pid = std::fs::read_to_string(Path::new(data.trim()).join("postmaster.pid"))?;
    let pid = pid.lines().next().context("postmaster.pid is empty")?.trim().parse()?;
    let place = ArchivePlace::parse(&format!("file://{}", folder.display()))?;
    let archive = Archive::open(&ArchiveSettings::new(place))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let database = runtime.block_on(RecordsDatabase::connect(SqlSettings::from_url(url)?))?;

    let (started, before, server_before) = (Instant::now(), Cpu::now(), cpu_of(pid)?);
    let (mut written, mut verified) = (before, before);
    let mut report = |step: &ArchiveStep| match step {
        ArchiveStep::Written(_) => written = Cpu::now(),
        ArchiveStep::Verified(_) => verified = Cpu::now(),
        _ => {}
    };
    let done =
        runtime.block_on(database.archive(&archive, "bench", EXPIRED_MICROS, &RETENTION, &mut report))?;
    let (after, took) = (Cpu::now(), started.elapsed());
    runtime.block_on(database.close());
    let read = written.thread - before.thread;
    Ok(Done {
        rows: done.rows,
        bytes: done.bytes,
        took,
        read,
        encoded: (written.process - before.process).saturating_sub(read),
        read_back: verified.process - written.process,
        removed: after.process - verified.process,
        server: cpu_of(pid)? - server_before,
    })
}

impl Done {
    /// Rows per second of CPU time of tollgate, all steps.
    pub fn per_cpu_sec(&self) -> f64 {
        self.rows as f64 / self.cpu().as_secs_f64()
    }

    fn cpu(&self) -> Duration {
        self.read + self.encoded + self.read_back + self.removed
    }

    pub fn print(&self) {
        let (took, bytes) = (self.took.as_secs_f64(), self.bytes as f64 / self.rows as f64);
        println!("{} rows archived in {took:.1} s, {bytes:.1} bytes per row\n", self.rows);
        let mut table = Table::new(["step", "CPU s", "µs/row", "rows per CPU s"]);
        for (step, cpu) in [
            ("read from PostgreSQL", self.read),
            ("sort, encode, write", self.encoded),
            ("read back, compare", self.read_back),
            ("drop the partition", self.removed),
            ("tollgate, all of it", self.cpu()),
            ("PostgreSQL", self.server),
        ] {
            let seconds = cpu.as_secs_f64();
            let per_row = seconds * 1e6 / self.rows as f64;
            let figures = [format!("{seconds:.2}"), format!("{per_row:.2}"), format!("{:.0}", 1e6 / per_row)];
            table.row(std::iter::once(step.to_owned()).chain(figures));
        }
        println!("{table}");
    }
}
