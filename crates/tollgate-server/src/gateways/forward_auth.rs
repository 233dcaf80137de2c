//! `/v1/forward-auth`: a gateway asks about each request before it forwards it.
//!
//! There is no caller key: nginx and others cannot keep one apart from the client's. The credential is the connection, which must come
//! from one of `identity.trusted_proxies`.

use std::fmt::Write as _;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use serde::Deserialize;
use tollgate::headers::HeaderProfile;
use tollgate::{Answer, Decision};
use utoipa::{IntoParams, ToSchema};

use super::identify::{ClientRequest, IdentityError, IdentityPolicy};
use super::original_request::OriginalRequest;
use crate::api::check::decide;
use crate::api::decision::{self, DecisionBody};
use crate::check::error::CheckError;
use crate::check::warnings::Warnings;
use crate::http::error::{ApiError, Code};
use crate::http::{Call, Response, response};
use crate::listener::Payload;

/// The status that a client should get, in the mode of nginx.
const STATUS: HeaderName = HeaderName::from_static("x-ratelimit-status");
/// The body that a client should get, in the mode of nginx.
const BODY: HeaderName = HeaderName::from_static("x-ratelimit-body");
/// A larger body is left out: nginx rejects a head that exceeds its buffer of 4 KB.
const BODY_HEADER_BYTES_MAX: usize = 2 << 10;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ForwardAuthQuery {
    /// `nginx`: refusals are 403, with the status for the client in `X-RateLimit-Status` and the body in `X-RateLimit-Body`.
    mode: Option<GatewayMode>,
}

/// What a gateway can pass on.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GatewayMode {
    /// `auth_request` of nginx treats every status other than 2xx, 401 and 403 as a failure.
    Nginx,
}

/// Decides about a request that a gateway is going to forward, and charges it if it is admitted. Any method can be used.
#[utoipa::path(
    get, path = "/v1/forward-auth",
    params(
        ForwardAuthQuery,
        ("X-Forwarded-Uri" = Option<String>, Header, description = "Path of the request, or `X-Original-URI` or `X-Original-URL`."),
        ("X-Forwarded-Method" = Option<String>, Header, description = "Method of the request, or `X-Original-Method`. Default: the method \
          of this request."),
        ("X-API-Key" = Option<String>, Header, description = "API key of the client: `identity.api_key_headers`."),
    ),
    responses(
        (status = 200, description = "Admitted: forward the request"),
        (status = 400, description = "The request cannot be read", body = crate::http::error::ErrorEnvelope<'_>),
        (status = 401, description = "The client's API key is invalid (decision), or its bearer token is (error)",
         body = DecisionBody<'_>),
        (status = 403, description = "The client is blocked (decision), or the gateway is not one of `identity.trusted_proxies` (error)",
         body = DecisionBody<'_>),
        (status = 408, description = "The body of a login request did not arrive in time", body = crate::http::error::ErrorEnvelope<'_>),
        (status = 413, description = "The body of a login request is too large", body = crate::http::error::ErrorEnvelope<'_>),
        (status = 415, description = "The body of a login request cannot be read", body = crate::http::error::ErrorEnvelope<'_>),
        (status = 429, description = "A limit is exceeded, or too many invalid tokens came from the client's address (error); see Retry-After. A rule \
          can have another status", body = DecisionBody<'_>),
    )
)]
pub(crate) async fn forward_auth(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let ForwardAuthQuery { mode } = call.query()?;
    let answered = answer(&call, body).await;
    match mode {
        None => answered,
        Some(GatewayMode::Nginx) => {
            Ok(for_nginx(answered.unwrap_or_else(|error| error.into_response(call.request_id.as_str()))))
        }
    }
}

async fn answer(call: &Call, body: Incoming) -> Result<Response, ApiError> {
    let original = OriginalRequest::read(&call.parts)?;
    let decided = decide_original(call, &original, body).await;
    let decided = decided.map_err(|error| error.naming("endpoint", original.path_header))?;
    Ok(render(call, &decided).await)
}

/// Identifies the client of the original request and decides about it.
async fn decide_original(
    call: &Call,
    original: &OriginalRequest<'_>,
    body: Incoming,
) -> Result<Decision, ApiError> {
    let request = ClientRequest {
        method: original.method,
        path: original.path,
        headers: &call.parts.headers,
        address: call.address,
    };
    let policy = IdentityPolicy::new(&call.settings, call.app.token_throttle());
    let login = match policy.login_endpoint(request.method, request.path) {
        Some(endpoint) => Some((endpoint, call.body(body, endpoint.body_bytes_max).await?)),
        None => None,
    };
    let login = login.as_ref().map(|(endpoint, body)| (*endpoint, &**body));
    let identity = policy.identify(&request, login, call.app.clock())?;
    let decided = decide(call, &identity.check(&request), &mut Warnings::default()).await;
    decided.map_err(|error| of_client(error, &call.settings.profiles))
}

/// The error of a check whose client speaks for itself: an invalid API key is a failed authentication.
pub(super) fn of_client(error: CheckError, profiles: &[HeaderProfile]) -> ApiError {
    let is_key = matches!(error, CheckError::ApiKeyRefused(_));
    let error = ApiError::of_check(error, profiles);
    if !is_key {
        return error;
    }
    error
        .with_code(Code::Unauthorized)
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("ApiKey"))
}

/// An admitted request has no body: gateways drop it. A delayed one is held here, because gateways cannot.
async fn render(call: &Call, decision: &Decision) -> Response {
    let profiles = &call.settings.profiles;
    if let Answer::Admit { delay } = decision.answer {
        if !delay.is_zero() {
            tokio::time::sleep(Duration::from_micros(delay.as_micros())).await;
        }
        let mut response = response::empty(StatusCode::OK);
        decision::put_headers(response.headers_mut(), decision, profiles);
        return response;
    }
    let mut response = decision::response(decision, &Warnings::default(), profiles);
    let status = decision.rule().map(|rule| rule.response.status);
    if let (Answer::Refuse { .. }, Some(Ok(status))) = (decision.answer, status.map(StatusCode::from_u16)) {
        *response.status_mut() = status;
    }
    response
}

/// Replaces every status that nginx would turn into 500.
fn for_nginx(mut response: Response) -> Response {
    let status = response.status();
    if status.is_success() {
        return response;
    }
    let body = match response.body() {
        Payload::Whole(body) => ascii_json(body),
        Payload::Stream(_) | Payload::Body(_) => None,
    };
    let headers = response.headers_mut();
    headers.insert(STATUS, HeaderValue::from(status.as_u16()));
    if let Some(body) = body.and_then(|body| HeaderValue::from_str(&body).ok()) {
        headers.insert(BODY, body);
    }
    if status != StatusCode::UNAUTHORIZED {
        *response.status_mut() = StatusCode::FORBIDDEN;
    }
    response
}

/// JSON with other characters than ASCII escaped, as a header needs it. `None` if it is too long for one.
fn ascii_json(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_ascii() {
            escaped.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    (escaped.len() <= BODY_HEADER_BYTES_MAX).then_some(escaped)
}

/// The REST codes of requests whose client cannot be identified.
impl From<IdentityError> for ApiError {
    fn from(error: IdentityError) -> Self {
        let message = error.to_string();
        match error {
            IdentityError::InvalidToken(_) => {
                let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
                ApiError::new(Code::Unauthorized, message).with_header(header::WWW_AUTHENTICATE, challenge)
            }
            IdentityError::TooManyInvalidTokens { wait } => {
                ApiError::new(Code::TooManyAttempts, message).with_retry_after(wait)
            }
            IdentityError::InvalidHeader { header, reason } => {
                ApiError::field(Code::InvalidInput, header, reason)
            }
            IdentityError::InvalidLogin { field, reason } => {
                ApiError::field(Code::InvalidInput, String::from(field), reason)
            }
            IdentityError::InvalidLoginBody(_) => ApiError::new(Code::InvalidInput, message),
            IdentityError::UnsupportedLoginBody(_) => ApiError::new(Code::UnsupportedMediaType, message),
            IdentityError::LoginBodyTooLarge(_) => ApiError::new(Code::PayloadTooLarge, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: StatusCode, body: &'static str) -> Response {
        let mut response = Response::new(body.into());
        *response.status_mut() = status;
        for_nginx(response)
    }

    fn header_of<'r>(response: &'r Response, name: &HeaderName) -> &'r str {
        response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[test]
    fn nginx_gets_only_statuses_that_it_passes_on() {
        for (status, sent) in [(429, 403), (400, 403), (503, 403), (403, 403), (401, 401)] {
            let response = refused(StatusCode::from_u16(status).unwrap(), "{}");
            assert_eq!(response.status(), sent, "{status}");
            assert_eq!(header_of(&response, &STATUS), status.to_string());
        }
        let admitted = refused(StatusCode::OK, "");
        assert_eq!((admitted.status().as_u16(), header_of(&admitted, &STATUS)), (200, ""));
    }

    #[test]
    fn body_is_escaped_for_a_header() {
        let response = refused(StatusCode::TOO_MANY_REQUESTS, "{\"message\":\"später 🚦\"}");
        assert_eq!(header_of(&response, &BODY), r#"{"message":"sp\u00e4ter \ud83d\udea6"}"#);
        let long: &'static str = Box::leak("é".repeat(400).into_boxed_str());
        assert_eq!(header_of(&refused(StatusCode::TOO_MANY_REQUESTS, long), &BODY), "", "left out");
    }
}
