//! Access of the API to the records database. It connects at the first query: no check needs it.

use tokio::sync::OnceCell;
use tollgate_stores::sql::records::{RecordReader, RecordsDatabase};
use tollgate_stores::sql::{DatabaseError, SqlSettings};

use crate::config::settings::Settings;

/// Reads the records database.
pub(crate) struct RecordQueries {
    /// Otherwise why it is missing.
    settings: Result<SqlSettings, NoRecords>,
    reader: OnceCell<RecordReader>,
}

/// Why there is no records database.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NoRecords {
    /// Records are not kept.
    #[error("decisions are not recorded: records.enabled is false")]
    Disabled,
    /// They are only written to Parquet files.
    #[error("records are not in a database: query the Parquet files in {0}, or set records.url")]
    OnlyParquet(String),
}

/// Why the records cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordsUnavailable {
    /// There is no records database.
    #[error(transparent)]
    NoDatabase(#[from] NoRecords),
    /// The database is unreachable, or rejected the query.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl RecordQueries {
    pub(crate) fn new(settings: &Settings) -> Self {
        let records = &settings.records;
        let sql = match records.sql(&settings.data_dir) {
            _ if !records.enabled => Err(NoRecords::Disabled),
            Some(sql) => Ok(sql),
            None => {
                let place = records.parquet.as_ref().map(|parquet| parquet.files.place.to_string());
                Err(NoRecords::OnlyParquet(place.unwrap_or_default()))
            }
        };
        RecordQueries { settings: sql, reader: OnceCell::new() }
    }

    /// The reader. Connects if that has not succeeded before.
    pub(crate) async fn reader(&self) -> Result<RecordReader, RecordsUnavailable> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
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
