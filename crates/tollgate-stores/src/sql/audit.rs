//! Who changed what: the table `admin_audit`.

use super::Database;
use super::engine::{Row, Value, signed, unsigned};
use super::error::DatabaseError;

/// The most entries of one answer.
pub const AUDIT_COUNT_MAX: u32 = 1000;

/// One change, as the audit trail tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its place in the trail. Numbers grow; some may be missing.
    pub id: u64,
    /// The version of the configuration that it made.
    pub version: u64,
    /// When it was made, in microseconds since 1970 (UTC).
    pub at_micros: u64,
    /// Who made it.
    pub by: String,
    /// What was done: `put` or `delete`.
    pub action: String,
    /// To what kind of thing: `user_endpoint_limit`.
    pub kind: String,
    /// To which of them, as JSON: `["alice","/search"]`.
    pub subject: String,
    /// What it was, as JSON; nothing if it was not there.
    pub before: Option<String>,
    /// What it became, as JSON; nothing if it was removed.
    pub after: Option<String>,
}

impl Database {
    /// Entries of the audit trail behind the one with the id `after`, oldest first; 0 is before all. To go on, ask again with
    /// the last id. At most `count_max` and never more than [`AUDIT_COUNT_MAX`].
    ///
    /// # Errors
    /// When the database cannot be asked, or somebody else has written what cannot be read.
    pub async fn audit(&self, after: u64, count_max: u32) -> Result<Vec<AuditEntry>, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let rows = transaction
            .rows(
                "SELECT id, version, at_micros, made_by, action, kind, subject, state_before, state_after \
                 FROM admin_audit WHERE id > ? ORDER BY id LIMIT ?",
                &[Value::Int(signed(after, "after")?), Value::Int(count_max.min(AUDIT_COUNT_MAX).into())],
            )
            .await?;
        transaction.end().await?;
        rows.iter().map(AuditEntry::read).collect()
    }
}

impl AuditEntry {
    fn read(row: &Row) -> Result<Self, DatabaseError> {
        const WHAT: &str = "admin_audit";
        let state =
            |column| row.text(column, WHAT).map(|state| Some(state).filter(|state| !state.is_empty()));
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
