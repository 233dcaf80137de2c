//! Errors as HTTP: one JSON envelope, stable codes, and the mapping of the errors of other modules to them.

use std::borrow::Cow;
use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use tollgate::Span;
use tollgate::counters::StoreError;
use tollgate::headers::{HeaderProfile, retry_after_secs};
use tollgate_stores::sql::DatabaseError;
use utoipa::ToSchema;

use crate::api::decision::{self, DecisionBody};
use crate::auth::AuthError;
use crate::auth::api_keys::KeyRefusal;
use crate::check::error::CheckError;
use crate::config::normalize::NormalizedTooLong;
use crate::config::sync::SyncError;
use crate::http::{Response, response};

/// The code of an error. Codes are stable: new ones may be added, existing ones keep their meaning.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Code {
    /// A parameter or field is missing or invalid.
    InvalidInput,
    /// A limit, window or burst is out of range.
    InvalidLimit,
    /// Unknown strategy.
    InvalidStrategy,
    /// The API key is missing or invalid.
    Unauthorized,
    /// The API key does not permit this.
    Forbidden,
    /// No such path or item.
    NotFound,
    /// The path does not support this method.
    MethodNotAllowed,
    /// The request body did not arrive in time.
    RequestTimeout,
    /// The request conflicts with the current state.
    Conflict,
    /// The condition of `If-Match` or `If-None-Match` does not hold.
    PreconditionFailed,
    /// The body or the batch is too large.
    PayloadTooLarge,
    /// The content type or encoding of the body is not supported.
    UnsupportedMediaType,
    /// `Host` is not a name of this server, or `Origin` is another site: see `server.hosts`.
    MisdirectedRequest,
    /// The idempotency key was used with a different body.
    IdempotencyMismatch,
    /// Too many invalid API keys or tokens came from this address.
    TooManyAttempts,
    /// The caller exceeded its own limit (`[callers]`); no client's limit is involved.
    CallerLimited,
    /// A defect of the service.
    InternalError,
    /// The counters or the database are unreachable, or the service is overloaded.
    ServiceUnavailable,
}

impl Code {
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Code::InvalidInput | Code::InvalidLimit | Code::InvalidStrategy => StatusCode::BAD_REQUEST,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Code::Conflict => StatusCode::CONFLICT,
            Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Code::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::MisdirectedRequest => StatusCode::MISDIRECTED_REQUEST,
            Code::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
            Code::TooManyAttempts | Code::CallerLimited => StatusCode::TOO_MANY_REQUESTS,
            Code::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Code::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl fmt::Display for Code {
    /// As in the JSON envelope.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An error to be rendered as a response.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    code: Code,
    message: Cow<'static, str>,
    field: Option<Cow<'static, str>>,
    reason: Option<Cow<'static, str>>,
    allow: Option<Box<str>>,
    retry_after: Option<Span>,
    /// Set if the client's API key was refused: rendered as a decision.
    key_refusal: Option<KeyRefusal>,
    /// The rate-limit headers of an error that concerns a limited client.
    headers: Option<Box<HeaderMap>>,
}

/// The REST codes of check errors.
impl From<CheckError> for ApiError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::InvalidField { field, reason } => ApiError::invalid(field, reason),
            CheckError::ApiKeyRefused(refusal) => {
                ApiError { key_refusal: Some(refusal), ..ApiError::new(Code::Forbidden, refusal.as_str()) }
            }
            CheckError::TenantMismatch { .. }
            | CheckError::KeyOfOtherTenant
            | CheckError::OverrideForbidden => ApiError::new(Code::Forbidden, error.to_string()),
            CheckError::OverrideNeedsKey => ApiError::new(Code::Unauthorized, error.to_string()),
            CheckError::Store(error) => error.into(),
            CheckError::Unavailable(decision) if decision.misconfigured => StoreError::Misconfigured.into(),
            CheckError::Unavailable(_) => StoreError::Unreachable.into(),
            CheckError::ConfigurationUnread => ApiError::new(Code::ServiceUnavailable, error.to_string()),
            CheckError::IdempotencyKeyReused => {
                ApiError::field(Code::IdempotencyMismatch, "idempotency_key", error.to_string())
            }
            CheckError::IdempotencyInProgress => {
                ApiError::field(Code::Conflict, "idempotency_key", error.to_string())
            }
        }
    }
}

/// The REST codes of refused callers.
impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        let message = error.to_string();
        let limited = |code, wait| ApiError::new(code, "").with_retry_after(wait);
        let mapped = match error {
            AuthError::KeyMissing
            | AuthError::CertificateUnknown(_)
            | AuthError::CertificateExpired(_)
            | AuthError::NotBearer
            | AuthError::KeyRefused(_) => ApiError::new(Code::Unauthorized, ""),
            AuthError::NoScopes
            | AuthError::ScopeMissing(_)
            | AuthError::TenantBound(_)
            | AuthError::UntrustedProxy(_) => ApiError::new(Code::Forbidden, ""),
            AuthError::KeysNotLoaded => ApiError::new(Code::ServiceUnavailable, ""),
            AuthError::Throttled { wait } => limited(Code::TooManyAttempts, wait),
            AuthError::CallerLimited { wait } => limited(Code::CallerLimited, wait),
            AuthError::BatchTooLarge { .. } => {
                return ApiError::field(Code::PayloadTooLarge, "checks", message);
            }
        };
        mapped.with_message(message)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = match error {
            StoreError::Misconfigured => {
                "the counter store rejects this service; an operator must act, see /readyz for the reason"
            }
            _ => "the counters are unreachable; try again",
        };
        ApiError::new(Code::ServiceUnavailable, message)
    }
}

impl From<SyncError> for ApiError {
    fn from(error: SyncError) -> Self {
        let code = match error {
            SyncError::DatabaseUnreachable => Code::ServiceUnavailable,
            SyncError::SecretDiffers => Code::Conflict,
            SyncError::NoRandomness => Code::InternalError,
        };
        ApiError::new(code, error.to_string())
    }
}

impl From<NormalizedTooLong> for ApiError {
    fn from(error: NormalizedTooLong) -> Self {
        ApiError::invalid(error.field, error.to_string())
    }
}

impl From<DatabaseError> for ApiError {
    fn from(error: DatabaseError) -> Self {
        let message = match &error {
            DatabaseError::Value { field, reason } => {
                return ApiError::invalid(field.to_string(), reason.to_string());
            }
            DatabaseError::Constraint { .. } => {
                let message = "the database rejected the change: it conflicts with existing data";
                return ApiError::new(Code::Conflict, message);
            }
            DatabaseError::Conflict { .. } => return ApiError::new(Code::Conflict, error.to_string()),
            DatabaseError::VersionConflict { .. } => {
                "the configuration was changed concurrently too often; nothing was changed, send the request again"
            }
            DatabaseError::OutcomeUnknown { .. } => {
                "the connection to the database broke during the change, which may or may not be in force; check before \
                 sending the request again"
            }
            // The sync task logs outages once, not per request.
            error if error.is_unreachable() => {
                "the database is unreachable; nothing was changed, send the request again"
            }
            error => {
                tracing::warn!(%error, "the database rejected a request");
                "the database rejected the request; nothing was changed, the log has the reason"
            }
        };
        ApiError::new(Code::ServiceUnavailable, message)
    }
}

/// The body of every error response.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorEnvelope<'a> {
    error: ErrorBody<'a>,
}

/// An error.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorBody<'a> {
    code: Code,
    /// The error in English; may change between versions.
    message: &'a str,
    details: ErrorDetails<'a>,
    /// The id of the request, as in `X-Request-Id` and the log.
    request_id: &'a str,
}

/// Details of an error.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorDetails<'a> {
    /// The invalid field, `checks[2].cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// Why the field is invalid, or the request failed.
    #[schema(value_type = Option<String>)]
    reason: &'a str,
    /// Microseconds to wait before a retry; `Retry-After` has the same in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_us: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        ApiError {
            code,
            message: message.into(),
            field: None,
            reason: None,
            allow: None,
            retry_after: None,
            key_refusal: None,
            headers: None,
        }
    }

    /// The error of a check, with rate-limit headers if it concerns the client.
    pub(crate) fn of_check(error: CheckError, profiles: &[HeaderProfile]) -> Self {
        let mut headers = HeaderMap::new();
        match &error {
            CheckError::Unavailable(decision) => decision::put_headers(&mut headers, decision, profiles),
            CheckError::ApiKeyRefused(_) => decision::put_headers_of_refused_key(&mut headers, profiles),
            _ => {}
        }
        ApiError { headers: Some(Box::new(headers)), ..error.into() }
    }

    /// A defect of the service; its cause is in the log.
    pub(crate) fn internal() -> Self {
        ApiError::new(Code::InternalError, "internal error; the log has details under this request id")
    }

    /// A field that is invalid.
    pub(crate) fn field(
        code: Code,
        field: impl Into<Cow<'static, str>>,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (field, reason) = (field.into(), reason.into());
        let message = if field.is_empty() { reason.clone() } else { format!("{field}: {reason}").into() };
        let field = Some(field).filter(|field| !field.is_empty());
        ApiError { field, reason: Some(reason), ..ApiError::new(code, message) }
    }

    /// An invalid field; the code depends on the field.
    pub(crate) fn invalid(field: impl Into<Cow<'static, str>>, reason: impl Into<Cow<'static, str>>) -> Self {
        let field = field.into();
        let code = match field.rsplit('.').next() {
            Some("limit" | "window_seconds" | "burst_capacity") => Code::InvalidLimit,
            Some("strategy") => Code::InvalidStrategy,
            _ => Code::InvalidInput,
        };
        ApiError::field(code, field, reason)
    }

    pub(crate) fn method_not_allowed(allow: String) -> Self {
        let message = format!("method not allowed; this path supports {allow}");
        ApiError { allow: Some(allow.into()), ..ApiError::new(Code::MethodNotAllowed, message) }
    }

    /// Prefixes the field with `parent`, for an item of a list.
    pub(crate) fn within(mut self, parent: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("{parent}.{field}").into(),
            None => parent.to_owned().into(),
        });
        self
    }

    /// Renames `field`, for a request in which it has another name.
    pub(crate) fn naming(self, field: &str, here: &'static str) -> Self {
        match self.reason {
            Some(reason) if self.field.as_deref() == Some(field) => ApiError::field(self.code, here, reason),
            _ => self,
        }
    }

    /// Replaces the code, for a surface on which the same error has another meaning.
    pub(crate) fn with_code(self, code: Code) -> Self {
        ApiError { code, ..self }
    }

    /// Adds a header to the response.
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.get_or_insert_default().insert(name, value);
        self
    }

    /// Adds `Retry-After`.
    pub(crate) fn with_retry_after(self, wait: Span) -> Self {
        ApiError { retry_after: Some(wait), ..self }
    }

    /// Replaces the message.
    pub(crate) fn with_message(self, message: impl Into<Cow<'static, str>>) -> Self {
        ApiError { message: message.into(), ..self }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    pub(crate) fn body<'a>(&'a self, request_id: &'a str) -> ErrorBody<'a> {
        let details = ErrorDetails {
            field: self.field.as_deref(),
            reason: self.reason.as_deref().unwrap_or(&self.message),
            retry_after_us: self.retry_after.map(Span::as_micros),
        };
        ErrorBody { code: self.code, message: &self.message, details, request_id }
    }

    pub(crate) fn into_response(self, request_id: &str) -> Response {
        let mut response = match self.key_refusal {
            Some(refusal) => response::json(self.code.status(), &DecisionBody::key_refused(refusal)),
            None => response::json(self.code.status(), &ErrorEnvelope { error: self.body(request_id) }),
        };
        let headers = response.headers_mut();
        headers.extend(self.headers.map(|headers| *headers).unwrap_or_default());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self.code {
            Code::ServiceUnavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Code::Unauthorized => {
                headers.entry(header::WWW_AUTHENTICATE).or_insert(HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_secs(wait)));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            headers.insert(header::ALLOW, allow);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use tollgate_stores::sql::Database;

    use super::*;

    #[tokio::test]
    async fn unreachable_database_is_distinguished_from_a_broken_one() {
        let unreachable = Database::open("postgres://u@127.0.0.1:1/nobody-listens").await.unwrap_err();
        assert!(ApiError::from(unreachable).message().contains("is unreachable"));
        let broken = ApiError::from(DatabaseError::Corrupt { what: "api_keys" });
        assert_eq!(broken.code(), Code::ServiceUnavailable);
        assert!(broken.message().contains("log has the reason"), "{}", broken.message());
    }
}
