//! `?dry_run=true`: shows what a change would do, without making it.

use std::sync::Arc;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tokio::sync::Semaphore;
use tollgate::config::Problems;
use tollgate_stores::sql::{ItemChange, ItemEdit, ItemKind, ItemWrite, Precondition};
use utoipa::{IntoParams, ToSchema};

use super::change::{self, ConflictError};
use super::definition::definition;
use super::warnings;
use crate::config::sync;
use crate::http::error::{ApiError, Code};
use crate::http::{Call, Response, response};
use crate::records::traffic_sample::Effect;

/// Replaying traffic takes a core for some milliseconds: one replay at a time.
static REPLAYS: Semaphore = Semaphore::const_new(1);

/// The query of every change.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChangeQuery {
    /// `true` changes nothing; the response shows what would change.
    #[param(value_type = Option<bool>)]
    dry_run: Option<String>,
}

/// The query of a change, with the tenant of the item.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemChangeQuery {
    dry_run: Option<String>,
    #[serde(rename = "tenant")]
    _tenant: Option<String>,
}

/// What a change would do. Nothing was changed.
#[derive(Serialize, ToSchema)]
pub(crate) struct DryRunResponse {
    /// Always true.
    dry_run: bool,
    /// Every item that would change.
    changes: Vec<ChangeView>,
    /// Effect on the requests of the last minutes; null for API keys, which do not change limits, and for a caller that is bound to
    /// a tenant.
    effect: Option<Effect>,
    /// What may not be as meant.
    warnings: Vec<String>,
}

/// One changed item.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChangeView {
    /// `rule`, `tier`, `quota`, `key`, `block` or `user_endpoint_limit`.
    kind: &'static str,
    /// The id of the item.
    id: String,
    /// The tenant of the item; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// `create`, `update` or `delete`.
    pub(crate) action: &'static str,
    /// The item before the change; null if it did not exist.
    #[schema(value_type = Option<Object>)]
    before: Option<Map<String, Json>>,
    /// The item after the change; null if it is deleted.
    #[schema(value_type = Option<Object>)]
    after: Option<Map<String, Json>>,
}

impl ChangeView {
    pub(crate) fn of(change: &ItemChange) -> Self {
        let action = match (&change.before, &change.after) {
            (None, _) => "create",
            (Some(_), Some(_)) => "update",
            (Some(_), None) => "delete",
        };
        ChangeView {
            kind: change.id.kind().as_str(),
            id: change.id.to_string(),
            tenant: change.id.tenant().map(str::to_owned),
            action,
            before: change.before.as_ref().map(|stored| definition(&stored.item)),
            after: change.after.as_ref().map(definition),
        }
    }
}

/// Reads `dry_run`; no other parameter is allowed.
pub(crate) fn parse(call: &Call) -> Result<bool, ApiError> {
    let query: ChangeQuery = call.query()?;
    parse_flag("dry_run", query.dry_run.as_deref())
}

/// Like [`parse`], for items that belong to a tenant: `tenant` is allowed.
pub(crate) fn parse_in_tenant(call: &Call) -> Result<bool, ApiError> {
    let query: ItemChangeQuery = call.query()?;
    parse_flag("dry_run", query.dry_run.as_deref())
}

/// For operations without a dry run: a request for one must not do the real thing.
pub(crate) fn reject(call: &Call) -> Result<(), ApiError> {
    if parse(call)? {
        return Err(ApiError::field(Code::InvalidInput, "dry_run", "is not supported by this operation"));
    }
    Ok(())
}

/// Like [`reject`], but `tenant` is allowed.
pub(crate) fn reject_in_tenant(call: &Call) -> Result<(), ApiError> {
    if parse_in_tenant(call)? {
        return Err(ApiError::field(Code::InvalidInput, "dry_run", "is not supported by this operation"));
    }
    Ok(())
}

/// Parses a boolean query parameter; absent is false.
pub(crate) fn parse_flag(field: &'static str, text: Option<&str>) -> Result<bool, ApiError> {
    match text {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ApiError::field(Code::InvalidInput, field, "must be true or false")),
    }
}

/// Shows what the edits would change.
pub(crate) async fn respond(
    call: &Call,
    edits: &[ItemEdit],
    conflict: ConflictError,
) -> Result<Response, ApiError> {
    let differences = change::plan(call, edits, conflict).await?;
    let effect = effect(call, &differences).await?;
    let changes = differences.iter().map(ChangeView::of).collect();
    let warnings = warnings::of(call, edits);
    Ok(response::json(StatusCode::OK, &DryRunResponse { dry_run: true, changes, effect, warnings }))
}

/// Shows what setting or deleting the override of one user on one endpoint would change.
pub(crate) async fn respond_override(call: &Call, write: ItemWrite) -> Result<Response, ApiError> {
    if !call.app.config_sync().stores_overrides() {
        let message = "dry_run is not supported here: limits of single users are stored in Redis";
        return Err(ApiError::new(Code::Conflict, message));
    }
    let edit = ItemEdit { write, precondition: Precondition::None };
    respond(call, &[edit], change::version_differs).await
}

/// Replays the requests of the last minutes against the changed configuration. `None` if only keys change.
pub(crate) async fn effect(call: &Call, changes: &[ItemChange]) -> Result<Option<Effect>, ApiError> {
    let write = |change: &ItemChange| match &change.after {
        Some(item) => ItemWrite::Put(item.clone()),
        None => ItemWrite::Delete(change.id.clone()),
    };
    let is_key = |change: &&ItemChange| change.id.kind() == ItemKind::Key;
    let writes: Vec<ItemWrite> = changes.iter().filter(|change| !is_key(change)).map(write).collect();
    // The sample has requests of all tenants.
    if (writes.is_empty() && !changes.is_empty()) || call.caller.tenant.is_some() {
        return Ok(None);
    }
    let failed = || ApiError::new(Code::InternalError, "the dry run failed");
    let _replay = REPLAYS.acquire().await.map_err(|_| failed())?;
    let app = Arc::clone(&call.app);
    let replay = tokio::task::spawn_blocking(move || {
        let current = app.limiter().rules();
        let after = sync::preview(app.config_sync(), &current, &writes)?;
        Ok(app.traffic_sample().compare(&current, &after, app.now()))
    });
    let effect: Result<Effect, Problems> = replay.await.map_err(|_| failed())?;
    // Rules that do not compile were rejected before.
    Ok(effect.ok())
}
