//! The archived tables. One description of their columns serves SQL, Parquet and checksums.

use self::ColumnKind::{Address, Flag, Hash, Int, Text, Time};
use self::Packing::{Delta, Dictionary, Plain};

/// A table of records.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ArchivedTable {
    /// The decision log: `rate_limit_audit_logs`.
    Log,
    /// Requests by client, route and minute: `rate_limit_records`.
    Windows,
    /// Requests by route, rule and period: `rate_limit_metrics`.
    Rollups,
}

/// What a column contains.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Int,
    Flag,
    /// Microseconds since 1970.
    Time,
    Text,
    /// An IP address, as text in the archive.
    Address,
    /// 16 bytes.
    Hash,
}

/// How a column is encoded before zstd.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// For values that repeat.
    Dictionary,
    /// For numbers that are close to each other.
    Delta,
    /// For values that never repeat and jump, such as ids.
    Plain,
}

/// A column of an archived table.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: ColumnKind,
    pub(crate) packing: Packing,
    /// Whether SQL has no NULL here. A file without the column restores 0 or an empty text.
    pub(crate) is_required: bool,
}

/// The places of the columns with a meaning of their own.
#[derive(Copy, Clone, Debug)]
pub(crate) struct KeyColumns {
    /// The time of a row, the first column of the primary key.
    pub(crate) time: usize,
    /// The second column of the primary key.
    pub(crate) key: usize,
    /// The text by which a row group is sorted, and which has a Bloom filter.
    pub(crate) subject: usize,
    /// A count that every change of a row increases, and the time of its creation; `None` if rows do not change.
    pub(crate) version: Option<(usize, usize)>,
}

const fn required(name: &'static str, kind: ColumnKind, packing: Packing) -> Column {
    Column { name, kind, packing, is_required: true }
}

const fn optional(name: &'static str, kind: ColumnKind, packing: Packing) -> Column {
    Column { name, kind, packing, is_required: false }
}

// New columns go to the end: a checksum numbers the columns.
const LOG: &[Column] = &[
    required("log_id", Int, Plain),
    required("timestamp", Time, Delta),
    optional("tenant", Text, Dictionary),
    required("identifier", Text, Dictionary),
    optional("user_id", Text, Dictionary),
    optional("api_key_id", Text, Dictionary),
    optional("ip_address", Address, Dictionary),
    required("endpoint", Text, Dictionary),
    optional("http_method", Text, Dictionary),
    optional("rule_id", Text, Dictionary),
    required("decision", Text, Dictionary),
    optional("current_count", Int, Dictionary),
    optional("limit_value", Int, Dictionary),
    optional("remaining", Int, Dictionary),
    required("cost", Int, Dictionary),
    required("response_status", Int, Dictionary),
    optional("retry_after_seconds", Int, Dictionary),
    required("region", Text, Dictionary),
    required("server_id", Text, Dictionary),
    required("latency_us", Int, Dictionary),
    optional("request_id", Text, Plain),
    required("degraded", Flag, Plain),
    required("truncated", Flag, Plain),
];

const WINDOWS: &[Column] = &[
    required("window_start", Time, Delta),
    required("key_hash", Hash, Dictionary),
    optional("tenant", Text, Dictionary),
    required("identifier", Text, Dictionary),
    required("window_type", Text, Dictionary),
    required("route_path", Text, Dictionary),
    required("request_count", Int, Dictionary),
    required("allowed", Int, Dictionary),
    required("refused", Int, Dictionary),
    optional("limit_value", Int, Dictionary),
    required("window_end", Time, Delta),
    required("created_at", Time, Delta),
    required("updated_at", Time, Delta),
];

const ROLLUPS: &[Column] = &[
    required("timestamp", Time, Delta),
    required("key_hash", Hash, Dictionary),
    required("granularity", Text, Dictionary),
    optional("tenant", Text, Dictionary),
    optional("user_id", Text, Dictionary),
    required("endpoint", Text, Dictionary),
    optional("rule_id", Text, Dictionary),
    required("region", Text, Dictionary),
    required("server_id", Text, Dictionary),
    required("total_requests", Int, Dictionary),
    required("allowed_requests", Int, Dictionary),
    required("throttled_requests", Int, Dictionary),
    required("blocked_requests", Int, Dictionary),
    optional("latency_p50_us", Int, Dictionary),
    optional("latency_p95_us", Int, Dictionary),
    optional("latency_p99_us", Int, Dictionary),
    required("latency_histogram", Text, Dictionary),
    required("cache_hits", Int, Dictionary),
    required("cache_misses", Int, Dictionary),
    required("created_at", Time, Delta),
];

impl ArchivedTable {
    /// All of them.
    pub const ALL: [ArchivedTable; 3] = [ArchivedTable::Log, ArchivedTable::Windows, ArchivedTable::Rollups];

    /// Its name in SQL and in the archive.
    pub const fn as_str(self) -> &'static str {
        match self {
            ArchivedTable::Log => "rate_limit_audit_logs",
            ArchivedTable::Windows => "rate_limit_records",
            ArchivedTable::Rollups => "rate_limit_metrics",
        }
    }

    /// The table with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == name)
    }

    pub(crate) const fn columns(self) -> &'static [Column] {
        match self {
            ArchivedTable::Log => LOG,
            ArchivedTable::Windows => WINDOWS,
            ArchivedTable::Rollups => ROLLUPS,
        }
    }

    pub(crate) const fn keys(self) -> KeyColumns {
        match self {
            ArchivedTable::Log => KeyColumns { time: 1, key: 0, subject: 3, version: None },
            ArchivedTable::Windows => KeyColumns { time: 0, key: 1, subject: 3, version: Some((6, 11)) },
            ArchivedTable::Rollups => KeyColumns { time: 0, key: 1, subject: 5, version: Some((9, 19)) },
        }
    }
}

impl ColumnKind {
    /// Whether the values are integers in a [`Batch`](super::batch::Batch), not bytes.
    pub(crate) const fn is_int(self) -> bool {
        matches!(self, Int | Flag | Time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_columns_have_their_names() {
        for (table, names) in [
            (ArchivedTable::Log, ["timestamp", "log_id", "identifier", "", ""]),
            (
                ArchivedTable::Windows,
                ["window_start", "key_hash", "identifier", "request_count", "created_at"],
            ),
            (ArchivedTable::Rollups, ["timestamp", "key_hash", "endpoint", "total_requests", "created_at"]),
        ] {
            let (columns, keys) = (table.columns(), table.keys());
            let name = |column: usize| columns[column].name;
            let (count, created) = keys.version.map_or(("", ""), |(count, at)| (name(count), name(at)));
            let found = [name(keys.time), name(keys.key), name(keys.subject), count, created];
            assert_eq!(found, names);
            assert_eq!(ArchivedTable::parse(table.as_str()), Some(table));
        }
    }
}
