//! The segments on disk, shared by the writer and the reader.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tollgate_stores::sql::records::{RowRange, SourceId};
use tracing::warn;

use super::frame::SEGMENT_HEADER_BYTES;
use super::stats::SpoolStats;

/// One segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) source: SourceId,
    pub(super) first_row: u64,
    /// The number after its last row.
    pub(super) end_row: u64,
    /// Where its last whole frame ends. The reader must not read beyond.
    pub(super) bytes: u64,
    /// Rows before this number are released.
    pub(super) released_to: u64,
    /// Rows from this number on cannot be read. The writer begins another segment.
    pub(super) damaged_from: Option<u64>,
}

impl Segment {
    pub(super) fn new(number: u64, source: SourceId, first_row: u64) -> Self {
        Segment {
            number,
            source,
            first_row,
            end_row: first_row,
            bytes: SEGMENT_HEADER_BYTES as u64,
            released_to: first_row,
            damaged_from: None,
        }
    }

    /// Readable rows that are not released.
    fn backlog_rows(&self) -> u64 {
        self.damaged_from.unwrap_or(self.end_row).saturating_sub(self.released_to)
    }
}

/// Where the reader is allowed to go.
#[derive(Copy, Clone, Debug)]
pub(super) struct Published {
    pub(super) bytes: u64,
    pub(super) end_row: u64,
    /// Whether more frames may follow.
    pub(super) is_written: bool,
}

#[derive(Debug)]
struct State {
    segments: VecDeque<Segment>,
    /// The number of the segment that the writer appends to.
    written: Option<u64>,
}

impl State {
    /// Takes the segments off the list that are released as a whole.
    fn take_released(&mut self) -> Vec<u64> {
        let written = self.written;
        let is_done = |segment: &Segment| Some(segment.number) != written && segment.backlog_rows() == 0;
        let mut released = Vec::new();
        while let Some(segment) = self.segments.pop_front_if(|segment| is_done(segment)) {
            released.push(segment.number);
        }
        released
    }
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    state: Mutex<State>,
    stats: Arc<SpoolStats>,
    changed: Notify,
    /// When the writer went away.
    closed_at: watch::Sender<Option<Instant>>,
}

/// The list of segments. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Segments(Arc<Shared>);

impl Segments {
    pub(super) fn new(dir: &Path, found: VecDeque<Segment>) -> Self {
        let state = State { segments: found, written: None };
        let segments = Segments(Arc::new(Shared {
            dir: dir.to_owned(),
            state: Mutex::new(state),
            stats: Arc::default(),
            changed: Notify::new(),
            closed_at: watch::Sender::new(None),
        }));
        segments.change(|_| ());
        segments
    }

    pub(super) fn dir(&self) -> &Path {
        &self.0.dir
    }

    pub(super) fn path(&self, number: u64) -> PathBuf {
        path(&self.0.dir, number)
    }

    pub(super) fn stats(&self) -> &Arc<SpoolStats> {
        &self.0.stats
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.stats.bytes.get()
    }

    /// Adds a segment that the writer appends to.
    pub(super) fn start(&self, segment: Segment) {
        self.change(|state| {
            state.written = Some(segment.number);
            state.segments.push_back(segment);
        });
    }

    /// The writer appends no more to its segment.
    pub(super) fn finish(&self) {
        self.change(|state| state.written = None);
    }

    /// Lets the reader read a frame that was appended.
    pub(super) fn publish(&self, bytes: u64, rows: u32) {
        self.change(|state| {
            let Some(segment) = state.segments.back_mut() else { return };
            segment.bytes += bytes;
            segment.end_row += u64::from(rows);
            if segment.damaged_from.is_some() {
                self.stats().rows_damaged.add(u64::from(rows));
            }
        });
        self.0.changed.notify_one();
    }

    /// The writer is gone.
    pub(super) fn close(&self) {
        self.finish();
        self.0.closed_at.send_replace(Some(Instant::now()));
        self.0.changed.notify_one();
    }

    /// How far a segment can be read; `None` if it is removed.
    pub(super) fn published(&self, number: u64) -> Option<Published> {
        let state = self.0.state.lock();
        let segment = state.segments.iter().find(|segment| segment.number == number)?;
        let is_written = state.written == Some(number);
        Some(Published { bytes: segment.bytes, end_row: segment.end_row, is_written })
    }

    /// The first segment after the one with this number.
    pub(super) fn after(&self, number: u64) -> Option<Segment> {
        let state = self.0.state.lock();
        state.segments.iter().find(|segment| segment.number > number).cloned()
    }

    /// Whether the reader gave up the newest segment.
    pub(super) fn is_newest_damaged(&self) -> bool {
        let state = self.0.state.lock();
        state.segments.back().is_some_and(|segment| segment.damaged_from.is_some())
    }

    /// Rows of a segment cannot be read from `row` on. Returns how many are lost.
    pub(super) fn mark_damaged(&self, number: u64, row: u64) -> u64 {
        let mut rows = 0;
        self.change(|state| {
            if let Some(segment) = state.segments.iter_mut().find(|segment| segment.number == number) {
                segment.damaged_from = Some(row);
                rows = segment.end_row.saturating_sub(row);
                self.stats().rows_damaged.add(rows);
            }
        });
        rows
    }

    /// Rows up to the end of the range are stored elsewhere. Removes the segments that are not needed any more.
    pub(super) fn release(&self, range: &RowRange) {
        self.change(|state| {
            let of_source = state.segments.iter_mut().filter(|segment| segment.source == range.source);
            for segment in of_source.filter(|segment| segment.first_row < range.end) {
                segment.released_to = segment.released_to.max(range.end.min(segment.end_row));
            }
        });
    }

    /// Changes the list, updates the figures, and removes files of released segments.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.state.lock();
        change(&mut state);
        let released = state.take_released();
        let figures = &self.0.stats;
        figures.backlog_rows.set(state.segments.iter().map(Segment::backlog_rows).sum());
        figures.bytes.set(state.segments.iter().map(|segment| segment.bytes).sum());
        figures.segments.set(state.segments.len() as u64);
        drop(state);
        for number in released {
            remove(&self.path(number));
        }
    }
}

/// Where a segment is stored.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:010}.rows"))
}

/// Removes a file. What cannot be removed is found again at the next start.
pub(super) fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(%error, file = %path.display(), "cannot remove a file of the record spool");
        }
        _ => {}
    }
}

/// Follows a spool without reading it.
#[derive(Clone, Debug)]
pub(crate) struct SpoolWatch(Segments);

impl SpoolWatch {
    pub(super) fn new(segments: Segments) -> Self {
        SpoolWatch(segments)
    }

    /// Figures of the spool.
    pub(crate) fn stats(&self) -> &Arc<SpoolStats> {
        self.0.stats()
    }

    /// Whether the writer is gone: nothing more will be appended.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.0.closed_at.borrow().is_some()
    }

    /// Waits until the writer is gone. Returns when that was.
    pub(crate) async fn closed(&self) -> Instant {
        let mut closed_at = self.0.0.closed_at.subscribe();
        let closed_at = closed_at.wait_for(Option::is_some).await.ok().and_then(|closed_at| *closed_at);
        closed_at.unwrap_or_else(Instant::now)
    }

    /// Waits for rows, and then until enough of them wait or the time has passed. `false` if the spool is empty and its writer is
    /// gone. Only one task may wait.
    pub(crate) async fn wait_for_rows(
        &self,
        collect_for: Duration,
        is_enough: impl Fn(&SpoolStats) -> bool,
    ) -> bool {
        let has_rows = || self.stats().backlog_rows.get() > 0;
        while !has_rows() {
            if self.is_closed() {
                return has_rows();
            }
            self.changed().await;
        }
        let collecting = tokio::time::sleep(collect_for);
        tokio::pin!(collecting);
        while !self.is_closed() && !is_enough(self.stats()) {
            tokio::select! {
                () = &mut collecting => break,
                () = self.changed() => {}
            }
        }
        true
    }

    /// Waits until rows are appended or the writer is gone.
    pub(super) async fn changed(&self) {
        self.0.0.changed.notified().await;
    }
}
