//! `POST /v1/rate-limit/reset`: clears the counters of one client.

use http::StatusCode;
use hyper::body::Incoming;
use serde::Serialize;
use tollgate::Request;
use tollgate::identity::Scratch;
use utoipa::ToSchema;

use super::check::CheckBody;
use crate::admin::dry_run;
use crate::check::warnings::Warnings;
use crate::config::sync::resets;
use crate::http::error::ApiError;
use crate::http::{CHECK_BYTES_MAX, Call, Response, json, response};

/// The fields of a check that name a counter. Others are rejected: a misspelt field would reset another counter.
const FIELDS: [&str; 12] = [
    "user_id",
    "endpoint",
    "method",
    "api_key",
    "ip",
    "tenant",
    "tier",
    "login",
    "descriptors",
    "strategy",
    "limit",
    "window_seconds",
];

/// The result of a reset.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResetAnswer<'a> {
    /// The `user_id` of the request.
    user_id: Option<&'a str>,
    /// The `endpoint` of the request.
    endpoint: &'a str,
    /// How many counters were cleared.
    counters: usize,
    /// Rules whose counters were not cleared because the request lacks a fact by which they count.
    skipped: Vec<String>,
    /// When the counters were cleared.
    done_at: String,
    /// What may not be as meant; absent if nothing.
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    #[schema(value_type = Option<Vec<String>>)]
    warnings: Warnings,
}

/// The counters became unreachable during the reset.
const UNCONFIRMED: &str = "the counters became unreachable during the reset: it is in the audit trail and may have taken effect in part; send it again";

/// Clears the counters of one client on an endpoint, and its penalties.
///
/// A caller whose key is bound to a tenant resets clients of its tenant; it is refused while a rule counts across tenants.
///
/// The body has the fields of a check except `cost`; unknown fields are rejected. `api_key` may be the id of a key.
///
/// Checks with an override have a counter per window and strategy. To clear it too, send the same `limit`, `window_seconds`,
/// `strategy` and `tier` as in the checks.
#[utoipa::path(
    post, path = "/v1/rate-limit/reset", request_body = CheckBody<'_>,
    responses(
        (status = 200, description = "Cleared", body = ResetAnswer<'_>),
    )
)]
pub(crate) async fn reset(call: Call, body: Incoming) -> Result<Response, ApiError> {
    dry_run::reject(&call)?;
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    json::require_known(&body, &FIELDS)?;
    let body: CheckBody<'_> = json::parse(&body)?;
    let (checker, target) = (call.checker()?, body.request());
    // Such counters belong to clients of other tenants, too.
    if checker.rules().rules().iter().any(|rule| rule.enabled && rule.across_tenants) {
        call.caller.require_unbound()?;
    }
    let resolved = checker.resolve_target(&target)?;
    let request = resolved.request();
    let mut recorded = None;
    let record = async {
        recorded = Some(record_reset(&call, &request).await?);
        Ok::<(), ApiError>(())
    };
    let result = Box::pin(checker.reset(&request, record)).await;
    let reset =
        result.map_err(|error| if recorded.is_some() { error.with_message(UNCONFIRMED) } else { error })?;
    let mut scratch = Scratch::default();
    let client = checker.rules().resolve(&request, &mut scratch).request.client();
    let client = client.map(|client| client.to_string()).unwrap_or_default();
    let (endpoint, counters) = (request.endpoint.as_str(), reset.counters);
    tracing::info!(by = %call.caller.name, ?client, ?endpoint, counters, "counters reset");
    if let Some(version) = recorded.flatten() {
        call.app.config_sync().wait_until_applied(call.app.counters(), version).await;
    }
    let mut warnings = Warnings::default();
    checker.warn_of_tenants(&request, &mut warnings);
    let answer = ResetAnswer {
        warnings,
        user_id: target.user_id,
        endpoint: target.endpoint,
        counters,
        skipped: reset.skipped,
        done_at: response::rfc3339(call.app.now()),
    };
    Ok(response::json(StatusCode::OK, &answer))
}

/// Writes the reset to the audit trail and returns its version there. Nodes with counters in memory follow resets through it.
///
/// It is written before the reset, so that no node misses one. With a local database and counters on Redis no other node
/// depends on it, and a failure is only logged.
async fn record_reset(call: &Call, request: &Request<'_>) -> Result<Option<u64>, ApiError> {
    let config_sync = call.app.config_sync();
    let recorded = match config_sync.database() {
        Ok(database) => {
            let event = resets::audit_event(config_sync, request);
            let recorded = database.record_event(&call.caller.name, call.app.now().as_micros(), &event).await;
            recorded.map_err(ApiError::from)
        }
        Err(error) => Err(error.into()),
    };
    match recorded {
        Ok(version) => Ok(Some(version)),
        Err(error) if config_sync.stores_overrides() => Err(error),
        Err(_) => {
            tracing::warn!("reset missing from the audit trail: the database is unreachable");
            Ok(None)
        }
    }
}
