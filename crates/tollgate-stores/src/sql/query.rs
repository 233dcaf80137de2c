//! A statement and its bound values. Only constants become part of the text; everything else is bound.
//!
//! Statements are written in the dialect of SQLite. PostgreSQL differs in placeholders, MySQL in upserts.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::error::{DatabaseError, ValueError};

/// A statement with `?` placeholders and their values.
pub(super) struct Query<'a> {
    pub(super) text: String,
    pub(super) values: Vec<Value<'a>>,
}

/// A bound value, or the value of a column. `None` is NULL.
#[derive(Clone, PartialEq)]
pub(super) enum Value<'a> {
    Int(Option<i64>),
    Text(Option<Cow<'a, str>>),
    Bytes(Option<Cow<'a, [u8]>>),
}

/// Conversions from a type and from an `Option` of it.
macro_rules! value_from {
    ($($variant:ident($type:ty)),+) => {$(
        impl<'a> From<$type> for Value<'a> {
            fn from(value: $type) -> Self {
                Value::$variant(Some(value.into()))
            }
        }

        impl<'a> From<Option<$type>> for Value<'a> {
            fn from(value: Option<$type>) -> Self {
                Value::$variant(value.map(Into::into))
            }
        }
    )+};
}

value_from!(Int(i64), Int(u32), Text(&'a str), Text(String), Bytes(&'a [u8]));

impl Value<'_> {
    /// Its approximate size in a statement.
    pub(super) fn weight(&self) -> usize {
        match self {
            Value::Int(_) => 8,
            Value::Text(text) => text.as_deref().map_or(0, str::len),
            Value::Bytes(bytes) => bytes.as_deref().map_or(0, <[u8]>::len),
        }
    }
}

impl<'a> Query<'a> {
    pub(super) fn new(text: &'static str) -> Self {
        Query { text: text.to_owned(), values: Vec::new() }
    }

    pub(super) fn with<const N: usize>(text: &'static str, values: [Value<'a>; N]) -> Self {
        Query { text: text.to_owned(), values: values.into() }
    }

    pub(super) fn push(&mut self, text: &'static str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// Appends names separated by commas.
    pub(super) fn list(&mut self, names: impl Iterator<Item = &'static str>) -> &mut Self {
        for (number, name) in names.enumerate() {
            self.push(if number == 0 { "" } else { ", " }).push(name);
        }
        self
    }

    pub(super) fn bind(&mut self, value: impl Into<Value<'a>>) -> &mut Self {
        self.values.push(value.into());
        self.push("?")
    }

    /// Binds values separated by commas.
    pub(super) fn bind_all(&mut self, values: impl IntoIterator<Item: Into<Value<'a>>>) -> &mut Self {
        for (number, value) in values.into_iter().enumerate() {
            self.push(if number == 0 { "" } else { ", " }).bind(value);
        }
        self
    }

    /// Appends a condition that the columns have one of these lists of values.
    pub(super) fn any_of(&mut self, columns: &[&'static str], ids: &[Vec<&'a str>]) -> &mut Self {
        if let [column] = columns {
            self.push(column).push(" IN (");
            return self.bind_all(ids.iter().flatten().copied()).push(")");
        }
        // Not a list of rows: SQLite has another syntax for it.
        for (number, id) in ids.iter().enumerate() {
            self.push(if number == 0 { "(" } else { " OR (" });
            for (position, (column, value)) in columns.iter().zip(id).enumerate() {
                self.push(if position == 0 { "" } else { " AND " }).push(column).push(" = ").bind(*value);
            }
            self.push(")");
        }
        self
    }

    /// Appends the rows of an `INSERT … VALUES`.
    pub(super) fn rows(&mut self, rows: impl IntoIterator<Item = Vec<Value<'a>>>) -> &mut Self {
        for (number, row) in rows.into_iter().enumerate() {
            self.push(if number == 0 { "(" } else { ", (" }).bind_all(row).push(")");
        }
        self
    }

    /// Rejects NUL characters, which PostgreSQL cannot store in text.
    pub(super) fn check(&self) -> Result<(), DatabaseError> {
        let contains_nul =
            |value: &Value<'_>| matches!(value, Value::Text(Some(text)) if text.contains('\0'));
        if self.values.iter().any(contains_nul) {
            return Err(DatabaseError::value("text", ValueError::ContainsNul));
        }
        Ok(())
    }

    /// The text for PostgreSQL with the values in it, for statements that cannot have bound ones. Not for texts.
    pub(super) fn with_literals(&self) -> Result<String, DatabaseError> {
        let mut pieces = self.text.split('?');
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for (piece, value) in pieces.zip(&self.values) {
            match value {
                Value::Int(Some(number)) => {
                    let _ = write!(text, "{number}"); // writing to a String cannot fail
                }
                Value::Bytes(Some(bytes)) => {
                    text.push_str("'\\x");
                    for byte in bytes.iter() {
                        let _ = write!(text, "{byte:02x}");
                    }
                    text.push_str("'::BYTEA");
                }
                _ => return Err(DatabaseError::Corrupt { what: "a literal" }),
            }
            text.push_str(piece);
        }
        Ok(text)
    }

    /// The text for MySQL.
    pub(super) fn for_mysql(&self) -> String {
        mysql_upsert(&self.text).unwrap_or_else(|| self.text.clone())
    }

    /// The text for PostgreSQL, with placeholders `$1`, `$2` instead of `?`. No statement contains a literal `?`.
    pub(super) fn for_postgres(&self) -> String {
        let mut pieces = self.text.split('?');
        let mut numbered = pieces.next().unwrap_or_default().to_owned();
        for (piece, number) in pieces.zip(1..) {
            let _ = write!(numbered, "${number}{piece}"); // writing to a String cannot fail
        }
        numbered
    }
}

/// `ON CONFLICT (…) DO UPDATE SET … excluded.column` as `ON DUPLICATE KEY UPDATE … VALUES(column)`.
fn mysql_upsert(text: &str) -> Option<String> {
    let (insert, rest) = text.split_once(" ON CONFLICT (")?;
    let (_, update) = rest.split_once(") DO UPDATE SET ")?;
    let mut pieces = update.split("excluded.");
    let mut upsert = format!("{insert} ON DUPLICATE KEY UPDATE {}", pieces.next().unwrap_or_default());
    for piece in pieces {
        let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let (column, rest) = piece.split_at(piece.find(|letter| !is_name(letter)).unwrap_or(piece.len()));
        let _ = write!(upsert, "VALUES({column}){rest}");
    }
    Some(upsert)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_numbered_in_order() {
        assert_eq!(Query::new("SELECT a FROM t").for_postgres(), "SELECT a FROM t");
        assert_eq!(Query::new("a = ? AND b > ?").for_postgres(), "a = $1 AND b > $2");
        let mut insert = Query::new("INSERT INTO t (");
        insert.list(["a", "b"].into_iter()).push(") VALUES ");
        insert.rows([vec![1_i64.into(), "x".into()], vec![2_i64.into(), "y".into()]]);
        assert_eq!(insert.for_postgres(), "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4)");
        assert_eq!(insert.values.len(), 4);
    }

    #[test]
    fn only_numbers_and_bytes_become_literals() {
        let query = Query::with("a > ? AND b = ?", [(-5_i64).into(), [0xab_u8, 1].as_slice().into()]);
        assert_eq!(query.with_literals().unwrap(), "a > -5 AND b = '\\xab01'::BYTEA");
        assert!(Query::with("a = ?", ["text".into()]).with_literals().is_err());
    }

    #[test]
    fn mysql_has_its_own_upsert() {
        let upsert = "INSERT INTO t (a, b) VALUES (?, ?) ON CONFLICT (a) DO UPDATE SET b = t.b + excluded.b, \
                      a = excluded.a";
        let expected =
            "INSERT INTO t (a, b) VALUES (?, ?) ON DUPLICATE KEY UPDATE b = t.b + VALUES(b), a = VALUES(a)";
        assert_eq!(Query::new(upsert).for_mysql(), expected);
        assert_eq!(Query::new("SELECT a FROM t").for_mysql(), "SELECT a FROM t");
    }

    #[test]
    fn nul_characters_are_rejected() {
        assert!(Query::with("SELECT ?", ["a\0".into()]).check().is_err());
        assert!(Query::with("SELECT ?", [Some("\0").into()]).check().is_err());
        assert!(Query::with("SELECT ?, ?", ["a".into(), None::<&str>.into()]).check().is_ok());
    }
}
