//! Requests and latencies over time, from the rollups.

use crate::sql::engine::{Pool, Transaction, to_i64};
use crate::sql::error::DatabaseError;
use crate::sql::query::Query;
use crate::sql::records::LatencyHistogram;

use super::columns::Columns;
use super::filter::RecordFilter;
use super::rollups;
use super::statement::{Statement, allow_long_joins};
use crate::sql::records::granularity::Granularity;

/// Longer periods are read from hours instead of minutes.
const MINUTES_MAX: u64 = Granularity::Day.micros();
/// In the year 2199: after every record.
const TIME_MAX: u64 = 7_226_582_400_000_000;

/// The requests of one period.
#[derive(Clone, Debug, PartialEq)]
pub struct TrendPoint {
    /// The start of the period, in microseconds since 1970.
    pub start_micros: u64,
    /// Requests admitted.
    pub allowed: u64,
    /// Requests refused by a limit, in cooldown, or while the counters were unreachable.
    pub throttled: u64,
    /// Requests refused by a block.
    pub blocked: u64,
    /// Decisions without a call to the shared counters.
    pub cache_hits: u64,
    /// Decisions that called the shared counters.
    pub cache_misses: u64,
    /// How long the decisions took.
    pub latency: LatencyHistogram,
}

pub(super) async fn by_period(
    pool: &Pool,
    filter: &RecordFilter,
    per: Granularity,
) -> Result<Vec<TrendPoint>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    allow_long_joins(&mut transaction).await?;
    let source = match per {
        Granularity::Minute => RollupSource::Minutes,
        Granularity::Hour | Granularity::Day => RollupSource::choose(&mut transaction, filter).await?,
    };
    let mut statement = Statement::new(transaction.engine(), "SELECT ");
    statement.period("r.timestamp", per).push(", ");
    rollups::push_sums(&mut statement);
    statement.push(" FROM rate_limit_metrics r WHERE ");
    source.push(&mut statement, filter)?;
    statement.push(" GROUP BY 1 ORDER BY 1");
    let rows = statement.rows(&mut transaction).await?;
    transaction.rollback().await?;
    let points = rows.iter().map(|row| {
        let mut columns = Columns::new(row, rollups::TABLE);
        Ok(TrendPoint {
            start_micros: columns.time()?,
            allowed: columns.sum()?,
            throttled: columns.sum()?,
            blocked: columns.sum()?,
            cache_hits: columns.sum()?,
            cache_misses: columns.sum()?,
            latency: columns.histogram()?,
        })
    });
    points.collect()
}

/// Which rollups are added up.
pub(super) enum RollupSource {
    /// Those of minutes.
    Minutes,
    /// Those of the hours in between, and those of the minutes before and after.
    Hours {
        /// The first of these hours, in microseconds since 1970.
        first: u64,
        /// The end of the last one.
        end: u64,
    },
}

impl RollupSource {
    /// Minutes for up to a day, otherwise hours as far as they are computed.
    pub(super) async fn choose(
        transaction: &mut Transaction,
        filter: &RecordFilter,
    ) -> Result<Self, DatabaseError> {
        let (from, to) = (filter.from_micros.unwrap_or(0), filter.to_micros.unwrap_or(TIME_MAX));
        if to.saturating_sub(from) <= MINUTES_MAX {
            return Ok(RollupSource::Minutes);
        }
        let hour = Granularity::Hour.micros();
        let first = from.div_ceil(hour) * hour;
        let query = Query::with(
            "SELECT MIN(hour_micros) FROM record_changed_hours WHERE hour_micros >= ?",
            [to_i64(first, "from")?.into()],
        );
        let row = transaction.row(&query).await?;
        let changed = row.map(|row| row.maybe_int(0)).transpose()?.flatten();
        let changed = changed.and_then(|changed| u64::try_from(changed).ok()).unwrap_or(TIME_MAX);
        Ok(RollupSource::Hours { first, end: changed.min(to - to % hour).max(first) })
    }

    /// Appends the conditions.
    pub(super) fn push<'a>(
        &self,
        statement: &mut Statement<'a>,
        filter: &'a RecordFilter,
    ) -> Result<(), DatabaseError> {
        match *self {
            RollupSource::Minutes => {
                statement.push("r.granularity = 'minute'");
            }
            RollupSource::Hours { first, end } => {
                statement.push("(r.granularity = 'hour' AND r.timestamp >= ").bind_time(first)?;
                statement.push(" AND r.timestamp < ").bind_time(end)?;
                statement.push(" OR r.granularity = 'minute' AND (r.timestamp < ").bind_time(first)?;
                statement.push(" OR r.timestamp >= ").bind_time(end)?.push("))");
            }
        }
        filter.push(statement, &rollups::COLUMNS)
    }
}
