//! Items as JSON. Nothing here contains a secret or its hash.

use serde::Serialize;
use serde_json::{Map, Value as Json};
use tollgate_stores::sql::{ItemKind, StoredItem};
use utoipa::ToSchema;

/// Version and origin of an item in the database.
#[derive(Serialize, ToSchema)]
pub(crate) struct Revision {
    /// Configuration version of the last change.
    version: u64,
    /// Caller that created the item.
    created_by: String,
    /// Time of creation, RFC 3339.
    created_at: String,
    /// Time of the last change, RFC 3339.
    updated_at: String,
}

impl Revision {
    pub(crate) fn of(stored: &StoredItem) -> Self {
        Revision {
            version: stored.version,
            created_by: stored.created_by.clone(),
            created_at: timestamp(stored.created_at_micros),
            updated_at: timestamp(stored.updated_at_micros),
        }
    }
}

/// Where a rule or tier is defined.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct SourceRevision {
    /// `file`, `database`, or `built-in` for the rule that applies if none is configured.
    source: &'static str,
    /// Configuration version of the last change; null unless the source is `database`, and in a list that is `stale`.
    version: Option<u64>,
    /// Caller that created the item.
    created_by: Option<String>,
    /// Time of creation, RFC 3339.
    created_at: Option<String>,
    /// Time of the last change, RFC 3339.
    updated_at: Option<String>,
}

impl SourceRevision {
    /// Of an item that the settings file defines, or that is built in.
    pub(crate) fn file(source: &'static str) -> Self {
        SourceRevision { source, ..SourceRevision::default() }
    }

    pub(crate) fn database(stored: &StoredItem) -> Self {
        // Items in memory have no revision.
        let known = (stored.version > 0).then_some(stored);
        SourceRevision {
            source: "database",
            version: known.map(|stored| stored.version),
            created_by: known.map(|stored| stored.created_by.clone()),
            created_at: known.map(|stored| timestamp(stored.created_at_micros)),
            updated_at: known.map(|stored| timestamp(stored.updated_at_micros)),
        }
    }
}

/// The name of a kind in paths, lists and exports.
pub(crate) const fn plural(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Rule => "rules",
        ItemKind::Tier => "tiers",
        ItemKind::Quota => "quotas",
        ItemKind::Key => "keys",
        ItemKind::Block => "blocks",
        ItemKind::Limit => "limits",
    }
}

/// Adds a field, unless it is absent.
pub(crate) fn put(all: &mut Map<String, Json>, key: &str, value: Option<impl Into<Json>>) {
    if let Some(value) = value {
        all.insert(key.to_owned(), value.into());
    }
}

/// A time in RFC 3339, exact to the microsecond.
pub(crate) fn timestamp(micros: u64) -> String {
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map_or_else(|_| String::new(), |instant| instant.to_string())
}
