//! Following the changes of others: what has changed since a version.

use std::collections::{HashMap, HashSet};

use super::Database;
use super::audit::AuditEntry;
use super::engine::{Transaction, signed, unsigned};
use super::error::DatabaseError;
use super::items::{ItemId, ItemKind, StoredItem};
use super::query::{Query, Value};

/// The most entries of the trail that are followed one by one.
const FOLLOWED_MAX: usize = 10_000;

/// What has changed since a version.
#[derive(Clone, Debug, PartialEq)]
pub enum Changes {
    /// Nothing.
    Unchanged,
    /// These.
    Changed {
        /// The version that is now.
        version: u64,
        /// Items that were changed, each once, as they are now; nothing for those that are gone.
        items: Vec<(ItemId, Option<StoredItem>)>,
        /// What was done besides, oldest first.
        events: Vec<AuditEntry>,
    },
    /// More than is worth telling, or it cannot be told: the trail does not reach back that far, or the database has gone
    /// back behind that version. Load everything.
    ReloadRequired,
}

impl Database {
    /// What has changed since a version, from the audit trail; the items as they are now, all at one version.
    ///
    /// # Errors
    /// When the database cannot be asked, or somebody else has written what cannot be read.
    pub async fn changes_since(&self, version: u64) -> Result<Changes, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let now = transaction.config_version().await?;
        let changes = match now.checked_sub(version) {
            Some(0) => Ok(Changes::Unchanged),
            None => Ok(Changes::ReloadRequired),
            Some(count) => transaction.changes(version, now, count).await,
        };
        transaction.end_with(changes).await
    }
}

impl Transaction {
    async fn changes(&mut self, version: u64, now: u64, count: u64) -> Result<Changes, DatabaseError> {
        const WHAT: &str = "admin_audit";
        let since = signed(version, "version")?;
        let limit = i64::try_from(FOLLOWED_MAX + 1).unwrap_or(i64::MAX);
        let mut query = Query::new("SELECT version, kind, subject FROM admin_audit WHERE version > ");
        query.bind(Value::Int(since)).push(" ORDER BY version LIMIT ").bind(Value::Int(limit));
        let rows = self.rows(&query).await?;
        let (mut versions, mut seen, mut ids) = (HashSet::new(), HashSet::new(), Vec::new());
        for row in &rows {
            versions.insert(unsigned::<u64>(row.int(0)?, WHAT)?);
            let Some(kind) = ItemKind::parse(&row.text(1, WHAT)?) else { continue };
            let id = ItemId::parse(kind, &row.text(2, WHAT)?);
            let id = id.ok_or(DatabaseError::Corrupt { what: WHAT })?;
            if seen.insert(id.clone()) {
                ids.push(id);
            }
        }
        // Every version has an entry, unless the trail was cut.
        if rows.len() > FOLLOWED_MAX || versions.len() as u64 != count {
            return Ok(Changes::ReloadRequired);
        }
        let events = self.events_since(since, limit).await?;
        let mut found: HashMap<ItemId, StoredItem> = self.find(&ids.iter().collect::<Vec<_>>()).await?;
        let items = ids.into_iter().map(|id| {
            let stored = found.remove(&id);
            (id, stored)
        });
        Ok(Changes::Changed { version: now, items: items.collect(), events })
    }
}
