//! Why a request failed.

use std::io;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::tls::TlsError;
use super::url::{ServerUrl, UrlError};
use crate::output::format::format_duration;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The URL of the server is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The key cannot be sent. It is not repeated in the message.
    #[error("the key contains characters that are not allowed in a header")]
    InvalidKey,
    /// The certificate files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The TLS handshake failed: server or client is not trusted.
    #[error("{url}: {reason}")]
    Handshake { url: ServerUrl, reason: String },
    /// `http://` was used for a TLS port.
    #[error("{0} does not accept plain HTTP: use https:// if it is a TLS port")]
    NotPlainHttp(ServerUrl),
    /// The connection was closed before a response.
    #[error("{0}: the server closed the connection without a response: use {other}:// if the port expects it", other = .0.other_scheme())]
    Disconnected(ServerUrl),
    /// The server redirects.
    #[error(
        "{url} redirects to {to}: redirects are not followed, to protect the key; set --url to the final server"
    )]
    Redirected { url: ServerUrl, to: String },
    /// Nothing listens on the port.
    #[error("cannot connect to {0}: connection refused; is tollgate running? start it with `tollgate serve`")]
    ConnectionRefused(ServerUrl),
    /// The host name has no address.
    #[error("cannot resolve the host of {0}: check --url or TOLLGATE_URL")]
    HostNotFound(ServerUrl),
    /// The server took too long.
    #[error("{url}: no response within {} s", timeout.as_secs())]
    Timeout { url: ServerUrl, timeout: Duration },
    /// The connection failed.
    #[error("{url}: {source}")]
    Connection { url: ServerUrl, source: io::Error },
    /// The response is not JSON.
    #[error("{url} returned status {status} without JSON: is it a tollgate server?")]
    NotTollgate { url: ServerUrl, status: StatusCode },
    /// The response is JSON without a decision.
    #[error("the response contains no decision: is it a tollgate server?")]
    NoDecision,
    /// The response is JSON without a required field: from another program, or an older tollgate.
    #[error("the response of {url} contains no {name}: is it a tollgate server of this version?")]
    MissingField { url: ServerUrl, name: String },
    /// The server returned an error.
    #[error(transparent)]
    Api(Box<ApiError>),
}

impl ClientError {
    /// The status of the server's error, if it returned one.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        if let ClientError::Api(error) = self { Some(error.status) } else { None }
    }
}

/// An error envelope.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    /// The envelope unchanged.
    pub(crate) text: String,
    pub(crate) status: StatusCode,
    code: String,
    message: String,
    field: Option<String>,
    reason: Option<String>,
    retry_after_us: Option<u64>,
    request_id: Option<String>,
    hint: Option<String>,
}

impl std::error::Error for ApiError {}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}", self.message, self.code)?;
        // Most messages already contain field and reason.
        let new = |text: &Option<String>| text.clone().filter(|text| !self.message.contains(text.as_str()));
        match (new(&self.field), new(&self.reason)) {
            (Some(field), Some(reason)) => write!(f, ", {field}: {reason}")?,
            (Some(one), None) | (None, Some(one)) => write!(f, ", {one}")?,
            (None, None) => {}
        }
        if let Some(wait) = self.retry_after_us {
            write!(f, ", retry in {}", format_duration(wait.div_ceil(1_000_000)))?;
        }
        match &self.request_id {
            // Only internal errors need a look at the server's log.
            Some(id) if self.code == "INTERNAL_ERROR" => write!(f, ", request {id})")?,
            _ => f.write_str(")")?,
        }
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n{hint}"))
    }
}

impl ApiError {
    pub(super) fn read(text: String, status: StatusCode, error: &Value, hint: Option<&str>) -> Self {
        let field = |value: &Value| value.as_str().map(str::to_owned);
        let details = &error["details"];
        ApiError {
            text,
            status,
            code: field(&error["code"]).unwrap_or_else(|| "UNKNOWN".to_owned()),
            message: field(&error["message"]).unwrap_or_else(|| "the server gave no reason".to_owned()),
            field: field(&details["field"]),
            reason: field(&details["reason"]),
            retry_after_us: details["retry_after_us"].as_u64(),
            request_id: field(&error["request_id"]),
            hint: hint.map(str::to_owned),
        }
    }
}
