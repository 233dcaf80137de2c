//! The drain: moves rows from a spool to the database of records.
//!
//! One task per spool. It reads a batch, stores it, releases it, and so on. While the database is unreachable, rows wait in the
//! spool. Rows are stored exactly once: the database moves the position of a source in the same transaction, and a range with
//! an unknown outcome is sent again.
//!
//! The drain ends after the writer of the spool is closed: when the spool is empty, or at a deadline. The next start drains the
//! rest.

mod database;
mod delivery;
mod quarantine;
mod sink;
mod stats;
mod store_timeouts;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_stores::sql::records::RowRange;
use tracing::{error, warn};

pub(crate) use self::database::{AggregateSink, DecisionSink, RecordsConnection};
use self::delivery::{Delivery, Piece, Stopped};
pub(crate) use self::quarantine::Quarantine;
pub(in crate::records) use self::quarantine::QuarantinedRow;
use self::sink::BatchSink;
pub(crate) use self::stats::DrainStats;
use super::spool::{Batch, SpoolReader, SpoolStats, SpoolWatch};

/// A batch is not larger, whatever its rows are.
const BATCH_BYTES_MAX: usize = 32 << 20;
/// With this many rows waiting, it pays to collect more.
const MANY_ROWS: u64 = 10_000;
/// Attempts to read a segment before it is given up.
const READ_ATTEMPTS: u32 = 10;
/// Longest pause of a paced catch-up.
const PACE_MAX: Duration = Duration::from_secs(1);

/// How a spool is drained.
#[derive(Copy, Clone, Debug)]
pub(crate) struct DrainSettings {
    /// Rows stored in one transaction.
    pub(crate) rows_max: usize,
    /// How long rows wait for others to be stored with. Aggregates of one minute then become one row.
    pub(crate) collect_for: Duration,
    /// Extra wait once [`MANY_ROWS`] are waiting: later rows mostly merge with them.
    pub(crate) collect_many_for: Duration,
    /// The pause after a failed call, doubled up to `backoff_max`.
    pub(crate) backoff_min: Duration,
    pub(crate) backoff_max: Duration,
    /// A call that takes longer has failed.
    pub(crate) call_timeout: Duration,
    /// How long the drain goes on after the writer is closed.
    pub(crate) shutdown_max: Duration,
}

impl DrainSettings {
    /// For the decision log.
    pub(crate) const LOG: DrainSettings = DrainSettings {
        rows_max: 5_000,
        collect_for: Duration::from_secs(3),
        collect_many_for: Duration::ZERO,
        backoff_min: Duration::from_millis(200),
        backoff_max: Duration::from_secs(10),
        call_timeout: Duration::from_mins(1),
        shutdown_max: Duration::from_secs(5),
    };

    /// For windows and rollups.
    pub(crate) const AGGREGATES: DrainSettings = DrainSettings {
        rows_max: 200_000,
        collect_for: Duration::from_secs(10),
        collect_many_for: Duration::from_secs(10),
        ..DrainSettings::LOG
    };
}

/// The task that drains one spool.
pub(crate) struct Drain<S: BatchSink> {
    sink: Arc<S>,
    /// Absent while it is in use on another thread.
    reader: Option<SpoolReader>,
    watch: SpoolWatch,
    settings: DrainSettings,
    delivery: Delivery<S>,
    /// Failed reads in a row.
    failed_reads: u32,
    /// Whether the spool was not empty at the start or after an outage, and has not been since.
    is_catching_up: bool,
}

/// Rows of a batch, decoded.
struct DecodedBatch<R> {
    range: RowRange,
    pieces: Vec<Piece<R>>,
}

impl<S: BatchSink> Drain<S> {
    pub(crate) fn new(
        sink: S,
        reader: SpoolReader,
        settings: DrainSettings,
        quarantine: Arc<Quarantine>,
    ) -> Self {
        let (sink, watch) = (Arc::new(sink), reader.watch());
        let delivery = Delivery::new(Arc::clone(&sink), watch.clone(), settings, quarantine);
        Drain {
            sink,
            reader: Some(reader),
            is_catching_up: watch.stats().backlog_rows.get() > 0,
            watch,
            settings,
            delivery,
            failed_reads: 0,
        }
    }

    /// Figures of the drain.
    pub(crate) fn stats(&self) -> &Arc<DrainStats> {
        self.delivery.stats()
    }

    /// Drains the spool until its writer is closed and it is empty, or the deadline has passed.
    pub(crate) async fn run(mut self) {
        if self.drain().await.is_err() {
            let rows = self.backlog();
            warn!(rows, "the database of records did not store all rows in time; they stay in the spool");
        }
    }

    async fn drain(&mut self) -> Result<(), Stopped> {
        self.delivery.prepare().await?;
        while self.wait_for_rows().await {
            let started = Instant::now();
            let batch = match self.read().await {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    // Rows were damaged: they count until the reader has passed them.
                    self.delivery.pause(self.settings.backoff_min).await?;
                    continue;
                }
                Err(error) => {
                    self.retry_read(&error).await?;
                    continue;
                }
            };
            self.failed_reads = 0;
            let range = batch.range;
            self.delivery.deliver(&range, batch.pieces).await?;
            self.with_reader(move |reader| reader.release(&range)).await;
            self.pace(started.elapsed()).await?;
        }
        Ok(())
    }

    fn backlog(&self) -> u64 {
        self.watch.stats().backlog_rows.get()
    }

    /// Waits until a batch is worth storing. `false` if the spool is empty and its writer is closed.
    async fn wait_for_rows(&self) -> bool {
        let rows_max = self.settings.rows_max as u64;
        let is_enough = |stats: &SpoolStats| stats.backlog_rows.get() >= rows_max;
        let has_rows = self.watch.wait_for_rows(self.settings.collect_for, is_enough).await;
        if has_rows && self.backlog() >= MANY_ROWS {
            self.watch.wait_for_rows(self.settings.collect_many_for, is_enough).await;
        }
        has_rows
    }

    async fn read(&mut self) -> io::Result<Option<DecodedBatch<S::Row>>> {
        let (sink, rows_max) = (Arc::clone(&self.sink), self.settings.rows_max);
        let read = self.with_reader(move |reader| {
            let batch = reader.next(rows_max, BATCH_BYTES_MAX)?;
            Ok(batch.map(|batch| decode(&*sink, &batch)))
        });
        read.await.unwrap_or_else(|| Err(io::Error::other("the reader of the spool is gone")))
    }

    /// Uses the reader on a thread that may block.
    async fn with_reader<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut SpoolReader) -> T + Send + 'static,
    ) -> Option<T> {
        let mut reader = self.reader.take()?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work(&mut reader);
            (reader, done)
        });
        let (reader, done) = working.await.ok()?;
        self.reader = Some(reader);
        Some(done)
    }

    async fn retry_read(&mut self, cause: &io::Error) -> Result<(), Stopped> {
        if self.reader.is_none() {
            error!("the reader of the record spool is gone; records stay in the spool until a restart");
            return Err(Stopped);
        }
        if self.failed_reads == 0 {
            warn!(error = %cause, "cannot read the record spool");
        }
        self.failed_reads += 1;
        if self.failed_reads >= READ_ATTEMPTS {
            self.failed_reads = 0;
            self.with_reader(SpoolReader::skip_segment).await;
        }
        self.delivery.pause(self.settings.backoff_min).await
    }

    /// After an outage, leaves the database half of the time for others.
    async fn pace(&mut self, batch_took: Duration) -> Result<(), Stopped> {
        self.is_catching_up |= self.delivery.take_outage();
        self.is_catching_up &= self.backlog() >= self.settings.rows_max as u64;
        if self.is_catching_up && !self.watch.is_closed() {
            self.delivery.pause(batch_took.min(PACE_MAX)).await?;
        }
        Ok(())
    }
}

/// Splits a batch at rows that cannot be decoded.
fn decode<S: BatchSink>(sink: &S, batch: &Batch) -> DecodedBatch<S::Row> {
    let mut pieces: Vec<Piece<S::Row>> = Vec::new();
    for (number, bytes) in (batch.range.first..).zip(batch.shared_rows()) {
        match (sink.decode(&bytes), pieces.last_mut()) {
            (Some(row), Some(Piece::Rows { rows, .. })) => rows.push(row),
            (Some(row), _) => {
                let expected = if pieces.is_empty() { batch.range.end - number } else { 1 };
                let mut rows = Vec::with_capacity(usize::try_from(expected).unwrap_or(1));
                rows.push(row);
                pieces.push(Piece::Rows { first: number, rows });
            }
            (None, _) => pieces.push(Piece::Undecodable { number, bytes: bytes.to_vec() }),
        }
    }
    DecodedBatch { range: batch.range, pieces }
}

#[cfg(test)]
mod tests;
