//! Deletion of old rows, and the size of the tables.

use std::time::Duration;

use tokio::time::sleep;

use super::{LOG, Maintenance, ROLLUPS, RecordTable, WINDOWS};
use crate::sql::engine::{Pool, Transaction, from_i64};
use crate::sql::error::DatabaseError;
use crate::sql::query::Query;
use crate::sql::records::time::bind_time;
use crate::sql::settings::Engine;

/// Rows deleted by one transaction, so that writers do not wait long.
const CHUNK_ROWS: u32 = 5_000;
/// Pause between two of them, in which writers proceed.
const PAUSE: Duration = Duration::from_millis(5);
/// Sources without new rows are forgotten after this time. A spool of such a process must not be sent any more.
const SOURCE_RETENTION_MICROS: u64 = 400 * 86_400 * 1_000_000;

/// Deletes the rows of a SQLite table before a time.
pub(super) async fn delete_before(
    pool: &Pool,
    table: &RecordTable,
    oldest_micros: u64,
    done: &mut Maintenance,
) -> Result<(), DatabaseError> {
    loop {
        let deleted = delete_oldest(pool, table, Some(oldest_micros)).await?;
        done.rows_removed += deleted;
        if deleted < u64::from(CHUNK_ROWS) {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

/// Deletes the oldest rows of a SQLite database until it is no larger than `bytes_max`, the log first.
pub(super) async fn shrink(pool: &Pool, bytes_max: u64, done: &mut Maintenance) -> Result<(), DatabaseError> {
    for table in [&LOG, &WINDOWS, &ROLLUPS] {
        while size(pool, Engine::Sqlite).await?.is_some_and(|bytes| bytes > bytes_max) {
            let deleted = delete_oldest(pool, table, None).await?;
            done.rows_removed_for_size += deleted;
            if deleted == 0 {
                break;
            }
            sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Deletes some of the oldest rows of a SQLite table; returns how many.
async fn delete_oldest(
    pool: &Pool,
    table: &RecordTable,
    before_micros: Option<u64>,
) -> Result<u64, DatabaseError> {
    let mut transaction = pool.begin_append().await?;
    let RecordTable { name, time, key, .. } = table;
    let mut delete = Query::new("DELETE FROM ");
    delete.push(name).push(" WHERE (").push(time).push(", ").push(key).push(") IN (SELECT ");
    delete.push(time).push(", ").push(key).push(" FROM ").push(name);
    if let Some(before) = before_micros {
        delete.push(" WHERE ").push(time).push(" < ");
        bind_time(&mut delete, Engine::Sqlite, before)?;
    }
    delete.push(" ORDER BY ").push(time).push(", ").push(key).push(" LIMIT ").bind(CHUNK_ROWS).push(")");
    committed(transaction.execute_counted(&delete).await, transaction).await
}

/// Deletes rows before a time from the default partition of PostgreSQL. The oldest partition of MySQL contains all earlier rows.
pub(super) async fn delete_from_default(
    pool: &Pool,
    table: &RecordTable,
    oldest_micros: u64,
    done: &mut Maintenance,
) -> Result<(), DatabaseError> {
    loop {
        let mut transaction = pool.begin_append().await?;
        if transaction.engine() != Engine::Postgres {
            return transaction.rollback().await;
        }
        let mut delete = Query::new("DELETE FROM ");
        delete.push(table.name).push("_default WHERE ctid IN (SELECT ctid FROM ").push(table.name);
        delete.push("_default WHERE ").push(table.time).push(" < ");
        bind_time(&mut delete, Engine::Postgres, oldest_micros)?;
        delete.push(" LIMIT ").bind(i64::from(CHUNK_ROWS)).push(")");
        let deleted = committed(transaction.execute_counted(&delete).await, transaction).await?;
        done.rows_removed += deleted;
        if deleted < u64::from(CHUNK_ROWS) {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

async fn committed(
    deleted: Result<u64, DatabaseError>,
    transaction: Transaction,
) -> Result<u64, DatabaseError> {
    let deleted = deleted?;
    transaction.commit().await?;
    Ok(deleted)
}

/// Deletes the positions of processes that ended long ago.
pub(super) async fn delete_sources(pool: &Pool, now_micros: u64) -> Result<(), DatabaseError> {
    let before = i64::try_from(now_micros.saturating_sub(SOURCE_RETENTION_MICROS)).unwrap_or(i64::MAX);
    let mut transaction = pool.begin_append().await?;
    let delete = "DELETE FROM record_sources WHERE updated_at_micros < ?";
    transaction.execute(&Query::with(delete, [before.into()])).await?;
    transaction.commit().await
}

/// The bytes that the tables use. For SQLite: of the whole file, without pages that are free for new rows.
pub(super) async fn size(pool: &Pool, engine: Engine) -> Result<Option<u64>, DatabaseError> {
    let query = match engine {
        Engine::Sqlite => {
            "SELECT (page_count - freelist_count) * page_size \
             FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
        }
        Engine::Postgres => {
            "SELECT CAST(SUM(pg_total_relation_size(tree.relid)) AS BIGINT) \
             FROM unnest(ARRAY['rate_limit_audit_logs', 'rate_limit_records', 'rate_limit_metrics']) AS name, \
             pg_partition_tree(to_regclass(name)) AS tree"
        }
        Engine::MySql => {
            "SELECT CAST(SUM(data_length + index_length) AS SIGNED) FROM information_schema.tables \
             WHERE table_schema = DATABASE() \
             AND table_name IN ('rate_limit_audit_logs', 'rate_limit_records', 'rate_limit_metrics')"
        }
    };
    let mut transaction = pool.begin_snapshot().await?;
    let row = transaction.row(&Query::new(query)).await?;
    transaction.rollback().await?;
    let bytes = row.map_or(Ok(None), |row| row.maybe_int(0))?;
    bytes.map(|bytes| from_i64(bytes, "the size of the tables")).transpose()
}
