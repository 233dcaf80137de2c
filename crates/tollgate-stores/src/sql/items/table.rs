//! The tables of items: one description each, from which every query on them is put together.

use super::{ItemId, ItemKind};
use crate::sql::error::{DatabaseError, ValueError};
use crate::sql::query::{Query, Value};
use crate::sql::settings::Engine;

/// The most rows that one statement names or writes, and about how many bytes: far below what any engine takes.
pub(in crate::sql) const CHUNK_ROWS: usize = 200;
pub(in crate::sql) const CHUNK_BYTES: usize = 1 << 20;

/// A list or table as it was written, as JSON.
const JSON_MAX: usize = 512 * 1024;
const PROSE_MAX: usize = 4096;

/// Where items of one kind are kept.
pub(in crate::sql) struct Table {
    pub(in crate::sql) name: &'static str,
    /// The columns that name an item come first.
    pub(in crate::sql) columns: &'static [Column],
    pub(in crate::sql) key_count: usize,
}

pub(in crate::sql) struct Column {
    pub(in crate::sql) name: &'static str,
    pub(in crate::sql) form: Form,
}

/// What a column holds.
#[derive(Copy, Clone)]
pub(in crate::sql) enum Form {
    /// A number, or nothing.
    Int,
    /// A text of at most so many bytes, or nothing.
    Text(usize),
    /// A hash, or nothing. It is in no audit trail.
    Bytes,
}

/// What one row has in one column.
#[derive(Clone, PartialEq)]
pub(in crate::sql) enum Cell {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

/// The columns that every table of items has besides: who made it, when, when it was changed, and by which version.
const META: [&str; 4] = ["created_by", "created_at_micros", "updated_at_micros", "version"];

const fn int(name: &'static str) -> Column {
    Column { name, form: Form::Int }
}

const fn text(name: &'static str, bytes_max: usize) -> Column {
    Column { name, form: Form::Text(bytes_max) }
}

const fn bytes(name: &'static str) -> Column {
    Column { name, form: Form::Bytes }
}

const RULES: Table = Table {
    name: "rate_limit_rules",
    key_count: 1,
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
    ],
};

const TIERS: Table = Table {
    name: "tiers",
    key_count: 1,
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
    key_count: 1,
    columns: &[
        text("user_id", 256),
        text("tier", 256),
        int("requests_per_hour"),
        int("requests_per_day"),
        int("burst"),
    ],
};

const KEYS: Table = Table {
    name: "api_keys",
    key_count: 1,
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
    key_count: 2,
    columns: &[text("kind", 64), text("subject", 256), text("reason", PROSE_MAX), int("until_micros")],
};

const LIMITS: Table = Table {
    name: "user_endpoint_limits",
    key_count: 2,
    columns: &[
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

    /// The columns that name an item.
    pub(in crate::sql) fn keys(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.columns[..self.key_count].iter().map(|column| column.name)
    }

    fn names(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.columns.iter().map(|column| column.name).chain(META)
    }

    /// `SELECT` all columns `FROM` the table.
    pub(in crate::sql) fn select<'a>(&self) -> Query<'a> {
        let mut query = Query::new("SELECT ");
        query.list(self.names()).push(" FROM ").push(self.name);
        query
    }

    /// ` WHERE` it is one of these.
    pub(in crate::sql) fn push_where<'a>(&self, query: &mut Query<'a>, ids: &[&'a ItemId]) {
        query.push(" WHERE ");
        if self.key_count == 1 {
            query.list(self.keys()).push(" IN (");
            for (number, id) in ids.iter().enumerate() {
                query.push(if number == 0 { "" } else { ", " });
                query.bind_all(id.keys().into_iter().flatten().map(Value::Text));
            }
            query.push(")");
            return;
        }
        for (number, id) in ids.iter().enumerate() {
            query.push(if number == 0 { "(" } else { " OR (" });
            for (place, (key, value)) in self.keys().zip(id.keys().into_iter().flatten()).enumerate() {
                query.push(if place == 0 { "" } else { " AND " }).push(key).push(" = ");
                query.bind(Value::Text(value));
            }
            query.push(")");
        }
    }

    /// `INSERT INTO` the table these rows, each with all columns.
    pub(in crate::sql) fn insert<'a>(&self, rows: impl Iterator<Item = Vec<Value<'a>>>) -> Query<'a> {
        let mut query = Query::new("INSERT INTO ");
        query.push(self.name).push(" (").list(self.names()).push(") VALUES ");
        query.rows(rows);
        query
    }

    /// The end of an `INSERT` that replaces what is there.
    pub(in crate::sql) fn push_replacing(&self, query: &mut Query<'_>, engine: Engine) {
        push_on_conflict(query, engine, self.keys());
        for (number, name) in self.names().skip(self.key_count).enumerate() {
            query.push(if number == 0 { "" } else { ", " }).push(name).push(" = ");
            push_new(query, engine, name);
        }
    }

    /// Whether every engine can keep these values, unchanged.
    pub(in crate::sql) fn check(&self, cells: &[Cell]) -> Result<(), DatabaseError> {
        for (place, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
            let (Cell::Text(Some(text)), Form::Text(max)) = (cell, column.form) else { continue };
            if text.is_empty() && place < self.key_count {
                return Err(DatabaseError::value(column.name, ValueError::Empty));
            }
            check_text(column.name, text, max)?;
        }
        Ok(())
    }

    /// Whether every engine can have an item of this name.
    pub(in crate::sql) fn check_id(&self, id: &ItemId) -> Result<(), DatabaseError> {
        let keys: Vec<Cell> =
            id.keys().into_iter().flatten().map(|key| Cell::Text(Some(key.to_owned()))).collect();
        self.check(&keys)
    }
}

/// ` ON CONFLICT … SET `, which MySQL spells otherwise.
pub(in crate::sql) fn push_on_conflict(
    query: &mut Query<'_>,
    engine: Engine,
    keys: impl Iterator<Item = &'static str>,
) {
    match engine {
        Engine::MySql => query.push(" ON DUPLICATE KEY UPDATE "),
        Engine::Sqlite | Engine::Postgres => query.push(" ON CONFLICT (").list(keys).push(") DO UPDATE SET "),
    };
}

/// The value that the row would have had.
pub(in crate::sql) fn push_new(query: &mut Query<'_>, engine: Engine, column: &'static str) {
    match engine {
        Engine::MySql => query.push("VALUES(").push(column).push(")"),
        Engine::Sqlite | Engine::Postgres => query.push("excluded.").push(column),
    };
}

impl Cell {
    pub(in crate::sql) fn value(&self) -> Value<'_> {
        match self {
            Cell::Int(number) => Value::MaybeInt(*number),
            Cell::Text(text) => Value::MaybeText(text.as_deref()),
            Cell::Bytes(bytes) => Value::MaybeBytes(bytes.as_deref()),
        }
    }

    /// About how much of a statement it is.
    pub(in crate::sql) fn weight(&self) -> usize {
        match self {
            Cell::Int(_) => 8,
            Cell::Text(text) => text.as_ref().map_or(0, String::len),
            Cell::Bytes(bytes) => bytes.as_ref().map_or(0, Vec::len),
        }
    }
}

/// Whether a text can be stored on every engine, unchanged.
pub(in crate::sql) fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), DatabaseError> {
    if text.len() > max {
        return Err(DatabaseError::value(field, ValueError::TooLong { max }));
    }
    if text.contains('\0') {
        return Err(DatabaseError::value(field, ValueError::HoldsNul));
    }
    Ok(())
}

/// The same of a text that must be there.
pub(in crate::sql) fn check_name(field: &'static str, text: &str, max: usize) -> Result<(), DatabaseError> {
    if text.is_empty() {
        return Err(DatabaseError::value(field, ValueError::Empty));
    }
    check_text(field, text, max)
}

/// Cuts rows into pieces that one statement can carry.
pub(in crate::sql) fn chunks<T>(rows: &[T], weight: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut pieces, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (place, row) in rows.iter().enumerate() {
        let more = weight(row);
        if place > start && (place - start == CHUNK_ROWS || bytes + more > CHUNK_BYTES) {
            pieces.push(&rows[start..place]);
            (start, bytes) = (place, 0);
        }
        bytes += more;
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
    fn pieces_are_bounded_in_rows_and_bytes_and_lose_nothing() {
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
