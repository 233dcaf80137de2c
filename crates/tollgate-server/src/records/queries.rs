//! Access of the API to the records database. It connects at the first query: no check needs it.

use tokio::sync::OnceCell;
use tollgate_stores::sql::records::{RecordReader, RecordsDatabase};
use tollgate_stores::sql::{DatabaseError, SqlSettings};

/// Reads the records database.
pub(crate) struct RecordQueries {
    /// Absent if records are disabled.
    settings: Option<SqlSettings>,
    reader: OnceCell<RecordReader>,
}

/// Why the records cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordsUnavailable {
    /// They are not kept.
    #[error("decisions are not recorded: records.enabled is false")]
    Disabled,
    /// The database is unreachable, or rejected the query.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl RecordQueries {
    /// Without settings, records are disabled.
    pub(crate) fn new(settings: Option<SqlSettings>) -> Self {
        RecordQueries { settings, reader: OnceCell::new() }
    }

    /// The reader. Connects if that has not succeeded before.
    pub(crate) async fn reader(&self) -> Result<RecordReader, RecordsUnavailable> {
        let settings = self.settings.as_ref().ok_or(RecordsUnavailable::Disabled)?;
        let reader = self.reader.get_or_try_init(|| connect(settings)).await?;
        Ok(reader.clone())
    }
}

/// Creates the tables if nothing was stored yet.
async fn connect(settings: &SqlSettings) -> Result<RecordReader, DatabaseError> {
    let database = RecordsDatabase::connect(settings.clone()).await?;
    let migrated = database.migrate().await;
    database.close().await;
    migrated?;
    RecordReader::connect(settings).await
}
