//! The configuration version: one row, incremented by every change.

use super::engine::{Transaction, from_i64};
use super::error::DatabaseError;
use super::query::Query;

const TABLE: &str = "config_version";

pub(super) async fn current(transaction: &mut Transaction) -> Result<u64, DatabaseError> {
    let row = transaction.row(&Query::new("SELECT version FROM config_version WHERE id = 1")).await?;
    from_i64(row.ok_or(DatabaseError::Corrupt { what: TABLE })?.int(0)?, TABLE)
}

/// Increments the version and returns it. Holds the row lock until the transaction ends, so changes of all nodes are serialized.
pub(super) async fn increment(transaction: &mut Transaction) -> Result<u64, DatabaseError> {
    transaction.execute(&Query::new("UPDATE config_version SET version = version + 1 WHERE id = 1")).await?;
    current(transaction).await
}

/// Takes the row lock without a change.
pub(super) async fn lock(transaction: &mut Transaction) -> Result<(), DatabaseError> {
    transaction.execute(&Query::new("UPDATE config_version SET version = version WHERE id = 1")).await?;
    Ok(())
}
