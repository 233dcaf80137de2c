//! Asks a server one question, and waits for the answer.
//!
//! A command asks once and ends, so there is no pool and no retry: one connection, one request, and one deadline
//! over all of it.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::secret::Secret;
use crate::url::{Target, UrlError};

/// Longer than any decision takes; short enough for someone who waits at a terminal.
const DEADLINE: Duration = Duration::from_secs(10);
/// An explanation of ten thousand rules is well below this.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A server to ask.
pub(crate) struct Client {
    target: Target,
    key: Option<HeaderValue>,
}

/// What a server answered, error envelopes aside.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The body as it came.
    pub(crate) text: String,
    /// The body as it is read.
    pub(crate) body: Value,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The server's address is no address.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The key cannot be sent; it is not repeated here.
    #[error("the key contains characters that cannot be sent in a header")]
    Key,
    /// Nobody listens there.
    #[error("nothing answers at {0}: is tollgate running? start it with `tollgate serve`")]
    NothingAnswers(Target),
    /// Someone listens there and takes too long.
    #[error("{target} gave no answer within {} s", DEADLINE.as_secs())]
    Timeout {
        /// Whom we asked.
        target: Target,
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
    /// The server answered with an error.
    #[error(transparent)]
    Api(Box<ApiError>),
}

/// An error envelope.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    /// The whole envelope as it came.
    pub(crate) text: String,
    code: String,
    message: String,
    field: Option<String>,
    reason: Option<String>,
    request_id: Option<String>,
}

impl std::error::Error for ApiError {}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}", self.message, self.code)?;
        // Most messages are made of field and reason already: nobody needs to read them twice.
        let told = |reason: &&String| self.message.contains(reason.as_str());
        match (&self.field, &self.reason) {
            (_, Some(reason)) if told(&reason) => {}
            (Some(field), Some(reason)) => write!(f, ", {field}: {reason}")?,
            (Some(one), None) | (None, Some(one)) => write!(f, ", {one}")?,
            (None, None) => {}
        }
        match &self.request_id {
            // A person can act on a message; only for the server's own faults is the log the place to look.
            Some(id) if self.code == "INTERNAL_ERROR" => write!(f, ", request {id})"),
            _ => f.write_str(")"),
        }
    }
}

impl Client {
    /// A client for the server at `url`. An empty key is none.
    pub(crate) fn new(url: &str, key: Option<Secret>) -> Result<Self, ClientError> {
        let target = Target::parse(url)?;
        let key = key.filter(|key| !key.reveal().is_empty());
        let bearer = |key: Secret| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal().trim_end()))?;
            value.set_sensitive(true);
            Ok(value)
        };
        let key =
            key.map(bearer).transpose().map_err(|_: http::header::InvalidHeaderValue| ClientError::Key)?;
        Ok(Client { target, key })
    }

    /// Asks with `GET`.
    pub(crate) fn get(&self, path: &str) -> Result<Answer, ClientError> {
        self.ask(Method::GET, path, Bytes::new())
    }

    /// Asks with `POST` and a JSON body.
    pub(crate) fn post(&self, path: &str, body: &impl Serialize) -> Result<Answer, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.broken(error))?;
        self.ask(Method::POST, path, body.into())
    }

    fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, ClientError> {
        let request = self.request(method, path, body)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.broken(error))?;
        let exchange = async { tokio::time::timeout(DEADLINE, self.exchange(request)).await };
        let timeout = |_| ClientError::Timeout { target: self.target.clone() };
        let (status, bytes) = runtime.block_on(exchange).map_err(timeout)??;
        self.read(status, &bytes)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(self.target.path(path))
            .header(header::HOST, &self.target.authority)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("tollgate-cli/", env!("CARGO_PKG_VERSION")));
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, key);
        }
        request.body(Full::new(body)).map_err(|error| self.broken(error))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), ClientError> {
        let stream =
            TcpStream::connect(&self.target.authority).await.map_err(|error| self.unreachable(error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(error))?;
        // Ends with the exchange: the runtime is dropped right after it.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| self.broken(error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|source| self.broken(io::Error::other(source)))?;
        Ok((status, body.to_bytes()))
    }

    fn read(&self, status: StatusCode, bytes: &[u8]) -> Result<Answer, ClientError> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        match serde_json::from_str::<Value>(&text) {
            Ok(body) if body.get("error").is_some_and(Value::is_object) => {
                Err(ClientError::Api(Box::new(ApiError::read(text, &body["error"]))))
            }
            Ok(body) if body.is_object() => Ok(Answer { text, body }),
            _ => Err(ClientError::NotTollgate { target: self.target.clone(), status }),
        }
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        let target = self.target.clone();
        match source.kind() {
            io::ErrorKind::ConnectionRefused => ClientError::NothingAnswers(target),
            _ => ClientError::Connection { target, source },
        }
    }

    fn broken<E: Into<Box<dyn std::error::Error + Send + Sync>>>(&self, error: E) -> ClientError {
        ClientError::Connection { target: self.target.clone(), source: io::Error::other(error) }
    }
}

impl ApiError {
    fn read(text: String, error: &Value) -> Self {
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let details = &error["details"];
        ApiError {
            text,
            code: word(&error["code"]).unwrap_or_else(|| "UNKNOWN".to_owned()),
            message: word(&error["message"]).unwrap_or_else(|| "the server gave no reason".to_owned()),
            field: word(&details["field"]),
            reason: word(&details["reason"]),
            request_id: word(&error["request_id"]),
        }
    }
}
