//! Rollups: the table `rate_limit_metrics`.

use crate::sql::engine::{Pool, Row};
use crate::sql::error::DatabaseError;
use crate::sql::items::table::check_text;
use crate::sql::records::LatencyHistogram;

use super::columns::Columns;
use super::filter::{FilteredColumns, Order, RecordFilter, TEXT_BYTES_MAX};
use super::statement::{Statement, allow_long_joins};
use crate::sql::records::granularity::Granularity;

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

/// The last rollup of a page: what identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollupCursor {
    /// Its period, in microseconds since 1970.
    pub start_micros: u64,
    /// Its route.
    pub endpoint: String,
    /// Its rule, if any.
    pub rule: Option<String>,
    /// Its tenant, if any.
    pub tenant: Option<String>,
    /// Its user, if any.
    pub user_id: Option<String>,
    /// Its region.
    pub region: String,
}

/// The order of the rollups of one period. NULL is compared as '', which is no name.
const KEY: &str =
    "r.endpoint, COALESCE(r.rule_id, ''), COALESCE(r.tenant, ''), COALESCE(r.user_id, ''), r.region";

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
        after.push_rest(&mut statement, order)?;
    }
    filter.push(&mut statement, &COLUMNS)?;
    statement.push(" GROUP BY r.timestamp, r.tenant, r.user_id, r.endpoint, r.rule_id, r.region");
    statement.push(" ORDER BY r.timestamp").push(order.direction());
    statement.push(", ").push(KEY).push(" LIMIT ").bind(count_max);
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
    /// The cursor that continues after this rollup.
    pub fn cursor(&self) -> RollupCursor {
        RollupCursor {
            start_micros: self.start_micros,
            endpoint: self.endpoint.clone(),
            rule: self.rule.clone(),
            tenant: self.tenant.clone(),
            user_id: self.user_id.clone(),
            region: self.region.clone(),
        }
    }

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
    /// Of the rollups of this period, selects those after this one.
    fn push_rest<'a>(&'a self, statement: &mut Statement<'a>, order: Order) -> Result<(), DatabaseError> {
        statement.push(" AND (r.timestamp").push(order.after()).bind_time(self.start_micros)?;
        statement.push(" OR (").push(KEY).push(") > (");
        let [rule, tenant, user] =
            [&self.rule, &self.tenant, &self.user_id].map(|name| name.as_deref().unwrap_or_default());
        for (position, text) in [&*self.endpoint, rule, tenant, user, &*self.region].into_iter().enumerate() {
            check_text("after", text, TEXT_BYTES_MAX)?;
            statement.push(if position == 0 { "" } else { ", " }).bind_text(text);
        }
        statement.push("))");
        Ok(())
    }
}
