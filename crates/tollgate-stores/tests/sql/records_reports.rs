//! Statements that operators run on the tables: as written for tables of other gateways, and as in `docs/database.md`.

use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};
use tollgate_stores::sql::Engine;
use tollgate_stores::sql::records::WindowRow;

use crate::harness::{Client, TestDatabase};
use crate::records_harness::{NODE_A, range, records_with_sources, window};

const BY_USER: &str = "
    SELECT * FROM rate_limit_records
    WHERE identifier = 'user:123'
    ORDER BY window_start DESC
    LIMIT 10;";
const BY_ROUTE: &str = "
    SELECT identifier, window_type, request_count, window_start
    FROM rate_limit_records
    WHERE route_path = '/auth/login'
    ORDER BY window_start DESC;";
const VIOLATIONS: &str = "
    SELECT identifier, route_path, request_count, window_start
    FROM rate_limit_records
    WHERE request_count >= 100  -- Assuming limit is 100
    ORDER BY request_count DESC;";
const TOP_USERS: &str = "
    SELECT identifier, SUM(request_count) as total_requests
    FROM rate_limit_records
    WHERE window_start >= DATE_SUB(NOW(), INTERVAL 1 DAY)
    GROUP BY identifier
    ORDER BY total_requests DESC
    LIMIT 10;";
const TRENDS: &str = "
    SELECT
        DATE_FORMAT(window_start, '%Y-%m-%d %H:00:00') as hour,
        SUM(request_count) as total_requests
    FROM rate_limit_records
    WHERE window_start >= DATE_SUB(NOW(), INTERVAL 7 DAY)
    GROUP BY hour
    ORDER BY hour;";
const CLEANUP: &str = "
    DELETE FROM rate_limit_records
    WHERE window_end < DATE_SUB(NOW(), INTERVAL 30 DAY);";

const DAY: u64 = 86_400_000_000;

async fn rows(client: &mut Client, sql: &str) -> Vec<MySqlRow> {
    let Client::MySql(connection) = client else { panic!("not MySQL") };
    sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The texts of the first column.
fn names(rows: &[MySqlRow]) -> Vec<String> {
    rows.iter().map(|row| row.get(0)).collect()
}

fn at(micros: u64, mut row: WindowRow) -> WindowRow {
    row.start_micros = micros - micros % 60_000_000;
    row
}

#[tokio::test]
async fn reports_on_mysql_run_as_written() {
    let empty = TestDatabase::mariadb();
    let database = records_with_sources(&empty).await;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = u64::try_from(since.as_micros()).unwrap();
    let mut login = window("x", "/auth/login", 3, 0);
    login.identifier = "login:john_doe".to_owned();
    let mut windows: Vec<WindowRow> =
        (0..12).map(|n| at(now - n * 60_000_000, window("123", "/projects", 45, 0))).collect();
    windows.extend([
        at(now, login),
        at(now - 2 * DAY, window("456", "/projects", 90, 30)),
        at(now - 40 * DAY, window("789", "/projects", 99, 0)),
    ]);
    database.store_aggregates(&range(NODE_A, 0, 15), &windows, &[]).await.unwrap();
    let mut client = empty.client().await;
    // The session of an operator: DATETIME columns are UTC.
    client.execute("SET time_zone = '+00:00'").await;

    for structure in [
        "SHOW TABLES LIKE 'rate_limit_records'",
        "DESCRIBE rate_limit_records",
        "SHOW INDEXES FROM rate_limit_records",
    ] {
        assert!(!rows(&mut client, structure).await.is_empty(), "{structure}");
    }
    assert_eq!(rows(&mut client, BY_USER).await.len(), 10);
    assert_eq!(names(&rows(&mut client, BY_ROUTE).await), ["login:john_doe"]);
    assert_eq!(names(&rows(&mut client, VIOLATIONS).await), ["user:456"]);
    assert_eq!(names(&rows(&mut client, TOP_USERS).await), ["user:123", "login:john_doe"]);
    let hours = names(&rows(&mut client, TRENDS).await);
    assert!((2..=3).contains(&hours.len()) && hours.iter().all(|hour| hour.ends_with(":00:00")), "{hours:?}");
    let is_stored = "SELECT COUNT(*) FROM rate_limit_records";
    assert_eq!(client.number(is_stored).await, 15);
    client.execute(CLEANUP).await;
    assert_eq!(client.number(is_stored).await, 14);
}

/// The SQL block of `docs/database.md` that starts with this text.
fn documented(start: &str) -> &'static str {
    let page = include_str!("../../../../docs/database.md");
    let blocks = page.split("```sql no-run\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.starts_with(start)).expect("the page has the block")
}

pub(crate) async fn documented_reports_run(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    database.store_aggregates(&range(NODE_A, 0, 1), &[window("alice", "/", 1, 1)], &[]).await.unwrap();
    let mut client = empty.client().await;
    client.execute(documented("-- the last refusals")).await;
    client
        .execute(match empty.engine() {
            Engine::MySql => documented("-- records of a user"),
            Engine::Postgres => documented("SELECT identifier"),
            Engine::Sqlite => documented("SELECT strftime"),
        })
        .await;
}
