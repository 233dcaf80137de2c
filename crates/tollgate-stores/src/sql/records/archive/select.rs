//! Reads the rows of an archived table, in the order of their primary key.

use parquet::data_type::ByteArray;

use super::copy::CopyReader;
use crate::archive::batch::{BATCH_ROWS, Batch, Values};
use crate::archive::{ArchivedTable, Column, ColumnKind};
use crate::sql::engine::{Pool, Row, Transaction, from_i64};
use crate::sql::error::DatabaseError;
use crate::sql::query::Value;
use crate::sql::records::queries::statement::Statement;
use crate::sql::settings::Engine;

/// Rows of one query.
const PAGE_ROWS: u32 = 8_192;
/// Rows of one `COPY`.
pub(super) const COPIED_ROWS: u32 = 32_768;

/// Rows from `start` to before `end`, in microseconds since 1970.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct TimeRange {
    pub(super) table: ArchivedTable,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The last row of a page.
struct Cursor {
    time: u64,
    key: Value<'static>,
}

/// Reads all rows of a range.
pub(super) struct RangeReader<'a> {
    pool: &'a Pool,
    range: TimeRange,
    after: Option<Cursor>,
    is_at_end: bool,
}

impl<'a> RangeReader<'a> {
    pub(super) fn new(pool: &'a Pool, range: TimeRange) -> Self {
        RangeReader { pool, range, after: None, is_at_end: false }
    }

    /// The next rows; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Batch>, DatabaseError> {
        let mut batch = Batch::new(self.range.table);
        while batch.rows() < BATCH_ROWS && !self.is_at_end {
            self.after = self.range.read_page(self.pool, self.after.as_ref(), &mut batch).await?;
            self.is_at_end = self.after.is_none();
        }
        Ok((batch.rows() > 0).then_some(batch))
    }
}

impl TimeRange {
    fn push(&self, statement: &mut Statement<'_>) -> Result<(), DatabaseError> {
        let time = self.table.columns()[self.table.keys().time].name;
        statement.push(" FROM ").push(self.table.as_str()).push(" WHERE ");
        statement.push(time).push(" >= ").bind_time(self.start)?;
        statement.push(" AND ").push(time).push(" < ").bind_time(self.end)?;
        Ok(())
    }

    /// Appends the next rows to a batch; returns the cursor for the next call, or `None` at the end.
    async fn read_page(
        &self,
        pool: &Pool,
        after: Option<&Cursor>,
        batch: &mut Batch,
    ) -> Result<Option<Cursor>, DatabaseError> {
        let mut transaction = pool.begin_snapshot().await?;
        let engine = transaction.engine();
        let page_rows = if engine == Engine::Postgres { COPIED_ROWS } else { PAGE_ROWS };
        let statement = self.select_page(engine, after, page_rows)?;
        let rows = if engine == Engine::Postgres {
            let mut reader = CopyReader::new(self.table);
            statement.copy_out(&mut transaction, &mut |message| reader.read(message)).await?;
            reader.append_to(batch)
        } else {
            let rows = statement.rows(&mut transaction).await?;
            rows.iter().try_for_each(|row| append(self.table, row, batch))?;
            rows.len()
        };
        transaction.rollback().await?;
        Ok(if rows < page_rows as usize { None } else { self.cursor(batch) })
    }

    fn select_page(
        &self,
        engine: Engine,
        after: Option<&Cursor>,
        page_rows: u32,
    ) -> Result<Statement<'static>, DatabaseError> {
        let (columns, keys) = (self.table.columns(), self.table.keys());
        let (time, key) = (columns[keys.time].name, columns[keys.key].name);
        let mut statement = Statement::new(engine, "SELECT ");
        for (number, column) in columns.iter().enumerate() {
            statement.push(if number == 0 { "" } else { ", " });
            push_column(&mut statement, engine, column);
        }
        self.push(&mut statement)?;
        if let Some(Cursor { time: last, key: last_key }) = after {
            // The first condition alone is a range of the index; the second one cuts off its start.
            statement.push(" AND ").push(time).push(" >= ").bind_time(*last)?;
            statement.push(" AND (").push(time).push(" > ").bind_time(*last)?;
            statement.push(" OR ").push(key).push(" > ").bind(last_key.clone()).push(")");
        }
        statement.push(" ORDER BY ").push(time).push(", ").push(key);
        statement.push(" LIMIT ").bind(page_rows);
        Ok(statement)
    }

    fn cursor(&self, batch: &Batch) -> Option<Cursor> {
        let keys = self.table.keys();
        let last = batch.rows().checked_sub(1)?;
        let key = &batch.columns[keys.key];
        let key = key
            .int(last)
            .map(Value::from)
            .or_else(|| key.bytes(last).map(|bytes| Value::Bytes(Some(bytes.to_vec().into()))))?;
        Some(Cursor { time: u64::try_from(batch.columns[keys.time].int(last)?).ok()?, key })
    }

    /// The number of rows, and the sum of their counts.
    pub(super) async fn totals(&self, transaction: &mut Transaction) -> Result<(u64, i64), DatabaseError> {
        let keys = self.table.keys();
        let mut statement = Statement::new(transaction.engine(), "SELECT COUNT(*), ");
        match keys.version {
            Some((count, _)) => statement.sum(self.table.columns()[count].name),
            None => statement.int("0"),
        };
        self.push(&mut statement)?;
        let rows = statement.rows(transaction).await?;
        let Some(row) = rows.first() else { return Ok((0, 0)) };
        Ok((from_i64(row.int(0)?, self.table.as_str())?, row.maybe_int(1)?.unwrap_or(0)))
    }

    pub(super) async fn is_empty(&self, pool: &Pool) -> Result<bool, DatabaseError> {
        Ok(self.oldest(pool).await?.is_none())
    }

    /// The time of the first row.
    pub(super) async fn oldest(&self, pool: &Pool) -> Result<Option<u64>, DatabaseError> {
        let time = self.table.columns()[self.table.keys().time].name;
        let mut transaction = pool.begin_snapshot().await?;
        let mut statement = Statement::new(transaction.engine(), "SELECT ");
        statement.micros(time);
        self.push(&mut statement)?;
        statement.push(" ORDER BY ").push(time).push(" LIMIT 1");
        let rows = statement.rows(&mut transaction).await?;
        transaction.rollback().await?;
        rows.first().map(|row| from_i64(row.int(0)?, self.table.as_str())).transpose()
    }
}

fn push_column(statement: &mut Statement<'_>, engine: Engine, column: &Column) {
    match column.kind {
        ColumnKind::Address => statement.address(column.name),
        // `COPY` has all of them in the binary format.
        _ if engine == Engine::Postgres => statement.push(column.name),
        ColumnKind::Time => statement.micros(column.name),
        ColumnKind::Int | ColumnKind::Flag | ColumnKind::Text | ColumnKind::Hash => {
            statement.push(column.name)
        }
    };
}

fn append(table: ArchivedTable, row: &Row, batch: &mut Batch) -> Result<(), DatabaseError> {
    for (number, (column, values)) in table.columns().iter().zip(&mut batch.columns).enumerate() {
        match values {
            Values::Int(values) => values.push(row.maybe_int(number)?),
            Values::Bytes(values) => {
                let bytes = match column.kind {
                    ColumnKind::Hash => row.bytes(number)?,
                    _ => row.maybe_text(number, table.as_str())?.map(String::into_bytes),
                };
                values.push(bytes.map(ByteArray::from));
            }
        }
    }
    Ok(())
}
