//! Writes archived rows into the database. A row that exists stays, so a restore can be repeated and overwrites nothing.

use std::ops::Range;

use crate::archive::batch::{Batch, Values};
use crate::archive::{Column, ColumnKind};
use crate::sql::engine::Pool;
use crate::sql::error::DatabaseError;
use crate::sql::query::Value;
use crate::sql::records::queries::statement::Statement;
use crate::sql::settings::Engine;

/// Rows of one statement: below the 32,766 values of SQLite and the 65,535 of the others.
const CHUNK_ROWS: usize = 500;
/// Statements of one transaction.
const CHUNKS: usize = 8;

pub(super) async fn insert_rows(pool: &Pool, batch: &Batch) -> Result<(), DatabaseError> {
    for first in (0..batch.rows()).step_by(CHUNK_ROWS * CHUNKS) {
        let end = batch.rows().min(first + CHUNK_ROWS * CHUNKS);
        let mut transaction = pool.begin_append().await?;
        for start in (first..end).step_by(CHUNK_ROWS) {
            let rows = start..end.min(start + CHUNK_ROWS);
            let statement = insert_statement(transaction.engine(), batch, rows)?;
            statement.execute(&mut transaction).await?;
        }
        transaction.commit().await?;
    }
    Ok(())
}

fn insert_statement(
    engine: Engine,
    batch: &Batch,
    rows: Range<usize>,
) -> Result<Statement<'_>, DatabaseError> {
    let (columns, keys) = (batch.table.columns(), batch.table.keys());
    let mut statement = Statement::new(engine, "INSERT INTO ");
    statement.push(batch.table.as_str()).push(" (");
    for (number, column) in columns.iter().enumerate() {
        statement.push(if number == 0 { "" } else { ", " }).push(column.name);
    }
    statement.push(") VALUES ");
    for row in rows.clone() {
        statement.push(if row == rows.start { "(" } else { ", (" });
        for (number, (column, values)) in columns.iter().zip(&batch.columns).enumerate() {
            statement.push(if number == 0 { "" } else { ", " });
            bind(&mut statement, engine, column, values, row)?;
        }
        statement.push(")");
    }
    let (time, key) = (columns[keys.time].name, columns[keys.key].name);
    statement.push(" ON CONFLICT (").push(time).push(", ").push(key);
    // Changes nothing.
    statement.push(") DO UPDATE SET ").push(key).push(" = excluded.").push(key);
    Ok(statement)
}

fn bind<'a>(
    statement: &mut Statement<'a>,
    engine: Engine,
    column: &Column,
    values: &'a Values,
    row: usize,
) -> Result<(), DatabaseError> {
    let int = values.int(row).or(column.is_required.then_some(0));
    match (column.kind, engine) {
        (ColumnKind::Time, _) => {
            statement.bind_time(int.and_then(|time| u64::try_from(time).ok()).unwrap_or(0))?
        }
        (ColumnKind::Flag, Engine::Postgres) => statement.push("(").bind(int).push(" <> 0)"),
        (ColumnKind::Int | ColumnKind::Flag, _) => statement.bind(int),
        (ColumnKind::Address, Engine::Postgres) => {
            statement.push("CAST(").bind(text(column, values, row)).push(" AS INET)")
        }
        (ColumnKind::Text | ColumnKind::Address, _) => statement.bind(text(column, values, row)),
        (ColumnKind::Hash, _) => statement.bind(Value::Bytes(values.bytes(row).map(Into::into))),
    };
    Ok(())
}

/// A required text that a file does not have is empty.
fn text<'a>(column: &Column, values: &'a Values, row: usize) -> Option<&'a str> {
    values.text(row).or(column.is_required.then_some(""))
}
