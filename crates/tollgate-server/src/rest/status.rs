//! `GET /v1/rate-limit/status`: how a client stands, without charging it.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Call, Response};
use crate::answer;
use crate::error::{ApiError, ErrorEnvelope};
use crate::facts::{CheckBody, strategy};
use crate::json;

/// Whose status.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatusQuery {
    /// The user.
    user_id: Option<String>,
    /// The endpoint.
    endpoint: Option<String>,
    /// The HTTP method.
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    /// The client's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
    /// The client's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<String>,
    /// The user's organisation.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// The client's plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    /// The name of a login attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    login: Option<String>,
    /// The strategy to report on; the answer is about the rule in force, whatever it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<String>,
}

/// How a client stands.
#[derive(Serialize, ToSchema)]
pub(crate) struct StatusBody<'a> {
    /// As asked.
    user_id: Option<&'a str>,
    /// As asked.
    endpoint: &'a str,
    /// Whether a request would pass now.
    allowed: bool,
    /// Requests per window; null if no limit applies.
    limit: Option<u32>,
    /// What would pass now.
    remaining: Option<u32>,
    /// When the limit is as good as new, in Unix seconds.
    reset_at: Option<u64>,
    /// The algorithm.
    strategy: Option<&'static str>,
    /// How much of the limit is used, in percent.
    usage_percentage: Option<f64>,
    /// The rule that would decide.
    rule: Option<&'a str>,
    /// Whether this is told without the shared counters.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
}

/// How a client stands.
#[utoipa::path(
    get, path = "/v1/rate-limit/status", params(StatusQuery),
    responses(
        (status = 200, description = "How the client stands; nothing is charged", body = StatusBody<'_>),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(super) async fn status(call: Call) -> Result<Response, ApiError> {
    let query: StatusQuery = call.query()?;
    answer_status(&call, query).await
}

/// How a user stands on an endpoint, by path. Slashes of the endpoint may be written as they are or as `%2F`.
#[utoipa::path(
    get, path = "/v1/rate-limit/status/{user_id}/{endpoint}", params(
        ("user_id" = String, Path, description = "The user"),
        ("endpoint" = String, Path, description = "The endpoint"),
        StatusQuery,
    ),
    responses(
        (status = 200, description = "How the user stands; nothing is charged", body = StatusBody<'_>),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(super) async fn status_by_path(call: Call) -> Result<Response, ApiError> {
    let mut query: StatusQuery = call.query()?;
    if query.user_id.is_some() || query.endpoint.is_some() {
        let field = if query.user_id.is_some() { "user_id" } else { "endpoint" };
        return Err(ApiError::invalid(field, "is in the path already"));
    }
    query.user_id = Some(call.piece("user_id")?);
    query.endpoint = Some(call.piece("endpoint")?);
    answer_status(&call, query).await
}

async fn answer_status(call: &Call, mut query: StatusQuery) -> Result<Response, ApiError> {
    // In a check a strategy would be a number of its own; here it only has to be one.
    query.strategy.take().as_deref().map(strategy).transpose()?;
    // A status is a check that only looks: the same facts, checked at the same door.
    let written = serde_json::to_vec(&query).unwrap_or_default();
    let check: CheckBody<'_> = json::parse(&written)?;
    let now = call.app.now();
    let keys = call.app.key_ring(check.key_text(), now);
    let facts = check.facts(&keys, &call.caller)?;
    let request = tollgate::Request { cost: 0, ..facts.request(None) };
    let decision = call.app.limiter().peek(&request, now).await;
    answer::status(&decision)?;
    let shown = answer::DecisionBody::new(&decision);
    let body = StatusBody {
        user_id: query.user_id.as_deref(),
        endpoint: query.endpoint.as_deref().unwrap_or_default(),
        allowed: shown.allowed,
        limit: shown.limit,
        remaining: shown.remaining,
        reset_at: shown.reset_at,
        strategy: shown.strategy,
        usage_percentage: shown.limit.zip(shown.remaining).map(|(limit, remaining)| used(limit, remaining)),
        rule: shown.rule,
        degraded: shown.degraded,
    };
    let mut response = answer::json(StatusCode::OK, &body);
    answer::put_headers(&mut response, &decision, &call.app.live().profiles);
    response.headers_mut().remove(http::header::RETRY_AFTER);
    Ok(response)
}

/// Percent with one decimal; a limit of nothing is used up.
fn used(limit: u32, remaining: u32) -> f64 {
    if limit == 0 {
        return 100.0;
    }
    let tenths = u64::from(limit - remaining.min(limit)) * 1_000 / u64::from(limit);
    f64::from(u32::try_from(tenths).unwrap_or(1_000)) / 10.0
}
