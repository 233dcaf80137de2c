//! Maintenance of the tables: partitions, retention, hour and day rows.
//!
//! One node at a time does it (`lease.rs`). All steps can be repeated, so a node that dies in the middle leaves nothing to repair.

pub(super) mod lease;
pub(super) mod partitions;
pub(super) mod periods;
mod retention;
mod rollups;

use std::time::Duration;

use super::RecordsDatabase;
use crate::sql::error::DatabaseError;
use crate::sql::settings::Engine;

use self::periods::Period;

/// How long rows are kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The decision log.
    pub log: Duration,
    /// Windows.
    pub windows: Duration,
    /// Rollups of all granularities.
    pub rollups: Duration,
    /// Maximum size of a SQLite database. The oldest rows are deleted early to stay below it, the log first.
    pub sqlite_bytes_max: Option<u64>,
    /// Whether rows are archived before they are removed. Then maintenance removes none, for their age or for size.
    pub is_archived: bool,
}

/// What one run of the maintenance found and did.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// Another node maintains this database. Nothing was done.
    pub held_by_other: bool,
    /// Partitions created.
    pub partitions_created: u64,
    /// Partitions dropped because of their age.
    pub partitions_dropped: u64,
    /// Rows deleted one by one because of their age.
    pub rows_removed: u64,
    /// Rows of a SQLite database deleted early because of its size.
    pub rows_removed_for_size: u64,
    /// Rows without a partition of their own, at most a million per table. They are never dropped as a whole: a node has a wrong
    /// clock, or maintenance has not run for months.
    pub rows_in_default_partition: u64,
    /// Hours whose rows were computed.
    pub hours_computed: u64,
    /// The size of the tables, if the database reports it. On MySQL an estimate.
    pub bytes: Option<u64>,
}

/// A table whose rows are kept for some time.
pub(super) struct RecordTable {
    pub(super) name: &'static str,
    /// The time of a row, the first column of the primary key.
    pub(super) time: &'static str,
    /// The second column of the primary key.
    pub(super) key: &'static str,
    /// The length of a partition.
    pub(super) period: Period,
}

pub(super) const LOG: RecordTable =
    RecordTable { name: "rate_limit_audit_logs", time: "timestamp", key: "log_id", period: Period::Month };
pub(super) const WINDOWS: RecordTable =
    RecordTable { name: "rate_limit_records", time: "window_start", key: "key_hash", period: Period::Week };
pub(super) const ROLLUPS: RecordTable =
    RecordTable { name: "rate_limit_metrics", time: "timestamp", key: "key_hash", period: Period::Month };

/// The time of the oldest rows that are kept.
pub(super) fn oldest_micros(now_micros: u64, kept: Duration) -> u64 {
    now_micros.saturating_sub(u64::try_from(kept.as_micros()).unwrap_or(u64::MAX))
}

pub(super) async fn maintain(
    database: &RecordsDatabase,
    node: &str,
    now_micros: u64,
    retention: &Retention,
) -> Result<Maintenance, DatabaseError> {
    let pool = &database.pool;
    if !lease::take(pool, node).await? {
        return Ok(Maintenance { held_by_other: true, ..Maintenance::default() });
    }
    let mut done = Maintenance::default();
    // A step that fails, for example without the right to create partitions, does not stop the others.
    let computed = rollups::compute(pool, now_micros, &mut done).await;
    let mut maintained = Ok(());
    let kept = [(&LOG, retention.log), (&WINDOWS, retention.windows), (&ROLLUPS, retention.rollups)];
    for (table, kept) in kept {
        let oldest = oldest_micros(now_micros, kept);
        let result = match database.settings.engine() {
            Engine::Sqlite if retention.is_archived => Ok(()),
            Engine::Sqlite => retention::delete_before(pool, table, oldest, &mut done).await,
            Engine::Postgres | Engine::MySql => {
                partitions::maintain(pool, table, now_micros, oldest, retention.is_archived, &mut done).await
            }
        };
        maintained = maintained.and(result);
    }
    computed.and(maintained)?;
    let bytes_max = retention.sqlite_bytes_max.filter(|_| !retention.is_archived);
    if let (Engine::Sqlite, Some(bytes_max)) = (database.settings.engine(), bytes_max) {
        retention::shrink(pool, bytes_max, &mut done).await?;
    }
    retention::delete_sources(pool, now_micros).await?;
    done.bytes = retention::size(pool, database.settings.engine()).await?;
    Ok(done)
}
