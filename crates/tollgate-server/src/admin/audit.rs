//! `/v1/admin/audit` and its alias `/v1/admin/actions`: the audit trail.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tollgate::Timestamp;
use tollgate::config::values::parse_span;
use tollgate_stores::sql::{AuditEntry, AuditEvent, AuditFilter};
use utoipa::{IntoParams, ToSchema};

use super::dry_run::parse_flag;
use super::list_query::check_text;
use super::{change, page, view};
use crate::http::error::{ApiError, Code};
use crate::http::{Call, Response, response};

/// Selects audit entries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// Entries per page, 1 to 1000; default 100.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Continues after this entry: `next` of an earlier response.
    after: Option<String>,
    /// Only entries about this kind: `rule`, `tier`, `quota`, `key`, `block`, `user_endpoint_limit`, `counters`, `penalty`,
    /// `settings`, `key_attempts`, `token_attempts`.
    kind: Option<String>,
    /// Only entries by this caller.
    by: Option<String>,
    /// Only entries about this item: its name or id, `user:alice` for a block.
    subject: Option<String>,
    /// Only entries since this time: RFC 3339, or how long ago (`2h`).
    since: Option<String>,
    /// Only entries before this time: RFC 3339, or how long ago (`2h`).
    until: Option<String>,
    /// Only entries about items and clients of this tenant.
    tenant: Option<String>,
    /// `true` lists the newest entries first.
    #[param(value_type = Option<bool>)]
    newest: Option<String>,
}

/// A page of the audit trail.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    entries: Vec<AuditEntryView>,
    /// Cursor of the next page; null if there are no more entries.
    next: Option<String>,
}

/// One entry of the audit trail.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditEntryView {
    /// Position in the trail; later entries have greater ids.
    id: u64,
    /// Configuration version that the change made. Items changed by one request have the same version.
    version: u64,
    /// Time of the change, RFC 3339.
    at: String,
    /// The caller: its name, `key:<id>` for an API key, `tollgate` for the server itself.
    by: String,
    /// `create`, `update`, `delete`, `reset`, `pardon`, `reload` or `alarm`.
    action: String,
    /// Kind of the item.
    kind: String,
    /// Name or id of the item.
    subject: String,
    /// Tenant of the item; null without one.
    tenant: Option<String>,
    /// The item before the change; null if it did not exist.
    #[schema(value_type = Option<Object>)]
    before: Option<Json>,
    /// The item after the change; null if it was deleted.
    #[schema(value_type = Option<Object>)]
    after: Option<Json>,
}

/// Lists the audit trail.
#[utoipa::path(
    get, path = "/v1/admin/audit", params(AuditQuery),
    responses(
        (status = 200, description = "A page of the audit trail.", body = AuditPage),
    )
)]
pub(crate) async fn audit(call: Call) -> Result<Response, ApiError> {
    let query: AuditQuery = call.query()?;
    let limit = page::parse_limit(query.limit.as_deref())?;
    let after = query.after.as_deref().map(parse_entry_id).transpose()?;
    for (field, text) in
        [("kind", &query.kind), ("by", &query.by), ("subject", &query.subject), ("tenant", &query.tenant)]
    {
        check_text(field, text.as_deref())?;
    }
    let newest = parse_flag("newest", query.newest.as_deref())?;
    let time =
        |field, text: Option<&str>| text.map(|text| parse_time(field, text, call.app.now())).transpose();
    let since_micros = time("since", query.since.as_deref())?;
    let until_micros = time("until", query.until.as_deref())?;
    let tenant = call.tenant(query.tenant.as_deref())?;
    let AuditQuery { kind, by, subject, .. } = query;
    let filter = AuditFilter { kind, by, subject, tenant, since_micros, until_micros };
    let database = change::database(&call)?;
    let entries = if newest {
        database.audit_newest(&filter, after, limit + 1).await
    } else {
        database.audit(&filter, after.unwrap_or(0), limit + 1).await
    };
    let mut entries = entries?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = entries.len() > limit;
    entries.truncate(limit);
    let next = entries.last().filter(|_| has_more).map(|last| last.id.to_string());
    let entries = entries.into_iter().map(AuditEntryView::of).collect();
    Ok(response::json(StatusCode::OK, &AuditPage { entries, next }))
}

/// Records an action that changes no item. The action is done already, so a failure to record it is only logged.
pub(crate) async fn record(call: &Call, event: AuditEvent) {
    let error = match call.app.config_sync().database() {
        Ok(database) => {
            let recorded = database.record_event(&call.caller.name, call.app.now().as_micros(), &event).await;
            recorded.err().map(|error| error.to_string())
        }
        Err(error) => Some(error.to_string()),
    };
    if let Some(error) = error {
        let (request_id, by) = (call.request_id.as_str(), &*call.caller.name);
        let AuditEvent { action, subject, .. } = event;
        tracing::warn!(request_id, by, action, ?subject, error, "action missing from the audit trail");
    }
}

/// A time in microseconds since 1970: RFC 3339, or a duration before `now`.
pub(crate) fn parse_time(field: &'static str, text: &str, now: Timestamp) -> Result<u64, ApiError> {
    let micros = match text.parse::<jiff::Timestamp>() {
        Ok(time) => u64::try_from(time.as_microsecond()).ok(),
        Err(_) => parse_span(text).ok().map(|ago| now.as_micros().saturating_sub(ago.as_micros())),
    };
    let reason = "must be a time such as 2027-01-31T12:00:00Z, or how long ago, such as 2h";
    micros.ok_or_else(|| ApiError::field(Code::InvalidInput, field, reason))
}

/// The id of an entry: 63 bits, as databases count.
fn parse_entry_id(text: &str) -> Result<u64, ApiError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let id = if is_number { text.parse::<i64>().ok() } else { None };
    id.and_then(|id| u64::try_from(id).ok())
        .ok_or_else(|| ApiError::field(Code::InvalidInput, "after", "must be the id of an entry"))
}

impl AuditEntryView {
    fn of(entry: AuditEntry) -> Self {
        AuditEntryView {
            id: entry.id,
            version: entry.version,
            at: view::timestamp(entry.at_micros),
            by: entry.by,
            action: entry.action,
            kind: entry.kind,
            subject: entry.subject,
            tenant: entry.tenant,
            before: entry.before,
            after: entry.after,
        }
    }
}
