//! `/v1/admin`: what people configure while the service runs, and who has.
//!
//! Every kind of item is read, listed and changed the same way (`change.rs`); what differs is how it is written (`read.rs`) and
//! what is told of it.

pub(crate) mod audit;
pub(crate) mod blocks;
mod body;
mod change;
pub(crate) mod counters;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod key_rotation;
pub(crate) mod keys;
mod normalize;
mod page;
mod parse;
pub(crate) mod penalties;
mod preconditions;
pub(crate) mod quotas;
pub(crate) mod reload;
mod render;
pub(crate) mod rules;
mod schema;
pub(crate) mod tiers;
mod view;

use tollgate_stores::sql::{AuditEvent, ItemEdit, ItemWrite, Precondition};

pub(crate) use self::change::{ChangeQuery, DryRunAnswer};
use crate::http::error::{ApiError, Code};
use crate::http::{Call, Response};

/// The longest text that a list is narrowed down by.
const FILTER_BYTES_MAX: usize = 2_304;

/// A text of a query that the database can be asked with.
fn require_text(field: &'static str, text: Option<&str>) -> Result<(), ApiError> {
    let reason = match text {
        Some("") => "must not be empty",
        Some(text) if text.len() > FILTER_BYTES_MAX => "is longer than any name",
        Some(text) if text.contains('\0') => "must not hold a NUL character",
        _ => return Ok(()),
    };
    Err(ApiError::field(Code::InvalidInput, field, reason))
}

impl Call {
    /// Whether nothing is to be changed, whatever else the query says.
    pub(crate) fn wants_dry_run(&self) -> Result<bool, ApiError> {
        let query: Vec<(String, String)> = self.query()?;
        let mut asked = query.iter().filter(|(name, _)| name == "dry_run");
        let first = asked.next().map(|(_, value)| &**value);
        if asked.next().is_some() {
            return Err(ApiError::field(Code::InvalidInput, "dry_run", "is given twice"));
        }
        change::flag("dry_run", first)
    }

    /// For what cannot be tried without doing it: whoever asks for a trial must not get the real thing.
    pub(crate) fn refuse_dry_run(&self) -> Result<(), ApiError> {
        if self.wants_dry_run()? {
            return Err(ApiError::field(
                Code::InvalidInput,
                "dry_run",
                "this cannot be tried without doing it",
            ));
        }
        Ok(())
    }

    /// What it would do to set or remove the numbers of one user on one endpoint.
    pub(crate) async fn try_limit(&self, write: ItemWrite) -> Result<Response, ApiError> {
        if !self.app.config_sync().stores_overrides() {
            let message = "numbers of single users are kept on Redis here, and cannot be tried";
            return Err(ApiError::new(Code::Conflict, message));
        }
        let edit = ItemEdit { write, precondition: Precondition::None };
        change::dry_run(self, &[edit], change::differs).await
    }

    /// Leaves an entry in the audit trail for what is no change of the configuration. What was done is done: without a
    /// database the log alone tells of it.
    pub(crate) async fn record_event(&self, event: AuditEvent) {
        let noted = match self.app.config_sync().database() {
            Ok(database) => {
                database.record_event(&self.caller.name, self.app.now().as_micros(), &event).await
            }
            Err(_) => return self.warn_of(&event, "the database cannot be reached"),
        };
        if let Err(error) = noted {
            self.warn_of(&event, &error.to_string());
        }
    }

    fn warn_of(&self, event: &AuditEvent, error: &str) {
        let (action, subject) = (&event.action, &event.subject);
        let (request_id, by) = (self.request_id.as_str(), &*self.caller.name);
        tracing::warn!(request_id, by, action, subject = ?subject, error, "not in the audit trail");
    }
}
