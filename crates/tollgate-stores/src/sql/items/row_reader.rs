//! Decodes the columns of a row.

use std::borrow::Cow;

use crate::sql::engine::from_i64;
use crate::sql::error::DatabaseError;
use crate::sql::query::Value;

/// Takes the columns of a row one after another.
pub(super) struct RowReader<'a> {
    columns: std::vec::IntoIter<Value<'a>>,
    table: &'static str,
}

impl<'a> RowReader<'a> {
    pub(super) fn new(columns: Vec<Value<'a>>, table: &'static str) -> Self {
        RowReader { columns: columns.into_iter(), table }
    }

    pub(super) const fn corrupt(&self) -> DatabaseError {
        DatabaseError::Corrupt { what: self.table }
    }

    pub(super) fn maybe_text(&mut self) -> Result<Option<String>, DatabaseError> {
        let Some(Value::Text(text)) = self.columns.next() else { return Err(self.corrupt()) };
        Ok(text.map(Cow::into_owned))
    }

    pub(super) fn text(&mut self) -> Result<String, DatabaseError> {
        self.maybe_text()?.ok_or(self.corrupt())
    }

    pub(super) fn maybe_number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, DatabaseError> {
        let Some(Value::Int(number)) = self.columns.next() else { return Err(self.corrupt()) };
        number.map(|number| from_i64(number, self.table)).transpose()
    }

    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, DatabaseError> {
        self.maybe_number()?.ok_or(self.corrupt())
    }

    pub(super) fn maybe_hash(&mut self) -> Result<Option<[u8; 32]>, DatabaseError> {
        let Some(Value::Bytes(bytes)) = self.columns.next() else { return Err(self.corrupt()) };
        bytes.map(|bytes| (*bytes).try_into().map_err(|_| self.corrupt())).transpose()
    }
}
