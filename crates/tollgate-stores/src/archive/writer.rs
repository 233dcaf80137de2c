//! Encodes batches as a Parquet file.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type};

use super::batch::{BATCH_ROWS, Batch, Totals, Values};
use super::table::{ArchivedTable, Column, ColumnKind, Packing};

const ZSTD_LEVEL: i32 = 3;
/// Share of row groups that are read although they do not contain a client.
const BLOOM_FALSE_POSITIVES: f64 = 0.02;
/// The writer, in the footer.
const CREATED_BY: &str = concat!("tollgate ", env!("CARGO_PKG_VERSION"));

/// The key of the totals in the footer.
pub(super) const TOTALS: &str = "tollgate.totals";

/// Writes one file. Each batch becomes a row group, sorted by subject and time.
pub(crate) struct FileWriter {
    columns: &'static [Column],
    writer: SerializedFileWriter<Vec<u8>>,
}

impl FileWriter {
    pub(crate) fn new(table: ArchivedTable) -> Result<Self, ParquetError> {
        FileWriter::with_columns(table, table.columns())
    }

    /// Writes the first columns of a table only, as an earlier tollgate did.
    fn with_columns(table: ArchivedTable, columns: &'static [Column]) -> Result<Self, ParquetError> {
        let properties = Arc::new(properties(table, columns)?);
        let writer = SerializedFileWriter::new(Vec::new(), schema(table, columns)?, properties)?;
        Ok(FileWriter { columns, writer })
    }

    /// Encodes rows; returns the next bytes of the file.
    pub(crate) fn write(&mut self, batch: &mut Batch) -> Result<Bytes, ParquetError> {
        let order = batch.order();
        let mut group = self.writer.next_row_group()?;
        let mut columns = self.columns.iter().zip(&mut batch.columns);
        while let Some(mut writer) = group.next_column()? {
            let Some((column, values)) = columns.next() else { break };
            write_column(&mut writer, column, values, &order)?;
            writer.close()?;
        }
        group.close()?;
        self.take()
    }

    /// As [`finish`](Self::finish), with the totals of all rows in the footer.
    pub(crate) fn finish_with(mut self, totals: &Totals) -> Result<Bytes, ParquetError> {
        let totals = KeyValue::new(TOTALS.to_owned(), totals.to_string());
        self.writer.append_key_value_metadata(totals);
        self.finish()
    }

    /// The last bytes of the file.
    pub(crate) fn finish(mut self) -> Result<Bytes, ParquetError> {
        self.writer.finish()?;
        self.take()
    }

    fn take(&mut self) -> Result<Bytes, ParquetError> {
        self.writer.flush()?;
        Ok(std::mem::take(self.writer.inner_mut()).into())
    }
}

/// Moves the values out of the column, in order.
fn write_column(
    writer: &mut SerializedColumnWriter<'_>,
    column: &Column,
    values: &mut Values,
    order: &[usize],
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = match values {
        Values::Int(values) => order.iter().map(|row| i16::from(values[*row].is_some())).collect(),
        Values::Bytes(values) => order.iter().map(|row| i16::from(values[*row].is_some())).collect(),
    };
    match values {
        Values::Int(values) => {
            let present = order.iter().filter_map(|row| values[*row]);
            if column.kind == ColumnKind::Flag {
                let flags: Vec<bool> = present.map(|value| value != 0).collect();
                writer.typed::<BoolType>().write_batch(&flags, Some(&levels), None)?;
            } else {
                let present: Vec<i64> = present.collect();
                writer.typed::<Int64Type>().write_batch(&present, Some(&levels), None)?;
            }
        }
        Values::Bytes(values) => {
            let present: Vec<ByteArray> = order.iter().filter_map(|row| values[*row].take()).collect();
            writer.typed::<ByteArrayType>().write_batch(&present, Some(&levels), None)?;
        }
    }
    Ok(())
}

/// All columns are optional, so that a column can be left out later without another type.
fn schema(table: ArchivedTable, columns: &[Column]) -> Result<Arc<Type>, ParquetError> {
    let mut fields = Vec::with_capacity(columns.len());
    for column in columns {
        let (physical, logical) = types(column.kind);
        let field = Type::primitive_type_builder(column.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical);
        fields.push(Arc::new(field.build()?));
    }
    Ok(Arc::new(Type::group_type_builder(table.as_str()).with_fields(fields).build()?))
}

pub(super) fn types(kind: ColumnKind) -> (PhysicalType, Option<LogicalType>) {
    match kind {
        ColumnKind::Int => (PhysicalType::INT64, None),
        ColumnKind::Flag => (PhysicalType::BOOLEAN, None),
        ColumnKind::Time => (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
        ColumnKind::Text | ColumnKind::Address => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        ColumnKind::Hash => (PhysicalType::BYTE_ARRAY, None),
    }
}

fn properties(table: ArchivedTable, columns: &[Column]) -> Result<WriterProperties, ParquetError> {
    let keys = table.keys();
    let sorting = [keys.subject, keys.time].map(|column| SortingColumn {
        column_idx: i32::try_from(column).unwrap_or(0),
        descending: false,
        nulls_first: true,
    });
    let mut builder = WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_max_row_group_row_count(Some(BATCH_ROWS))
        .set_data_page_row_count_limit(BATCH_ROWS)
        // Only row groups are skipped, and only by client and time.
        .set_statistics_enabled(EnabledStatistics::None)
        .set_sorting_columns(Some(sorting.into()));
    for (number, column) in columns.iter().enumerate() {
        let path = ColumnPath::from(column.name);
        let is_key = number == keys.subject || number == keys.time;
        if is_key {
            builder = builder.set_column_statistics_enabled(path.clone(), EnabledStatistics::Chunk);
        }
        if number == keys.subject {
            builder = builder
                .set_column_bloom_filter_enabled(path.clone(), true)
                .set_column_bloom_filter_fpp(path.clone(), BLOOM_FALSE_POSITIVES);
        }
        let is_dictionary = column.packing == Packing::Dictionary;
        builder = builder.set_column_dictionary_enabled(path.clone(), is_dictionary);
        if let Some(encoding) = encoding(column) {
            builder = builder.set_column_encoding(path, encoding);
        }
    }
    Ok(builder.build())
}

fn encoding(column: &Column) -> Option<Encoding> {
    match (column.packing, column.kind) {
        // A column whose dictionary grows too large falls back to these.
        (Packing::Delta, _) | (Packing::Dictionary, ColumnKind::Int | ColumnKind::Time) => {
            Some(Encoding::DELTA_BINARY_PACKED)
        }
        (Packing::Plain | Packing::Dictionary, ColumnKind::Text | ColumnKind::Address) => {
            Some(Encoding::DELTA_LENGTH_BYTE_ARRAY)
        }
        (Packing::Plain, ColumnKind::Int | ColumnKind::Time)
        | (Packing::Plain | Packing::Dictionary, ColumnKind::Flag | ColumnKind::Hash) => None,
    }
}

#[cfg(test)]
mod tests;
