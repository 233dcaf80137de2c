//! Hour and day rows of `rate_limit_metrics`, computed from minute rows of all servers.
//!
//! Writers mark the hours of the minutes that they change (`record_changed_hours`). Maintenance computes complete hours and their
//! days from scratch, then removes the marks unless they have changed meanwhile. Late minutes are therefore included.

use std::collections::BTreeMap;

use super::Maintenance;
use crate::sql::engine::{Pool, Row, from_i64, to_i64};
use crate::sql::error::DatabaseError;
use crate::sql::query::Query;
use crate::sql::records::granularity::Granularity;
use crate::sql::records::rollups::{Key, REPLACE, merge_into, write};
use crate::sql::records::rows::RollupRow;
use crate::sql::records::time::{HOUR_MICROS, MINUTE_MICROS, bind_time};

const TABLE: &str = "rate_limit_metrics";
/// How long after its end an hour is computed. Nodes send minutes a little late.
const DELAY_MICROS: u64 = 2 * MINUTE_MICROS;
/// Marks handled by one run.
const MARKS_MAX: i64 = 10_000;

/// A mark of a source on an hour.
struct Mark {
    source_id: i64,
    hour: u64,
    changes: i64,
}

/// Computes the rows of complete hours that have changed, and of their days.
pub(super) async fn compute(
    pool: &Pool,
    now_micros: u64,
    done: &mut Maintenance,
) -> Result<(), DatabaseError> {
    let marks = marks(pool, now_micros.saturating_sub(HOUR_MICROS + DELAY_MICROS)).await?;
    for marks_of_day in marks.chunk_by(|mark, next| day_of(mark.hour) == day_of(next.hour)) {
        for marks_of_hour in marks_of_day.chunk_by(|mark, next| mark.hour == next.hour) {
            let Some(mark) = marks_of_hour.first() else { continue };
            compute_period(pool, Granularity::Hour, mark.hour, &[]).await?;
            done.hours_computed += 1;
        }
        if let Some(mark) = marks_of_day.first() {
            compute_period(pool, Granularity::Day, day_of(mark.hour), marks_of_day).await?;
        }
    }
    Ok(())
}

const fn day_of(hour: u64) -> u64 {
    hour - hour % Granularity::Day.micros()
}

/// The marks on hours that start no later than `last_micros`, in the order of the hours.
async fn marks(pool: &Pool, last_micros: u64) -> Result<Vec<Mark>, DatabaseError> {
    let select = "SELECT source_id, hour_micros, changes FROM record_changed_hours WHERE hour_micros <= ? \
                  ORDER BY hour_micros, source_id LIMIT ?";
    let mut transaction = pool.begin_snapshot().await?;
    let values = [to_i64(last_micros, "time")?.into(), MARKS_MAX.into()];
    let rows = transaction.rows(&Query::with(select, values)).await?;
    transaction.rollback().await?;
    let mark = |row: &Row| {
        let hour = from_i64(row.int(1)?, "record_changed_hours")?;
        Ok(Mark { source_id: row.int(0)?, hour, changes: row.int(2)? })
    };
    rows.iter().map(mark).collect()
}

/// Computes the rows of an hour or day and removes the marks, in one transaction.
async fn compute_period(
    pool: &Pool,
    granularity: Granularity,
    start: u64,
    marks: &[Mark],
) -> Result<(), DatabaseError> {
    let part = match granularity {
        Granularity::Day => Granularity::Hour,
        Granularity::Hour | Granularity::Minute => Granularity::Minute,
    };
    let rows = read_parts(pool, granularity, start, part).await?;
    let rows: Vec<(&Key, &RollupRow)> = rows.iter().collect();
    let mut transaction = pool.begin_append().await?;
    write(&mut transaction, granularity, &rows, REPLACE).await?;
    for mark in marks {
        let delete =
            "DELETE FROM record_changed_hours WHERE source_id = ? AND hour_micros = ? AND changes = ?";
        let values = [mark.source_id.into(), to_i64(mark.hour, "time")?.into(), mark.changes.into()];
        transaction.execute(&Query::with(delete, values)).await?;
    }
    transaction.commit().await
}

/// The sums of shorter periods, over all servers.
async fn read_parts(
    pool: &Pool,
    granularity: Granularity,
    start: u64,
    part: Granularity,
) -> Result<BTreeMap<Key, RollupRow>, DatabaseError> {
    let mut sums = BTreeMap::new();
    let mut transaction = pool.begin_snapshot().await?;
    for number in 0..granularity.micros() / part.micros() {
        let mut select = Query::new(
            "SELECT tenant, user_id, endpoint, rule_id, region, allowed_requests, throttled_requests, blocked_requests, \
             cache_hits, cache_misses, latency_histogram FROM rate_limit_metrics WHERE timestamp = ",
        );
        bind_time(&mut select, transaction.engine(), start + number * part.micros())?;
        // The values are constants, but MySQL compares bound texts as bytes.
        select.push(match part {
            Granularity::Minute => " AND granularity = 'minute'",
            Granularity::Hour => " AND granularity = 'hour'",
            Granularity::Day => " AND granularity = 'day'",
        });
        let rows = transaction.rows(&select).await?;
        let rows = rows.iter().map(|row| read(row, start)).collect::<Result<Vec<_>, _>>()?;
        merge_into(&mut sums, granularity, &rows);
    }
    transaction.rollback().await?;
    Ok(sums)
}

fn read(row: &Row, start_micros: u64) -> Result<RollupRow, DatabaseError> {
    let count = |column| from_i64(row.int(column)?, TABLE);
    Ok(RollupRow {
        start_micros,
        tenant: row.maybe_text(0, TABLE)?,
        user_id: row.maybe_text(1, TABLE)?,
        endpoint: row.text(2, TABLE)?,
        rule: row.maybe_text(3, TABLE)?,
        region: row.text(4, TABLE)?,
        server_id: String::new(),
        allowed: count(5)?,
        throttled: count(6)?,
        blocked: count(7)?,
        cache_hits: count(8)?,
        cache_misses: count(9)?,
        latency: row.text(10, TABLE)?.parse().unwrap_or_default(),
    })
}
