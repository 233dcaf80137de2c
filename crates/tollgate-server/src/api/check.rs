//! `POST /v1/rate-limit/check`: decides one request and charges it.

use hyper::body::Incoming;
use serde::Deserialize;
use tollgate::Decision;
use utoipa::ToSchema;

use super::decision::{self, DecisionBody};
use crate::check::error::CheckError;
use crate::check::request::{CheckRequest, SentIp};
use crate::check::warnings::Warnings;
use crate::http::error::ApiError;
use crate::http::json::{self, Pairs, Text, UnknownField};
use crate::http::{CHECK_BYTES_MAX, Call, Response};

/// One request to decide. At least one of `user_id`, `api_key`, `ip`, `tenant` and `login` is required. Unknown fields are
/// ignored with a warning, or rejected if `api.strict` is set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct CheckBody<'a> {
    /// The user that sends the request.
    #[schema(value_type = Option<String>, max_length = 256)]
    pub(crate) user_id: Option<Text<'a>>,
    /// The path that is requested, `/api/search`.
    #[schema(value_type = String, max_length = 2048)]
    pub(crate) endpoint: Text<'a>,
    /// The HTTP method.
    #[schema(value_type = Option<String>)]
    method: Option<Text<'a>>,
    /// The API key of the client.
    #[schema(value_type = Option<String>, max_length = 256)]
    api_key: Option<Text<'a>>,
    /// The IP address of the client, without port or zone.
    #[schema(value_type = Option<String>)]
    ip: Option<Text<'a>>,
    /// The tenant (organisation) of the client.
    #[schema(value_type = Option<String>, max_length = 256)]
    tenant: Option<Text<'a>>,
    /// The tier (plan) of the client.
    #[schema(value_type = Option<String>, max_length = 256)]
    tier: Option<Text<'a>>,
    /// The account name of a login attempt.
    #[schema(value_type = Option<String>, max_length = 256)]
    login: Option<Text<'a>>,
    /// How many units the request is charged; 0 charges nothing. Default: 1.
    cost: Option<u32>,
    /// Additional facts by name, for rules that match or count by them.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    descriptors: Option<Pairs<'a>>,
    /// Overrides the algorithm for this check only. Requires the scope `override`, unless it equals the one in force; sent
    /// alone without the scope, it is ignored with a warning.
    #[schema(value_type = Option<String>)]
    strategy: Option<Text<'a>>,
    /// Overrides the requests per window for this check only. Requires the scope `override`, unless it equals the limit in
    /// force.
    limit: Option<u32>,
    /// Overrides the window, in seconds, for this check only. Requires the scope `override`, unless it equals the window in
    /// force.
    #[schema(minimum = 1)]
    window_seconds: Option<u32>,
}

impl<'a> CheckBody<'a> {
    /// Parses a check. Unknown fields are warnings, or errors if `strict`: a misspelt field would set the wrong limit.
    pub(crate) fn parse(body: &'a [u8], strict: bool, warnings: &mut Warnings) -> Result<Self, ApiError> {
        let mut unknown = Vec::new();
        let check = json::parse_with_unknown(body, &mut unknown)?;
        for UnknownField { name, read_as } in unknown {
            match read_as {
                Some(field) => warnings.add(format!("{name:?} is read as {field:?}")),
                None if strict => return Err(json::unknown(name)),
                None => warnings.add(format!("unknown field {name:?} was ignored")),
            }
        }
        Ok(check)
    }

    pub(crate) fn request(&self) -> CheckRequest<'_> {
        CheckRequest {
            endpoint: &self.endpoint,
            method: self.method.as_deref(),
            user_id: self.user_id.as_deref(),
            api_key: self.api_key.as_deref(),
            ip: self.ip.as_deref().map(SentIp::Text),
            tenant: self.tenant.as_deref(),
            tier: self.tier.as_deref(),
            login: self.login.as_deref(),
            from_client: false,
            cost: self.cost,
            descriptors: self.descriptors.as_deref().unwrap_or_default(),
            strategy: self.strategy.as_deref(),
            limit: self.limit,
            window_seconds: self.window_seconds,
        }
    }
}

/// Decides one request and charges it if it is admitted.
#[utoipa::path(
    post, path = "/v1/rate-limit/check", request_body = CheckBody<'_>,
    responses(
        (status = 200, description = "Admitted", body = DecisionBody<'_>),
        (status = 429, description = "A limit is exceeded; see Retry-After", body = DecisionBody<'_>),
        (status = 403, description = "The client is blocked (decision), or the caller may not override limits (error)",
         body = DecisionBody<'_>),
    )
)]
pub(crate) async fn check(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    let mut warnings = Warnings::default();
    let check = CheckBody::parse(&body, call.settings.strict_checks, &mut warnings)?;
    let decision = decide(&call, &check.request(), &mut warnings).await;
    let decision = decision.map_err(|error| ApiError::of_check(error, &call.settings.profiles))?;
    Ok(decision::response(&decision, &warnings, &call.settings.profiles))
}

/// Decides a check, and notes its client and rule for the access log.
pub(crate) async fn decide(
    call: &Call,
    check: &CheckRequest<'_>,
    warnings: &mut Warnings,
) -> Result<Decision, CheckError> {
    let checker = call.checker()?;
    let resolved = checker.resolve(check, warnings)?;
    let request = resolved.request();
    if let Some(access) = &call.access {
        access.set_client(request.client());
    }
    let decision = checker.decide(&request, checker.started).await?;
    if let Some(access) = &call.access {
        access.set_rule(decision.rule_name());
    }
    Ok(decision)
}
