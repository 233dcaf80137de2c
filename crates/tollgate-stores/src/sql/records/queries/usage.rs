//! The requests of one client, from its window records.

use crate::sql::engine::{Pool, Transaction};
use crate::sql::error::DatabaseError;

use super::columns::Columns;
use super::counts::RequestCounts;
use super::filter::RecordFilter;
use super::statement::Statement;
use super::windows::{COLUMNS, TABLE};
use crate::sql::records::granularity::Granularity;

/// Routes in a result.
const ROUTES_MAX: u32 = 100;
/// Periods in a result: 31 days by hour, or two days by minute.
const PERIODS_MAX: u32 = 3_000;

/// Requests in one period.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct UsagePeriod {
    /// The start of the period, in microseconds since 1970.
    pub start_micros: u64,
    /// The requests.
    pub counts: RequestCounts,
}

/// Requests on one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteUsage {
    /// The route.
    pub route: String,
    /// The requests.
    pub counts: RequestCounts,
}

/// The requests of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of them.
    pub total: RequestCounts,
    /// The last minute with a request, in microseconds since 1970.
    pub last_micros: Option<u64>,
    /// By period, oldest first. Periods without requests are missing; the newest 3,000 are listed.
    pub periods: Vec<UsagePeriod>,
    /// On the 100 busiest routes, busiest first.
    pub routes: Vec<RouteUsage>,
}

pub(super) async fn of_client(
    pool: &Pool,
    filter: &RecordFilter,
    per: Granularity,
) -> Result<Usage, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let (total, last_micros) = read_total(&mut transaction, filter).await?;
    let periods = read_periods(&mut transaction, filter, per).await?;
    let routes = read_routes(&mut transaction, filter).await?;
    transaction.rollback().await?;
    Ok(Usage { total, last_micros, periods, routes })
}

pub(super) async fn total(pool: &Pool, filter: &RecordFilter) -> Result<RequestCounts, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let (total, _) = read_total(&mut transaction, filter).await?;
    transaction.rollback().await?;
    Ok(total)
}

async fn read_total(
    transaction: &mut Transaction,
    filter: &RecordFilter,
) -> Result<(RequestCounts, Option<u64>), DatabaseError> {
    let mut statement = Statement::new(transaction.engine(), "SELECT ");
    statement.sum("r.allowed").push(", ").sum("r.refused").push(", ").time("MAX(r.window_start)");
    statement.push(" FROM rate_limit_records r WHERE 1 = 1");
    filter.push(&mut statement, &COLUMNS)?;
    let rows = statement.rows(transaction).await?;
    let row = rows.first().ok_or(DatabaseError::Corrupt { what: TABLE })?;
    let mut columns = Columns::new(row, TABLE);
    Ok((columns.counts()?, columns.maybe_time()?))
}

async fn read_periods(
    transaction: &mut Transaction,
    filter: &RecordFilter,
    per: Granularity,
) -> Result<Vec<UsagePeriod>, DatabaseError> {
    let mut statement = Statement::new(transaction.engine(), "SELECT ");
    statement.period("r.window_start", per).push(", ").sum("r.allowed").push(", ").sum("r.refused");
    statement.push(" FROM rate_limit_records r WHERE 1 = 1");
    filter.push(&mut statement, &COLUMNS)?;
    statement.push(" GROUP BY 1 ORDER BY 1 DESC LIMIT ").bind(PERIODS_MAX);
    let rows = statement.rows(transaction).await?;
    let periods = rows.iter().rev().map(|row| {
        let mut columns = Columns::new(row, TABLE);
        Ok(UsagePeriod { start_micros: columns.time()?, counts: columns.counts()? })
    });
    periods.collect()
}

async fn read_routes(
    transaction: &mut Transaction,
    filter: &RecordFilter,
) -> Result<Vec<RouteUsage>, DatabaseError> {
    let mut statement = Statement::new(transaction.engine(), "SELECT r.route_path, ");
    statement.sum("r.allowed").push(", ").sum("r.refused").push(" FROM rate_limit_records r WHERE 1 = 1");
    filter.push(&mut statement, &COLUMNS)?;
    statement.push(" GROUP BY r.route_path ORDER BY SUM(r.request_count) DESC, r.route_path LIMIT ");
    statement.bind(ROUTES_MAX);
    let rows = statement.rows(transaction).await?;
    let routes = rows.iter().map(|row| {
        let mut columns = Columns::new(row, TABLE);
        Ok(RouteUsage { route: columns.maybe_text()?.unwrap_or_default(), counts: columns.counts()? })
    });
    routes.collect()
}
