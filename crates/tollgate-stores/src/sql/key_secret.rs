//! Detects nodes that hash API keys with different secrets.

use super::engine::{Pool, Transaction};
use super::error::DatabaseError;
use super::query::Query;
use super::version;

/// Whether a node hashes API keys with the same secret as the first node of the fleet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum KeySecretCheck {
    /// It does, or it is the first node.
    Matches,
    /// It does not: it cannot verify keys that other nodes created.
    Differs,
}

pub(super) async fn check(pool: &Pool, fingerprint: &[u8; 32]) -> Result<KeySecretCheck, DatabaseError> {
    let mut transaction = pool.begin_write().await?;
    // Of two first callers one waits, and then finds the fingerprint of the other.
    version::lock(&mut transaction).await?;
    let Some(stored) = stored_fingerprint(&mut transaction).await? else {
        let insert = "INSERT INTO key_check (id, value) VALUES (1, ?)";
        transaction.execute(&Query::with(insert, [fingerprint.as_slice().into()])).await?;
        transaction.commit().await?;
        return Ok(KeySecretCheck::Matches);
    };
    transaction.rollback().await?;
    Ok(compared(&stored, fingerprint))
}

/// Compares without storing anything; `None` if no node has stored a fingerprint.
pub(super) async fn compare(
    pool: &Pool,
    fingerprint: &[u8; 32],
) -> Result<Option<KeySecretCheck>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let stored = stored_fingerprint(&mut transaction).await?;
    transaction.rollback().await?;
    Ok(stored.map(|stored| compared(&stored, fingerprint)))
}

fn compared(stored: &[u8], fingerprint: &[u8; 32]) -> KeySecretCheck {
    if stored == fingerprint { KeySecretCheck::Matches } else { KeySecretCheck::Differs }
}

async fn stored_fingerprint(transaction: &mut Transaction) -> Result<Option<Vec<u8>>, DatabaseError> {
    let row = transaction.row(&Query::new("SELECT value FROM key_check WHERE id = 1")).await?;
    row.map_or(Ok(None), |row| row.bytes(0))
}
