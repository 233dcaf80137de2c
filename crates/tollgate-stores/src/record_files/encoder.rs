//! Encodes the rows of a range as files, one for each table and hour.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use parquet::errors::ParquetError;

use super::columns;
use super::file_name::{Partition, RecordFile};
use crate::archive::ArchivedTable;
use crate::archive::batch::{BATCH_ROWS, Batch, Cell, Totals};
use crate::archive::writer::FileWriter;
use crate::sql::records::{
    DecisionRow, Granularity, RollupKey, RollupRow, RowRange, SourceId, WindowRow, merge_rollups,
};

/// Rows that are not encoded yet, of all hours: about 60 MB of the decision log.
const PENDING_ROWS_MAX: usize = 2 * BATCH_ROWS;
/// Rollups that are added up before they are encoded.
const ROLLUPS_MAX: usize = 65_536;

/// Why a row was not added.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The row belongs to no hour that a name can have. The other rows can be stored.
    #[error("its time is beyond the year 9999")]
    Time,
    /// The encoder failed.
    #[error("cannot encode a Parquet file: {0}")]
    Parquet(#[from] ParquetError),
}

/// A file in memory.
#[derive(Clone, Debug)]
pub struct EncodedFile {
    pub(super) file: RecordFile,
    pub(super) pieces: Vec<Bytes>,
    /// Its rows.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
}

impl EncodedFile {
    /// The hour that it belongs to.
    pub fn partition(&self) -> Partition {
        self.file.partition
    }
}

/// Encodes rows of one source. Blocks the thread: a row takes about two microseconds.
pub struct RangeEncoder {
    source: SourceId,
    written_at: i64,
    files: BTreeMap<Partition, FileEncoder>,
    rollups: BTreeMap<RollupKey, RollupRow>,
    pending_rows: usize,
}

impl RangeEncoder {
    /// `now_micros` is stored as `created_at`.
    pub fn new(source: SourceId, now_micros: u64) -> Self {
        RangeEncoder {
            source,
            written_at: i64::try_from(now_micros).unwrap_or(i64::MAX),
            files: BTreeMap::new(),
            rollups: BTreeMap::new(),
            pending_rows: 0,
        }
    }

    /// Adds a row of the decision log with its number.
    ///
    /// # Errors
    /// When the row cannot be stored. The others can.
    pub fn add_decision(&mut self, number: u64, row: DecisionRow) -> Result<(), EncodeError> {
        let at = row.at_micros;
        self.push(ArchivedTable::Log, at, columns::decision(&self.source, number, row))
    }

    /// Adds a window. Deltas of the same window should be added up before.
    ///
    /// # Errors
    /// When the row cannot be stored. The others can.
    pub fn add_window(&mut self, row: WindowRow) -> Result<(), EncodeError> {
        let at = row.start_micros;
        self.push(ArchivedTable::Windows, at, columns::window(row, self.written_at))
    }

    /// Adds a rollup. Those of the same minute are added up.
    ///
    /// # Errors
    /// When the row cannot be stored. The others can.
    pub fn add_rollup(&mut self, row: &RollupRow) -> Result<(), EncodeError> {
        Partition::of(ArchivedTable::Rollups, row.start_micros).ok_or(EncodeError::Time)?;
        merge_rollups(&mut self.rollups, Granularity::Minute, std::slice::from_ref(row));
        if self.rollups.len() >= ROLLUPS_MAX {
            return self.flush_rollups();
        }
        Ok(())
    }

    fn flush_rollups(&mut self) -> Result<(), EncodeError> {
        for (_, row) in std::mem::take(&mut self.rollups) {
            let at = row.start_micros;
            self.push(ArchivedTable::Rollups, at, columns::rollup(row, self.written_at))?;
        }
        Ok(())
    }

    fn push<const N: usize>(
        &mut self,
        table: ArchivedTable,
        at: u64,
        cells: [Cell; N],
    ) -> Result<(), EncodeError> {
        let partition = Partition::of(table, at).ok_or(EncodeError::Time)?;
        let file = match self.files.entry(partition) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(FileEncoder::new(table)?),
        };
        file.pending.push(cells);
        self.pending_rows += 1;
        let is_full = file.pending.rows() >= BATCH_ROWS;
        if is_full || self.pending_rows >= PENDING_ROWS_MAX {
            self.flush_largest()?;
        }
        Ok(())
    }

    fn flush_largest(&mut self) -> Result<(), ParquetError> {
        let Some(file) = self.files.values_mut().max_by_key(|file| file.pending.rows()) else {
            return Ok(());
        };
        self.pending_rows -= file.pending.rows();
        file.flush()
    }

    /// The files of a range, whose rows were all added.
    ///
    /// # Errors
    /// When rows cannot be encoded.
    pub fn finish(mut self, range: RowRange) -> Result<Vec<EncodedFile>, EncodeError> {
        self.flush_rollups()?;
        let mut files = Vec::with_capacity(self.files.len());
        for (partition, file) in self.files {
            files.push(file.finish(RecordFile { partition, range })?);
        }
        Ok(files)
    }
}

/// A file that is being encoded in memory.
pub(super) struct FileEncoder {
    writer: FileWriter,
    pub(super) pending: Batch,
    pieces: Vec<Bytes>,
    totals: Totals,
}

impl FileEncoder {
    pub(super) fn new(table: ArchivedTable) -> Result<Self, ParquetError> {
        let writer = FileWriter::new(table)?;
        Ok(FileEncoder { writer, pending: Batch::new(table), pieces: Vec::new(), totals: Totals::default() })
    }

    /// Encodes the pending rows as a row group.
    fn flush(&mut self) -> Result<(), ParquetError> {
        let empty = Batch::new(self.pending.table);
        let mut batch = std::mem::replace(&mut self.pending, empty);
        self.totals.add(&batch.totals());
        self.pieces.push(self.writer.write(&mut batch)?);
        Ok(())
    }

    fn finish(mut self, file: RecordFile) -> Result<EncodedFile, ParquetError> {
        if self.pending.rows() > 0 {
            self.flush()?;
        }
        self.pieces.push(self.writer.finish_with(&self.totals)?);
        let bytes = self.pieces.iter().map(|piece| piece.len() as u64).sum();
        Ok(EncodedFile { file, pieces: self.pieces, rows: self.totals.rows, bytes })
    }
}
