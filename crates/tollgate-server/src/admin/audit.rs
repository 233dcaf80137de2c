//! `/v1/admin/audit`, also found as `/v1/admin/actions`: who changed what, and when.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tollgate_stores::sql::{AuditEntry, AuditFilter};
use utoipa::{IntoParams, ToSchema};

use super::{change, page, render, require_text};
use crate::config::sync;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// Which entries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// How many, 1 to 1000; 100 if absent.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Behind the entry with this id, in the order asked for: `next` of an earlier answer.
    after: Option<String>,
    /// About this kind of thing: `rule`, `tier`, `quota`, `key`, `block`, `user_endpoint_limit`, `counters`, `penalty`, `settings`,
    /// `key_attempts`.
    kind: Option<String>,
    /// Made by this caller.
    by: Option<String>,
    /// About this one: a name as it is, `user:alice` for a block.
    subject: Option<String>,
    /// `true` for the newest first.
    #[param(value_type = Option<bool>)]
    newest: Option<String>,
}

/// A page of the audit trail.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditAnswer {
    entries: Vec<AuditBody>,
    /// To go on behind these; null if there are no more for now.
    next: Option<String>,
}

/// One change.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditBody {
    /// Its place in the trail: later entries have greater ones.
    id: u64,
    /// The version of the configuration that it made. What was changed at once has one version.
    version: u64,
    /// When.
    at: String,
    /// Who: the name of a caller, `key:<id>` for an API key, `tollgate` for what nobody asked for.
    by: String,
    /// `create`, `update`, `delete`, `reset`, `pardon`, `reload` or `alarm`.
    action: String,
    /// What kind of thing.
    kind: String,
    /// Which of them.
    subject: String,
    /// What it was; null if it was not there.
    #[schema(value_type = Option<Object>)]
    before: Option<Json>,
    /// What it became; null if it was removed.
    #[schema(value_type = Option<Object>)]
    after: Option<Json>,
}

/// Who changed what, oldest first or newest first.
#[utoipa::path(
    get, path = "/v1/admin/audit", params(AuditQuery),
    responses(
        (status = 200, description = "A page of the audit trail", body = AuditAnswer),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn audit(call: Call) -> Result<Response, ApiError> {
    let query: AuditQuery = call.query()?;
    let limit = page::read_limit(query.limit.as_deref())?;
    let after = query.after.as_deref().map(entry_id).transpose()?;
    for (field, text) in [("kind", &query.kind), ("by", &query.by), ("subject", &query.subject)] {
        require_text(field, text.as_deref())?;
    }
    let newest = change::flag("newest", query.newest.as_deref())?;
    let filter = AuditFilter { kind: query.kind, by: query.by, subject: query.subject };
    let database = call.database()?;
    let entries = if newest {
        database.audit_newest(&filter, after, limit + 1).await
    } else {
        database.audit(&filter, after.unwrap_or(0), limit + 1).await
    };
    let mut entries = entries.map_err(|error| sync::failed(&error))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = entries.len() > limit;
    entries.truncate(limit);
    let next = entries.last().filter(|_| more).map(|last| last.id.to_string());
    let entries = entries.into_iter().map(AuditBody::of).collect();
    Ok(response::json(StatusCode::OK, &AuditAnswer { entries, next }))
}

/// The same as the audit trail, by the name that earlier tools have for it.
#[utoipa::path(
    get, path = "/v1/admin/actions", params(AuditQuery),
    responses(
        (status = 200, description = "A page of the audit trail", body = AuditAnswer),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn actions(call: Call) -> Result<Response, ApiError> {
    audit(call).await
}

/// The place of an entry. No database counts further than 63 bits.
fn entry_id(text: &str) -> Result<u64, ApiError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let id = if digits { text.parse::<i64>().ok() } else { None };
    id.and_then(|id| u64::try_from(id).ok())
        .ok_or_else(|| ApiError::field(Code::InvalidInput, "after", "must be the id of an entry"))
}

impl AuditBody {
    fn of(entry: AuditEntry) -> Self {
        AuditBody {
            id: entry.id,
            version: entry.version,
            at: render::instant(entry.at_micros),
            by: entry.by,
            action: entry.action,
            kind: entry.kind,
            subject: entry.subject,
            before: entry.before,
            after: entry.after,
        }
    }
}
