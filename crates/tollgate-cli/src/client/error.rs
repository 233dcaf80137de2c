//! Why there is no answer, or one that says no.

use std::io;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::handshake::HandshakeError;
use super::tls::TlsError;
use crate::render;
use crate::url::{Target, UrlError};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The server's address is no address.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The key cannot be sent; it is not repeated here.
    #[error("the key contains characters that cannot be sent in a header")]
    Key,
    /// The files with certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// TLS was not agreed on: we do not trust the server, or it does not trust us.
    #[error("{target}: {source}")]
    Handshake {
        /// Whom we asked.
        target: Target,
        /// Why not.
        source: Box<HandshakeError>,
    },
    /// `http://` was asked for where TLS is spoken.
    #[error("{0} does not speak plain HTTP: use https:// if that is a port for TLS")]
    WantsTls(Target),
    /// `http://` was asked for, perhaps where TLS is spoken, or the server fell.
    #[error("{0}: the server hung up without an answer: use https:// if that is a port for TLS")]
    HungUp(Target),
    /// Somebody says that the server is elsewhere.
    #[error(
        "{target} redirects to {to}, which is not followed lest a key go astray: name that server, with its https:// or http://, in --url"
    )]
    Redirected {
        /// Whom we asked.
        target: Target,
        /// Where we should have asked.
        to: String,
    },
    /// Nobody listens there.
    #[error("nothing answers at {0}: is tollgate running? start it with `tollgate serve`")]
    NothingAnswers(Target),
    /// Someone listens there and takes too long.
    #[error("{target} gave no answer within {} s", waited.as_secs())]
    Timeout {
        /// Whom we asked.
        target: Target,
        /// How long we waited.
        waited: Duration,
    },
    /// The connection could not be made or broke.
    #[error("{target}: {source}")]
    Connection {
        /// Whom we asked.
        target: Target,
        /// What happened.
        source: io::Error,
    },
    /// Someone answers who is not tollgate.
    #[error("{target} answered with status {status} and no JSON: is that tollgate?")]
    NotTollgate {
        /// Whom we asked.
        target: Target,
        /// The status of the answer.
        status: StatusCode,
    },
    /// Someone answers in JSON who decides about nothing.
    #[error("the answer contains no decision: is that tollgate?")]
    NoDecision,
    /// Someone answers in JSON who has no such list: another program, or an older tollgate.
    #[error("the answer of {target} contains no {name}: is that tollgate, and new enough?")]
    NoList {
        /// Whom we asked.
        target: Target,
        /// What is missing.
        name: String,
    },
    /// The server answered with an error.
    #[error(transparent)]
    Api(Box<ApiError>),
}

/// An error envelope.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    /// The whole envelope as it came.
    pub(crate) text: String,
    /// The status it came with.
    pub(crate) status: StatusCode,
    code: String,
    message: String,
    field: Option<String>,
    reason: Option<String>,
    /// How long to wait before it is asked again, in microseconds.
    wait: Option<u64>,
    request_id: Option<String>,
    hint: Option<String>,
}

impl std::error::Error for ApiError {}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}", self.message, self.code)?;
        // Most messages are made of field and reason already: nobody needs to read them twice.
        let untold =
            |text: &Option<String>| text.clone().filter(|text| !self.message.contains(text.as_str()));
        match (untold(&self.field), untold(&self.reason)) {
            (Some(field), Some(reason)) => write!(f, ", {field}: {reason}")?,
            (Some(one), None) | (None, Some(one)) => write!(f, ", {one}")?,
            (None, None) => {}
        }
        if let Some(wait) = self.wait {
            write!(f, ", retry in {}", render::lasting(wait.div_ceil(1_000_000)))?;
        }
        match &self.request_id {
            // A person can act on a message; only for the server's own faults is the log the place to look.
            Some(id) if self.code == "INTERNAL_ERROR" => write!(f, ", request {id})")?,
            _ => f.write_str(")")?,
        }
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n{hint}"))
    }
}

impl ApiError {
    pub(super) fn read(text: String, status: StatusCode, error: &Value, hint: Option<&str>) -> Self {
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let details = &error["details"];
        ApiError {
            text,
            status,
            code: word(&error["code"]).unwrap_or_else(|| "UNKNOWN".to_owned()),
            message: word(&error["message"]).unwrap_or_else(|| "the server gave no reason".to_owned()),
            field: word(&details["field"]),
            reason: word(&details["reason"]),
            wait: details["retry_after_us"].as_u64(),
            request_id: word(&error["request_id"]),
            hint: hint.map(str::to_owned),
        }
    }
}

impl ClientError {
    /// The status of the server's error, if it answered with one.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        if let ClientError::Api(error) = self { Some(error.status) } else { None }
    }
}
