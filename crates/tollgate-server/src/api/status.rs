//! `GET /v1/rate-limit/status`: how a client stands, without charging it.

use std::borrow::Cow;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::Timestamp;
use tollgate::decision::LimitReport;
use utoipa::{IntoParams, ToSchema};

use super::decision::{self, BlockedUntil, DecisionBody};
use crate::check::request::CheckRequest;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::json::{self, Pairs};
use crate::http::response;
use crate::http::{Call, Response};

/// OverrideKey status.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatusQuery {
    /// The user.
    user_id: Option<String>,
    /// The endpoint.
    endpoint: Option<String>,
    /// The HTTP method.
    method: Option<String>,
    /// The client's key.
    api_key: Option<String>,
    /// The client's address.
    ip: Option<String>,
    /// The user's organisation.
    tenant: Option<String>,
    /// The client's plan.
    tier: Option<String>,
    /// The name of a login attempt.
    login: Option<String>,
    /// How many units the request would be worth; one if absent.
    #[param(value_type = Option<u32>)]
    cost: Option<String>,
    /// As in a check: numbers of its own, for callers that may set them, and the counter of such numbers.
    strategy: Option<String>,
    /// Requests per window of such numbers.
    #[param(value_type = Option<u32>)]
    limit: Option<String>,
    /// The window of such numbers in seconds.
    #[param(value_type = Option<u32>)]
    window_seconds: Option<String>,
}

/// What a further fact's parameter begins with; its name follows.
const DESCRIPTOR: &str = "descriptor.";

/// Who is asked about, as written.
struct Asked {
    query: StatusQuery,
    descriptors: Vec<(String, String)>,
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
    /// The most that can be taken at once: the burst, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    /// How much of the capacity is used, in percent.
    usage_percentage: Option<f64>,
    /// The rule that would decide.
    rule: Option<&'a str>,
    /// Why nothing would pass, as a check says it: `over_limit`, `cost_exceeds_limit`, `cooldown`, or why the client is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// `blocked`, if no counter is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'static str>,
    /// When the block ends, in Unix seconds; null if it does not end by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    blocked_until: Option<BlockedUntil>,
    /// Until when the client is kept out for running into its limits, in Unix seconds; absent if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    cooldown_until: Option<u64>,
    /// Whether this is told without the shared counters.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
}

/// How a client stands.
#[utoipa::path(
    get, path = "/v1/rate-limit/status", params(
        StatusQuery,
        ("descriptor.{name}" = Option<String>, Query, description = "A further fact by its name, as often as there are some"),
    ),
    responses(
        (status = 200, description = "How the client stands; nothing is charged", body = StatusBody<'_>),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn status(call: Call) -> Result<Response, ApiError> {
    let asked = Asked::read(&call)?;
    answer_status(&call, &asked).await
}

/// How a user stands on an endpoint, by path. Slashes of the endpoint may be written as they are or as `%2F`.
#[utoipa::path(
    get, path = "/v1/rate-limit/status/{user_id}/{endpoint}", params(
        ("user_id" = String, Path, description = "The user"),
        ("endpoint" = String, Path, description = "The endpoint"),
        StatusQuery,
        ("descriptor.{name}" = Option<String>, Query, description = "A further fact by its name, as often as there are some"),
    ),
    responses(
        (status = 200, description = "How the user stands; nothing is charged", body = StatusBody<'_>),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn status_by_path(call: Call) -> Result<Response, ApiError> {
    let mut asked = Asked::read(&call)?;
    let query = &mut asked.query;
    if query.user_id.is_some() || query.endpoint.is_some() {
        let field = if query.user_id.is_some() { "user_id" } else { "endpoint" };
        return Err(ApiError::invalid(field, "is in the path already"));
    }
    query.user_id = Some(call.path_param("user_id")?);
    query.endpoint = Some(call.path_param("endpoint")?);
    answer_status(&call, &asked).await
}

impl Asked {
    fn read(call: &Call) -> Result<Self, ApiError> {
        let pairs: Vec<(String, String)> = call.query()?;
        let (descriptors, rest): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(name, _)| name.starts_with(DESCRIPTOR));
        // Written again without them, so that the reader of all queries says what is wrong with the rest.
        let rest = serde_urlencoded::to_string(&rest).unwrap_or_default();
        let query = serde_urlencoded::from_str(&rest);
        let query = query.map_err(|error| json::located(".", &error.to_string()))?;
        Ok(Asked { query, descriptors })
    }

    /// The check whose outcome is asked for. Costs 0 unless the query has a cost: then whether that cost would be admitted.
    fn request<'q>(
        &'q self,
        descriptors: &'q [(Cow<'q, str>, Cow<'q, str>)],
    ) -> Result<CheckRequest<'q>, ApiError> {
        let query = &self.query;
        Ok(CheckRequest {
            endpoint: query.endpoint.as_deref().ok_or_else(|| ApiError::invalid("endpoint", "is missing"))?,
            method: query.method.as_deref(),
            user_id: query.user_id.as_deref(),
            api_key: query.api_key.as_deref(),
            ip: query.ip.as_deref(),
            tenant: query.tenant.as_deref(),
            tier: query.tier.as_deref(),
            login: query.login.as_deref(),
            cost: Some(number("cost", query.cost.as_deref())?.unwrap_or(0)),
            descriptors,
            strategy: query.strategy.as_deref(),
            limit: number("limit", query.limit.as_deref())?,
            window_seconds: number("window_seconds", query.window_seconds.as_deref())?,
        })
    }

    fn descriptors(&self) -> Result<Pairs<'_>, ApiError> {
        let mut pairs = Pairs::default();
        for (name, value) in &self.descriptors {
            let name = name.strip_prefix(DESCRIPTOR).unwrap_or(name);
            let added = pairs.add(Cow::Borrowed(name), Cow::Borrowed(value));
            added.map_err(|reason| ApiError::invalid("descriptors", reason))?;
        }
        Ok(pairs)
    }
}

fn number(field: &'static str, text: Option<&str>) -> Result<Option<u32>, ApiError> {
    let wrong = |_| ApiError::invalid(field, "must be an integer from 0 to 4294967295");
    text.map(|text| text.parse().map_err(wrong)).transpose()
}

async fn answer_status(call: &Call, asked: &Asked) -> Result<Response, ApiError> {
    let descriptors = asked.descriptors()?;
    let check = asked.request(&descriptors)?;
    let decision = call.checker().peek(&check).await?;
    let shown = DecisionBody::new(&decision);
    let body = StatusBody {
        user_id: check.user_id,
        endpoint: check.endpoint,
        allowed: shown.allowed,
        limit: shown.limit,
        remaining: shown.remaining,
        reset_at: shown.reset_at,
        strategy: shown.strategy,
        capacity: decision.binding().map(|report| report.capacity),
        usage_percentage: decision.binding().map(used),
        rule: shown.rule,
        reason: shown.reason,
        decision: shown.decision,
        blocked_until: shown.blocked_until,
        cooldown_until: decision.cooldown_until().map(Timestamp::as_secs_ceil),
        degraded: shown.degraded,
    };
    let mut response = response::json(StatusCode::OK, &body);
    decision::put_headers(&mut response, &decision, &call.settings.profiles);
    response.headers_mut().remove(http::header::RETRY_AFTER);
    Ok(response)
}

/// Percent of what can be taken at once, with one decimal; a limit of nothing is used up.
fn used(report: &LimitReport) -> f64 {
    let LimitReport { capacity, verdict, .. } = report;
    if *capacity == 0 {
        return 100.0;
    }
    let tenths = u64::from(capacity.saturating_sub(verdict.remaining)) * 1_000 / u64::from(*capacity);
    f64::from(u32::try_from(tenths).unwrap_or(1_000)) / 10.0
}
