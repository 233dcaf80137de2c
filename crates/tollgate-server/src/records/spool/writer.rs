//! Appends frames to the newest segment.

use std::fs::File;
use std::io;
use std::sync::Arc;

use tollgate_stores::sql::records::SourceId;
use tracing::{info, warn};

use super::disk::{Disk, RealDisk, sync_directory};
use super::frame::{FRAME_HEADER_BYTES, FrameHeader, SEGMENT_HEADER_BYTES, SegmentHeader, count_rows};
use super::recovery::mark_clean;
use super::segments::{self, Segment, Segments};
use super::stats::SpoolStats;

/// A segment is not continued beyond this size.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;

/// Appends rows to the spool. Blocks on the disk. Nothing fails upward: what is lost is counted in [`SpoolStats`].
#[derive(Debug)]
pub(crate) struct SpoolWriter<D: Disk = RealDisk> {
    disk: D,
    segments: Segments,
    source: SourceId,
    next_row: u64,
    /// The number of the next segment.
    next_number: u64,
    current: Option<Current>,
    bytes_max: u64,
    segment_bytes_max: u64,
    state: WriteState,
}

/// The segment that is appended to.
#[derive(Debug)]
struct Current {
    file: File,
    /// Where the last whole frame ends.
    end: u64,
    has_unsynced: bool,
    is_new: bool,
}

/// Whether the last frame was written. A change is logged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum WriteState {
    Writing,
    Full,
    Failing,
}

impl<D: Disk> SpoolWriter<D> {
    /// `next_number` is the number of its first segment.
    pub(super) fn new(disk: D, segments: Segments, next_number: u64, bytes_max: u64) -> io::Result<Self> {
        let mut source = [0; 16];
        getrandom::fill(&mut source).map_err(io::Error::other)?;
        Ok(SpoolWriter {
            disk,
            segments,
            source: SourceId(source),
            next_row: 0,
            next_number,
            current: None,
            bytes_max,
            // Released rows free space by the segment.
            segment_bytes_max: SEGMENT_BYTES_MAX.min(bytes_max / 8),
            state: WriteState::Writing,
        })
    }

    /// Figures of the spool.
    pub(crate) fn stats(&self) -> &Arc<SpoolStats> {
        self.segments.stats()
    }

    #[cfg(test)]
    pub(crate) fn source(&self) -> SourceId {
        self.source
    }

    /// Appends a frame of rows, each a length (`u32`, little-endian) and its bytes. The drain may store it at once; it survives a
    /// power loss after [`SpoolWriter::sync`].
    pub(crate) fn append(&mut self, rows: u32, payload: &[u8]) {
        let Some(header) = FrameHeader::new(self.next_row, rows, payload).filter(|header| header.rows > 0)
        else {
            return self.stats().rows_dropped_full.add(u64::from(rows));
        };
        debug_assert_eq!(count_rows(payload), Some(rows), "the rows of the payload");
        if self.current.as_ref().is_some_and(|current| self.needs_new_segment(current, &header)) {
            self.finish_segment();
        }
        let more = if self.current.is_none() { SEGMENT_HEADER_BYTES as u64 } else { 0 };
        if self.segments.bytes() + more + header.frame_bytes() > self.bytes_max {
            self.stats().rows_dropped_full.add(u64::from(rows));
            return self.enter(WriteState::Full, None);
        }
        match self.write(&header, payload) {
            Ok(()) => {
                self.next_row += u64::from(rows);
                self.segments.publish(header.frame_bytes(), rows);
                self.stats().rows_appended.add(u64::from(rows));
                self.enter(WriteState::Writing, None);
            }
            Err(error) => {
                self.stats().rows_dropped_disk.add(u64::from(rows));
                self.enter(WriteState::Failing, Some(&error));
            }
        }
    }

    /// Makes everything appended durable. Returns whether that succeeded.
    pub(crate) fn sync(&mut self) -> bool {
        let Some(current) = self.current.as_mut() else { return true };
        let synced = current.sync(&mut self.disk, self.segments.dir());
        if let Err(error) = &synced {
            self.stats().sync_errors.add(1);
            self.enter(WriteState::Failing, Some(error));
            // After a failed sync the kernel may have discarded the pages: a later success would say nothing about them.
            self.current = None;
            self.segments.finish();
        }
        synced.is_ok()
    }

    /// Syncs, and leaves the mark of an orderly shutdown. The reader can go on.
    pub(crate) fn close(mut self) {
        if self.finish_segment()
            && let Err(error) = mark_clean(self.segments.dir())
        {
            self.enter(WriteState::Failing, Some(&error));
        }
    }

    fn needs_new_segment(&self, current: &Current, header: &FrameHeader) -> bool {
        let has_frames = current.end > SEGMENT_HEADER_BYTES as u64;
        has_frames && current.end + header.frame_bytes() > self.segment_bytes_max
            || self.segments.is_newest_damaged()
    }

    fn finish_segment(&mut self) -> bool {
        let is_synced = self.sync();
        self.current = None;
        self.segments.finish();
        is_synced
    }

    fn write(&mut self, header: &FrameHeader, payload: &[u8]) -> io::Result<()> {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.create()?,
        };
        let written = current.append(&mut self.disk, header, payload);
        self.current = Some(current);
        written
    }

    fn create(&mut self) -> io::Result<Current> {
        let number = self.next_number;
        self.next_number += 1;
        let path = self.segments.path(number);
        let header = SegmentHeader { source: self.source, first_row: self.next_row };
        let file = self.disk.create(&path)?;
        if let Err(error) = self.disk.write(&file, &header.encode(), 0) {
            segments::remove(&path);
            return Err(error);
        }
        self.segments.start(Segment::new(number, self.source, self.next_row));
        Ok(Current { file, end: SEGMENT_HEADER_BYTES as u64, has_unsynced: false, is_new: true })
    }

    fn enter(&mut self, state: WriteState, error: Option<&io::Error>) {
        *self.stats().last_error.lock() = match state {
            WriteState::Writing => None,
            WriteState::Full => {
                Some(format!("the spool is full: records.spool_bytes_max is {}", self.bytes_max))
            }
            WriteState::Failing => error.map(ToString::to_string),
        };
        if state == self.state {
            return;
        }
        self.state = state;
        let dir = self.segments.dir().display();
        match (state, error) {
            (WriteState::Failing, Some(error)) => {
                warn!(%error, %dir, "cannot write to the record spool; records are dropped until it succeeds");
            }
            (WriteState::Full, _) => {
                warn!(%dir, bytes_max = self.bytes_max, "the record spool is full; records are dropped until its backlog is stored");
            }
            _ => info!(%dir, "records are written to the spool again"),
        }
    }
}

impl<D: Disk> Drop for SpoolWriter<D> {
    fn drop(&mut self) {
        self.segments.close();
    }
}

impl Current {
    /// Appends a frame whole, or nothing.
    fn append(&mut self, disk: &mut impl Disk, header: &FrameHeader, payload: &[u8]) -> io::Result<()> {
        let payload_at = self.end + FRAME_HEADER_BYTES as u64;
        let written = disk.write(&self.file, payload, payload_at);
        let written = written.and_then(|()| disk.write(&self.file, &header.encode(), self.end));
        if written.is_err() {
            // The next frame is written to the same place, so it does not matter if this fails.
            let _ = self.file.set_len(self.end);
        } else {
            self.end += header.frame_bytes();
            self.has_unsynced = true;
        }
        written
    }

    fn sync(&mut self, disk: &mut impl Disk, dir: &std::path::Path) -> io::Result<()> {
        if self.has_unsynced {
            disk.sync(&self.file)?;
            self.has_unsynced = false;
        }
        if self.is_new {
            sync_directory(dir)?;
            self.is_new = false;
        }
        Ok(())
    }
}
