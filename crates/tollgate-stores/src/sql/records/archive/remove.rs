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
pub(super) async fn delete_rows(pool: &Pool, batch: &Batch) -> Result<(), DatabaseError> {
    // In the order of the primary key, so that a statement concerns one short range of it.
    let time = &batch.columns[batch.table.keys().time];
    let mut rows: Vec<usize> = (0..batch.rows()).collect();
    rows.sort_unstable_by_key(|row| time.int(*row));
    for rows in rows.chunks(CHUNK_ROWS) {
        let mut transaction = pool.begin_append().await?;
        let statement = delete_statement(transaction.engine(), batch, rows)?;
        statement.execute(&mut transaction).await?;
        transaction.commit().await?;
    }
    Ok(())
}

/// Compares the columns that are different in another row with the same key: a count, and the time of its creation.
fn delete_statement<'a>(
    engine: Engine,
    batch: &'a Batch,
    rows: &[usize],
) -> Result<Statement<'a>, DatabaseError> {
    let (columns, keys) = (batch.table.columns(), batch.table.keys());
    let micros = |column: usize, row: usize| {
        batch.columns[column].int(row).and_then(|time| u64::try_from(time).ok()).unwrap_or(0)
    };
    let (first, last) = (rows.first().copied().unwrap_or(0), rows.last().copied().unwrap_or(0));
    let time = columns[keys.time].name;
    let mut statement = Statement::new(engine, "DELETE FROM ");
    statement.push(batch.table.as_str()).push(" WHERE ").push(time).push(" >= ");
    statement.bind_time(micros(keys.time, first))?.push(" AND ").push(time).push(" <= ");
    statement.bind_time(micros(keys.time, last))?.push(" AND (").push(time);
    statement.push(", ").push(columns[keys.key].name);
    if let Some((count, created)) = keys.version {
        statement.push(", ").push(columns[count].name).push(", ").push(columns[created].name);
    }
    statement.push(if engine == Engine::Sqlite { ") IN (VALUES " } else { ") IN (" });
    for (number, row) in rows.iter().copied().enumerate() {
        statement.push(if number == 0 { "(" } else { ", (" });
        statement.bind_time(micros(keys.time, row))?.push(", ");
        let key = &batch.columns[keys.key];
        statement
            .bind(key.int(row).map_or_else(|| Value::Bytes(key.bytes(row).map(Into::into)), Value::from));
        if let Some((count, created)) = keys.version {
            statement.push(", ").bind(batch.columns[count].int(row)).push(", ");
            statement.bind_time(micros(created, row))?;
        }
        statement.push(")");
    }
    statement.push(")");
    Ok(statement)
}
