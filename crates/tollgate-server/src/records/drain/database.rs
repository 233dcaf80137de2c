//! Stores batches in the database of records.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use tokio::sync::OnceCell;
use tollgate_stores::sql::records::{
    DecisionRow, RecordsDatabase, RollupRow, RowRange, SourceId, Stored, WindowRow,
};
use tollgate_stores::sql::{DatabaseError, SqlSettings};

use super::sink::{BatchSink, SinkError};
use crate::records::codec::{SpooledAggregate, SpooledWindow, WindowKey, WindowSums, decode_decision};

/// The database of records, once it was reached.
#[derive(Debug)]
pub(crate) struct RecordsConnection {
    settings: SqlSettings,
    database: OnceCell<RecordsDatabase>,
}

impl RecordsConnection {
    pub(crate) fn new(settings: SqlSettings) -> Self {
        RecordsConnection { settings, database: OnceCell::new() }
    }

    /// The database; `None` before it was reached and migrated for the first time.
    pub(crate) fn get(&self) -> Option<&RecordsDatabase> {
        self.database.get()
    }

    /// The database. Connects and migrates the schema if that has not succeeded yet.
    async fn connect(&self) -> Result<&RecordsDatabase, SinkError> {
        let connecting = self.database.get_or_try_init(|| async {
            let database = RecordsDatabase::connect(self.settings.clone()).await?;
            database.migrate().await?;
            Ok::<_, DatabaseError>(database)
        });
        Ok(connecting.await?)
    }
}

/// Stores rows of the decision log.
pub(crate) struct DecisionSink(pub(crate) Arc<RecordsConnection>);

impl BatchSink for DecisionSink {
    type Row = DecisionRow;

    fn decode(&self, row: &Bytes) -> Option<DecisionRow> {
        decode_decision(row)
    }

    async fn prepare(&self) -> Result<(), SinkError> {
        self.0.connect().await.map(drop)
    }

    async fn position(&self, source: &SourceId) -> Result<u64, SinkError> {
        Ok(self.0.connect().await?.position(source).await?)
    }

    async fn store(&self, range: &RowRange, rows: &[DecisionRow]) -> Result<(), SinkError> {
        stored(self.0.connect().await?.store_decisions(range, rows).await)
    }

    async fn skip(&self, range: &RowRange) -> Result<(), SinkError> {
        stored(self.0.connect().await?.skip(range).await)
    }
}

/// Adds up windows and rollups.
pub(crate) struct AggregateSink(pub(crate) Arc<RecordsConnection>);

impl BatchSink for AggregateSink {
    type Row = SpooledAggregate;

    fn decode(&self, row: &Bytes) -> Option<SpooledAggregate> {
        SpooledAggregate::new(row)
    }

    async fn prepare(&self) -> Result<(), SinkError> {
        self.0.connect().await.map(drop)
    }

    async fn position(&self, source: &SourceId) -> Result<u64, SinkError> {
        Ok(self.0.connect().await?.position(source).await?)
    }

    async fn store(&self, range: &RowRange, rows: &[SpooledAggregate]) -> Result<(), SinkError> {
        let (windows, rollups) = split(rows);
        stored(self.0.connect().await?.store_aggregates(range, &windows, &rollups).await)
    }

    async fn skip(&self, range: &RowRange) -> Result<(), SinkError> {
        stored(self.0.connect().await?.skip(range).await)
    }
}

fn split(rows: &[SpooledAggregate]) -> (Vec<WindowRow>, Vec<RollupRow>) {
    let (mut windows, mut rollups) = (WindowMerge::default(), Vec::new());
    for row in rows {
        match row {
            SpooledAggregate::Window(window) => windows.add(window),
            SpooledAggregate::Rollup(row) => rollups.push(RollupRow::clone(row)),
        }
    }
    (windows.rows(), rollups)
}

/// Adds up the deltas of windows by their bytes: a batch has several of each client.
#[derive(Default)]
struct WindowMerge<'a>(HashMap<(u64, &'a [u8]), WindowSums>);

impl<'a> WindowMerge<'a> {
    fn add(&mut self, window: &'a SpooledWindow) {
        let Some((start_micros, key, more)) = window.parts() else { return };
        self.0.entry((start_micros, key)).or_default().add(more);
    }

    fn rows(self) -> Vec<WindowRow> {
        let row = |((start_micros, key), sums): ((u64, &[u8]), WindowSums)| {
            Some(WindowKey::read(key)?.row(start_micros, sums))
        };
        self.0.into_iter().filter_map(row).collect()
    }
}

/// Stored now or before: the database has the rows.
fn stored(stored: Result<Stored, DatabaseError>) -> Result<(), SinkError> {
    stored.map(|_: Stored| ()).map_err(SinkError::from)
}

impl From<DatabaseError> for SinkError {
    fn from(error: DatabaseError) -> Self {
        let message = error.to_string();
        match error {
            DatabaseError::RowPosition { .. } => SinkError::Position(message),
            error if error.is_rejected_row() => SinkError::Rejected(message),
            error if error.is_timeout() => SinkError::TimedOut(message),
            _ => SinkError::Unavailable(message),
        }
    }
}
