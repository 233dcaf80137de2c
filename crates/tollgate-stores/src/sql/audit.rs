//! Who changed what: the table `admin_audit`.

use serde_json::Value as Json;

use super::Database;
use super::engine::{Row, Transaction, signed, unsigned};
use super::error::DatabaseError;
use super::items::ItemKind;
use super::items::table::{check_text, chunks};
use super::query::{Query, Value};

/// The most entries of one answer: a page of a thousand, and one that tells whether there are more.
pub const AUDIT_COUNT_MAX: u32 = 1001;

const SUBJECT_BYTES_MAX: usize = 16_384;
const SELECT: &str = "SELECT id, version, at_micros, made_by, action, kind, subject, state_before, state_after \
                      FROM admin_audit WHERE ";

/// One change, as the audit trail tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Its place in the trail. Numbers grow; some may be missing.
    pub id: u64,
    /// The version of the configuration that it made. Several entries have one version if they were one change.
    pub version: u64,
    /// When it was made, in microseconds since 1970 (UTC).
    pub at_micros: u64,
    /// Who made it.
    pub by: String,
    /// What was done: `create`, `update`, `delete`, or an act's own word.
    pub action: String,
    /// To what kind of thing: see [`Kind::as_str`]; an act has kinds of its own.
    pub kind: String,
    /// To which of them: an [`ItemId`](super::ItemId) as it is printed.
    pub subject: String,
    /// What it was; nothing if it was not there.
    pub before: Option<Json>,
    /// What it became; nothing if it was removed.
    pub after: Option<Json>,
}

/// Which entries. What is not said does not matter.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Of this kind.
    pub kind: Option<String>,
    /// Made by them.
    pub by: Option<String>,
    /// About this.
    pub subject: Option<String>,
}

/// What the trail is to tell of one difference.
pub(super) struct Entry<'a> {
    pub(super) action: &'a str,
    pub(super) kind: &'a str,
    pub(super) subject: String,
    /// As JSON; empty if there is nothing.
    pub(super) before: String,
    pub(super) after: String,
}

impl Database {
    /// Entries of the audit trail behind the one with the id `after`, oldest first; 0 is before all. To go on, ask again with
    /// the last id. At most `count_max` and never more than [`AUDIT_COUNT_MAX`].
    ///
    /// # Errors
    /// When the database cannot be asked, or somebody else has written what cannot be read.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        after: u64,
        count_max: u32,
    ) -> Result<Vec<AuditEntry>, DatabaseError> {
        let mut query = Query::new(SELECT);
        query.push("id > ").bind(Value::Int(signed(after, "after")?));
        filter.push(&mut query)?;
        query.push(" ORDER BY id LIMIT ").bind(Value::Int(count_max.min(AUDIT_COUNT_MAX).into()));
        self.entries(query).await
    }

    /// Entries before the one with the id `before`, newest first; nothing is behind all. To go on, ask again with the last id.
    ///
    /// # Errors
    /// As [`audit`](Self::audit).
    pub async fn audit_newest(
        &self,
        filter: &AuditFilter,
        before: Option<u64>,
        count_max: u32,
    ) -> Result<Vec<AuditEntry>, DatabaseError> {
        let before = before.map_or(Ok(i64::MAX), |before| signed(before, "before"))?;
        let mut query = Query::new(SELECT);
        query.push("id < ").bind(Value::Int(before));
        filter.push(&mut query)?;
        query.push(" ORDER BY id DESC LIMIT ").bind(Value::Int(count_max.min(AUDIT_COUNT_MAX).into()));
        self.entries(query).await
    }

    async fn entries(&self, query: Query<'_>) -> Result<Vec<AuditEntry>, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let rows = transaction.rows(&query).await?;
        transaction.end().await?;
        rows.iter().map(AuditEntry::read).collect()
    }
}

impl AuditFilter {
    fn push<'a>(&'a self, query: &mut Query<'a>) -> Result<(), DatabaseError> {
        let fields = [(" AND kind = ", "kind", &self.kind), (" AND made_by = ", "by", &self.by)];
        for (text, field, value) in fields.into_iter().chain([(" AND subject = ", "subject", &self.subject)])
        {
            let Some(value) = value else { continue };
            check_text(field, value, SUBJECT_BYTES_MAX)?;
            query.push(text).bind(Value::Text(value));
        }
        Ok(())
    }
}

impl AuditEntry {
    fn read(row: &Row) -> Result<Self, DatabaseError> {
        const WHAT: &str = "admin_audit";
        let state = |column| match &*row.text(column, WHAT)? {
            "" => Ok(None),
            text => serde_json::from_str(text).map(Some).map_err(|_| DatabaseError::Corrupt { what: WHAT }),
        };
        Ok(AuditEntry {
            id: unsigned(row.int(0)?, WHAT)?,
            version: unsigned(row.int(1)?, WHAT)?,
            at_micros: unsigned(row.int(2)?, WHAT)?,
            by: row.text(3, WHAT)?,
            action: row.text(4, WHAT)?,
            kind: row.text(5, WHAT)?,
            subject: row.text(6, WHAT)?,
            before: state(7)?,
            after: state(8)?,
        })
    }
}

impl Transaction {
    /// Leaves entries in the trail, in this order.
    pub(super) async fn tell(
        &mut self,
        by: &str,
        at_micros: u64,
        version: u64,
        entries: &[Entry<'_>],
    ) -> Result<(), DatabaseError> {
        let (version, at) = (Value::Int(signed(version, "version")?), Value::Int(signed(at_micros, "at")?));
        let weight = |entry: &Entry<'_>| entry.subject.len() + entry.before.len() + entry.after.len();
        for piece in chunks(entries, weight) {
            let mut query = Query::new(
                "INSERT INTO admin_audit \
                 (version, at_micros, made_by, action, kind, subject, state_before, state_after) VALUES ",
            );
            query.rows(piece.iter().map(|entry| {
                let states = [&*entry.subject, &entry.before, &entry.after].map(Value::Text);
                let [by, action, kind] = [by, entry.action, entry.kind].map(Value::Text);
                [version, at, by, action, kind].into_iter().chain(states).collect()
            }));
            self.execute(&query).await?;
        }
        Ok(())
    }

    /// Entries of the trail behind a version that are about no item, oldest first.
    pub(super) async fn events_since(
        &mut self,
        version: i64,
        count_max: i64,
    ) -> Result<Vec<AuditEntry>, DatabaseError> {
        let mut query = Query::new(SELECT);
        query.push("version > ").bind(Value::Int(version)).push(" AND kind NOT IN (");
        query.bind_all(ItemKind::ALL.map(|kind| Value::Text(kind.as_str())));
        query.push(") ORDER BY id LIMIT ").bind(Value::Int(count_max));
        self.rows(&query).await?.iter().map(AuditEntry::read).collect()
    }
}
