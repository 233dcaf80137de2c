//! Decodes rows in the binary format of PostgreSQL's `COPY … TO STDOUT`, which takes a fraction of the time of a query.

use std::ops::Range;

use bytes::{Buf as _, Bytes};
use parquet::data_type::ByteArray;

use crate::archive::batch::{Batch, Values};
use crate::archive::{ArchivedTable, ColumnKind};
use crate::sql::error::DatabaseError;

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";
/// Signature, flags and the length of an extension.
const HEADER_BYTES: usize = SIGNATURE.len() + 8;
/// Microseconds from 1970 to 2000, from where PostgreSQL counts.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// The fields of a column of one `COPY`. Texts are copied next to each other: the encoder goes through one column after the other.
#[derive(Default)]
struct Fields {
    ints: Vec<Option<i64>>,
    bytes: Vec<u8>,
    places: Vec<Option<Range<usize>>>,
}

impl Fields {
    /// `None` if an integer is invalid.
    fn push(&mut self, kind: ColumnKind, field: Option<&[u8]>) -> Option<()> {
        if kind.is_int() {
            let epoch = if kind == ColumnKind::Time { EPOCH_MICROS } else { 0 };
            self.ints.push(match field {
                Some(field) => Some(int(field)?.checked_add(epoch)?),
                None => None,
            });
        } else {
            self.places.push(field.map(|field| {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(field);
                start..self.bytes.len()
            }));
        }
        Some(())
    }

    fn append_to(self, values: &mut Values) {
        match values {
            Values::Int(values) => values.extend(self.ints),
            Values::Bytes(values) => {
                let bytes = Bytes::from(self.bytes);
                let field = |place: Range<usize>| ByteArray::from(bytes.slice(place));
                values.extend(self.places.into_iter().map(|place| place.map(field)));
            }
        }
    }
}

/// Appends the rows of all messages of one `COPY`. Returns how many.
pub(super) fn append(
    table: ArchivedTable,
    messages: &[Bytes],
    batch: &mut Batch,
) -> Result<usize, DatabaseError> {
    let invalid = || DatabaseError::Corrupt { what: table.as_str() };
    let before = batch.rows();
    let mut columns: Vec<(ColumnKind, Fields)> =
        table.columns().iter().map(|column| (column.kind, Fields::default())).collect();
    for (number, message) in messages.iter().enumerate() {
        let mut message: &[u8] = message;
        if number == 0 {
            let header = message.split_off(..HEADER_BYTES).ok_or_else(invalid)?;
            header.starts_with(SIGNATURE).then_some(()).ok_or_else(invalid)?;
        }
        // The last message has a count of -1.
        while message.remaining() >= 2 && message.get_i16() >= 0 {
            read_row(&mut message, &mut columns).ok_or_else(invalid)?;
        }
    }
    for ((_, fields), values) in columns.into_iter().zip(&mut batch.columns) {
        fields.append_to(values);
    }
    Ok(batch.rows() - before)
}

/// `None` if the message does not have these columns.
fn read_row(message: &mut &[u8], columns: &mut [(ColumnKind, Fields)]) -> Option<()> {
    for (kind, fields) in columns {
        let length = message.try_get_i32().ok()?;
        let field = match usize::try_from(length) {
            Ok(length) => Some(message.split_off(..length)?),
            Err(_) => None,
        };
        fields.push(*kind, field)?;
    }
    Some(())
}

/// A big-endian integer of any size, or a boolean.
fn int(field: &[u8]) -> Option<i64> {
    Some(match *field {
        [flag] => i64::from(flag),
        [a, b] => i64::from(i16::from_be_bytes([a, b])),
        [a, b, c, d] => i64::from(i32::from_be_bytes([a, b, c, d])),
        _ => i64::from_be_bytes(field.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_messages_are_rejected() {
        let mut batch = Batch::new(ArchivedTable::Log);
        let header = [SIGNATURE, &[0; 8]].concat();
        let ended = [&*header, &[0xff, 0xff]].concat();
        assert_eq!(append(ArchivedTable::Log, &[ended.into()], &mut batch).unwrap(), 0);
        for message in [b"PGCOPY".to_vec(), [&*header, &[0, 23, 0, 0, 0, 8, 1]].concat(), vec![0; 40]] {
            assert!(append(ArchivedTable::Log, &[message.into()], &mut batch).is_err());
        }
    }

    #[test]
    fn integers_of_all_sizes_have_a_sign() {
        assert_eq!(int(&[1]), Some(1));
        assert_eq!(int(&(-2_i16).to_be_bytes()), Some(-2));
        assert_eq!(int(&(-3_i32).to_be_bytes()), Some(-3));
        assert_eq!(int(&i64::MIN.to_be_bytes()), Some(i64::MIN));
        assert_eq!(int(&[1, 2, 3]), None);
    }
}
