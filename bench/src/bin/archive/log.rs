//! A month of the decision log, as a gateway with many customers writes it.

use std::time::{Duration, Instant};

use anyhow::Result;
use tollgate_stores::sql::SqlSettings;
use tollgate_stores::sql::records::{RecordsDatabase, Retention};
use tollgate_testkit::PostgresServer;

/// 2026-10-01.
const START_MICROS: u64 = 1_790_812_800_000_000;
pub const RETENTION: Retention = Retention {
    log: Duration::from_hours(90 * 24),
    windows: Duration::from_hours(90 * 24),
    rollups: Duration::from_hours(90 * 24),
    sqlite_bytes_max: None,
    is_archived: true,
};
/// When the month is beyond its retention.
pub const EXPIRED_MICROS: u64 = START_MICROS + 130 * 86_400_000_000;

/// Of ten visits of a client, seven are bursts of 1 to 40 refusals, eleven on average and a second apart, and three are single
/// requests that were admitted and sampled. The client is drawn from 20,000 by a power law: the busiest has 4 % of the visits,
/// the first hundredth 22 %.
const FILL: &str = "
    WITH visits AS (
        SELECT visit, visit % 10 < 3 AS is_admitted, CASE WHEN visit % 10 < 3 THEN 1 ELSE 1 + floor(40 * power(random(), 3))::INT END AS length,
            floor(20000 * power(random(), 3))::INT AS client, floor(200 * power(random(), 2))::INT AS route,
            random() AS chance, floor(random() * 4)::INT AS node,
            to_timestamp($start) + visit * (INTERVAL '30 days' / $visits) AS started
        FROM generate_series(0, $visits - 1) AS visit
    ), requests AS (
        SELECT visits.*, number, started + number * INTERVAL '1 second' * (0.5 + random()) AS requested_at,
            (ARRAY[10, 60, 100, 1000, 5000])[1 + route % 5] AS limited_to, random() AS draw,
            row_number() OVER () AS nth
        FROM visits, generate_series(0, length - 1) AS number
    )
    INSERT INTO rate_limit_audit_logs
    SELECT (1 + node::BIGINT << 40) + nth, requested_at,
        CASE WHEN client % 5 < 3 THEN 'tenant-' || client % 50 END,
        'user:usr_' || substr(md5(client::TEXT), 1, 12), 'usr_' || substr(md5(client::TEXT), 1, 12),
        CASE WHEN client % 4 = 0 THEN 'key_' || substr(md5('k' || client), 1, 10) END,
        (CASE WHEN client % 8 = 0 THEN '2001:db8:' || to_hex(client % 65536) || '::' || to_hex((3 * chance)::INT)
            ELSE (client % 223 + 1) || '.' || client / 256 % 256 || '.' || client % 256 || '.' || (3 * chance)::INT END)::INET,
        '/api/v1/resources-' || route || '/items', (ARRAY['GET', 'GET', 'GET', 'POST', 'PUT', 'DELETE'])[1 + route % 6],
        'rule-' || route % 15, CASE WHEN is_admitted THEN 'allowed' WHEN visit % 97 = 5 THEN 'blocked' ELSE 'throttled' END,
        CASE WHEN is_admitted THEN 1 + floor(draw * limited_to)::INT ELSE limited_to END, limited_to,
        CASE WHEN is_admitted THEN limited_to - 1 - floor(draw * limited_to)::INT ELSE 0 END, 1,
        CASE WHEN is_admitted THEN 200 ELSE 429 END,
        CASE WHEN NOT is_admitted THEN greatest(1, (chance * 60)::INT - number) END, 'eu-west-1', 'node-' || node,
        (4 + 3 * exp(2 * draw) + 200 * power(draw, 40))::BIGINT,
        CASE WHEN $ids THEN 'req_' || substr(md5(random()::TEXT), 1, 16) END, FALSE, FALSE
    FROM requests ORDER BY requested_at LIMIT $rows";

/// Creates the tables and one month of decisions.
pub fn fill(
    server: &PostgresServer,
    url: &str,
    database: &str,
    rows: u32,
    has_request_ids: bool,
) -> Result<()> {
    let started = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let records = RecordsDatabase::connect(SqlSettings::from_url(url)?).await?;
        records.migrate().await?;
        records.maintain("bench", START_MICROS, &RETENTION).await?;
        records.close().await;
        anyhow::Ok(())
    })?;
    // A little more than needed: ten visits have 77 rows on average.
    let visits = rows / 75 * 10 + 100;
    let sql = FILL
        .replace("$rows", &rows.to_string())
        .replace("$visits", &visits.to_string())
        .replace("$start", &(START_MICROS / 1_000_000).to_string())
        .replace("$ids", if has_request_ids { "TRUE" } else { "FALSE" });
    // Only the primary key is used here; filling the others takes most of the time.
    let indexes = "SELECT indexname FROM pg_indexes WHERE tablename = 'rate_limit_audit_logs' AND indexname LIKE '%\\_by\\_%'";
    for index in server.execute(database, indexes).lines() {
        server.execute(database, &format!("DROP INDEX {index}"));
    }
    server.execute(database, &format!("SET work_mem = '256MB'; {sql}"));
    server.execute(database, "VACUUM ANALYZE rate_limit_audit_logs");
    let with = if has_request_ids { "with" } else { "without" };
    println!("\n{rows} decisions {with} request ids, filled in {} s\n", started.elapsed().as_secs());
    Ok(())
}

/// The name of the busiest client, and how often it was refused.
pub fn refusals_of_busiest(server: &PostgresServer, database: &str) -> (String, u64) {
    let sql = "SELECT identifier, COUNT(*) FILTER (WHERE decision <> 'allowed') FROM rate_limit_audit_logs \
               GROUP BY identifier ORDER BY COUNT(*) DESC LIMIT 1";
    let row = server.execute(database, sql);
    let (client, count) = row.trim().split_once('|').unwrap_or_default();
    (client.to_owned(), count.parse().unwrap_or(0))
}
