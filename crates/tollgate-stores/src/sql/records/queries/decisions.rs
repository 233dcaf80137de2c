//! The decision log: the table `rate_limit_audit_logs`.

use crate::sql::engine::{Pool, Row, to_i64};
use crate::sql::error::DatabaseError;
use crate::sql::records::{DecisionKind, DecisionRow};
use crate::sql::settings::Engine;

use super::columns::Columns;
use super::filter::{FilteredColumns, Order, RecordFilter};
use super::statement::Statement;

const TABLE: &str = "rate_limit_audit_logs";

const COLUMNS: FilteredColumns = FilteredColumns {
    time: "r.timestamp",
    identifier: Some("r.identifier"),
    user: Some("r.user_id"),
    route: Some("r.endpoint"),
    rule: Some("r.rule_id"),
    decision: Some("r.decision"),
};

/// A row of the decision log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDecision {
    /// Its unique number.
    pub id: u64,
    /// Whether a text was too long for its column, or contained a NUL character.
    pub truncated: bool,
    /// The decision.
    pub row: DecisionRow,
}

/// The last decision of a page.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DecisionCursor {
    /// Its time, in microseconds since 1970.
    pub at_micros: u64,
    /// Its number.
    pub id: u64,
}

pub(super) async fn page(
    pool: &Pool,
    filter: &RecordFilter,
    order: Order,
    after: Option<&DecisionCursor>,
    count_max: u32,
) -> Result<Vec<StoredDecision>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let mut statement = select(transaction.engine());
    if let Some(after) = after {
        // The first condition alone is a range of the index; the second one cuts off its start.
        let inclusive =
            if order == Order::OldestFirst { " AND r.timestamp >= " } else { " AND r.timestamp <= " };
        statement.push(inclusive).bind_time(after.at_micros)?;
        statement.push(" AND (r.timestamp").push(order.after()).bind_time(after.at_micros)?;
        statement.push(" OR r.log_id").push(order.after()).bind(to_i64(after.id, "after")?).push(")");
    }
    filter.push(&mut statement, &COLUMNS)?;
    statement.push(" ORDER BY r.timestamp").push(order.direction());
    statement.push(", r.log_id").push(order.direction()).push(" LIMIT ").bind(count_max);
    let rows = statement.rows(&mut transaction).await?;
    transaction.rollback().await?;
    rows.iter().map(StoredDecision::read).collect()
}

fn select<'a>(engine: Engine) -> Statement<'a> {
    let mut statement = Statement::new(engine, "SELECT r.log_id, ");
    statement.time("r.timestamp").push(", r.tenant, r.identifier, r.user_id, r.api_key_id, ");
    statement.address("r.ip_address").push(", r.endpoint, r.http_method, r.rule_id, r.decision, ");
    for column in ["r.current_count", "r.limit_value", "r.remaining", "r.cost", "r.response_status"] {
        statement.int(column).push(", ");
    }
    statement.int("r.retry_after_seconds").push(", r.region, r.server_id, ");
    statement.int("r.latency_us").push(", r.request_id, ");
    statement.flag("r.degraded").push(", ").flag("r.truncated");
    statement.push(" FROM rate_limit_audit_logs r WHERE 1 = 1");
    statement
}

impl StoredDecision {
    fn read(row: &Row) -> Result<Self, DatabaseError> {
        let mut columns = Columns::new(row, TABLE);
        let columns = &mut columns;
        let id = columns.number()?;
        let row = DecisionRow {
            at_micros: columns.time()?,
            tenant: columns.maybe_text()?,
            identifier: columns.text()?,
            user_id: columns.maybe_text()?,
            api_key_id: columns.maybe_text()?,
            ip_address: columns.maybe_text()?,
            endpoint: columns.maybe_text()?.unwrap_or_default(),
            http_method: columns.maybe_text()?,
            rule: columns.maybe_text()?,
            decision: DecisionKind::parse(&columns.text()?).ok_or(columns.corrupt())?,
            current_count: columns.maybe_number()?,
            limit_value: columns.maybe_number()?,
            remaining: columns.maybe_number()?,
            cost: columns.maybe_number()?.unwrap_or(0),
            response_status: columns.maybe_number()?.unwrap_or(0),
            retry_after_seconds: columns.maybe_number()?,
            region: columns.maybe_text()?.unwrap_or_default(),
            server_id: columns.maybe_text()?.unwrap_or_default(),
            latency_micros: columns.sum()?,
            request_id: columns.maybe_text()?,
            degraded: columns.flag()?,
        };
        Ok(StoredDecision { id, truncated: columns.flag()?, row })
    }

    /// The cursor that continues after this row.
    pub const fn cursor(&self) -> DecisionCursor {
        DecisionCursor { at_micros: self.row.at_micros, id: self.id }
    }
}
