//! Stores batches in a sink: retries, exactly-once positions, and rows that are rejected or time out.

use std::sync::Arc;
use std::time::Duration;

use tollgate_stores::sql::records::{RowRange, SourceId};
use tracing::{error, info, warn};

use super::DrainSettings;
use super::quarantine::{Quarantine, QuarantinedRow};
use super::sink::{BatchSink, SinkError};
use super::stats::DrainStats;
use super::store_timeouts::StoreTimeouts;
use crate::records::spool::SpoolWatch;

/// The deadline of the shutdown has passed.
#[derive(Debug)]
pub(super) struct Stopped;

/// Consecutive rows of a batch.
pub(super) enum Piece<R> {
    /// Rows that can be stored.
    Rows {
        /// The number of the first one.
        first: u64,
        rows: Vec<R>,
    },
    /// A row that is not understood.
    Undecodable { number: u64, bytes: Vec<u8> },
}

/// Stores rows in order.
pub(super) struct Delivery<S> {
    sink: Arc<S>,
    watch: SpoolWatch,
    settings: DrainSettings,
    stats: Arc<DrainStats>,
    quarantine: Arc<Quarantine>,
    /// The number of the next row of a source in the database.
    position: Option<(SourceId, u64)>,
    timeouts: StoreTimeouts,
    had_outage: bool,
}

impl<S: BatchSink> Delivery<S> {
    pub(super) fn new(
        sink: Arc<S>,
        watch: SpoolWatch,
        settings: DrainSettings,
        quarantine: Arc<Quarantine>,
    ) -> Self {
        Delivery {
            sink,
            watch,
            settings,
            stats: Arc::default(),
            quarantine,
            position: None,
            timeouts: StoreTimeouts::default(),
            had_outage: false,
        }
    }

    pub(super) fn stats(&self) -> &Arc<DrainStats> {
        &self.stats
    }

    /// Whether the database was unreachable since the last call.
    pub(super) fn take_outage(&mut self) -> bool {
        std::mem::take(&mut self.had_outage)
    }

    /// Connects to the database.
    pub(super) async fn prepare(&mut self) -> Result<(), Stopped> {
        let sink = Arc::clone(&self.sink);
        while let Err(error) = self.call(|| sink.prepare()).await? {
            self.back_off(&error, self.settings.backoff_max).await?;
        }
        Ok(())
    }

    /// Stores a batch. Afterwards every row is in the database or in the quarantine.
    pub(super) async fn deliver(
        &mut self,
        range: &RowRange,
        pieces: Vec<Piece<S::Row>>,
    ) -> Result<(), Stopped> {
        for piece in pieces {
            match piece {
                Piece::Rows { first, rows } => self.store_rows(range.source, first, &rows).await?,
                Piece::Undecodable { number, bytes } => {
                    let error = "the row cannot be decoded".to_owned();
                    self.set_aside(QuarantinedRow::of_bytes(range.source, number, error, &bytes)).await?;
                }
            }
        }
        Ok(())
    }

    /// Stores rows. If one is rejected, or a call takes too long, parts are tried, until the row is alone and can be set aside.
    async fn store_rows(&mut self, source: SourceId, first: u64, rows: &[S::Row]) -> Result<(), Stopped> {
        let mut parts = vec![(0_usize, rows.len())];
        while let Some((start, rest)) = parts.pop() {
            let end = rest.min(start.saturating_add(self.timeouts.rows_max()));
            if end < rest {
                parts.push((end, rest));
            }
            let range = RowRange { source, first: first + start as u64, end: first + end as u64 };
            let Err(error) = self.store_part(&range, &rows[start..end]).await? else { continue };
            let is_timeout = matches!(error, SinkError::TimedOut(_));
            if is_timeout && (end - start > 1 || !self.timeouts.is_exhausted()) {
                parts.push((start, end));
            } else if end - start == 1 {
                let (error, content) = (error.to_string(), format!("{:?}", rows[start]));
                self.set_aside(QuarantinedRow { source, number: range.first, error, content }).await?;
                if is_timeout {
                    self.timeouts.note_set_aside();
                }
            } else {
                let middle = start.midpoint(end);
                parts.extend([(middle, end), (start, middle)]);
            }
        }
        Ok(())
    }

    /// Stores what the database does not have of these rows. Fails with the reason if it rejects one of them or takes too long.
    async fn store_part(
        &mut self,
        range: &RowRange,
        rows: &[S::Row],
    ) -> Result<Result<(), SinkError>, Stopped> {
        let sink = Arc::clone(&self.sink);
        loop {
            let position = self.position(range.source).await?;
            if position < range.first {
                // Rows that were lost on disk.
                self.skip(&RowRange { first: position, end: range.first, ..*range }).await?;
                continue;
            }
            let before = position.min(range.end) - range.first;
            let Some(missing) = usize::try_from(before).ok().and_then(|before| rows.get(before..)) else {
                return Ok(Ok(()));
            };
            self.stats.rows_stored_before.add(before);
            if missing.is_empty() {
                return Ok(Ok(()));
            }
            let missing_range = RowRange { first: range.first + before, ..*range };
            match self.call(|| sink.store(&missing_range, missing)).await? {
                Ok(()) => {
                    self.position = Some((range.source, range.end));
                    self.stats.rows_stored.add(missing.len() as u64);
                    self.timeouts.note_stored();
                    self.note_answer();
                    return Ok(Ok(()));
                }
                Err(error @ SinkError::Rejected(_)) => return Ok(Err(error)),
                Err(error @ SinkError::TimedOut(_)) => {
                    self.note_timeout(&error, missing.len()).await?;
                    return Ok(Err(error));
                }
                Err(error) => self.find_position(&error).await?,
            }
        }
    }

    /// Prepares the next attempt: it reads the position first, because the rows may be stored, and waits there for a database that
    /// does not answer at all.
    async fn note_timeout(&mut self, error: &SinkError, rows: usize) -> Result<(), Stopped> {
        self.timeouts.note_timeout(rows);
        self.position = None;
        let pause = if rows == 1 { self.settings.backoff_max } else { self.settings.backoff_min };
        self.back_off(error, pause).await
    }

    /// Moves the position over rows that are not stored.
    async fn skip(&mut self, range: &RowRange) -> Result<(), Stopped> {
        let sink = Arc::clone(&self.sink);
        loop {
            let position = self.position(range.source).await?;
            if position >= range.end {
                return Ok(());
            }
            let rest = RowRange { first: position, ..*range };
            match self.call(|| sink.skip(&rest)).await? {
                Ok(()) => self.position = Some((range.source, range.end)),
                Err(error @ SinkError::TimedOut(_)) => {
                    self.position = None;
                    self.back_off(&error, self.settings.backoff_max).await?;
                }
                Err(error) => self.find_position(&error).await?,
            }
        }
    }

    /// Keeps a row that cannot be stored in a file.
    async fn set_aside(&mut self, row: QuarantinedRow) -> Result<(), Stopped> {
        let QuarantinedRow { source, number, .. } = row;
        let position = self.position(source).await?;
        if position <= number {
            warn!(row = number, error = %row.error, "a record cannot be stored; it is kept in the quarantine");
            let quarantine = Arc::clone(&self.quarantine);
            let writing = tokio::task::spawn_blocking(move || quarantine.add(&row));
            let _ = writing.await; // fails only when the runtime stops
            self.stats.rows_quarantined.add(1);
        }
        self.skip(&RowRange { source, first: number, end: number + 1 }).await
    }

    /// The number of the next row of a source in the database.
    async fn position(&mut self, source: SourceId) -> Result<u64, Stopped> {
        if let Some((known, position)) = self.position
            && known == source
        {
            return Ok(position);
        }
        let sink = Arc::clone(&self.sink);
        loop {
            match self.call(|| sink.position(&source)).await? {
                Ok(position) => {
                    self.position = Some((source, position));
                    return Ok(position);
                }
                Err(error) => self.back_off(&error, self.settings.backoff_max).await?,
            }
        }
    }

    /// Reads the position again, because the database has another one.
    async fn find_position(&mut self, error: &SinkError) -> Result<(), Stopped> {
        error!(%error, "the database of records is not at the position where this node left it");
        self.position = None;
        self.pause(self.settings.backoff_min).await
    }

    /// Repeats a call while the database is unreachable, but not if it takes too long.
    async fn call<T, F>(&mut self, call: impl Fn() -> F) -> Result<Result<T, SinkError>, Stopped>
    where
        F: Future<Output = Result<T, SinkError>>,
    {
        let mut backoff = self.settings.backoff_min;
        loop {
            let timeout = self.settings.call_timeout;
            let called = tokio::select! {
                called = tokio::time::timeout(timeout, call()) => called,
                () = deadline(&self.watch, &self.settings) => return Err(Stopped),
            };
            let no_answer = |_| Err(SinkError::TimedOut(format!("no answer in {timeout:?}")));
            match called.unwrap_or_else(no_answer) {
                Err(error @ SinkError::Unavailable(_)) => self.back_off(&error, backoff).await?,
                Err(error @ SinkError::TimedOut(_)) => return Ok(Err(error)),
                answer => {
                    self.note_answer();
                    return Ok(answer);
                }
            }
            backoff = (backoff * 2).min(self.settings.backoff_max);
        }
    }

    /// Notes that the database works, unless a store has timed out since it stored rows.
    fn note_answer(&self) {
        if !self.timeouts.is_pending() && self.stats.note(None) {
            let rows = self.watch.stats().backlog_rows.get();
            info!(rows, "the database of records stores rows");
        }
    }

    async fn back_off(&mut self, error: &SinkError, pause: Duration) -> Result<(), Stopped> {
        self.had_outage = true;
        if self.stats.note(Some(error.to_string())) {
            warn!(%error, "the database of records stores no rows; they wait in the spool");
        }
        self.pause(pause).await
    }

    /// Waits, but not beyond the deadline of the shutdown, and not long once the writer is closed.
    pub(super) async fn pause(&self, pause: Duration) -> Result<(), Stopped> {
        let closing = async {
            self.watch.closed().await;
            tokio::time::sleep(pause.min(self.settings.backoff_min)).await;
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            () = closing => Ok(()),
            () = deadline(&self.watch, &self.settings) => Err(Stopped),
        }
    }
}

/// Returns when the drain must end.
async fn deadline(watch: &SpoolWatch, settings: &DrainSettings) {
    let closed_at = watch.closed().await;
    tokio::time::sleep_until(closed_at + settings.shutdown_max).await;
}
