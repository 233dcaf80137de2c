//! How long queries take among 10 million decisions and a day of window records in PostgreSQL.

use std::future::Future;
use std::time::Instant;

use anyhow::{Result, ensure};
use tollgate_bench::report::{Table, Targets, median};
use tollgate_stores::sql::SqlSettings;
use tollgate_stores::sql::records::{Order, RankedBy, RecordFilter, RecordReader};
use tollgate_testkit::PostgresServer;

use crate::postgres;

/// 2026-10-14: the log starts in the middle of a month, so that it spans two partitions.
const START_MICROS: u64 = 1_791_936_000_000_000;
const DAY_MICROS: u64 = 86_400_000_000;
const PAGE: u32 = 100;
const SEARCH_MS_MAX: f64 = 200.0;
const TOP_MS_MAX: f64 = 1_000.0;
const WARM_ROUNDS: usize = 5;

/// By rank: the first one has 2 % of all rows, the last ones 30 of 10 million; the very last one has none.
const CLIENTS: [u32; 12] = [0, 1, 3, 10, 50, 300, 1_000, 5_000, 20_000, 60_000, 99_999, 100_000];

/// `$rows` decisions of 100,000 clients over 30 days. A power of a uniform number is skewed.
const FILL_LOG: &str = "
    INSERT INTO rate_limit_audit_logs
    SELECT (1::BIGINT << 40) + i, to_timestamp($start) + i * (INTERVAL '30 days' / $rows),
        CASE WHEN client % 4 = 0 THEN 'tenant-' || client % 50 END,
        'user:customer-' || client, 'customer-' || client, NULL, ('10.0.' || client % 256 || '.17')::INET,
        '/v1/projects/' || i % 5000 || '/members', 'GET', 'per-user',
        CASE WHEN i % 10 < 7 THEN 'throttled' WHEN i % 100 = 99 THEN 'blocked' ELSE 'allowed' END,
        101, 100, 0, 1, CASE WHEN i % 10 < 7 OR i % 100 = 99 THEN 429 ELSE 200 END, 30, 'eu-1', 'node-' || i % 5,
        12, md5(i::TEXT), FALSE, FALSE
    FROM (SELECT i, floor(100000 * power(random(), 3))::INT AS client FROM generate_series(0, $rows - 1) AS i) AS draws";

/// `$rows` windows on the last of these days, some hundred clients per minute, each on one of 20 routes.
const FILL_WINDOWS: &str = "
    INSERT INTO rate_limit_records
    SELECT CASE WHEN client % 4 = 0 THEN 'tenant-' || client % 50 END, 'user:customer-' || client, 'minute',
        '/v1/routes/' || route, allowed + refused, allowed, refused, 100, minute, minute + INTERVAL '1 minute', minute, minute,
        decode(md5(client || '/' || route), 'hex')
    FROM (
        SELECT to_timestamp($start) + INTERVAL '29 days' + i * 1440 / $rows * INTERVAL '1 minute' AS minute,
            floor(100000 * power(random(), 3))::INT AS client, floor(random() * 20)::INT AS route,
            1 + floor(random() * 20)::BIGINT AS allowed, greatest(0, floor(random() * 20 - 15))::BIGINT AS refused
        FROM generate_series(0, $rows::BIGINT - 1) AS i
    ) AS draws
    ON CONFLICT DO NOTHING";

pub fn run(is_quick: bool) -> Result<()> {
    let (log_rows, window_rows) = if is_quick { (1_000_000, 100_000) } else { (10_000_000, 1_100_000) };
    let server = PostgresServer::start_durable();
    let url = server.create_database();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(postgres::create_tables(&url, START_MICROS))?;
    runtime.block_on(postgres::create_tables(&url, START_MICROS + 29 * DAY_MICROS))?;
    fill(&server, log_rows, window_rows);
    postgres::drop_caches(&server)?;
    runtime.block_on(measure(&url))
}

fn fill(server: &PostgresServer, log_rows: u32, window_rows: u32) {
    let started = Instant::now();
    let run = |sql: &str| server.execute("test_0", sql);
    // Indexes are rebuilt in the end, which is several times faster than filling them row by row.
    let is_ours = "schemaname = 'public' AND tablename IN ('rate_limit_audit_logs', 'rate_limit_records') AND indexname LIKE '%\\_by\\_%'";
    let indexes = run(&format!("SELECT indexname, indexdef FROM pg_indexes WHERE {is_ours}"));
    let indexes: Vec<(&str, &str)> = indexes.lines().filter_map(|line| line.split_once('|')).collect();
    indexes.iter().for_each(|(name, _)| drop(run(&format!("DROP INDEX {name}"))));
    for (sql, rows) in [(FILL_LOG, log_rows), (FILL_WINDOWS, window_rows)] {
        let start = (START_MICROS / 1_000_000).to_string();
        run(&sql.replace("$rows", &rows.to_string()).replace("$start", &start));
    }
    for (_, definition) in indexes {
        run(&definition.replace(" ON ONLY ", " ON "));
    }
    // Like autovacuum, which does not analyze the partitioned tables themselves.
    let partitions = run("SELECT relid FROM pg_partition_tree('rate_limit_audit_logs') WHERE isleaf \
                          UNION ALL SELECT relid FROM pg_partition_tree('rate_limit_records') WHERE isleaf");
    partitions.lines().for_each(|partition| drop(run(&format!("VACUUM ANALYZE {partition}"))));
    let windows = run("SELECT COUNT(*) FROM rate_limit_records");
    let size = run("SELECT pg_size_pretty(pg_database_size(current_database()))");
    let (windows, size, took) = (windows.trim(), size.trim(), started.elapsed().as_secs());
    println!("\n{log_rows} decisions and {windows} window records, {size}, filled in {took} s\n");
}

async fn measure(url: &str) -> Result<()> {
    let reader = RecordReader::connect(&SqlSettings::from_url(url)?).await?;
    let (mut table, mut targets) =
        (Table::new(["query", "times", "median ms", "max ms"]), Targets::default());
    let mut report = |what: &str, took: &[f64], most: f64| {
        let largest = took.iter().copied().fold(0.0, f64::max);
        let figures = [median(took.iter().copied()), largest].map(|figure| format!("{figure:.1}"));
        table.row([what.to_owned(), took.len().to_string(), figures[0].clone(), figures[1].clone()]);
        targets.at_most(format!("{what}, max ms"), largest, most);
    };
    let mut cold = Vec::new();
    for client in CLIENTS {
        cold.push(search(&reader, client).await?);
    }
    report("decisions of one client, cold", &cold, SEARCH_MS_MAX);
    let mut warm = Vec::new();
    for client in CLIENTS.repeat(WARM_ROUNDS) {
        warm.push(search(&reader, client).await?);
    }
    report("decisions of one client, warm", &warm, SEARCH_MS_MAX);
    for (what, by) in [("top 10 by requests", RankedBy::Requests), ("top 10 by refusals", RankedBy::Refused)]
    {
        let mut took = Vec::new();
        for _ in 0..WARM_ROUNDS {
            took.push(top(&reader, by).await?);
        }
        report(what, &took, TOP_MS_MAX);
    }
    reader.close().await;
    println!("{table}\n{targets}");
    Ok(())
}

/// The newest decisions of one client. Returns milliseconds.
async fn search(reader: &RecordReader, client: u32) -> Result<f64> {
    let filter =
        RecordFilter { identifier: Some(format!("user:customer-{client}")), ..RecordFilter::default() };
    let (rows, took) = timed(reader.decisions(&filter, Order::NewestFirst, None, PAGE)).await?;
    ensure!(rows.is_empty() == (client == 100_000), "{} decisions of client {client}", rows.len());
    Ok(took)
}

/// The clients with the most requests of a day. Returns milliseconds.
async fn top(reader: &RecordReader, by: RankedBy) -> Result<f64> {
    let from = START_MICROS + 29 * DAY_MICROS;
    let filter = RecordFilter {
        from_micros: Some(from),
        to_micros: Some(from + DAY_MICROS),
        ..RecordFilter::default()
    };
    let (clients, took) = timed(reader.top_clients(&filter, by, 10)).await?;
    ensure!(clients.len() == 10, "{} clients", clients.len());
    Ok(took)
}

async fn timed<T, E>(query: impl Future<Output = Result<T, E>>) -> Result<(T, f64), E> {
    let started = Instant::now();
    let rows = query.await?;
    Ok((rows, started.elapsed().as_secs_f64() * 1e3))
}
