//! How fast records beyond their retention leave PostgreSQL, how large their files are, and how fast `DuckDB` reads them.
//!
//! `archive [--quick]`, run by `bench/run`.

mod log;
mod query;
mod run;

use anyhow::{Result, bail, ensure};
use tollgate_bench::machine::{disk_folder, pin_to};
use tollgate_bench::report::Targets;
use tollgate_testkit::PostgresServer;

/// As the server has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// PostgreSQL runs on one core, tollgate on the other.
const SERVER_CORE: usize = 1;
const ARCHIVE_CORE: usize = 0;
const ROWS_PER_CPU_SEC_MIN: f64 = 200_000.0;
const BYTES_MAX: f64 = 40.0;
const BYTES_WITHOUT_IDS_MAX: f64 = 15.0;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--quick"] => true,
        _ => bail!("usage: archive [--quick]"),
    };
    let rows = if is_quick { 1_000_000 } else { 10_000_000 };
    pin_to(SERVER_CORE)?;
    let server = PostgresServer::start_durable();
    pin_to(ARCHIVE_CORE)?;
    let mut targets = Targets::default();
    for (has_request_ids, rows) in [(true, rows), (false, rows / 5)] {
        let folder = disk_folder()?;
        let url = server.create_database();
        let database = url.rsplit('/').next().unwrap_or_default();
        log::fill(&server, &url, database, rows, has_request_ids)?;
        let expected = log::refusals_of_busiest(&server, database);
        let done = run::archive(&server, &url, folder.path())?;
        ensure!(done.rows == u64::from(rows), "{} rows archived", done.rows);
        done.print();
        let bytes = done.bytes as f64 / done.rows as f64;
        if has_request_ids {
            targets.at_least(
                "rows archived per second of tollgate's CPU",
                done.per_cpu_sec(),
                ROWS_PER_CPU_SEC_MIN,
            );
            targets.at_most("bytes per row", bytes, BYTES_MAX);
            query::run(folder.path(), &expected)?;
        } else {
            targets.at_most("bytes per row without request ids", bytes, BYTES_WITHOUT_IDS_MAX);
        }
    }
    println!("{targets}");
    Ok(())
}
