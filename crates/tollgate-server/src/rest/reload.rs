//! `POST /v1/admin/reload`: reads the configuration file again.

use http::StatusCode;
use serde::Serialize;
use tollgate_stores::sql::Act;
use utoipa::ToSchema;

use super::{Call, Response};
use crate::answer;
use crate::error::{ApiError, Code, ErrorEnvelope};

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
        (status = 409, description = "There is nothing to reload", body = ErrorEnvelope<'_>),
    )
)]
pub(super) async fn reload(call: Call) -> Result<Response, ApiError> {
    call.refuse_dry_run()?;
    let handle =
        call.app.reload().ok_or_else(|| ApiError::new(Code::Conflict, "there is nothing to reload"))?;
    let handle = handle.clone();
    // Reading a file waits on the disk: not on a thread that serves requests.
    let outcome = tokio::task::spawn_blocking(move || handle.reload()).await;
    let outcome = outcome.map_err(|_| ApiError::new(Code::InternalError, "the reload failed"))?;
    let report = outcome.map_err(|error| ApiError::field(Code::InvalidInput, "config", error.to_string()))?;
    tracing::info!(by = %call.caller.name, generation = report.generation, "configuration reloaded");
    let after = Some(serde_json::json!({ "generation": report.generation, "rules": report.rules }));
    let subject = "settings".to_owned();
    call.note_act(Act { action: "reload".into(), kind: "settings".into(), subject, before: None, after })
        .await;
    let answer = ReloadAnswer {
        rules: call.app.limiter().rules().rules().len(),
        generation: report.generation,
        needs_restart: report.needs_restart,
    };
    Ok(answer::json(StatusCode::OK, &answer))
}
