//! `POST /v1/rate-limit/check`: may this request pass?

use hyper::body::Incoming;
use tollgate::Limit;

use crate::app::App;
use crate::auth::scope::Scope;
use crate::auth::{Caller, forbidden};
use crate::check::request::{CheckBody, CheckRequest};
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::json;
use crate::http::response::{self, DecisionBody};
use crate::http::{CHECK_BYTES_MAX, Call, Response};

/// Checks one request and charges it if it may pass.
#[utoipa::path(
    post, path = "/v1/rate-limit/check", request_body = CheckBody<'_>,
    responses(
        (status = 200, description = "The request may pass", body = DecisionBody<'_>),
        (status = 429, description = "The request is over a limit; see Retry-After", body = DecisionBody<'_>),
        (status = 403, description = "The client is blocked (decision), or may not bring its own numbers (error)",
         body = DecisionBody<'_>),
        (status = 400, description = "A field is wrong; nothing was charged", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn check(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    let check: CheckBody<'_> = json::parse(&body)?;
    let now = call.app.now();
    let keys = call.app.key_ring(check.key_text(), now);
    let facts = check.facts(call.app.limiter().rules().normalization(), &keys, &call.caller)?;
    let own = override_limit(&call.app, &call.caller, &facts)?;
    let decision = call.app.limiter().check(&facts.request(own.as_ref()), now).await;
    response::decision(&decision, &call.app.live().profiles)
}

/// The numbers that the check brings, if the caller may bring any.
pub(crate) fn override_limit(
    app: &App,
    caller: &Caller,
    facts: &CheckRequest<'_>,
) -> Result<Option<Limit>, ApiError> {
    if facts.own.any() && !app.open_on_loopback() && !caller.has(Scope::Override) {
        return Err(if caller.is_anonymous() { key_needed() } else { forbidden(Scope::Override) });
    }
    let own = numbers_of(app, facts)?;
    // Of the numbers as they come out: a shorter window for the rule's own many is a choice of the caller's too.
    match (&own, app.live().authenticator.override_max()) {
        (Some(limit), Some(most)) if limit.requests() > most => Err(too_many(limit.requests(), most)),
        _ => Ok(own),
    }
}

/// The numbers that the facts bring, if any, completed by those in force.
pub(crate) fn numbers_of(app: &App, facts: &CheckRequest<'_>) -> Result<Option<Limit>, ApiError> {
    if !facts.own.any() {
        return Ok(None);
    }
    // By the rules alone: which counter is meant must not depend on what any counter holds.
    let in_force = app.limiter().rules().limit_in_force(&facts.request(None));
    facts.own.limit(in_force.as_ref()).map(Some)
}

/// Who sent no key has none that could lack a scope.
fn key_needed() -> ApiError {
    let message = "limit, window_seconds and strategy of a check's own need a key with the scope override: \
                   Authorization: Bearer …";
    ApiError::new(Code::Unauthorized, message)
}

fn too_many(requests: u32, most: u32) -> ApiError {
    let reason =
        format!("a check may bring at most {most} requests per window (auth.override_max), not {requests}");
    ApiError::field(Code::InvalidLimit, "limit", reason)
}
