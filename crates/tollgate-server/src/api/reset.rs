//! `POST /v1/rate-limit/reset`: clears the counters of one client.

use http::StatusCode;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tollgate::Request;
use tollgate::identity::Scratch;
use utoipa::ToSchema;

use crate::admin::dry_run;
use crate::check::request::CheckRequest;
use crate::config::sync::resets;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::json::{self, Pairs, Text};
use crate::http::response;
use crate::http::{CHECK_BYTES_MAX, Call, Response};

/// The client and endpoint whose counters are cleared. At least one of `user_id`, `api_key`, `ip`, `tenant` and `login` is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResetBody<'a> {
    /// The user.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    user_id: Option<Text<'a>>,
    /// The endpoint on which the counters apply.
    #[serde(borrow)]
    #[schema(value_type = String, max_length = 2048)]
    endpoint: Text<'a>,
    /// The HTTP method, for rules that match or count by it.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    method: Option<Text<'a>>,
    /// The API key of the client, or the id of the key.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    api_key: Option<Text<'a>>,
    /// The IP address of the client.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    ip: Option<Text<'a>>,
    /// The tenant (organisation) of the client.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    tenant: Option<Text<'a>>,
    /// The tier (plan) of the client: selects the rule that completes an override. Counters of all tiers are cleared.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    tier: Option<Text<'a>>,
    /// The account name of a login attempt.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    login: Option<Text<'a>>,
    /// Additional facts by name, for rules that match or count by them.
    #[serde(borrow)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    descriptors: Option<Pairs<'a>>,
    /// The algorithm of an override sent with checks.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    strategy: Option<Text<'a>>,
    /// The requests per window of such an override. Its counter does not depend on them.
    limit: Option<u32>,
    /// The window of such an override, in seconds.
    #[schema(minimum = 1)]
    window_seconds: Option<u32>,
}

impl ResetBody<'_> {
    fn request(&self) -> CheckRequest<'_> {
        CheckRequest {
            endpoint: &self.endpoint,
            method: self.method.as_deref(),
            user_id: self.user_id.as_deref(),
            api_key: self.api_key.as_deref(),
            ip: self.ip.as_deref(),
            tenant: self.tenant.as_deref(),
            tier: self.tier.as_deref(),
            login: self.login.as_deref(),
            cost: None,
            descriptors: self.descriptors.as_deref().unwrap_or_default(),
            strategy: self.strategy.as_deref(),
            limit: self.limit,
            window_seconds: self.window_seconds,
        }
    }
}

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
}

/// Clears the counters of one client on an endpoint, and its penalties.
///
/// Checks with an override have a counter per window and strategy. To clear it too, send the same `limit`, `window_seconds`,
/// `strategy` and `tier` as in the checks.
#[utoipa::path(
    post, path = "/v1/rate-limit/reset", request_body = ResetBody<'_>,
    responses(
        (status = 200, description = "Cleared", body = ResetAnswer<'_>),
        (status = 400, description = "A field is invalid; nothing was cleared", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters or the database are unreachable; retry", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn reset(call: Call, body: Incoming) -> Result<Response, ApiError> {
    call.caller.require_unbound()?;
    dry_run::reject(&call)?;
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    let body: ResetBody<'_> = json::parse(&body)?;
    let (checker, target) = (call.checker(), body.request());
    let resolved = checker.resolve_target(&target)?;
    let request = resolved.request();
    let version = record_reset(&call, &request).await?;
    let reset = checker.reset(&request).await?;
    let mut scratch = Scratch::default();
    let client = checker.rules().resolve(&request, &mut scratch).request.client();
    let client = client.map(|client| client.to_string()).unwrap_or_default();
    let (endpoint, counters) = (request.endpoint.as_str(), reset.counters);
    tracing::info!(by = %call.caller.name, ?client, ?endpoint, counters, "counters reset");
    if let Some(version) = version {
        call.app.config_sync().wait_until_applied(call.app.counters(), version).await;
    }
    let answer = ResetAnswer {
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
