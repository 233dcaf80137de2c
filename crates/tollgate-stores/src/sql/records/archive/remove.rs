//! Removes rows that are in the archive from the database: nothing else, however late other rows arrive.

use jiff::civil::Date;

use super::select::TimeRange;
use crate::archive::batch::Batch;
use crate::sql::engine::{Pool, Transaction};
use crate::sql::error::DatabaseError;
use crate::sql::query::Value;
use crate::sql::records::maintain::partitions::{begin_ddl, drop_statement};
use crate::sql::records::maintain::{RecordTable, periods::digits};
use crate::sql::records::queries::statement::Statement;
use crate::sql::settings::Engine;

/// Rows deleted by one statement and transaction.
const CHUNK_ROWS: usize = 1_000;

/// Drops the partition of a range if it has exactly these rows. Writers wait meanwhile, so no row can be added in between.
pub(super) async fn drop_partition(
    pool: &Pool,
    table: &RecordTable,
    start: Date,
    range: &TimeRange,
    expected: (u64, i64),
) -> Result<bool, DatabaseError> {
    let mut transaction = begin_ddl(pool).await?;
    let name = table.name;
    transaction
        .execute_script(match transaction.engine() {
            Engine::MySql => format!("LOCK TABLES {name} WRITE"),
            // The parent first, as writers do, so that there is no deadlock.
            Engine::Postgres | Engine::Sqlite => {
                format!("LOCK TABLE ONLY {name} IN ACCESS EXCLUSIVE MODE; LOCK TABLE {name}_{} IN ACCESS EXCLUSIVE MODE", digits(start))
            }
        })
        .await?;
    if range.totals(&mut transaction).await? != expected {
        end(transaction).await?;
        return Ok(false);
    }
    let drop = drop_statement(transaction.engine(), table, &[start]);
    transaction.execute_script(drop).await?;
    end(transaction).await?;
    Ok(true)
}

async fn end(mut transaction: Transaction) -> Result<(), DatabaseError> {
    if transaction.engine() == Engine::MySql {
        transaction.execute_script("UNLOCK TABLES").await?;
    }
    transaction.commit().await
}

/// Deletes the rows of a batch. Rows that have changed since they were archived stay.
pub(super) async fn delete_rows(pool: &Pool, batch: &Batch) -> Result<u64, DatabaseError> {
    let mut deleted = 0;
    for first in (0..batch.rows()).step_by(CHUNK_ROWS) {
        let rows = first..batch.rows().min(first + CHUNK_ROWS);
        let mut transaction = pool.begin_append().await?;
        let statement = delete_statement(transaction.engine(), batch, rows)?;
        deleted += statement.execute(&mut transaction).await?;
        transaction.commit().await?;
    }
    Ok(deleted)
}

fn delete_statement(
    engine: Engine,
    batch: &Batch,
    rows: std::ops::Range<usize>,
) -> Result<Statement<'_>, DatabaseError> {
    let (columns, keys) = (batch.table.columns(), batch.table.keys());
    let mut statement = Statement::new(engine, "DELETE FROM ");
    statement.push(batch.table.as_str()).push(" WHERE (").push(columns[keys.time].name);
    statement.push(", ").push(columns[keys.key].name);
    if let Some(count) = keys.count {
        statement.push(", ").push(columns[count].name);
    }
    statement.push(if engine == Engine::Sqlite { ") IN (VALUES " } else { ") IN (" });
    for row in rows.clone() {
        statement.push(if row == rows.start { "(" } else { ", (" });
        let time = batch.columns[keys.time].int(row).and_then(|time| u64::try_from(time).ok());
        statement.bind_time(time.unwrap_or(0))?.push(", ");
        let key = &batch.columns[keys.key];
        statement
            .bind(key.int(row).map_or_else(|| Value::Bytes(key.bytes(row).map(Into::into)), Value::from));
        if let Some(count) = keys.count {
            statement.push(", ").bind(batch.columns[count].int(row));
        }
        statement.push(")");
    }
    statement.push(")");
    Ok(statement)
}
