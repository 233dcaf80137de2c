//! Rankings: the busiest and most refused clients, routes and rules, and the clients that were refused.

use crate::sql::engine::{Pool, Row};
use crate::sql::error::DatabaseError;

use super::columns::Columns;
use super::counts::RequestCounts;
use super::filter::RecordFilter;
use super::statement::{Statement, allow_large_groups};
use super::trend::RollupSource;
use super::{rollups, windows};

/// What a ranking is ordered by.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RankedBy {
    /// All requests.
    Requests,
    /// Refused requests. Entries without any are not listed.
    Refused,
}

/// A client in a ranking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankedClient {
    /// Its tenant, if any.
    pub tenant: Option<String>,
    /// The client: `user:alice`.
    pub identifier: String,
    /// Its requests.
    pub counts: RequestCounts,
}

/// A route or rule in a ranking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankedName {
    /// Its name; `None` for requests that no rule decided.
    pub name: Option<String>,
    /// Its requests.
    pub counts: RequestCounts,
}

/// A client that was refused on a route. Counts are those of the minutes with refused requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its tenant, if any.
    pub tenant: Option<String>,
    /// The client.
    pub identifier: String,
    /// The route.
    pub route: String,
    /// The requests of these minutes.
    pub counts: RequestCounts,
    /// How many minutes.
    pub minutes: u64,
    /// The largest limit in force in these minutes, if known.
    pub limit_value: Option<u64>,
    /// The last of these minutes, in microseconds since 1970.
    pub last_micros: u64,
}

pub(super) async fn clients(
    pool: &Pool,
    filter: &RecordFilter,
    by: RankedBy,
    count_max: u32,
) -> Result<Vec<RankedClient>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    allow_large_groups(&mut transaction).await?;
    let mut statement = Statement::new(transaction.engine(), "SELECT r.tenant, r.identifier, ");
    statement.sum_in_group("r.allowed").push(", ").sum_in_group("r.refused");
    statement.push(" FROM rate_limit_records r WHERE 1 = 1");
    filter.push(&mut statement, &windows::COLUMNS)?;
    if by == RankedBy::Refused {
        statement.push(" AND r.refused > 0");
    }
    statement.push(" GROUP BY r.tenant, r.identifier ORDER BY ");
    if by == RankedBy::Requests {
        // Not SUM(r.request_count): a third sum takes a fifth of the time.
        statement.raw_sum_in_group("r.allowed").push(" + ");
    }
    statement.raw_sum_in_group("r.refused");
    statement.push(" DESC, r.identifier, r.tenant LIMIT ").bind(count_max);
    let rows = statement.rows(&mut transaction).await?;
    transaction.rollback().await?;
    let client = |row: &Row| {
        let mut columns = Columns::new(row, windows::TABLE);
        Ok(RankedClient {
            tenant: columns.maybe_text()?,
            identifier: columns.text()?,
            counts: columns.counts()?,
        })
    };
    rows.iter().map(client).collect()
}

pub(super) async fn routes(
    pool: &Pool,
    filter: &RecordFilter,
    by: RankedBy,
    count_max: u32,
) -> Result<Vec<RankedName>, DatabaseError> {
    names(pool, "r.endpoint", filter, by, count_max).await
}

pub(super) async fn rules(
    pool: &Pool,
    filter: &RecordFilter,
    by: RankedBy,
    count_max: u32,
) -> Result<Vec<RankedName>, DatabaseError> {
    names(pool, "r.rule_id", filter, by, count_max).await
}

async fn names(
    pool: &Pool,
    column: &'static str,
    filter: &RecordFilter,
    by: RankedBy,
    count_max: u32,
) -> Result<Vec<RankedName>, DatabaseError> {
    const REFUSED: &str = "SUM(r.throttled_requests + r.blocked_requests)";
    let mut transaction = pool.begin_snapshot().await?;
    let source = RollupSource::choose(&mut transaction, filter).await?;
    let mut statement = Statement::new(transaction.engine(), "SELECT ");
    statement.push(column).push(", ").sum("r.allowed_requests").push(", ");
    statement.sum("r.throttled_requests + r.blocked_requests").push(" FROM rate_limit_metrics r WHERE ");
    source.push(&mut statement, filter)?;
    statement.push(" GROUP BY ").push(column);
    match by {
        RankedBy::Requests => statement.push(" ORDER BY SUM(r.total_requests)"),
        RankedBy::Refused => statement.push(" HAVING ").push(REFUSED).push(" > 0 ORDER BY ").push(REFUSED),
    };
    statement.push(" DESC, ").push(column).push(" LIMIT ").bind(count_max);
    let rows = statement.rows(&mut transaction).await?;
    transaction.rollback().await?;
    let name = |row: &Row| {
        let mut columns = Columns::new(row, rollups::TABLE);
        Ok(RankedName { name: columns.maybe_text()?, counts: columns.counts()? })
    };
    rows.iter().map(name).collect()
}

pub(super) async fn violations(
    pool: &Pool,
    filter: &RecordFilter,
    count_max: u32,
) -> Result<Vec<Violation>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    allow_large_groups(&mut transaction).await?;
    let mut statement = Statement::new(transaction.engine(), "SELECT r.tenant, r.identifier, r.route_path, ");
    statement.sum_in_group("r.allowed").push(", ").sum_in_group("r.refused");
    statement.push(", COUNT(*), MAX(r.limit_value), ").time("MAX(r.window_start)");
    statement.push(" FROM rate_limit_records r WHERE r.refused > 0");
    filter.push(&mut statement, &windows::COLUMNS)?;
    statement.push(" GROUP BY r.tenant, r.identifier, r.route_path");
    statement.push(" ORDER BY ").raw_sum_in_group("r.refused");
    statement.push(" DESC, r.identifier, r.route_path, r.tenant LIMIT ").bind(count_max);
    let rows = statement.rows(&mut transaction).await?;
    transaction.rollback().await?;
    let violation = |row: &Row| {
        let mut columns = Columns::new(row, windows::TABLE);
        Ok(Violation {
            tenant: columns.maybe_text()?,
            identifier: columns.text()?,
            route: columns.maybe_text()?.unwrap_or_default(),
            counts: columns.counts()?,
            minutes: columns.sum()?,
            limit_value: columns.maybe_number()?,
            last_micros: columns.time()?,
        })
    };
    rows.iter().map(violation).collect()
}
