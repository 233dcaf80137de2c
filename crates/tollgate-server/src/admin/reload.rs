//! `POST /v1/admin/reload`: reads the settings file again.

use http::StatusCode;
use hyper::body::Incoming;
use serde::Serialize;
use tollgate_stores::sql::AuditEvent;
use utoipa::ToSchema;

use super::audit;
use super::dry_run;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response, json, response};

/// The body is empty, or an empty object.
const BODY_BYTES_MAX: usize = 1 << 10;

/// The result of a reload.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReloadResponse {
    /// Number of rules in force: those of the settings file and of the database.
    rules: usize,
    /// Number of rules in the settings file.
    file_rules: usize,
    /// Generation of the settings in force: 1 at the start, plus 1 per reload.
    generation: u64,
    /// Changed settings that need a restart.
    needs_restart: Vec<&'static str>,
}

/// Reads the settings file again. An invalid file changes nothing; the error lists everything wrong in it.
#[utoipa::path(
    post, path = "/v1/admin/reload",
    responses(
        (status = 200, description = "The settings are in force.", body = ReloadResponse),
        (status = 400, description = "The file is invalid; the previous settings remain in force.", body = ErrorEnvelope<'_>),
        (status = 408, description = "The body did not arrive in time.", body = ErrorEnvelope<'_>),
        (status = 409, description = "There is no settings file to reload.", body = ErrorEnvelope<'_>),
        (status = 413, description = "The body is too large; none is needed.", body = ErrorEnvelope<'_>),
        (status = 415, description = "The body is not JSON; none is needed.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn reload(call: Call, body: Incoming) -> Result<Response, ApiError> {
    dry_run::reject(&call)?;
    let body = call.json_body_or_nothing(body, BODY_BYTES_MAX).await?;
    if !body.is_empty() {
        json::require_known(&body, &[])?;
    }
    let handle = call.app.reload().cloned();
    let handle =
        handle.ok_or_else(|| ApiError::new(Code::Conflict, "there is no settings file to reload"))?;
    // Reading a file blocks the thread.
    let outcome = tokio::task::spawn_blocking(move || handle.reload()).await;
    let outcome = outcome.map_err(|_| ApiError::new(Code::InternalError, "the reload failed"))?;
    let report = outcome.map_err(|error| ApiError::field(Code::InvalidInput, "config", error.to_string()))?;
    let (request_id, by, generation) = (call.request_id.as_str(), &*call.caller.name, report.generation);
    tracing::info!(request_id, by, generation, "configuration reloaded");
    let after = Some(serde_json::json!({
        "generation": report.generation, "file_rules": report.file_rules, "rules": report.rules_in_force,
    }));
    let event = AuditEvent {
        tenant: None,
        action: "reload".into(),
        kind: "settings".into(),
        subject: "settings".into(),
        before: None,
        after,
    };
    audit::record(&call, event).await;
    let body = ReloadResponse {
        rules: report.rules_in_force,
        file_rules: report.file_rules,
        generation: report.generation,
        needs_restart: report.needs_restart,
    };
    Ok(response::json(StatusCode::OK, &body))
}
