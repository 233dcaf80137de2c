//! One change of the configuration: the next version, what is written, and the entry that tells of it.

use super::Database;
use super::engine::{Transaction, Value, signed};
use super::error::{DatabaseError, ValueProblem};

/// A change that has taken its version. It can be made final only with an entry in the audit trail; dropped, it was never
/// made.
pub(super) struct Change {
    pub(super) transaction: Transaction,
    /// The version of the configuration with this change.
    pub(super) version: u64,
}

/// What the audit trail is to tell of a change.
pub(super) struct Entry<'a> {
    /// Who made it.
    pub(super) by: &'a str,
    /// When, in microseconds since 1970.
    pub(super) at_micros: u64,
    /// What was done: `put`, `delete`.
    pub(super) action: &'static str,
    /// To what kind of thing.
    pub(super) kind: &'static str,
    /// To which of them, as JSON.
    pub(super) subject: String,
    /// What it was, as JSON; nothing if it was not there.
    pub(super) before: Option<String>,
    /// What it is, as JSON; nothing if it is gone.
    pub(super) after: Option<String>,
}

impl Database {
    /// Takes the next version. All other changes, on all nodes, wait until this one ends.
    pub(super) async fn begin_change(&self) -> Result<Change, DatabaseError> {
        let mut transaction = self.pool.begin_write().await?;
        transaction.execute("UPDATE config_version SET version = version + 1 WHERE id = 1", &[]).await?;
        let version = transaction.config_version().await?;
        Ok(Change { transaction, version })
    }
}

impl Change {
    /// Leaves the entry and makes all of it final; the version.
    pub(super) async fn finish(mut self, entry: Entry<'_>) -> Result<u64, DatabaseError> {
        check_text("by", entry.by, 256)?;
        let values = [
            Value::Int(signed(self.version, "version")?),
            Value::Int(signed(entry.at_micros, "at")?),
            Value::Text(entry.by),
            Value::Text(entry.action),
            Value::Text(entry.kind),
            Value::Text(&entry.subject),
            Value::Text(entry.before.as_deref().unwrap_or_default()),
            Value::Text(entry.after.as_deref().unwrap_or_default()),
        ];
        self.transaction
            .execute(
                "INSERT INTO admin_audit \
                 (version, at_micros, made_by, action, kind, subject, state_before, state_after) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                &values,
            )
            .await?;
        self.transaction.commit().await?;
        Ok(self.version)
    }
}

/// Whether a text can be stored on every engine, unchanged.
pub(super) fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), DatabaseError> {
    let problem = match text.len() {
        0 => ValueProblem::Empty,
        length if length > max => ValueProblem::TooLong { max },
        _ if text.contains('\0') => ValueProblem::HoldsNul,
        _ => return Ok(()),
    };
    Err(DatabaseError::Value { field, problem })
}
