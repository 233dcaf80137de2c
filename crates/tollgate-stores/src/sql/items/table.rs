//! The tables of items: one description each, from which all queries on them are built.

use super::{ItemId, ItemKind};
use crate::sql::error::{DatabaseError, ValueError};
use crate::sql::query::{Query, Value};

/// Maximum rows per statement, and roughly the maximum bytes: far below the limits of all engines.
pub(in crate::sql) const CHUNK_ROWS: usize = 200;
pub(in crate::sql) const CHUNK_BYTES: usize = 1 << 20;

const JSON_MAX: usize = 512 * 1024;
const PROSE_MAX: usize = 4096;

/// The table of one kind of item.
pub(in crate::sql) struct Table {
    pub(in crate::sql) name: &'static str,
    /// The columns of the primary key come first.
    pub(in crate::sql) columns: &'static [Column],
    pub(in crate::sql) key_columns: usize,
}

pub(in crate::sql) struct Column {
    pub(in crate::sql) name: &'static str,
    pub(in crate::sql) column_type: ColumnType,
}

/// The type of a column. All are nullable here; the schema says which are not.
#[derive(Copy, Clone)]
pub(in crate::sql) enum ColumnType {
    Int,
    /// With the maximum number of bytes.
    Text(usize),
    /// A hash. Never in the audit log.
    Bytes,
}

/// The tenant of an item. It is part of the primary key, so none is the empty text.
const TENANT: &str = "tenant";

/// The columns that all tables of items have in common, after their own.
const COMMON_COLUMNS: [&str; 4] = ["created_by", "created_at_micros", "updated_at_micros", "version"];

const fn int(name: &'static str) -> Column {
    Column { name, column_type: ColumnType::Int }
}

const fn text(name: &'static str, bytes_max: usize) -> Column {
    Column { name, column_type: ColumnType::Text(bytes_max) }
}

const fn bytes(name: &'static str) -> Column {
    Column { name, column_type: ColumnType::Bytes }
}

const RULES: Table = Table {
    name: "rate_limit_rules",
    key_columns: 1,
    columns: &[
        text("name", 128),
        int("priority"),
        text("conditions", JSON_MAX),
        text("per", JSON_MAX),
        text("layer", 128),
        text("algorithm", 64),
        text("limits", JSON_MAX),
        text("short_form", JSON_MAX),
        text("action", 64),
        text("max_delay", 64),
        text("on_store_failure", 64),
        int("leases"),
        int("response_status"),
        text("response_message", PROSE_MAX),
        text("retry_after_floor", 64),
        int("enabled"),
        int("across_tenants"),
    ],
};

const TIERS: Table = Table {
    name: "tiers",
    key_columns: 1,
    columns: &[
        text("name", 256),
        text("description", PROSE_MAX),
        text("algorithm", 64),
        text("limits", JSON_MAX),
        text("short_form", JSON_MAX),
        text("max_delay", 64),
    ],
};

const QUOTAS: Table = Table {
    name: "user_quotas",
    key_columns: 2,
    columns: &[
        text(TENANT, 256),
        text("user_id", 256),
        text("tier", 256),
        int("requests_per_hour"),
        int("requests_per_day"),
        int("burst"),
    ],
};

const KEYS: Table = Table {
    name: "api_keys",
    key_columns: 1,
    columns: &[
        text("id", 64),
        bytes("hash"),
        bytes("previous_hash"),
        int("previous_until_micros"),
        text("name", 256),
        text("user_id", 256),
        text("tenant", 256),
        text("tier", 256),
        text("scopes", JSON_MAX),
        int("requests_per_second"),
        int("requests_per_hour"),
        int("requests_per_day"),
        int("burst"),
        int("expires_at_micros"),
        int("revoked_at_micros"),
        text("revoked_by", 256),
    ],
};

const BLOCKS: Table = Table {
    name: "blocks",
    key_columns: 3,
    columns: &[
        text(TENANT, 256),
        text("kind", 64),
        text("subject", 256),
        text("reason", PROSE_MAX),
        int("until_micros"),
    ],
};

const LIMITS: Table = Table {
    name: "user_endpoint_limits",
    key_columns: 3,
    columns: &[
        text(TENANT, 256),
        text("user_id", 256),
        text("endpoint", 2048),
        int("requests"),
        int("window_micros"),
        text("algorithm", 64),
        int("burst"),
    ],
};

impl Table {
    pub(in crate::sql) const fn of(kind: ItemKind) -> &'static Table {
        match kind {
            ItemKind::Rule => &RULES,
            ItemKind::Tier => &TIERS,
            ItemKind::Quota => &QUOTAS,
            ItemKind::Key => &KEYS,
            ItemKind::Block => &BLOCKS,
            ItemKind::Limit => &LIMITS,
        }
    }

    /// The columns of the primary key.
    pub(in crate::sql) fn key_names(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.columns[..self.key_columns].iter().map(|column| column.name)
    }

    fn column_names(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.columns.iter().map(|column| column.name).chain(COMMON_COLUMNS)
    }

    /// `SELECT` all columns.
    pub(in crate::sql) fn select<'a>(&self) -> Query<'a> {
        let mut query = Query::new("SELECT ");
        query.list(self.column_names()).push(" FROM ").push(self.name);
        query
    }

    /// Appends a `WHERE` clause for these ids.
    pub(in crate::sql) fn push_where<'a>(&self, query: &mut Query<'a>, ids: &[&'a ItemId]) {
        let ids: Vec<Vec<&'a str>> = ids.iter().map(|id| id.key_values()).collect();
        query.push(" WHERE ").any_of(&self.key_names().collect::<Vec<_>>(), &ids);
    }

    /// `INSERT` of rows with all columns.
    pub(in crate::sql) fn insert<'a>(&self, rows: impl Iterator<Item = Vec<Value<'a>>>) -> Query<'a> {
        let mut query = Query::new("INSERT INTO ");
        query.push(self.name).push(" (").list(self.column_names()).push(") VALUES ");
        query.rows(rows);
        query
    }

    /// Turns an `INSERT` into an upsert.
    pub(in crate::sql) fn push_replace(&self, query: &mut Query<'_>) {
        query.push(" ON CONFLICT (").list(self.key_names()).push(") DO UPDATE SET ");
        for (number, name) in self.column_names().skip(self.key_columns).enumerate() {
            query.push(if number == 0 { "" } else { ", " }).push(name).push(" = excluded.").push(name);
        }
    }

    /// Checks that every engine can store these values unchanged.
    pub(in crate::sql) fn check(&self, values: &[Value<'_>]) -> Result<(), DatabaseError> {
        for (position, (column, value)) in self.columns.iter().zip(values).enumerate() {
            let (Value::Text(Some(text)), ColumnType::Text(max)) = (value, column.column_type) else {
                continue;
            };
            if text.is_empty() && position < self.key_columns && column.name != TENANT {
                return Err(DatabaseError::value(column.name, ValueError::Empty));
            }
            check_text(column.name, text, max)?;
        }
        Ok(())
    }

    /// Checks that every engine can store this id.
    pub(in crate::sql) fn check_id(&self, id: &ItemId) -> Result<(), DatabaseError> {
        let keys: Vec<Value<'_>> = id.key_values().into_iter().map(Value::from).collect();
        self.check(&keys)
    }
}

/// Checks that every engine can store a text unchanged.
pub(in crate::sql) fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), DatabaseError> {
    if text.len() > max {
        return Err(DatabaseError::value(field, ValueError::TooLong { max }));
    }
    if text.contains('\0') {
        return Err(DatabaseError::value(field, ValueError::ContainsNul));
    }
    Ok(())
}

/// Like [`check_text`], for a text that must not be empty.
pub(in crate::sql) fn check_name(field: &'static str, text: &str, max: usize) -> Result<(), DatabaseError> {
    if text.is_empty() {
        return Err(DatabaseError::value(field, ValueError::Empty));
    }
    check_text(field, text, max)
}

/// Splits rows into pieces that fit into one statement.
pub(in crate::sql) fn chunks<T>(rows: &[T], weight: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut pieces, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (position, row) in rows.iter().enumerate() {
        let added = weight(row);
        if position > start && (position - start == CHUNK_ROWS || bytes + added > CHUNK_BYTES) {
            pieces.push(&rows[start..position]);
            (start, bytes) = (position, 0);
        }
        bytes += added;
    }
    if start < rows.len() {
        pieces.push(&rows[start..]);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_bounded_and_complete() {
        let sizes = |rows: &[usize]| -> Vec<usize> {
            let pieces = chunks(rows, |weight| *weight);
            assert_eq!(pieces.concat(), rows);
            pieces.iter().map(|piece| piece.len()).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[1; CHUNK_ROWS]), [CHUNK_ROWS]);
        assert_eq!(sizes(&[1; CHUNK_ROWS + 1]), [CHUNK_ROWS, 1]);
        assert_eq!(sizes(&[CHUNK_BYTES / 2; 5]), [2, 2, 1]);
        assert_eq!(sizes(&[CHUNK_BYTES * 3, 1, CHUNK_BYTES]), [1, 1, 1]);
    }
}
