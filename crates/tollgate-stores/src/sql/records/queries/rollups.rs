//! Rollups: the table `rate_limit_metrics`.

use crate::sql::engine::{Pool, Row};
use crate::sql::error::DatabaseError;
use crate::sql::records::LatencyHistogram;

use super::columns::Columns;
use super::filter::{FilteredColumns, Order, RecordFilter};
use super::granularity::Granularity;
use super::statement::{Statement, allow_long_joins};

pub(super) const TABLE: &str = "rate_limit_metrics";

pub(super) const COLUMNS: FilteredColumns = FilteredColumns {
    time: "r.timestamp",
    identifier: None,
    user: Some("r.user_id"),
    route: Some("r.endpoint"),
    rule: Some("r.rule_id"),
    decision: None,
};

/// Requests on one route, decided by one rule in one period, of all servers of a region.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRollup {
    /// The start of the period, in microseconds since 1970.
    pub start_micros: u64,
    /// The tenant, if any.
    pub tenant: Option<String>,
    /// The user, if it was one of the busiest.
    pub user_id: Option<String>,
    /// The route.
    pub endpoint: String,
    /// The deciding rule, if any.
    pub rule: Option<String>,
    /// The region.
    pub region: String,
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

/// The last rollup of a page. Rollups of a period that has not ended may change between two pages.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RollupCursor {
    /// Its period, in microseconds since 1970.
    pub start_micros: u64,
    /// How many rollups of this period were on this page and earlier ones.
    pub count: u32,
}

pub(super) async fn page(
    pool: &Pool,
    granularity: Granularity,
    filter: &RecordFilter,
    order: Order,
    after: Option<&RollupCursor>,
    count_max: u32,
) -> Result<Vec<StoredRollup>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    allow_long_joins(&mut transaction).await?;
    let mut statement = Statement::new(transaction.engine(), "SELECT ");
    statement.time("r.timestamp").push(", r.tenant, r.user_id, r.endpoint, r.rule_id, r.region, ");
    push_sums(&mut statement);
    statement.push(" FROM rate_limit_metrics r WHERE r.granularity = ").bind_text(granularity.as_str());
    if let Some(after) = after {
        let inclusive =
            if order == Order::OldestFirst { " AND r.timestamp >= " } else { " AND r.timestamp <= " };
        statement.push(inclusive).bind_time(after.start_micros)?;
    }
    filter.push(&mut statement, &COLUMNS)?;
    statement.push(" GROUP BY r.timestamp, r.tenant, r.user_id, r.endpoint, r.rule_id, r.region");
    statement.push(" ORDER BY r.timestamp").push(order.direction());
    statement.push(", r.endpoint, r.rule_id, r.tenant, r.user_id, r.region LIMIT ").bind(count_max);
    statement.push(" OFFSET ").bind(after.map_or(0, |after| after.count));
    let rows = statement.rows(&mut transaction).await?;
    transaction.rollback().await?;
    rows.iter().map(StoredRollup::read).collect()
}

/// The counts and the merged histogram of a group.
pub(super) fn push_sums(statement: &mut Statement<'_>) {
    for column in
        ["r.allowed_requests", "r.throttled_requests", "r.blocked_requests", "r.cache_hits", "r.cache_misses"]
    {
        statement.sum(column).push(", ");
    }
    statement.joined("r.latency_histogram");
}

impl StoredRollup {
    fn read(row: &Row) -> Result<Self, DatabaseError> {
        let mut columns = Columns::new(row, TABLE);
        Ok(StoredRollup {
            start_micros: columns.time()?,
            tenant: columns.maybe_text()?,
            user_id: columns.maybe_text()?,
            endpoint: columns.maybe_text()?.unwrap_or_default(),
            rule: columns.maybe_text()?,
            region: columns.maybe_text()?.unwrap_or_default(),
            allowed: columns.sum()?,
            throttled: columns.sum()?,
            blocked: columns.sum()?,
            cache_hits: columns.sum()?,
            cache_misses: columns.sum()?,
            latency: columns.histogram()?,
        })
    }
}

impl RollupCursor {
    /// The cursor that continues after a rollup, given the cursor of the one before it.
    pub fn after(rollup: &StoredRollup, before: Option<&RollupCursor>) -> Self {
        let start_micros = rollup.start_micros;
        let earlier = before.filter(|before| before.start_micros == start_micros);
        RollupCursor { start_micros, count: earlier.map_or(0, |before| before.count).saturating_add(1) }
    }
}
