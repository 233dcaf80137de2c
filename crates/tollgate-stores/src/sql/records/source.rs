//! Positions of sources: the table `record_sources`.

use super::rows::{RowRange, SourceId};
use crate::sql::engine::{Pool, Transaction, from_i64, to_i64};
use crate::sql::error::DatabaseError;
use crate::sql::migrations::now_micros;
use crate::sql::query::Query;

const TABLE: &str = "record_sources";
/// Attempts at registering a source that is registered concurrently.
const ATTEMPTS: usize = 3;

pub(super) async fn position(pool: &Pool, source: &SourceId) -> Result<u64, DatabaseError> {
    let mut attempt = 1;
    loop {
        match find_or_register(pool, source).await {
            Err(DatabaseError::Constraint { .. }) if attempt < ATTEMPTS => attempt += 1,
            done => return done,
        }
    }
}

async fn find_or_register(pool: &Pool, source: &SourceId) -> Result<u64, DatabaseError> {
    let mut transaction = pool.begin_append().await?;
    if let Some((_, position)) = find(&mut transaction, source).await? {
        transaction.rollback().await?;
        return Ok(position);
    }
    let insert = "INSERT INTO record_sources (source, position, updated_at_micros) VALUES (?, 0, ?)";
    transaction.execute(&Query::with(insert, [source.0.as_slice().into(), now_micros().into()])).await?;
    transaction.commit().await?;
    Ok(0)
}

/// Moves the position from the start to the end of a range; returns the id of the source. `None` if the range was stored before.
/// Holds the row of the source until the transaction ends.
pub(super) async fn claim(
    transaction: &mut Transaction,
    range: &RowRange,
) -> Result<Option<i64>, DatabaseError> {
    let update =
        "UPDATE record_sources SET position = ?, updated_at_micros = ? WHERE source = ? AND position = ?";
    let values = [
        to_i64(range.end, "row number")?.into(),
        now_micros().into(),
        range.source.0.as_slice().into(),
        to_i64(range.first, "row number")?.into(),
    ];
    let is_moved = transaction.execute_counted(&Query::with(update, values)).await? == 1;
    match find(transaction, &range.source).await? {
        Some((id, _)) if is_moved => Ok(Some(id)),
        Some((_, position)) if position >= range.end => Ok(None),
        found => Err(DatabaseError::RowPosition {
            first: range.first,
            end: range.end,
            found: found.map(|(_, position)| position),
        }),
    }
}

/// The id and the position of a source.
async fn find(transaction: &mut Transaction, source: &SourceId) -> Result<Option<(i64, u64)>, DatabaseError> {
    let select = "SELECT id, position FROM record_sources WHERE source = ?";
    let row = transaction.row(&Query::with(select, [source.0.as_slice().into()])).await?;
    row.map(|row| Ok((row.int(0)?, from_i64(row.int(1)?, TABLE)?))).transpose()
}
