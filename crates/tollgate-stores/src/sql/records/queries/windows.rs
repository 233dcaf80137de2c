//! Window records: the table `rate_limit_records`.

use crate::sql::engine::{Pool, Row};
use crate::sql::error::DatabaseError;
use crate::sql::records::WindowRow;

use super::columns::Columns;
use super::filter::{FilteredColumns, Order, RecordFilter};
use super::statement::Statement;

pub(super) const TABLE: &str = "rate_limit_records";

pub(super) const COLUMNS: FilteredColumns = FilteredColumns {
    time: "r.window_start",
    identifier: Some("r.identifier"),
    user: None,
    route: Some("r.route_path"),
    rule: None,
    decision: None,
};

/// The requests of one client on one route in one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredWindow {
    /// Identifies the tenant, client and route.
    pub key_hash: [u8; 16],
    /// The totals of the minute.
    pub row: WindowRow,
}

/// The last window of a page.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WindowCursor {
    /// Its start, in microseconds since 1970.
    pub start_micros: u64,
    /// Its key.
    pub key_hash: [u8; 16],
}

pub(super) async fn page(
    pool: &Pool,
    filter: &RecordFilter,
    order: Order,
    after: Option<&WindowCursor>,
    count_max: u32,
) -> Result<Vec<StoredWindow>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let mut statement = Statement::new(transaction.engine(), "SELECT r.key_hash, ");
    statement.time("r.window_start").push(", r.tenant, r.identifier, r.route_path, r.allowed, r.refused, ");
    statement.push("r.limit_value FROM rate_limit_records r WHERE 1 = 1");
    if let Some(after) = after {
        let inclusive =
            if order == Order::OldestFirst { " AND r.window_start >= " } else { " AND r.window_start <= " };
        statement.push(inclusive).bind_time(after.start_micros)?;
        statement.push(" AND (r.window_start").push(order.after()).bind_time(after.start_micros)?;
        statement.push(" OR r.key_hash").push(order.after()).bind(after.key_hash.as_slice()).push(")");
    }
    filter.push(&mut statement, &COLUMNS)?;
    statement.push(" ORDER BY r.window_start").push(order.direction());
    statement.push(", r.key_hash").push(order.direction()).push(" LIMIT ").bind(count_max);
    let rows = statement.rows(&mut transaction).await?;
    transaction.rollback().await?;
    rows.iter().map(StoredWindow::read).collect()
}

impl StoredWindow {
    fn read(row: &Row) -> Result<Self, DatabaseError> {
        let mut columns = Columns::new(row, TABLE);
        let key_hash = columns.hash()?;
        let row = WindowRow {
            start_micros: columns.time()?,
            tenant: columns.maybe_text()?,
            identifier: columns.text()?,
            route: columns.maybe_text()?.unwrap_or_default(),
            allowed: columns.number()?,
            refused: columns.number()?,
            limit_value: columns.maybe_number()?,
        };
        Ok(StoredWindow { key_hash, row })
    }

    /// The cursor that continues after this window.
    pub const fn cursor(&self) -> WindowCursor {
        WindowCursor { start_micros: self.row.start_micros, key_hash: self.key_hash }
    }
}
