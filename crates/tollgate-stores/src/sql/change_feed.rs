//! What has changed since a version, read from the audit log.

use std::collections::{HashMap, HashSet};

use super::audit::{self, AuditEntry};
use super::engine::{Pool, Transaction, from_i64, to_i64};
use super::error::DatabaseError;
use super::items::{ItemId, ItemKind, StoredItem, list};
use super::query::Query;
use super::version;

/// With more audit entries than this, reloading everything is cheaper.
const ENTRIES_MAX: usize = 10_000;
const TABLE: &str = "admin_audit";

/// What has changed since a version.
#[derive(Clone, Debug, PartialEq)]
pub enum Changes {
    /// Nothing.
    Unchanged,
    /// These items and events.
    Changed {
        /// The current version.
        version: u64,
        /// Each changed item once, in its current state; `None` if it was deleted.
        items: Vec<(ItemId, Option<StoredItem>)>,
        /// Events, oldest first.
        events: Vec<AuditEntry>,
    },
    /// There are too many changes, the audit log does not reach back to the version, or the database is at an earlier version
    /// (a backup was restored). Load the whole configuration.
    ReloadRequired,
}

pub(super) async fn since(pool: &Pool, since: u64) -> Result<Changes, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let current = version::current(&mut transaction).await?;
    let changes = match current.checked_sub(since) {
        Some(0) => Ok(Changes::Unchanged),
        None => Ok(Changes::ReloadRequired),
        Some(count) => read(&mut transaction, since, current, count).await,
    };
    transaction.rollback_with(changes).await
}

async fn read(
    transaction: &mut Transaction,
    since: u64,
    current: u64,
    version_count: u64,
) -> Result<Changes, DatabaseError> {
    let since = to_i64(since, "version")?;
    let limit = i64::try_from(ENTRIES_MAX + 1).unwrap_or(i64::MAX);
    let mut query = Query::new("SELECT version, kind, subject, tenant FROM admin_audit WHERE version > ");
    query.bind(since).push(" ORDER BY version LIMIT ").bind(limit);
    let rows = transaction.rows(&query).await?;
    let (mut versions, mut seen, mut ids) = (HashSet::new(), HashSet::new(), Vec::new());
    for row in &rows {
        versions.insert(from_i64::<u64>(row.int(0)?, TABLE)?);
        let Some(kind) = ItemKind::parse(&row.text(1, TABLE)?) else { continue };
        let tenant = Some(row.text(3, TABLE)?).filter(|tenant| !tenant.is_empty());
        let id = ItemId::parse(kind, tenant.as_deref(), &row.text(2, TABLE)?);
        let id = id.ok_or(DatabaseError::Corrupt { what: TABLE })?;
        if seen.insert(id.clone()) {
            ids.push(id);
        }
    }
    // Every version has at least one entry, unless the log was truncated.
    if rows.len() > ENTRIES_MAX || versions.len() as u64 != version_count {
        return Ok(Changes::ReloadRequired);
    }
    let events = audit::events_since(transaction, since, limit).await?;
    let mut found: HashMap<ItemId, StoredItem> =
        list::find(transaction, &ids.iter().collect::<Vec<_>>()).await?;
    let items = ids.into_iter().map(|id| {
        let stored = found.remove(&id);
        (id, stored)
    });
    Ok(Changes::Changed { version: current, items: items.collect(), events })
}
