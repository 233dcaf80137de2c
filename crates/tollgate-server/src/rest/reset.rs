//! `POST /v1/rate-limit/reset`: a client starts afresh.

use http::StatusCode;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tollgate::{ApiKey, Request};
use utoipa::ToSchema;

use super::{CHECK_BYTES_MAX, Call, Response};
use crate::answer;
use crate::error::{ApiError, Code, ErrorEnvelope};
use crate::facts::{endpoint, id};
use crate::json::{self, Text};

/// Whose counters to clear.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResetBody<'a> {
    /// The user: at least one of `user_id`, `api_key`, `ip`, `tenant`, `login`.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    user_id: Option<Text<'a>>,
    /// The endpoint.
    #[serde(borrow)]
    #[schema(value_type = String)]
    endpoint: Text<'a>,
    /// The client's key.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    api_key: Option<Text<'a>>,
    /// The client's address.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    ip: Option<Text<'a>>,
    /// The organisation.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    tenant: Option<Text<'a>>,
    /// The name of a login attempt.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    login: Option<Text<'a>>,
}

/// What was cleared.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResetAnswer<'a> {
    /// As asked.
    user_id: Option<&'a str>,
    /// As asked.
    endpoint: &'a str,
    /// How many counters held something.
    counters: usize,
    /// When it was done.
    done_at: String,
}

/// Clears every counter of one client that applies on the endpoint, and its penalties.
#[utoipa::path(
    post, path = "/v1/rate-limit/reset", request_body = ResetBody<'_>,
    responses(
        (status = 200, description = "The client starts afresh", body = ResetAnswer<'_>),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 401, description = "No key", body = ErrorEnvelope<'_>),
        (status = 403, description = "The key lacks the scope reset", body = ErrorEnvelope<'_>),
    )
)]
pub(super) async fn reset(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    let whose: ResetBody<'_> = json::parse(&body)?;
    let request = whose.request()?;
    let cleared = call.app.limiter().reset(&request).await;
    let counters = cleared.map_err(|error| ApiError::new(Code::ServiceUnavailable, error.to_string()))?;
    let client = request.client().map(|client| client.to_string());
    tracing::info!(by = %call.caller.name, ?client, endpoint = ?request.endpoint.as_str(), counters, "counters reset");
    let answer = ResetAnswer {
        user_id: whose.user_id.as_ref().map(|text| &*text.0),
        endpoint: &whose.endpoint.0,
        counters,
        done_at: answer::rfc3339(call.app.now()),
    };
    Ok(answer::json(StatusCode::OK, &answer))
}

impl ResetBody<'_> {
    fn request(&self) -> Result<Request<'_>, ApiError> {
        let wrong = |field: &'static str, reason: String| ApiError::invalid(field, reason);
        let ip = self.ip.as_ref().map(|text| text.0.parse());
        let key = self.api_key.as_ref().map(|text| ApiKey::parse(&text.0));
        let request = Request {
            user: id("user_id", self.user_id.as_ref())?,
            tenant: id("tenant", self.tenant.as_ref())?,
            login: id("login", self.login.as_ref())?,
            api_key: key.transpose().map_err(|error| wrong("api_key", error.to_string()))?,
            ip: ip.transpose().map_err(|_| wrong("ip", "must be an IPv4 or IPv6 address".to_owned()))?,
            ..Request::new(endpoint(&self.endpoint.0)?)
        };
        if request.client().is_none() {
            return Err(wrong(
                "user_id",
                "at least one of user_id, api_key, ip, tenant, login is needed".to_owned(),
            ));
        }
        Ok(request)
    }
}
