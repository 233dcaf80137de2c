//! `/v1/admin/penalties`: clients that ran into their limits again and again.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::counters::CounterAdmin;
use tollgate_stores::sql::AuditEvent;
use utoipa::ToSchema;

use crate::admin::ChangeQuery;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// As many clients as one answer lists.
const LISTED_MAX: usize = 1_000;

/// It takes no parameters: one that is ignored would be taken for one that is heeded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

/// Clients on record.
#[derive(Serialize, ToSchema)]
pub(crate) struct PenaltiesAnswer {
    penalties: Vec<PenaltyBody>,
}

/// One client on record.
#[derive(Serialize, ToSchema)]
pub(crate) struct PenaltyBody {
    /// The client, `user:alice`.
    client: String,
    /// Violations on record.
    violations: usize,
    /// Kept out until then, in Unix seconds; null if it is not kept out.
    cooldown_until: Option<u64>,
}

/// Clients that are kept out or on record, the longest kept out first, at most a thousand.
#[utoipa::path(
    get, path = "/v1/admin/penalties",
    responses(
        (status = 200, description = "Clients on record", body = PenaltiesAnswer),
        (status = 400, description = "It takes no parameters", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn penalties(call: Call) -> Result<Response, ApiError> {
    let NoQuery {} = call.query()?;
    let found = call.app.counters().penalized_clients(LISTED_MAX, call.app.now()).await?;
    let penalties = found.into_iter().map(|each| PenaltyBody {
        client: each.client,
        violations: each.violations,
        cooldown_until: each.cooldown_until.map(tollgate::Timestamp::as_secs_ceil),
    });
    Ok(response::json(StatusCode::OK, &PenaltiesAnswer { penalties: penalties.collect() }))
}

/// Pardons a client: its record is cleared.
#[utoipa::path(
    delete, path = "/v1/admin/penalties/{client}",
    params(("client" = String, Path, description = "The client, user:alice or ip:192.0.2.1")),
    responses(
        (status = 204, description = "Nothing is held against the client any more"),
        (status = 404, description = "No such client is on record", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached; send it again", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn pardon(call: Call) -> Result<Response, ApiError> {
    let _: ChangeQuery = call.query()?;
    call.refuse_dry_run()?;
    let text = call.path_param("client")?;
    let text = call.app.limiter().rules().normalization().normalize_client(&text).into_owned();
    if !call.app.counters().pardon(&text).await? {
        let message = "no such client is on record; name it as GET /v1/admin/penalties does, user:alice";
        return Err(ApiError::new(Code::NotFound, message));
    }
    let (request_id, by) = (call.request_id.as_str(), &*call.caller.name);
    tracing::info!(request_id, by, client = ?text, "client pardoned");
    let after = Some(serde_json::json!({ "violations": 0 }));
    call.record_event(AuditEvent {
        action: "pardon".into(),
        kind: "penalty".into(),
        subject: text,
        before: None,
        after,
    })
    .await;
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
