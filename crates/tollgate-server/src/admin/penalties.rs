//! `/v1/admin/penalties`: clients with recorded violations, and their cooldowns.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::counters::CounterAdmin;
use tollgate::identity::InTenant;
use tollgate_stores::sql::AuditEvent;
use utoipa::ToSchema;

use super::audit;
use super::dry_run;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response, response};

/// The most clients that one response lists.
const LISTED_MAX: usize = 1_000;

/// No parameters: an ignored filter would look as if it had been applied.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

/// Clients with penalties.
#[derive(Serialize, ToSchema)]
pub(crate) struct PenaltiesResponse {
    penalties: Vec<PenaltyView>,
}

/// A client with penalties.
#[derive(Serialize, ToSchema)]
pub(crate) struct PenaltyView {
    /// The client: `user:alice`.
    client: String,
    /// The tenant of the client; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Recorded violations.
    violations: usize,
    /// End of the cooldown in Unix seconds; null if the client is not in one.
    cooldown_until: Option<u64>,
}

/// Lists up to 1000 clients with penalties, the longest cooldown first.
#[utoipa::path(
    get, path = "/v1/admin/penalties",
    responses(
        (status = 200, description = "Clients with penalties.", body = PenaltiesResponse),
        (status = 400, description = "A parameter was given; this call takes no parameters.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn penalties(call: Call) -> Result<Response, ApiError> {
    let NoQuery {} = call.query()?;
    let found = call.app.counters().penalized_clients(LISTED_MAX, call.app.now()).await?;
    let name = |client: &str| {
        let InTenant { tenant, id } = InTenant::parse_client(client);
        (tenant.map(str::to_owned), id.to_owned())
    };
    let penalties = found.into_iter().map(|each| (name(&each.client), each));
    let penalties = penalties.map(|((tenant, client), each)| PenaltyView {
        client,
        tenant,
        violations: each.violations,
        cooldown_until: each.cooldown_until.map(tollgate::Timestamp::as_secs_ceil),
    });
    Ok(response::json(StatusCode::OK, &PenaltiesResponse { penalties: penalties.collect() }))
}

/// Clears the violations and the cooldown of a client.
#[utoipa::path(
    delete, path = "/v1/admin/penalties/{client}",
    params(
        ("client" = String, Path, description = "The client: `user:alice` or `ip:192.0.2.1`."),
        ("tenant" = Option<String>, Query, description = "Tenant of the client."),
    ),
    responses(
        (status = 204, description = "The penalties were cleared."),
        (status = 404, description = "The client has no penalties.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn pardon(call: Call) -> Result<Response, ApiError> {
    dry_run::reject_in_tenant(&call)?;
    let tenant = call.tenant(call.tenant_in_query()?.as_deref())?;
    let text = call.path_param("client")?;
    let text = call.app.limiter().rules().normalization().normalize_client(&text).into_owned();
    let printed = InTenant::new(tenant.as_deref(), &text).to_string();
    if !call.app.counters().pardon(&printed).await? {
        let message =
            "the client has no penalties; use a name from GET /v1/admin/penalties, such as user:alice";
        return Err(ApiError::new(Code::NotFound, message));
    }
    let (request_id, by) = (call.request_id.as_str(), &*call.caller.name);
    tracing::info!(request_id, by, client = ?text, "client pardoned");
    let after = Some(serde_json::json!({ "violations": 0 }));
    let event = AuditEvent {
        tenant,
        action: "pardon".into(),
        kind: "penalty".into(),
        subject: text,
        before: None,
        after,
    };
    audit::record(&call, event).await;
    Ok(response::empty(StatusCode::NO_CONTENT))
}
