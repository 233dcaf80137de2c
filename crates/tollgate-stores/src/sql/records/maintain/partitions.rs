//! Partitions of PostgreSQL and MySQL. They are named after their first day: `rate_limit_records_20261116`, or `p20261116` in MySQL.

use jiff::civil::{Date, DateTime};

use super::periods::{date_time, digits, parse_digits};
use super::retention::delete_from_default;
use super::{Maintenance, RecordTable};
use crate::sql::engine::{Pool, Transaction, from_i64};
use crate::sql::error::DatabaseError;
use crate::sql::query::Query;
use crate::sql::settings::Engine;

/// Partitions exist for the current period and this many after it.
const PERIODS_AHEAD: usize = 2;
/// Partitions created at most for rows that are in the default one.
const GAPS_MAX: usize = 64;
/// Seconds that a change of partitions waits for running statements. Meanwhile it blocks new ones.
const LOCK_SECONDS: u32 = 5;

/// Creates partitions ahead of time, drops those that end before `oldest_micros` unless they are archived first, and counts rows
/// outside of them.
pub(super) async fn maintain(
    pool: &Pool,
    table: &RecordTable,
    now_micros: u64,
    oldest_micros: u64,
    is_archived: bool,
    done: &mut Maintenance,
) -> Result<(), DatabaseError> {
    let (now, oldest) = (date_time(now_micros)?, date_time(oldest_micros)?);
    let existing = list(pool, table).await?;
    let missing = missing(table, &existing, now);
    if !missing.is_empty() {
        create(pool, table, &existing, &missing).await?;
        done.partitions_created += missing.len() as u64;
    }
    let expired: Vec<Date> =
        existing.into_iter().filter(|start| ends_before(table, *start, oldest)).collect();
    if !expired.is_empty() && !is_archived {
        drop_partitions(pool, table, &expired).await?;
        done.partitions_dropped += expired.len() as u64;
    }
    if count_in_default(pool, table).await? > 0 {
        if !is_archived {
            delete_from_default(pool, table, oldest_micros, done).await?;
        }
        create_for_default(pool, table, now, done).await?;
        done.rows_in_default_partition += count_in_default(pool, table).await?;
    }
    Ok(())
}

/// The first days of the partitions that do not exist yet, in order.
fn missing(table: &RecordTable, existing: &[Date], now: DateTime) -> Vec<Date> {
    let first = table.period.start_of(now.date());
    let ahead = std::iter::successors(Some(first), |start| Some(table.period.next(*start)));
    ahead.take(1 + PERIODS_AHEAD).filter(|start| !existing.contains(start)).collect()
}

pub(in crate::sql::records) fn ends_before(table: &RecordTable, start: Date, oldest: DateTime) -> bool {
    table.period.next(start).at(0, 0, 0, 0) <= oldest
}

/// The first days of all partitions, except the one for all other rows.
pub(in crate::sql::records) async fn list(
    pool: &Pool,
    table: &RecordTable,
) -> Result<Vec<Date>, DatabaseError> {
    const WHAT: &str = "the names of partitions";
    let mut transaction = pool.begin_snapshot().await?;
    let query = match transaction.engine() {
        Engine::MySql => {
            "SELECT partition_name FROM information_schema.partitions WHERE table_schema = DATABASE() AND table_name = ?"
        }
        Engine::Postgres | Engine::Sqlite => {
            "SELECT CAST(c.relname AS TEXT) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
             WHERE i.inhparent = to_regclass(?)"
        }
    };
    let rows = transaction.rows(&Query::with(query, [table.name.into()])).await?;
    transaction.rollback().await?;
    let names = rows.iter().map(|row| row.text(0, WHAT)).collect::<Result<Vec<_>, _>>()?;
    let mut starts: Vec<Date> =
        names.iter().filter_map(|name| parse_digits(start_of_name(table, name))).collect();
    starts.sort_unstable();
    Ok(starts)
}

fn start_of_name<'a>(table: &RecordTable, name: &'a str) -> &'a str {
    let suffix = name.strip_prefix(table.name).and_then(|rest| rest.strip_prefix('_'));
    suffix.or_else(|| name.strip_prefix('p')).unwrap_or_default()
}

async fn create(
    pool: &Pool,
    table: &RecordTable,
    existing: &[Date],
    missing: &[Date],
) -> Result<(), DatabaseError> {
    let mut transaction = begin_ddl(pool).await?;
    if transaction.engine() == Engine::MySql {
        // Ranges have only an upper bound, and new ones must follow the last.
        let after = |start: &&Date| existing.last().is_none_or(|last| last < start);
        let ranges: Vec<String> =
            missing.iter().filter(after).map(|start| mysql_range(table, *start)).collect();
        if !ranges.is_empty() {
            let (name, ranges) = (table.name, ranges.join(", "));
            transaction
                .execute_script(format!(
                    "ALTER TABLE {name} REORGANIZE PARTITION p_max INTO ({ranges}, PARTITION p_max VALUES LESS THAN (MAXVALUE))"
                ))
                .await?;
        }
    } else {
        for start in missing {
            transaction.execute_script(postgres_create(table, *start)).await?;
        }
    }
    transaction.commit().await
}

/// Creates the partitions for rows that are in the default partition of PostgreSQL because maintenance has not run for a while.
/// Rows of the far future stay there.
async fn create_for_default(
    pool: &Pool,
    table: &RecordTable,
    now: DateTime,
    done: &mut Maintenance,
) -> Result<(), DatabaseError> {
    for _ in 0..GAPS_MAX {
        let Some(oldest) = oldest_in_default(pool, table).await? else { return Ok(()) };
        if oldest > now {
            return Ok(());
        }
        create(pool, table, &[], &[table.period.start_of(oldest.date())]).await?;
        done.partitions_created += 1;
    }
    Ok(())
}

async fn oldest_in_default(pool: &Pool, table: &RecordTable) -> Result<Option<DateTime>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    if transaction.engine() != Engine::Postgres {
        transaction.rollback().await?;
        return Ok(None);
    }
    let mut oldest = Query::new("SELECT CAST(EXTRACT(EPOCH FROM MIN(");
    oldest.push(table.time).push(")) * 1000000 AS BIGINT) FROM ").push(table.name).push("_default");
    let row = transaction.row(&oldest).await?;
    transaction.rollback().await?;
    let micros = row.map_or(Ok(None), |row| row.maybe_int(0))?;
    micros.map(|micros| date_time(from_i64(micros, table.name)?)).transpose()
}

fn mysql_range(table: &RecordTable, start: Date) -> String {
    format!("PARTITION p{} VALUES LESS THAN ('{}')", digits(start), table.period.next(start))
}

/// Attaching a table locks less than creating it as a partition. Rows of the period that are in the default partition are moved:
/// PostgreSQL refuses the new partition otherwise.
fn postgres_create(table: &RecordTable, start: Date) -> String {
    let (name, time, end) = (table.name, table.time, table.period.next(start));
    let partition = format!("{name}_{}", digits(start));
    let (from, to) = (format!("'{start} 00:00:00+00'"), format!("'{end} 00:00:00+00'"));
    format!(
        "CREATE TABLE {partition} (LIKE {name} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES); \
         LOCK TABLE {name}_default IN ACCESS EXCLUSIVE MODE; \
         WITH moved AS (DELETE FROM {name}_default WHERE {time} >= {from} AND {time} < {to} RETURNING *) \
         INSERT INTO {partition} SELECT * FROM moved; \
         ALTER TABLE {name} ATTACH PARTITION {partition} FOR VALUES FROM ({from}) TO ({to})"
    )
}

async fn drop_partitions(pool: &Pool, table: &RecordTable, starts: &[Date]) -> Result<(), DatabaseError> {
    let mut transaction = begin_ddl(pool).await?;
    let drop = drop_statement(transaction.engine(), table, starts);
    transaction.execute_script(drop).await?;
    transaction.commit().await
}

pub(in crate::sql::records) fn drop_statement(
    engine: Engine,
    table: &RecordTable,
    starts: &[Date],
) -> String {
    let name = table.name;
    if engine == Engine::MySql {
        let partitions: Vec<String> = starts.iter().map(|start| format!("p{}", digits(*start))).collect();
        return format!("ALTER TABLE {name} DROP PARTITION {}", partitions.join(", "));
    }
    let tables: Vec<String> = starts.iter().map(|start| format!("{name}_{}", digits(*start))).collect();
    format!("DROP TABLE IF EXISTS {}", tables.join(", "))
}

/// A transaction without a statement timeout that does not wait long for locks.
pub(in crate::sql::records) async fn begin_ddl(pool: &Pool) -> Result<Transaction, DatabaseError> {
    let mut transaction = pool.begin_write().await?;
    // Closing the connection afterwards discards the session settings.
    transaction.disable_deadline();
    if transaction.engine() == Engine::MySql {
        transaction.execute_script(format!("SET SESSION lock_wait_timeout = {LOCK_SECONDS}")).await?;
        // Only MariaDB has it; the timeout of MySQL does not apply to DDL.
        let _ = transaction.execute_script("SET SESSION max_statement_time = 0").await;
    } else {
        let limits = format!("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{LOCK_SECONDS}s'");
        transaction.execute_script(limits).await?;
    }
    Ok(transaction)
}

/// Rows in the partition for all other rows, at most a million.
async fn count_in_default(pool: &Pool, table: &RecordTable) -> Result<u64, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let default = if transaction.engine() == Engine::MySql { " PARTITION (p_max)" } else { "_default" };
    let mut count = Query::new("SELECT COUNT(*) FROM (SELECT 1 FROM ");
    count.push(table.name).push(default).push(" LIMIT 1000000) AS counted");
    let row = transaction.row(&count).await?;
    transaction.rollback().await?;
    row.map_or(Ok(0), |row| from_i64(row.int(0)?, table.name))
}
