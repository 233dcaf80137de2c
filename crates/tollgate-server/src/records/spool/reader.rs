//! Reads frames in the order in which they were appended.

use std::fs::File;
use std::io;

use bytes::Bytes;
use tollgate_stores::sql::records::{RowRange, SourceId};
use tracing::warn;

use super::frame::{FrameRead, SEGMENT_HEADER_BYTES, read_frame, split_row};
use super::segments::{Segment, Segments, SpoolWatch};

/// Consecutive rows of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The rows.
    pub(crate) range: RowRange,
    payload: Bytes,
}

impl Batch {
    /// The bytes of each row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.payload;
        std::iter::from_fn(move || {
            let (row, after) = split_row(rest)?;
            rest = after;
            Some(row)
        })
    }

    /// Its size in the spool.
    pub(crate) fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Removes the rows from this number on, and returns them.
    pub(crate) fn split_off(&mut self, number: u64) -> Batch {
        let number = number.clamp(self.range.first, self.range.end);
        let kept = usize::try_from(number - self.range.first).unwrap_or(usize::MAX);
        let length = self.rows().take(kept).map(|row| 4 + row.len()).sum();
        let rest = Batch {
            range: RowRange { first: number, ..self.range },
            payload: self.payload.split_off(length),
        };
        self.range.end = number;
        rest
    }

    /// As [`rows`](Self::rows), without copies of their bytes.
    pub(crate) fn shared_rows(&self) -> impl Iterator<Item = Bytes> {
        self.rows().map(|row| self.payload.slice_ref(row))
    }
}

/// Reads the spool. Blocks on the disk.
#[derive(Debug)]
pub(crate) struct SpoolReader {
    segments: Segments,
    current: Option<Current>,
    /// The number of the last segment that was read to its end.
    done: u64,
    /// Rows that were read but not returned.
    frame: Option<Frame>,
}

/// The segment being read.
#[derive(Debug)]
struct Current {
    file: File,
    number: u64,
    source: SourceId,
    offset: u64,
    next_row: u64,
}

/// The rest of a frame.
#[derive(Debug)]
struct Frame {
    range: RowRange,
    payload: Vec<u8>,
    offset: usize,
}

impl Frame {
    /// Moves rows to the batch, within its limits. At least one, if the batch is empty.
    fn move_rows(&mut self, range: &mut RowRange, payload: &mut Vec<u8>, rows_max: u64, bytes_max: usize) {
        let start = self.offset;
        let room = bytes_max.saturating_sub(payload.len());
        while let Some((row, _)) = split_row(&self.payload[self.offset..]) {
            let end = self.offset + 4 + row.len();
            let is_first = range.first == range.end;
            if !is_first && (range.end - range.first >= rows_max || end - start > room) {
                break;
            }
            self.offset = end;
            range.end += 1;
        }
        payload.extend_from_slice(&self.payload[start..self.offset]);
        self.range.first = range.end;
    }
}

impl SpoolReader {
    pub(super) fn new(segments: Segments) -> Self {
        SpoolReader { segments, current: None, done: 0, frame: None }
    }

    /// A handle that follows the spool while the reader is in use elsewhere.
    pub(crate) fn watch(&self) -> SpoolWatch {
        SpoolWatch::new(self.segments.clone())
    }

    /// The next rows of one source without a gap, or `None` if all were read.
    ///
    /// # Errors
    /// When a segment cannot be read. Nothing is skipped: call it again, or [`SpoolReader::skip_segment`].
    pub(crate) fn next(&mut self, rows_max: usize, bytes_max: usize) -> io::Result<Option<Batch>> {
        if !self.read_frame()? {
            return Ok(None);
        }
        let Some(frame) = &self.frame else { return Ok(None) };
        let mut range = RowRange { end: frame.range.first, ..frame.range };
        let mut payload = Vec::new();
        // An error after the first frame is reported by the next call.
        while self.read_frame().unwrap_or(false) {
            let Some(frame) = self.frame.as_mut() else { break };
            if frame.range.source != range.source || frame.range.first != range.end {
                break;
            }
            frame.move_rows(&mut range, &mut payload, rows_max as u64, bytes_max);
            if frame.range.first < frame.range.end {
                break;
            }
            self.frame = None;
        }
        Ok(Some(Batch { range, payload: payload.into() }))
    }

    /// The rows up to the end of the range are stored: they are not needed any more.
    pub(crate) fn release(&mut self, range: &RowRange) {
        self.segments.release(range);
    }

    /// Gives up the rest of a segment that cannot be read.
    pub(crate) fn skip_segment(&mut self) {
        if self.frame.is_some() {
            return;
        }
        match self.current.take() {
            Some(current) => self.skip_from(current.number, current.next_row),
            None => {
                if let Some(segment) = self.segments.after(self.done) {
                    self.skip_from(segment.number, segment.first_row);
                }
            }
        }
    }

    /// Makes sure that a frame is at hand. `false` if all were read.
    fn read_frame(&mut self) -> io::Result<bool> {
        while self.frame.is_none() {
            let Some(mut current) = self.open_segment()? else { return Ok(false) };
            let Some(published) = self.segments.published(current.number) else {
                self.done = current.number;
                continue;
            };
            if current.offset >= published.bytes {
                if published.is_written {
                    self.current = Some(current);
                    return Ok(false);
                }
                if current.next_row < published.end_row {
                    self.skip_from(current.number, current.next_row);
                }
                self.done = current.number;
                continue;
            }
            let read = read_frame(&current.file, current.offset, published.bytes, current.next_row);
            match read {
                Ok(FrameRead::Frame(header, payload)) => {
                    self.segments.stats().rows_damaged.add(header.first_row - current.next_row);
                    current.offset += header.frame_bytes();
                    current.next_row = header.end_row();
                    let range =
                        RowRange { source: current.source, first: header.first_row, end: header.end_row() };
                    self.frame = Some(Frame { range, payload, offset: 0 });
                }
                Ok(FrameRead::CorruptUntil(offset)) => current.offset = offset,
                Ok(FrameRead::Corrupt) => {
                    self.skip_from(current.number, current.next_row);
                    continue;
                }
                Err(error) => {
                    self.current = Some(current);
                    return Err(error);
                }
            }
            self.current = Some(current);
        }
        Ok(true)
    }

    /// The current segment, or the one after it.
    fn open_segment(&mut self) -> io::Result<Option<Current>> {
        if let Some(current) = self.current.take() {
            return Ok(Some(current));
        }
        while let Some(Segment { number, source, first_row, .. }) = self.segments.after(self.done) {
            match File::open(self.segments.path(number)) {
                Ok(file) => {
                    let offset = SEGMENT_HEADER_BYTES as u64;
                    return Ok(Some(Current { file, number, source, offset, next_row: first_row }));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.skip_from(number, first_row),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Rows of a segment from `row` on cannot be read.
    fn skip_from(&mut self, number: u64, row: u64) {
        let rows = self.segments.mark_damaged(number, row);
        let file = self.segments.path(number);
        warn!(rows, file = %file.display(), "a file of the record spool is damaged; some records are lost");
        self.done = number;
    }
}
