//! `GET /v1/rate-limit/status`: the current decision about a client, without charging.

use std::borrow::Cow;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::Timestamp;
use tollgate::decision::LimitReport;
use utoipa::{IntoParams, ToSchema};

use super::decision::{self, DecisionBody};
use crate::check::request::{CheckRequest, SentIp};
use crate::check::warnings::Warnings;
use crate::http::error::ApiError;
use crate::http::json::{self, Pairs};
use crate::http::response;
use crate::http::{Call, Response};

/// The client and endpoint. At least one of `user_id`, `api_key`, `ip`, `tenant` and `login` is required.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatusQuery {
    /// The user.
    user_id: Option<String>,
    /// The endpoint.
    #[param(required = true)]
    endpoint: Option<String>,
    /// The HTTP method.
    method: Option<String>,
    /// The API key of the client.
    api_key: Option<String>,
    /// The IP address of the client.
    ip: Option<String>,
    /// The tenant (organisation) of the client.
    tenant: Option<String>,
    /// The tier (plan) of the client.
    tier: Option<String>,
    /// The account name of a login attempt.
    login: Option<String>,
    /// How many units a request would be charged. With 0, the default, `allowed` shows whether a request of cost 1 would
    /// be admitted.
    #[param(value_type = Option<u32>)]
    cost: Option<String>,
    /// Overrides the algorithm, as in a check. Requires the scope `override`, unless it equals the one in force.
    strategy: Option<String>,
    /// Overrides the requests per window. Requires the scope `override`.
    #[param(value_type = Option<u32>)]
    limit: Option<String>,
    /// Overrides the window, in seconds. Requires the scope `override`.
    #[param(value_type = Option<u32>)]
    window_seconds: Option<String>,
}

/// The prefix of parameters that are descriptors; the name follows.
const DESCRIPTOR: &str = "descriptor.";

/// The parsed query.
struct StatusRequest {
    query: StatusQuery,
    descriptors: Vec<(String, String)>,
}

/// The current decision about a client.
#[derive(Serialize, ToSchema)]
pub(crate) struct StatusBody<'a> {
    /// The `user_id` of the request.
    user_id: Option<&'a str>,
    /// The `endpoint` of the request.
    endpoint: &'a str,
    /// The decision that a request would get now.
    #[serde(flatten)]
    decision: DecisionBody<'a>,
    /// The used part of the capacity, in percent.
    usage_percentage: Option<f64>,
    /// When the cooldown of the client ends, in Unix seconds; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cooldown_until: Option<u64>,
}

/// Returns the current decision about a client. Nothing is charged.
#[utoipa::path(
    get, path = "/v1/rate-limit/status", params(
        StatusQuery,
        ("descriptor.{name}" = Option<String>, Query, description = "A descriptor by its name; may be repeated with different names"),
    ),
    responses(
        (status = 200, description = "The current decision; nothing is charged", body = StatusBody<'_>),
    )
)]
pub(crate) async fn status(call: Call) -> Result<Response, ApiError> {
    let sent = StatusRequest::read(&call)?;
    answer_status(&call, &sent).await
}

/// Returns the current decision about a user on an endpoint. The endpoint may contain slashes, plain or as `%2F`.
#[utoipa::path(
    get, path = "/v1/rate-limit/status/{user_id}/{endpoint}", params(
        ("user_id" = String, Path, description = "The user"),
        ("endpoint" = String, Path, description = "The endpoint"),
        StatusQuery,
        ("descriptor.{name}" = Option<String>, Query, description = "A descriptor by its name; may be repeated with different names"),
    ),
    responses(
        (status = 200, description = "The current decision; nothing is charged", body = StatusBody<'_>),
    )
)]
pub(crate) async fn status_by_path(call: Call) -> Result<Response, ApiError> {
    let mut sent = StatusRequest::read(&call)?;
    let query = &mut sent.query;
    if query.user_id.is_some() || query.endpoint.is_some() {
        let field = if query.user_id.is_some() { "user_id" } else { "endpoint" };
        return Err(ApiError::invalid(field, "must not be in the query: the path has it"));
    }
    query.user_id = Some(call.path_param("user_id")?);
    query.endpoint = Some(call.path_param("endpoint")?);
    answer_status(&call, &sent).await
}

impl StatusRequest {
    fn read(call: &Call) -> Result<Self, ApiError> {
        let pairs: Vec<(String, String)> = call.query()?;
        let (descriptors, rest): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(name, _)| name.starts_with(DESCRIPTOR));
        // Serialized again without them, so that the strict parser reports errors in the rest.
        let rest = serde_urlencoded::to_string(&rest).unwrap_or_default();
        let query = serde_urlencoded::from_str(&rest);
        let query = query.map_err(|error| json::located(".", &error.to_string()))?;
        Ok(StatusRequest { query, descriptors })
    }

    /// The check to decide. Its cost is 0 unless the query has one.
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
            ip: query.ip.as_deref().map(SentIp::Text),
            tenant: query.tenant.as_deref(),
            tier: query.tier.as_deref(),
            login: query.login.as_deref(),
            from_client: false,
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

async fn answer_status(call: &Call, sent: &StatusRequest) -> Result<Response, ApiError> {
    let descriptors = sent.descriptors()?;
    let check = sent.request(&descriptors)?;
    let mut warnings = Warnings::default();
    let decision = call.checker()?.peek(&check, &mut warnings).await;
    let decision = decision.map_err(|error| ApiError::of_check(error, &call.settings.profiles))?;
    let body = StatusBody {
        user_id: check.user_id,
        endpoint: check.endpoint,
        decision: DecisionBody::new(&decision).with_warnings(&warnings),
        usage_percentage: decision.binding().map(usage_percentage),
        cooldown_until: decision.cooldown_until().map(Timestamp::as_secs_ceil),
    };
    let mut response = response::json(StatusCode::OK, &body);
    decision::put_headers(response.headers_mut(), &decision, &call.settings.profiles);
    response.headers_mut().remove(http::header::RETRY_AFTER);
    Ok(response)
}

/// Percent of the capacity that is used, with one decimal; a limit of 0 is 100 % used.
fn usage_percentage(report: &LimitReport) -> f64 {
    let LimitReport { capacity, verdict, .. } = report;
    if *capacity == 0 {
        return 100.0;
    }
    let tenths = u64::from(capacity.saturating_sub(verdict.remaining)) * 1_000 / u64::from(*capacity);
    f64::from(u32::try_from(tenths).unwrap_or(1_000)) / 10.0
}
