//! Decodes the columns of a row.

use super::table::ColumnValue;
use crate::sql::engine::from_i64;
use crate::sql::error::DatabaseError;

/// Takes the columns of a row one after another.
pub(super) struct RowReader {
    columns: std::vec::IntoIter<ColumnValue>,
    table: &'static str,
}

impl RowReader {
    pub(super) fn new(columns: Vec<ColumnValue>, table: &'static str) -> Self {
        RowReader { columns: columns.into_iter(), table }
    }

    pub(super) const fn corrupt(&self) -> DatabaseError {
        DatabaseError::Corrupt { what: self.table }
    }

    pub(super) fn maybe_text(&mut self) -> Result<Option<String>, DatabaseError> {
        if let Some(ColumnValue::Text(text)) = self.columns.next() { Ok(text) } else { Err(self.corrupt()) }
    }

    pub(super) fn text(&mut self) -> Result<String, DatabaseError> {
        self.maybe_text()?.ok_or(self.corrupt())
    }

    pub(super) fn maybe_number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, DatabaseError> {
        let Some(ColumnValue::Int(number)) = self.columns.next() else { return Err(self.corrupt()) };
        number.map(|number| from_i64(number, self.table)).transpose()
    }

    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, DatabaseError> {
        self.maybe_number()?.ok_or(self.corrupt())
    }

    pub(super) fn maybe_hash(&mut self) -> Result<Option<[u8; 32]>, DatabaseError> {
        let Some(ColumnValue::Bytes(bytes)) = self.columns.next() else { return Err(self.corrupt()) };
        bytes.map(|bytes| bytes.try_into().map_err(|_| self.corrupt())).transpose()
    }
}
