//! A blocking HTTP client for the API of a server.

mod error;
mod tls;
mod tls_errors;
pub(crate) mod url;

use std::io;
use std::time::Duration;

use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, LOCATION,
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use serde::Serialize;
use serde_json::Value;
use ureq::{Agent, AsSendBody};

pub(crate) use self::error::{ApiError, ClientError};
pub(crate) use self::tls::TlsFiles;
use self::url::ServerUrl;
use crate::secret::Secret;

/// Longer than any decision takes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For imports and exports.
const TIMEOUT_BULK: Duration = Duration::from_mins(2);
/// More than a page of a list, or an explanation of ten thousand rules.
const RESPONSE_BYTES_MAX: u64 = 16 << 20;
/// For the plan of an import, or a page of an export.
const RESPONSE_BYTES_MAX_BULK: u64 = 256 << 20;

const NO_KEY_HINT: &str =
    "hint: set TOLLGATE_KEY or `key` in ~/.config/tollgate/config.toml; see `tollgate --help`";

/// A connection to one server.
#[derive(Clone)]
pub(crate) struct Client {
    url: ServerUrl,
    key: Option<HeaderValue>,
    agent: Agent,
    bulk: bool,
    /// Printed after a 401 instead of the general hint.
    hint: Option<String>,
}

/// A response without an error envelope.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: StatusCode,
    etag: Option<String>,
    /// The body unchanged.
    pub(crate) text: String,
    /// The body parsed; null if it is empty.
    pub(crate) body: Value,
}

impl ApiResponse {
    /// The version of the item in the response.
    pub(crate) fn version(&self) -> Option<&str> {
        self.etag.as_deref().map(|etag| etag.trim_matches('"'))
    }
}

/// The condition of a write.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    None,
    /// The item does not exist.
    Absent,
    /// The item is at this version.
    Version(u64),
}

impl Precondition {
    fn header(self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Precondition::None => None,
            Precondition::Absent => Some((IF_NONE_MATCH, HeaderValue::from_static("*"))),
            Precondition::Version(version) => {
                Some((IF_MATCH, HeaderValue::try_from(format!("\"{version}\"")).ok()?))
            }
        }
    }
}

impl Client {
    /// A client for a server. The certificate files are only read for `https://`.
    pub(crate) fn new(url: ServerUrl, key: Option<Secret>, files: &TlsFiles) -> Result<Self, ClientError> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect could send the key elsewhere.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("tollgate-cli/", env!("CARGO_PKG_VERSION")));
        if url.is_tls() {
            config = config.tls_config(files.tls_config()?);
        }
        let key = key.filter(|key| !key.reveal().is_empty()).map(|key| bearer(&key)).transpose()?;
        Ok(Client { url, key, agent: config.build().new_agent(), bulk: false, hint: None })
    }

    /// Sets the hint for a 401.
    pub(crate) fn with_hint(self, hint: Option<String>) -> Self {
        Client { hint, ..self }
    }

    /// A warning if the key would be sent in clear text over a network.
    pub(crate) fn warning(&self) -> Option<String> {
        let exposed = self.key.is_some() && !self.url.is_tls() && !self.url.is_loopback();
        exposed.then(|| format!("the key is sent to {} unencrypted: use https://", self.url))
    }

    /// The same server, with the timeout and response size of imports and exports.
    pub(crate) fn bulk(&self) -> Self {
        Client { bulk: true, ..self.clone() }
    }

    pub(crate) fn get(&self, path: &str) -> Result<ApiResponse, ClientError> {
        self.send(Method::GET, path, None, Precondition::None)
    }

    pub(crate) fn post(
        &self,
        path: &str,
        body: &impl Serialize,
        precondition: Precondition,
    ) -> Result<ApiResponse, ClientError> {
        self.send(Method::POST, path, Some(self.to_json(body)?), precondition)
    }

    pub(crate) fn put(
        &self,
        path: &str,
        body: &impl Serialize,
        precondition: Precondition,
    ) -> Result<ApiResponse, ClientError> {
        self.send(Method::PUT, path, Some(self.to_json(body)?), precondition)
    }

    pub(crate) fn delete(&self, path: &str, precondition: Precondition) -> Result<ApiResponse, ClientError> {
        self.send(Method::DELETE, path, None, precondition)
    }

    /// The error for a JSON response that lacks a field.
    pub(crate) fn missing_field(&self, name: &str) -> ClientError {
        ClientError::MissingField { url: self.url.clone(), name: name.to_owned() }
    }

    fn to_json(&self, body: &impl Serialize) -> Result<Vec<u8>, ClientError> {
        let bytes = without_nulls(body).and_then(|body| serde_json::to_vec(&body));
        bytes.map_err(|error| self.connection_error(error.into()))
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        precondition: Precondition,
    ) -> Result<ApiResponse, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(ACCEPT, "application/json");
        let authorization = self.key.clone().map(|key| (AUTHORIZATION, key));
        for (name, value) in precondition.header().into_iter().chain(authorization) {
            request = request.header(name, value);
        }
        match body {
            Some(body) => self.run(request.header(CONTENT_TYPE, "application/json").body(&*body)),
            None => self.run(request.body(())),
        }
    }

    fn run(&self, request: http::Result<Request<impl AsSendBody>>) -> Result<ApiResponse, ClientError> {
        let (timeout, bytes_max) =
            if self.bulk { (TIMEOUT_BULK, RESPONSE_BYTES_MAX_BULK) } else { (TIMEOUT, RESPONSE_BYTES_MAX) };
        let exchange = || {
            let request = self.agent.configure_request(request?).timeout_global(Some(timeout)).build();
            let (head, body) = self.agent.run(request)?.into_parts();
            let text = body.into_with_config().limit(bytes_max).lossy_utf8(true).read_to_string()?;
            Ok((head, text))
        };
        let (head, text) = exchange().map_err(|error| self.failure(error, timeout))?;
        self.read(head.status, &head.headers, text)
    }

    fn read(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        text: String,
    ) -> Result<ApiResponse, ClientError> {
        let etag = header(headers, &ETAG);
        if status == StatusCode::NO_CONTENT {
            return Ok(ApiResponse { status, etag, text: String::new(), body: Value::Null });
        }
        match serde_json::from_str::<Value>(&text) {
            Ok(body) if body.get("error").is_some_and(Value::is_object) => {
                let hint = self.hint.as_deref().or(self.key.is_none().then_some(NO_KEY_HINT));
                let hint = hint.filter(|_| status == StatusCode::UNAUTHORIZED);
                let error = ApiError { text, status, body, hint: hint.map(str::to_owned) };
                Err(ClientError::Api(Box::new(error)))
            }
            // A refused check has an error status and a decision.
            Ok(body) if body.is_object() && (status.is_success() || !body["allowed"].is_null()) => {
                Ok(ApiResponse { status, etag, text, body })
            }
            _ => {
                let not_tollgate = || ClientError::NotTollgate { url: self.url.clone(), status };
                Err(self.proxy_error(status, headers, &text).unwrap_or_else(not_tollgate))
            }
        }
    }

    /// The error that a proxy in front of tollgate reports in a page of its own, if it is recognized.
    fn proxy_error(&self, status: StatusCode, headers: &HeaderMap, page: &str) -> Option<ClientError> {
        let url = self.url.clone();
        match header(headers, &LOCATION) {
            Some(to) if status.is_redirection() => Some(ClientError::Redirected { url, to }),
            _ if status != StatusCode::BAD_REQUEST => None,
            _ if self.url.is_tls() => {
                let reason = tls_errors::explain_page(page)?.to_owned();
                Some(ClientError::Handshake { url, reason })
            }
            _ => tls_errors::is_tls_port_page(page).then_some(ClientError::NotPlainHttp(url)),
        }
    }

    fn failure(&self, error: ureq::Error, timeout: Duration) -> ClientError {
        let url = self.url.clone();
        match error {
            ureq::Error::Timeout(_) => ClientError::Timeout { url, timeout },
            ureq::Error::HostNotFound => ClientError::HostNotFound(url),
            ureq::Error::Protocol(_) if !url.is_tls() => ClientError::NotPlainHttp(url),
            error => {
                let error = error.into_io();
                if let Some(cause) = tls_errors::find(&error) {
                    return ClientError::Handshake { url, reason: tls_errors::explain(cause) };
                }
                match error.kind() {
                    io::ErrorKind::ConnectionRefused => ClientError::ConnectionRefused(url),
                    io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::UnexpectedEof => ClientError::Disconnected(url),
                    _ => self.connection_error(error),
                }
            }
        }
    }

    fn connection_error(&self, source: io::Error) -> ClientError {
        ClientError::Connection { url: self.url.clone(), source }
    }
}

/// A body as JSON. Fields that are null are left out: they are flags that were not given.
pub(crate) fn without_nulls(body: &impl Serialize) -> serde_json::Result<Value> {
    let mut body = serde_json::to_value(body)?;
    if let Value::Object(fields) = &mut body {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(body)
}

fn bearer(key: &Secret) -> Result<HeaderValue, ClientError> {
    let value = HeaderValue::try_from(format!("Bearer {}", key.reveal().trim_end()));
    let mut value = value.map_err(|_| ClientError::InvalidKey)?;
    value.set_sensitive(true);
    Ok(value)
}

fn header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
