//! `POST /v1/admin/reload`: reads the configuration file again.

use http::StatusCode;
use hyper::body::Incoming;
use serde::Serialize;
use tollgate_stores::sql::AuditEvent;
use utoipa::ToSchema;

use crate::admin::ChangeQuery;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::json;
use crate::http::response;
use crate::http::{Call, Response};

/// There is nothing to say: an empty object, if anything.
const BODY_BYTES_MAX: usize = 1 << 10;

/// What a reload did.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReloadAnswer {
    /// Rules in force.
    rules: usize,
    /// How many configurations have been in force.
    generation: u64,
    /// Settings that changed in the file and need a restart.
    needs_restart: Vec<String>,
}

/// Reads the configuration again. A broken file changes nothing and is answered with everything wrong in it.
#[utoipa::path(
    post, path = "/v1/admin/reload",
    responses(
        (status = 200, description = "In force", body = ReloadAnswer),
        (status = 400, description = "The file is broken; the old rules stay in force", body = ErrorEnvelope<'_>),
        (status = 408, description = "The body did not arrive in time", body = ErrorEnvelope<'_>),
        (status = 409, description = "There is nothing to reload", body = ErrorEnvelope<'_>),
        (status = 413, description = "A body, of which there is no need, is too large", body = ErrorEnvelope<'_>),
        (status = 415, description = "The same, and it is not JSON", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn reload(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let _: ChangeQuery = call.query()?;
    call.refuse_dry_run()?;
    let body = call.json_body_or_nothing(body, BODY_BYTES_MAX).await?;
    if !body.is_empty() {
        json::require_known(&body, &[])?;
    }
    let handle =
        call.app.reload().ok_or_else(|| ApiError::new(Code::Conflict, "there is nothing to reload"))?;
    let handle = handle.clone();
    // Reading a file waits on the disk: not on a thread that serves requests.
    let outcome = tokio::task::spawn_blocking(move || handle.reload()).await;
    let outcome = outcome.map_err(|_| ApiError::new(Code::InternalError, "the reload failed"))?;
    let report = outcome.map_err(|error| ApiError::field(Code::InvalidInput, "config", error.to_string()))?;
    let (request_id, by, generation) = (call.request_id.as_str(), &*call.caller.name, report.generation);
    tracing::info!(request_id, by, generation, "configuration reloaded");
    let after = Some(serde_json::json!({ "generation": report.generation, "rules": report.rules }));
    let subject = "settings".to_owned();
    call.record_event(AuditEvent {
        action: "reload".into(),
        kind: "settings".into(),
        subject,
        before: None,
        after,
    })
    .await;
    let answer = ReloadAnswer {
        rules: call.app.limiter().rules().rules().len(),
        generation: report.generation,
        needs_restart: report.needs_restart,
    };
    Ok(response::json(StatusCode::OK, &answer))
}
