//! The database of records.

use super::maintain::{self, Maintenance, Retention};
use super::rows::{DecisionRow, RollupRow, RowRange, SourceId, WindowRow};
use super::{decisions, rollups, source, windows};
use crate::sql::engine::{Durability, Pool, Transaction};
use crate::sql::error::DatabaseError;
use crate::sql::migrations::{self, Migration, MigrationSet};
use crate::sql::settings::SqlSettings;

/// Attempts at a range when another node changes the same rows or their partitions concurrently.
const ATTEMPTS: usize = 5;

/// A pool of connections to the database of records. Clones share it.
///
/// Every operation fails when the database is unreachable or a query fails; see [`DatabaseError`].
#[derive(Clone, Debug)]
pub struct RecordsDatabase {
    pub(super) pool: Pool,
    pub(super) settings: SqlSettings,
}

/// When a range of rows was stored.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// By this call.
    Now,
    /// By an earlier call with the same range. Nothing was changed.
    Before,
}

#[expect(clippy::missing_errors_doc, reason = "documented where there is more to say than on the type")]
impl RecordsDatabase {
    /// Connects to a database. Does not touch the schema: see [`migrate`](Self::migrate).
    ///
    /// After a power failure, a SQLite file may lack the rows of the last half minute.
    ///
    /// # Errors
    /// When the database is unreachable, rejects the credentials, is too old or does not store text as UTF-8. Messages never
    /// contain the password.
    pub async fn connect(settings: SqlSettings) -> Result<Self, DatabaseError> {
        let pool = Pool::connect(&settings, Durability::Checkpoint).await?;
        Ok(RecordsDatabase { pool, settings })
    }

    /// Closes all connections, waiting for those in use.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Applies all pending migrations and returns them. Safe to call on many nodes at once: one migrates, the others wait. The
    /// configuration may be in the same database.
    ///
    /// # Errors
    /// When the schema is newer than this program, another node takes too long, or a migration fails.
    pub async fn migrate(&self) -> Result<Vec<Migration>, DatabaseError> {
        migrations::migrate(MigrationSet::RECORDS, &self.pool, &self.settings).await
    }

    /// The migrations that [`migrate`](Self::migrate) would apply. Changes nothing.
    ///
    /// # Errors
    /// When the schema is newer than this program, or the query fails.
    pub async fn pending_migrations(&self) -> Result<Vec<Migration>, DatabaseError> {
        migrations::pending(MigrationSet::RECORDS, &self.pool, &self.settings).await
    }

    /// The number of the next row of a source. Registers a new source, which starts at 0.
    pub async fn position(&self, source: &SourceId) -> Result<u64, DatabaseError> {
        source::position(&self.pool, source).await
    }

    /// Appends rows to the decision log. Texts that are too long for their columns are truncated.
    ///
    /// # Errors
    /// - [`DatabaseError::is_rejected_row`]: a row cannot be stored. Nothing was stored.
    /// - [`DatabaseError::RowPosition`]: the source has another position. Nothing was stored.
    /// - [`DatabaseError::OutcomeUnknown`]: send the same range again.
    /// - Others: nothing was stored.
    pub async fn store_decisions(
        &self,
        range: &RowRange,
        rows: &[DecisionRow],
    ) -> Result<Stored, DatabaseError> {
        let mut attempt = 1;
        loop {
            match self.try_store_decisions(range, rows).await {
                Err(error) if attempt < ATTEMPTS && error.is_partition_change() => attempt += 1,
                done => return done,
            }
        }
    }

    async fn try_store_decisions(
        &self,
        range: &RowRange,
        rows: &[DecisionRow],
    ) -> Result<Stored, DatabaseError> {
        let Some((mut transaction, source_id)) = self.claim(range).await? else { return Ok(Stored::Before) };
        decisions::append(&mut transaction, source_id, range.first, rows).await?;
        transaction.commit().await?;
        Ok(Stored::Now)
    }

    /// Adds deltas to windows and rollups. Deltas of the same row are added up.
    ///
    /// # Errors
    /// As [`store_decisions`](Self::store_decisions).
    pub async fn store_aggregates(
        &self,
        range: &RowRange,
        windows: &[WindowRow],
        rollups: &[RollupRow],
    ) -> Result<Stored, DatabaseError> {
        let mut attempt = 1;
        loop {
            match self.try_store_aggregates(range, windows, rollups).await {
                Err(error) if attempt < ATTEMPTS && is_concurrent_write(&error) => attempt += 1,
                done => return done,
            }
        }
    }

    async fn try_store_aggregates(
        &self,
        range: &RowRange,
        windows: &[WindowRow],
        rollups: &[RollupRow],
    ) -> Result<Stored, DatabaseError> {
        let Some((mut transaction, source_id)) = self.claim(range).await? else { return Ok(Stored::Before) };
        windows::add(&mut transaction, windows).await?;
        rollups::add(&mut transaction, source_id, rollups).await?;
        transaction.commit().await?;
        Ok(Stored::Now)
    }

    /// Moves the position over rows that are not stored.
    ///
    /// # Errors
    /// As [`store_decisions`](Self::store_decisions).
    pub async fn skip(&self, range: &RowRange) -> Result<Stored, DatabaseError> {
        let Some((transaction, _)) = self.claim(range).await? else { return Ok(Stored::Before) };
        transaction.commit().await?;
        Ok(Stored::Now)
    }

    /// Creates partitions ahead of time, deletes rows that are older than their retention, and computes hour and day rows. To be
    /// called every few minutes by all nodes: one of them does it, the others return at once.
    ///
    /// # Errors
    /// When a step failed. The other steps were done; the next call tries again.
    pub async fn maintain(
        &self,
        node: &str,
        now_micros: u64,
        retention: &Retention,
    ) -> Result<Maintenance, DatabaseError> {
        maintain::maintain(self, node, now_micros, retention).await
    }

    /// Begins a transaction that has moved the position over the range; returns it and the id of the source. `None` if the
    /// range was stored before.
    async fn claim(&self, range: &RowRange) -> Result<Option<(Transaction, i64)>, DatabaseError> {
        let mut transaction = self.pool.begin_append().await?;
        match source::claim(&mut transaction, range).await {
            Ok(Some(id)) => Ok(Some((transaction, id))),
            Ok(None) => transaction.rollback().await.map(|()| None),
            Err(error) => Err(error),
        }
    }
}

/// Whether another node wrote the same rows at the same time, so that a retry succeeds.
fn is_concurrent_write(error: &DatabaseError) -> bool {
    error.is_deadlock() || error.is_partition_change() || matches!(error, DatabaseError::Constraint { .. })
}
