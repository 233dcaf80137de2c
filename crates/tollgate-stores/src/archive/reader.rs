//! Reads the Parquet files of the archive, one row group at a time.
//!
//! A file may come from an older or a newer tollgate: columns are matched by name, a missing one is NULL in every row.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use object_store::path::Path;
use parquet::bloom_filter::Sbbf;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::file::statistics::Statistics;

use super::batch::{Batch, Totals, Values};
use super::error::{ArchiveError, in_file};
use super::store::ArchiveStore;
use super::table::{ArchivedTable, Column, ColumnKind};
use super::writer::TOTALS;

/// What is read from the end of a file at first.
const FOOTER_GUESS: u64 = 64 * 1024;
/// Limits for files that tollgate did not write.
const GROUP_ROWS_MAX: i64 = 2_000_000;
const GROUP_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// A file whose footer was read.
pub(crate) struct FileReader {
    store: ArchiveStore,
    path: Path,
    table: ArchivedTable,
    metadata: Arc<ParquetMetaData>,
}

impl FileReader {
    pub(crate) async fn open(
        store: &ArchiveStore,
        table: ArchivedTable,
        path: Path,
    ) -> Result<Self, ArchiveError> {
        let size = store.size(&path).await?;
        let mut wanted = FOOTER_GUESS;
        let metadata = loop {
            let start = size.saturating_sub(wanted);
            let tail = Section { start: 0, bytes: store.read(&path, start..size).await? };
            let mut reader = ParquetMetaDataReader::new();
            match reader.try_parse_sized(&tail, size) {
                Ok(()) => break reader.finish().map_err(in_file(&path))?,
                Err(ParquetError::NeedMoreData(needed)) if (needed as u64) < GROUP_BYTES_MAX => {
                    wanted = needed as u64;
                }
                Err(error) => return Err(in_file(&path)(error)),
            }
        };
        Ok(FileReader { store: store.clone(), path, table, metadata: Arc::new(metadata) })
    }

    pub(crate) fn groups(&self) -> Range<usize> {
        0..self.metadata.num_row_groups()
    }

    /// Reads all rows and compares them with the totals in the footer.
    pub(crate) async fn verify(&self) -> Result<(), ArchiveError> {
        let mut totals = Totals::default();
        for group in self.groups() {
            totals.add(&self.totals(group).await?);
        }
        self.expect(&totals)
    }

    /// Fails if the footer has no totals, or others.
    pub(crate) fn expect(&self, found: &Totals) -> Result<(), ArchiveError> {
        let written = self.metadata.file_metadata().key_value_metadata().into_iter().flatten();
        let written = written.filter(|entry| entry.key == TOTALS).find_map(|entry| entry.value.as_deref());
        if written == Some(found.to_string().as_str()) {
            return Ok(());
        }
        let written = written.unwrap_or("none");
        Err(ArchiveError::damaged(
            &self.path,
            format!("its footer has the totals {written}, its rows {found}"),
        ))
    }

    /// The earliest and the latest time of a row group, from its statistics.
    pub(crate) fn times(&self, group: usize) -> Option<(i64, i64)> {
        let column = self.find(self.table.columns()[self.table.keys().time].name)?;
        match self.metadata.row_group(group).column(column).statistics()? {
            Statistics::Int64(times) => Some((*times.min_opt()?, *times.max_opt()?)),
            _ => None,
        }
    }

    /// Whether a row group can contain a subject, by the range of its values and its Bloom filter.
    pub(crate) async fn may_contain(&self, group: usize, subject: &str) -> Result<bool, ArchiveError> {
        let mut index = self.subject_range(group);
        if !index.may_contain(subject.as_bytes()) {
            return Ok(false);
        }
        index.filter = self.subject_filter(group).await?;
        Ok(index.may_contain(subject.as_bytes()))
    }

    fn subject_chunk(&self, group: usize) -> Option<&ColumnChunkMetaData> {
        let column = self.find(self.table.columns()[self.table.keys().subject].name)?;
        Some(self.metadata.row_group(group).column(column))
    }

    /// The index of a row group without its Bloom filter.
    fn subject_range(&self, group: usize) -> SubjectIndex {
        let (min, max) = match self.subject_chunk(group).and_then(ColumnChunkMetaData::statistics) {
            Some(Statistics::ByteArray(range)) => (range.min_bytes_opt(), range.max_bytes_opt()),
            _ => (None, None),
        };
        SubjectIndex { min: min.map(Box::from), max: max.map(Box::from), filter: None }
    }

    async fn subject_filter(&self, group: usize) -> Result<Option<Sbbf>, ArchiveError> {
        let Some(chunk) = self.subject_chunk(group) else { return Ok(None) };
        let (Some(offset), Some(length)) = (chunk.bloom_filter_offset(), chunk.bloom_filter_length()) else {
            return Ok(None);
        };
        let (Ok(start), Ok(length)) = (u64::try_from(offset), u64::try_from(length)) else { return Ok(None) };
        let bytes = self.store.read(&self.path, start..start.saturating_add(length)).await?;
        let filter = Sbbf::read_from_column_chunk(chunk, &Section { start, bytes });
        filter.map_err(in_file(&self.path))
    }

    /// All rows of a row group.
    pub(crate) async fn read(&self, group: usize) -> Result<Batch, ArchiveError> {
        self.decode(group, |batch| batch).await
    }

    /// The totals of the rows of a row group. Fails if a search for a row's subject or time would skip the group.
    pub(crate) async fn totals(&self, group: usize) -> Result<Totals, ArchiveError> {
        let filter = self.subject_filter(group).await?;
        let index = SubjectIndex { filter, ..self.subject_range(group) };
        let counted = self.decode(group, move |batch| (batch.totals(), index.finds_all(&batch))).await?;
        let (totals, finds_all) = counted;
        let has_times = match (self.times(group), totals.times) {
            (Some(listed), Some(found)) => listed.0 <= found.0 && found.1 <= listed.1,
            _ => true,
        };
        if finds_all && has_times {
            return Ok(totals);
        }
        let reason = format!(
            "searches would skip rows of row group {group}: its Bloom filter or statistics do not fit its rows"
        );
        Err(ArchiveError::damaged(&self.path, reason))
    }

    async fn decode<T: Send + 'static>(
        &self,
        group: usize,
        then: impl FnOnce(Batch) -> T + Send + 'static,
    ) -> Result<T, ArchiveError> {
        let chunk = self.metadata.row_group(group);
        let range = byte_range(chunk).filter(|range| range.end - range.start <= GROUP_BYTES_MAX);
        let range = range.filter(|_| (0..=GROUP_ROWS_MAX).contains(&chunk.num_rows()));
        let range = range.ok_or_else(|| ArchiveError::damaged(&self.path, "a row group is too large"))?;
        let start = range.start;
        let section = Arc::new(Section { start, bytes: self.store.read(&self.path, range).await? });
        let (table, metadata, path) = (self.table, Arc::clone(&self.metadata), self.path.clone());
        // Decoding takes tens of milliseconds: too long for a thread that serves requests.
        let decoded = tokio::task::spawn_blocking(move || {
            decode(table, &metadata, group, &section).map(then).map_err(in_file(&path))
        });
        decoded.await.map_err(|error| ArchiveError::damaged(&self.path, error))?
    }

    fn find(&self, name: &str) -> Option<usize> {
        find(&self.metadata, name)
    }
}

/// Shows whether a row group can have rows of a subject.
struct SubjectIndex {
    /// Bounds: both may be cut off.
    min: Option<Box<[u8]>>,
    max: Option<Box<[u8]>>,
    filter: Option<Sbbf>,
}

impl SubjectIndex {
    fn may_contain(&self, subject: &[u8]) -> bool {
        self.min.as_deref().is_none_or(|min| min <= subject)
            && self.max.as_deref().is_none_or(|max| subject <= max)
            && self.filter.as_ref().is_none_or(|filter| filter.check(subject))
    }

    /// Whether it has the subjects of all rows.
    fn finds_all(&self, batch: &Batch) -> bool {
        let subjects = &batch.columns[batch.table.keys().subject];
        let mut last = None;
        (0..batch.rows()).all(|row| {
            let subject = subjects.bytes(row);
            // Rows of one subject follow each other.
            let is_known = std::mem::replace(&mut last, subject) == subject;
            is_known || subject.is_none_or(|subject| self.may_contain(subject))
        })
    }
}

fn find(metadata: &ParquetMetaData, name: &str) -> Option<usize> {
    let columns = metadata.file_metadata().schema_descr().columns();
    columns.iter().position(|column| column.name() == name)
}

/// The bytes of all columns of a row group.
fn byte_range(group: &RowGroupMetaData) -> Option<Range<u64>> {
    let ranges = group.columns().iter().map(|column| {
        let (start, length) = column.byte_range();
        start..start.saturating_add(length)
    });
    ranges.reduce(|all, range| all.start.min(range.start)..all.end.max(range.end))
}

fn decode(
    table: ArchivedTable,
    metadata: &ParquetMetaData,
    group: usize,
    section: &Arc<Section>,
) -> Result<Batch, ParquetError> {
    let chunk = metadata.row_group(group);
    let rows = usize::try_from(chunk.num_rows())?;
    let mut columns = Vec::with_capacity(table.columns().len());
    for column in table.columns() {
        let Some(number) = find(metadata, column.name) else {
            columns.push(Values::nulls(column.kind.is_int(), rows));
            continue;
        };
        let pages = SerializedPageReader::new(Arc::clone(section), chunk.column(number), rows, None)?;
        let descriptor = metadata.file_metadata().schema_descr().column(number);
        let values = read_column(get_column_reader(descriptor, Box::new(pages)), column, rows)?;
        if values.len() != rows {
            return Err(ParquetError::General(format!("column {} has too few rows", column.name)));
        }
        columns.push(values);
    }
    Ok(Batch { table, columns })
}

fn read_column(reader: ColumnReader, column: &Column, rows: usize) -> Result<Values, ParquetError> {
    match (reader, column.kind) {
        (ColumnReader::BoolColumnReader(reader), ColumnKind::Flag) => {
            Ok(Values::Int(read_values(reader, rows, i64::from)?))
        }
        (ColumnReader::Int64ColumnReader(reader), ColumnKind::Int | ColumnKind::Time) => {
            Ok(Values::Int(read_values(reader, rows, |value| value)?))
        }
        (
            ColumnReader::ByteArrayColumnReader(reader),
            ColumnKind::Text | ColumnKind::Address | ColumnKind::Hash,
        ) => Ok(Values::Bytes(read_values(reader, rows, |value| value)?)),
        _ => Err(ParquetError::General(format!("column {} has another type", column.name))),
    }
}

fn read_values<T: DataType, V>(
    mut reader: ColumnReaderImpl<T>,
    rows: usize,
    convert: impl Fn(T::T) -> V,
) -> Result<Vec<Option<V>>, ParquetError> {
    let mut all = Vec::with_capacity(rows);
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    while all.len() < rows {
        levels.clear();
        values.clear();
        let (records, ..) = reader.read_records(rows - all.len(), Some(&mut levels), None, &mut values)?;
        if records == 0 {
            break;
        }
        let mut present = values.drain(..);
        if levels.is_empty() {
            all.extend(present.map(|value| Some(convert(value))));
        } else {
            all.extend(
                levels.iter().map(|level| (*level > 0).then(|| present.next().map(&convert)).flatten()),
            );
        }
    }
    Ok(all)
}

/// A part of a file, with its place in it.
struct Section {
    start: u64,
    bytes: Bytes,
}

impl Length for Section {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Section {
    type T = SectionReader;

    fn get_read(&self, start: u64) -> Result<SectionReader, ParquetError> {
        let length = usize::try_from(self.len().saturating_sub(start))?;
        Ok(SectionReader(self.get_bytes(start, length)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let outside = || ParquetError::EOF("a page is outside of its row group".to_owned());
        let first = usize::try_from(start.checked_sub(self.start).ok_or_else(outside)?)?;
        let end = first.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or_else(outside)?;
        Ok(self.bytes.slice(first..end))
    }
}

struct SectionReader(Bytes);

impl Read for SectionReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let length = out.len().min(self.0.len());
        self.0.copy_to_slice(&mut out[..length]);
        Ok(length)
    }
}
