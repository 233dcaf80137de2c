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

impl ApiError {
    /// The code of the error.
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    /// The message of the error.
    pub(crate) fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

/// An error envelope.
#[derive(Debug)]
pub(crate) struct ApiError {
    /// The envelope unchanged.
    pub(crate) text: String,
    pub(crate) status: StatusCode,
    /// The envelope parsed.
    pub(super) body: Value,
    pub(super) hint: Option<String>,
}

impl std::error::Error for ApiError {}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error = &self.body["error"];
        let details = &error["details"];
        let message = error["message"].as_str().unwrap_or("the server gave no reason");
        let code = error["code"].as_str().unwrap_or("UNKNOWN");
        write!(f, "{message} ({code}")?;
        // Most messages already contain field and reason.
        let place = [&details["field"], &details["reason"]].into_iter().filter_map(Value::as_str);
        let place: Vec<&str> = place.filter(|text| !message.contains(text)).collect();
        if !place.is_empty() {
            write!(f, ", {}", place.join(": "))?;
        }
        if let Some(wait) = details["retry_after_us"].as_u64() {
            write!(f, ", retry in {}", format_duration(wait.div_ceil(1_000_000)))?;
        }
        match error["request_id"].as_str() {
            // Only internal errors need a look at the server's log.
            Some(id) if code == "INTERNAL_ERROR" => write!(f, ", request {id})")?,
            _ => f.write_str(")")?,
        }
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n{hint}"))
    }
}
