//! What is in a records database, read with plain SQL.

use std::collections::BTreeMap;

use sqlx::mysql::MySqlPool;
use sqlx::postgres::PgPool;
use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, Row as _};

/// Request ids of the decision log, in no particular order.
pub(crate) fn request_ids(url: &str) -> Vec<String> {
    texts(url, "SELECT request_id FROM rate_limit_audit_logs")
}

/// Ids and decisions of the log.
pub(crate) fn decisions(url: &str) -> BTreeMap<String, String> {
    let rows = texts(url, "SELECT CONCAT(request_id, ' ', decision) FROM rate_limit_audit_logs");
    rows.iter()
        .filter_map(|row| row.split_once(' '))
        .map(|(id, decision)| (id.to_owned(), decision.to_owned()))
        .collect()
}

/// Requests, allowed and refused in window records.
pub(crate) fn windows(url: &str) -> (i64, i64, i64) {
    let of =
        |column: &str| number(url, &format!("SELECT COALESCE(SUM({column}), 0) FROM rate_limit_records"));
    (of("request_count"), of("allowed"), of("refused"))
}

/// Requests in rollups of minutes.
pub(crate) fn rollups(url: &str) -> i64 {
    let sql = "SELECT COALESCE(SUM(total_requests), 0) FROM rate_limit_metrics WHERE granularity = 'minute'";
    number(url, sql)
}

pub(crate) fn number(url: &str, sql: &str) -> i64 {
    texts(url, &format!("SELECT CAST(({sql}) AS CHAR(30))"))[0].trim().parse().unwrap()
}

/// The texts of a column.
pub(crate) fn texts(url: &str, sql: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sql = AssertSqlSafe(sql.to_owned());
    runtime.block_on(async {
        match url.split("://").next().unwrap() {
            "sqlite" => {
                let pool = SqlitePool::connect(url).await.unwrap();
                let rows = sqlx::query(sql).fetch_all(&pool).await.unwrap();
                rows.iter().map(|row| row.get::<String, _>(0)).collect()
            }
            "postgres" => {
                let pool = PgPool::connect(url).await.unwrap();
                let rows = sqlx::query(sql).fetch_all(&pool).await.unwrap();
                rows.iter().map(|row| row.get::<String, _>(0)).collect()
            }
            _ => {
                let pool = MySqlPool::connect(url).await.unwrap();
                let rows = sqlx::query(sql).fetch_all(&pool).await.unwrap();
                rows.iter().map(|row| String::from_utf8(row.get::<Vec<u8>, _>(0)).unwrap()).collect()
            }
        }
    })
}
