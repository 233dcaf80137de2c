//! Whether all nodes hash keys with the same secret.

use super::Database;
use super::engine::Transaction;
use super::error::DatabaseError;
use super::query::{Query, Value};

/// Whether a node's check value is the one of the first node.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum KeySecretCheck {
    /// It is, or this node is the first.
    Matches,
    /// It is not: this node has another secret, and knows no key of the others.
    Differs,
}

impl Database {
    /// Compares a value that follows from the secret with which keys are hashed. The first caller's is stored. It is not the
    /// secret, and must not tell anything about it.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn check_key_secret(&self, value: &[u8; 32]) -> Result<KeySecretCheck, DatabaseError> {
        let mut transaction = self.pool.begin_write().await?;
        // Locks the row of the version, which changes take too: of two first callers one comes second.
        let lock = Query::new("UPDATE config_version SET version = version WHERE id = 1");
        transaction.execute(&lock).await?;
        let stored = transaction.key_check_value().await?;
        let Some(stored) = stored else {
            let insert = "INSERT INTO key_check (id, value) VALUES (1, ?)";
            transaction.execute(&Query::with(insert, [Value::MaybeBytes(Some(value))])).await?;
            transaction.commit().await?;
            return Ok(KeySecretCheck::Matches);
        };
        transaction.end().await?;
        Ok(if stored == value { KeySecretCheck::Matches } else { KeySecretCheck::Differs })
    }
}

impl Transaction {
    async fn key_check_value(&mut self) -> Result<Option<Vec<u8>>, DatabaseError> {
        let row = self.row(&Query::new("SELECT value FROM key_check WHERE id = 1")).await?;
        row.map_or(Ok(None), |row| row.bytes(0))
    }
}
