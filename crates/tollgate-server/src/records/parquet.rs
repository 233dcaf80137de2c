//! Writes records from a spool of their own to Parquet files in a folder or an object store.
//!
//! One task per spool. Every few minutes, or when many rows wait, it encodes the next rows of the spool, notes their range beside
//! the spool, writes one file for each table and hour, and releases the rows. The names of the files follow from the range, so a
//! write with an unknown outcome is repeated without rows that are missing or twice. While the store is unreachable, rows wait in
//! the spool.

mod compactor;
mod position;
mod rows;
mod stats;

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate_stores::archive::{ArchiveError, ArchiveSettings};
use tollgate_stores::record_files::{EncodedFile, RecordFiles};
use tracing::{error, info, warn};

use self::compactor::Compactor;
use self::position::Positions;
pub(crate) use self::rows::RowKind;
use self::rows::{EncodedRange, UnwrittenRows};
pub(crate) use self::stats::ParquetStats;
use super::drain::Quarantine;
use super::spool::{SpoolReader, SpoolStats, SpoolWatch};
use crate::config::settings::ParquetSection;
use crate::runtime::clock::Clock;

/// The pause after a failed write, doubled up to `BACKOFF_MAX`.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// How long rows are written after the spool is closed.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// Where files go, and when. Shared by all tasks.
#[derive(Debug)]
pub(crate) struct ParquetTarget {
    settings: ArchiveSettings,
    files: OnceLock<RecordFiles>,
    every: Duration,
    buffer_bytes_max: u64,
    is_compacted: bool,
}

impl ParquetTarget {
    pub(crate) fn new(section: &ParquetSection, spool_bytes_max: u64) -> Self {
        ParquetTarget {
            settings: section.files.clone(),
            files: OnceLock::new(),
            every: section.every,
            // Rows are written before the spool is full.
            buffer_bytes_max: section.buffer_bytes_max.min(spool_bytes_max / 2),
            is_compacted: section.compact,
        }
    }

    fn files(&self) -> Result<RecordFiles, ArchiveError> {
        if let Some(files) = self.files.get() {
            return Ok(files.clone());
        }
        let files = RecordFiles::open(&self.settings)?;
        Ok(self.files.get_or_init(|| files).clone())
    }
}

/// The deadline of the shutdown has passed, or rows cannot be encoded.
struct Stopped;

/// The task that writes the rows of one spool.
pub(crate) struct ParquetDrain {
    target: Arc<ParquetTarget>,
    /// Absent while it is in use on another thread.
    rows: Option<UnwrittenRows>,
    watch: SpoolWatch,
    positions: Arc<Positions>,
    stats: Arc<ParquetStats>,
    quarantine: Arc<Quarantine>,
    clock: Clock,
}

impl ParquetDrain {
    /// `folder` is that of the spool. Blocks on the disk.
    ///
    /// # Errors
    /// When the position in the folder cannot be read.
    pub(crate) fn open(
        target: Arc<ParquetTarget>,
        folder: &Path,
        reader: SpoolReader,
        kind: RowKind,
        quarantine: Arc<Quarantine>,
        clock: Clock,
    ) -> io::Result<Self> {
        let positions = Arc::new(Positions::open(folder)?);
        let watch = reader.watch();
        let rows = Some(UnwrittenRows::new(reader, kind, Arc::clone(&positions)));
        Ok(ParquetDrain { target, rows, watch, positions, stats: Arc::default(), quarantine, clock })
    }

    /// Figures of the files.
    pub(crate) fn stats(&self) -> &Arc<ParquetStats> {
        &self.stats
    }

    /// Starts the task, and the one that compacts its files until `stop`.
    pub(crate) fn start(self, stop: watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
        let compactor = self.target.is_compacted.then(|| Compactor {
            target: Arc::clone(&self.target),
            positions: Arc::clone(&self.positions),
            stats: Arc::clone(&self.stats),
            clock: self.clock,
        });
        let compactor = compactor.map(|compactor| tokio::spawn(compactor.run(stop)));
        compactor.into_iter().chain([tokio::spawn(self.run())]).collect()
    }

    /// Writes rows until the spool is closed and empty, or the deadline has passed.
    async fn run(mut self) {
        if self.drain().await.is_err() {
            let rows = self.backlog();
            warn!(rows, "not all rows were written to Parquet files in time; they stay in the spool");
        }
    }

    async fn drain(&mut self) -> Result<(), Stopped> {
        // Rows of an earlier process have waited already.
        let mut is_due = self.backlog() > 0;
        while is_due || self.wait_for_rows().await {
            is_due = false;
            let Some(encoded) = self.encode().await? else {
                // Rows were damaged: they count until the reader has passed them.
                self.pause(BACKOFF_MIN).await?;
                continue;
            };
            self.write(encoded).await?;
        }
        Ok(())
    }

    fn backlog(&self) -> u64 {
        self.watch.stats().backlog_rows.get()
    }

    /// Waits until a write is due. `false` if the spool is empty and closed.
    async fn wait_for_rows(&self) -> bool {
        let bytes_max = self.target.buffer_bytes_max;
        let is_enough = |stats: &SpoolStats| stats.bytes.get() >= bytes_max;
        self.watch.wait_for_rows(self.target.every, is_enough).await
    }

    async fn encode(&mut self) -> Result<Option<EncodedRange>, Stopped> {
        let (bytes_max, now) = (self.target.buffer_bytes_max, self.clock.now().as_micros());
        match self.with_rows(move |rows| rows.encode(bytes_max, now)).await? {
            Ok(encoded) => Ok(encoded),
            Err(cause) => {
                self.note_failure(&cause.to_string());
                error!(error = %cause, "records cannot be encoded; they stay in the spool until a restart");
                Err(Stopped)
            }
        }
    }

    /// Uses the rows on a thread that may block.
    async fn with_rows<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut UnwrittenRows) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let mut rows = self.rows.take().ok_or(Stopped)?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work(&mut rows);
            (rows, done)
        });
        let (rows, done) = working.await.map_err(|_| Stopped)?;
        self.rows = Some(rows);
        Ok(done)
    }

    /// Writes the files of a range and releases its rows.
    async fn write(&mut self, encoded: EncodedRange) -> Result<(), Stopped> {
        let EncodedRange { range, rows, files, quarantined } = encoded;
        self.note_position(move |positions| positions.begin(&range)).await?;
        for file in &files {
            let target = Arc::clone(&self.target);
            self.retry(|| async { target.files()?.write(file).await }).await?;
            self.note_success();
            self.stats.files.add(1);
            self.stats.file_rows.add(file.rows);
            self.stats.file_bytes.add(file.bytes);
        }
        let count = quarantined.len() as u64;
        if let Some(first) = quarantined.first() {
            warn!(rows = count, error = %first.error, "records cannot be stored; they are kept in the quarantine");
            let quarantine = Arc::clone(&self.quarantine);
            let writing = tokio::task::spawn_blocking(move || {
                for row in &quarantined {
                    quarantine.add(row);
                }
            });
            let _ = writing.await; // fails only when the runtime stops
        }
        let hours: Vec<_> = files.iter().map(EncodedFile::partition).collect();
        self.note_position(move |positions| positions.finish(&range, hours.iter().copied())).await?;
        self.stats.drain.rows_stored.add(rows - count);
        self.stats.drain.rows_quarantined.add(count);
        self.with_rows(move |rows| rows.release(&range)).await
    }

    /// Changes the position on disk; repeated until it succeeds.
    async fn note_position(
        &mut self,
        change: impl Fn(&Positions) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<(), Stopped> {
        let (positions, change) = (Arc::clone(&self.positions), Arc::new(change));
        self.retry(|| async {
            let (positions, change) = (Arc::clone(&positions), Arc::clone(&change));
            let noted = tokio::task::spawn_blocking(move || change(&positions)).await;
            noted.map_err(io::Error::other)?
        })
        .await
    }

    /// Repeats a call until it succeeds.
    async fn retry<E, F>(&self, call: impl Fn() -> F) -> Result<(), Stopped>
    where
        E: std::fmt::Display,
        F: Future<Output = Result<(), E>>,
    {
        let mut backoff = BACKOFF_MIN;
        loop {
            let called = tokio::select! {
                called = call() => called,
                () = self.deadline() => return Err(Stopped),
            };
            let Err(error) = called else { return Ok(()) };
            self.note_failure(&error.to_string());
            self.pause(backoff).await?;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    fn note_success(&self) {
        if self.stats.drain.note(None) {
            info!(rows = self.backlog(), "records are written to Parquet files");
        }
    }

    fn note_failure(&self, error: &str) {
        self.stats.failures.add(1);
        if self.stats.drain.note(Some(error.to_owned())) {
            warn!(%error, "cannot write Parquet files; records wait in the spool");
        }
    }

    /// Waits, but not beyond the deadline of the shutdown, and not long once the spool is closed.
    async fn pause(&self, pause: Duration) -> Result<(), Stopped> {
        let closing = async {
            self.watch.closed().await;
            tokio::time::sleep(pause.min(BACKOFF_MIN)).await;
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            () = closing => Ok(()),
            () = self.deadline() => Err(Stopped),
        }
    }

    /// Returns when the task must end.
    async fn deadline(&self) {
        let closed_at = self.watch.closed().await;
        tokio::time::sleep_until(closed_at + SHUTDOWN_MAX).await;
    }
}

#[cfg(test)]
mod tests;
