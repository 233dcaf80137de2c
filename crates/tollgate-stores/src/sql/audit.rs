//! The audit log: the table `admin_audit`.

use serde_json::Value as Json;

use super::engine::{Pool, Row, Transaction, from_i64, to_i64};
use super::error::DatabaseError;
use super::items::ItemKind;
use super::items::table::{check_text, chunks};
use super::query::{Query, Value};

/// Maximum number of entries in one result: a page of 1000, plus one that shows whether there is a next page.
pub const AUDIT_COUNT_MAX: u32 = 1001;

const SUBJECT_BYTES_MAX: usize = 16_384;
const TABLE: &str = "admin_audit";
const SELECT: &str = "SELECT id, version, at_micros, made_by, action, kind, subject, state_before, state_after, tenant \
                      FROM admin_audit WHERE ";

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Increasing, possibly with gaps.
    pub id: u64,
    /// The configuration version of the change. All entries of one change share it.
    pub version: u64,
    /// When the change was made, in microseconds since 1970 (UTC).
    pub at_micros: u64,
    /// Who made it.
    pub by: String,
    /// `create`, `update`, `delete`, or the action of an [`AuditEvent`].
    pub action: String,
    /// An [`ItemKind::as_str`], or the kind of an [`AuditEvent`].
    pub kind: String,
    /// The tenant of the item, or of the client of an [`AuditEvent`].
    pub tenant: Option<String>,
    /// A printed [`ItemId`](super::ItemId), or the subject of an [`AuditEvent`].
    pub subject: String,
    /// The state before; `None` if it did not exist.
    pub before: Option<Json>,
    /// The state after; `None` if it was deleted.
    pub after: Option<Json>,
}

/// Something other than a change of an item: counters were reset, penalties were cleared.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEvent {
    /// The tenant of the client.
    pub tenant: Option<String>,
    /// What was done, for example `reset`.
    pub action: String,
    /// The kind of the subject, for example `counters`. Not one of [`ItemKind`].
    pub kind: String,
    /// The subject.
    pub subject: String,
    /// The state before.
    pub before: Option<Json>,
    /// The state after.
    pub after: Option<Json>,
}

/// Selects audit entries. `None` matches everything.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Entries of this kind.
    pub kind: Option<String>,
    /// Entries made by this caller.
    pub by: Option<String>,
    /// Entries about this subject.
    pub subject: Option<String>,
    /// Entries made at this time or later, in microseconds since 1970 (UTC).
    pub since_micros: Option<u64>,
    /// Entries made before this time.
    pub until_micros: Option<u64>,
    /// Entries about items and clients of this tenant.
    pub tenant: Option<String>,
}

/// An entry to be appended.
pub(super) struct NewEntry<'a> {
    pub(super) action: &'a str,
    pub(super) kind: &'a str,
    pub(super) subject: String,
    /// Empty for none.
    pub(super) tenant: String,
    /// JSON; empty for `None`.
    pub(super) before: String,
    pub(super) after: String,
}

pub(super) async fn oldest_first(
    pool: &Pool,
    filter: &AuditFilter,
    after: u64,
    count_max: u32,
) -> Result<Vec<AuditEntry>, DatabaseError> {
    page(pool, filter, ("id > ", to_i64(after, "after")?), " ORDER BY id LIMIT ", count_max).await
}

pub(super) async fn newest_first(
    pool: &Pool,
    filter: &AuditFilter,
    before: Option<u64>,
    count_max: u32,
) -> Result<Vec<AuditEntry>, DatabaseError> {
    let before = before.map_or(Ok(i64::MAX), |before| to_i64(before, "before"))?;
    page(pool, filter, ("id < ", before), " ORDER BY id DESC LIMIT ", count_max).await
}

async fn page(
    pool: &Pool,
    filter: &AuditFilter,
    (comparison, id): (&'static str, i64),
    order: &'static str,
    count_max: u32,
) -> Result<Vec<AuditEntry>, DatabaseError> {
    let mut query = Query::new(SELECT);
    query.push(comparison).bind(id);
    filter.push(&mut query)?;
    query.push(order).bind(count_max.min(AUDIT_COUNT_MAX));
    let mut transaction = pool.begin_snapshot().await?;
    let rows = transaction.rows(&query).await?;
    transaction.rollback().await?;
    rows.iter().map(AuditEntry::read).collect()
}

/// Appends entries in this order.
pub(super) async fn append(
    transaction: &mut Transaction,
    by: &str,
    at_micros: u64,
    version: u64,
    entries: &[NewEntry<'_>],
) -> Result<(), DatabaseError> {
    let (version, at) = (to_i64(version, "version")?, to_i64(at_micros, "at")?);
    let weight = |entry: &NewEntry<'_>| {
        entry.subject.len() + entry.tenant.len() + entry.before.len() + entry.after.len()
    };
    for piece in chunks(entries, weight) {
        let mut query = Query::new(
            "INSERT INTO admin_audit \
             (version, at_micros, made_by, action, kind, subject, state_before, state_after, tenant) VALUES ",
        );
        query.rows(piece.iter().map(|entry| {
            let NewEntry { action, kind, subject, tenant, before, after } = entry;
            let texts = [by, action, kind, subject, before, after, tenant];
            [version, at].map(Value::from).into_iter().chain(texts.map(Value::from)).collect()
        }));
        transaction.execute(&query).await?;
    }
    Ok(())
}

/// Entries of events after a version, oldest first.
pub(super) async fn events_since(
    transaction: &mut Transaction,
    version: i64,
    count_max: i64,
) -> Result<Vec<AuditEntry>, DatabaseError> {
    let mut query = Query::new(SELECT);
    query.push("version > ").bind(version).push(" AND kind NOT IN (");
    query.bind_all(ItemKind::ALL.map(ItemKind::as_str));
    query.push(") ORDER BY id LIMIT ").bind(count_max);
    transaction.rows(&query).await?.iter().map(AuditEntry::read).collect()
}

impl AuditFilter {
    fn push<'a>(&'a self, query: &mut Query<'a>) -> Result<(), DatabaseError> {
        let conditions = [
            (" AND kind = ", "kind", &self.kind),
            (" AND made_by = ", "by", &self.by),
            (" AND subject = ", "subject", &self.subject),
            (" AND tenant = ", "tenant", &self.tenant),
        ];
        for (condition, field, value) in conditions {
            let Some(value) = value else { continue };
            check_text(field, value, SUBJECT_BYTES_MAX)?;
            query.push(condition).bind(value.as_str());
        }
        if let Some(since) = self.since_micros {
            query.push(" AND at_micros >= ").bind(to_i64(since, "since")?);
        }
        if let Some(until) = self.until_micros {
            query.push(" AND at_micros < ").bind(to_i64(until, "until")?);
        }
        Ok(())
    }
}

impl AuditEntry {
    fn read(row: &Row) -> Result<Self, DatabaseError> {
        let state = |column| match &*row.text(column, TABLE)? {
            "" => Ok(None),
            text => serde_json::from_str(text).map(Some).map_err(|_| DatabaseError::Corrupt { what: TABLE }),
        };
        Ok(AuditEntry {
            id: from_i64(row.int(0)?, TABLE)?,
            version: from_i64(row.int(1)?, TABLE)?,
            at_micros: from_i64(row.int(2)?, TABLE)?,
            by: row.text(3, TABLE)?,
            action: row.text(4, TABLE)?,
            kind: row.text(5, TABLE)?,
            subject: row.text(6, TABLE)?,
            before: state(7)?,
            after: state(8)?,
            tenant: Some(row.text(9, TABLE)?).filter(|tenant| !tenant.is_empty()),
        })
    }
}
