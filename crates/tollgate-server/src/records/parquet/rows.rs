//! Reads rows of a spool and encodes them as files. Blocks on the disk and the processor.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hashbrown::HashMap;
use tollgate_stores::archive::ArchivedTable;
use tollgate_stores::record_files::{EncodeError, EncodedFile, Partition, RangeEncoder};
use tollgate_stores::sql::records::RowRange;
use tracing::warn;

use super::position::Positions;
use crate::records::codec::{SpooledAggregate, WindowKey, WindowSums, decode_decision};
use crate::records::drain::QuarantinedRow;
use crate::records::spool::{Batch, SpoolReader, SpoolWatch};

/// What is read from the spool at once.
const READ_ROWS: usize = 50_000;
const READ_BYTES: usize = 8 << 20;
/// Attempts to read a segment before it is given up, and the pause between them.
const READ_ATTEMPTS: u32 = 10;
const READ_PAUSE: Duration = Duration::from_millis(200);
/// Windows that are added up before they are encoded: about 100 MB.
const WINDOWS_MAX: usize = 524_288;
/// After the spool is closed, no more rows are collected than in this time.
const CLOSING_MAX: Duration = Duration::from_secs(3);

/// What the rows of a spool are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// The decision log.
    Log,
    /// Windows and rollups.
    Aggregates,
}

/// Rows of one source, encoded.
#[derive(Debug)]
pub(super) struct EncodedRange {
    pub(super) range: RowRange,
    /// How many rows of the spool they are.
    pub(super) rows: u64,
    pub(super) files: Vec<EncodedFile>,
    /// Rows that cannot be stored.
    pub(super) quarantined: Vec<QuarantinedRow>,
}

/// The rows of a spool that are not in files.
pub(super) struct UnwrittenRows {
    reader: SpoolReader,
    watch: SpoolWatch,
    kind: RowKind,
    positions: Arc<Positions>,
    /// Rows that were read and belong to the next write.
    ahead: Option<Batch>,
}

impl UnwrittenRows {
    pub(super) fn new(reader: SpoolReader, kind: RowKind, positions: Arc<Positions>) -> Self {
        UnwrittenRows { watch: reader.watch(), reader, kind, positions, ahead: None }
    }

    /// Encodes the next rows of one source, up to about `bytes_max` of the spool. A write that was begun before the last process
    /// ended gets the same rows. `None` without rows.
    pub(super) fn encode(
        &mut self,
        bytes_max: u64,
        now_micros: u64,
    ) -> Result<Option<EncodedRange>, EncodeError> {
        let Some(first) = self.next_unwritten() else { return Ok(None) };
        let (source, begin) = (first.range.source, first.range.first);
        let writing_to = self.positions.of(source).1.filter(|end| *end > begin);
        let (started, mut bytes) = (Instant::now(), 0);
        let mut encoding = RangeEncoding::new(self.kind, RangeEncoder::new(source, now_micros));
        let mut range = RowRange { end: begin, ..first.range };
        let mut next = Some(first);
        while let Some(mut batch) = next {
            if batch.range.source != source || writing_to.is_some_and(|end| batch.range.first >= end) {
                self.ahead = Some(batch);
                break;
            }
            if let Some(end) = writing_to.filter(|end| *end < batch.range.end) {
                self.ahead = Some(batch.split_off(end));
            }
            bytes += batch.bytes() as u64;
            range.end = batch.range.end;
            encoding.add(&batch)?;
            let is_closing = self.watch.is_closed() && started.elapsed() > CLOSING_MAX;
            if writing_to.map_or(bytes >= bytes_max || is_closing, |end| range.end >= end) {
                break;
            }
            next = self.next();
        }
        // Rows that a power loss took from the disk cannot be written again.
        range.end = writing_to.unwrap_or(range.end);
        encoding.finish(range).map(Some)
    }

    pub(super) fn release(&mut self, range: &RowRange) {
        self.reader.release(range);
    }

    /// The next rows. Those that are in files are released.
    fn next_unwritten(&mut self) -> Option<Batch> {
        loop {
            let mut batch = self.next()?;
            let (stored_to, _) = self.positions.of(batch.range.source);
            let rest = batch.split_off(stored_to);
            if batch.range.first < batch.range.end {
                self.release(&batch.range);
            }
            if rest.range.first < rest.range.end {
                return Some(rest);
            }
        }
    }

    /// The next rows of the spool. A segment that cannot be read is given up, which the spool counts.
    fn next(&mut self) -> Option<Batch> {
        if self.ahead.is_some() {
            return self.ahead.take();
        }
        let mut failures = 0;
        loop {
            match self.reader.next(READ_ROWS, READ_BYTES) {
                Ok(batch) => return batch,
                Err(error) => self.note_unreadable(&error, &mut failures),
            }
        }
    }

    fn note_unreadable(&mut self, error: &io::Error, failures: &mut u32) {
        if *failures == 0 {
            warn!(%error, "cannot read the record spool");
        }
        *failures += 1;
        if *failures >= READ_ATTEMPTS {
            *failures = 0;
            self.reader.skip_segment();
        }
        std::thread::sleep(READ_PAUSE);
    }
}

/// Rows on their way into files.
struct RangeEncoding {
    kind: RowKind,
    encoder: RangeEncoder,
    windows: WindowMerge,
    rows: u64,
    quarantined: Vec<QuarantinedRow>,
}

impl RangeEncoding {
    fn new(kind: RowKind, encoder: RangeEncoder) -> Self {
        let (windows, quarantined) = (WindowMerge::default(), Vec::new());
        RangeEncoding { kind, encoder, windows, rows: 0, quarantined }
    }

    fn add(&mut self, batch: &Batch) -> Result<(), EncodeError> {
        for (number, row) in (batch.range.first..).zip(batch.shared_rows()) {
            let error = match self.add_row(number, &row) {
                Ok(true) => continue,
                Ok(false) => "the row cannot be decoded".to_owned(),
                Err(error @ EncodeError::Time) => error.to_string(),
                Err(error) => return Err(error),
            };
            self.quarantined.push(QuarantinedRow::of_bytes(batch.range.source, number, error, &row));
        }
        self.rows += batch.range.end - batch.range.first;
        Ok(())
    }

    /// Returns whether the row was understood.
    fn add_row(&mut self, number: u64, row: &Bytes) -> Result<bool, EncodeError> {
        match self.kind {
            RowKind::Log => {
                let Some(row) = decode_decision(row) else { return Ok(false) };
                self.encoder.add_decision(number, row)?;
            }
            RowKind::Aggregates => match SpooledAggregate::new(row) {
                Some(SpooledAggregate::Window(window)) => {
                    let Some((start, key, sums)) = window.parts() else { return Ok(false) };
                    let is_new = !self.windows.by_minute.contains_key(&start);
                    if is_new && Partition::of(ArchivedTable::Windows, start).is_none() {
                        return Err(EncodeError::Time);
                    }
                    self.windows.add(start, key, sums);
                    if self.windows.count >= WINDOWS_MAX {
                        self.encode_windows()?;
                    }
                }
                Some(SpooledAggregate::Rollup(row)) => self.encoder.add_rollup(&row)?,
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn encode_windows(&mut self) -> Result<(), EncodeError> {
        for (start, keys) in std::mem::take(&mut self.windows).by_minute {
            for (key, sums) in keys {
                if let Some(key) = WindowKey::read(&key) {
                    self.encoder.add_window(key.row(start, sums))?;
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, range: RowRange) -> Result<EncodedRange, EncodeError> {
        self.encode_windows()?;
        let RangeEncoding { encoder, rows, quarantined, .. } = self;
        Ok(EncodedRange { range, rows, files: encoder.finish(range)?, quarantined })
    }
}

/// Adds up the deltas of windows by their bytes.
#[derive(Default)]
struct WindowMerge {
    by_minute: HashMap<u64, HashMap<Vec<u8>, WindowSums>>,
    count: usize,
}

impl WindowMerge {
    fn add(&mut self, start_micros: u64, key: &[u8], more: WindowSums) {
        let minute = self.by_minute.entry(start_micros).or_default();
        let before = minute.len();
        minute.entry_ref(key).or_default().add(more);
        self.count += minute.len() - before;
    }
}
