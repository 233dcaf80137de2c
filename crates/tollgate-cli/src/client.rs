//! Asks a server one question, and waits for the answer.
//!
//! A command asks a few times and ends, so there is no pool and no retry: for each question one connection, one
//! request, and one deadline over all of it.

mod error;
mod handshake;
mod tls;

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::response::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub(crate) use self::error::{ApiError, ClientError};
use self::handshake::{HandshakeError, hangs_up};
pub(crate) use self::tls::TlsFiles;
use crate::secret::Secret;
use crate::url::Target;

/// Longer than any decision takes; short enough for someone who waits at a terminal.
const DEADLINE: Duration = Duration::from_secs(10);
/// Importing or exporting everything may take longer.
const DEADLINE_BULK: Duration = Duration::from_mins(2);
/// An explanation of ten thousand rules is well below this, and so is a page of a list.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// A page of an export, or the plan of an import, may be some megabytes more.
const ANSWER_BYTES_MAX_BULK: usize = 256 << 20;

/// Said when a key is needed and there is none.
const NO_KEY: &str =
    "hint: put it into TOLLGATE_KEY or ~/.config/tollgate/config.toml; see `tollgate --help`";

/// What nginx, Go and Apache say to somebody who speaks HTTP where they expect TLS.
const WANTS_TLS: [&str; 3] = ["HTTPS port", "HTTPS server", "SSL-enabled server port"];

/// A server to ask.
pub(crate) struct Client {
    target: Target,
    key: Option<HeaderValue>,
    /// How `https://` is spoken; with `http://` nobody needs it.
    tls: Option<TlsConnector>,
    /// What to say when the server wants a key and we had one that is for another server.
    hint: Option<String>,
}

/// What a server answered, error envelopes aside.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: StatusCode,
    /// The version of what was answered.
    pub(crate) etag: Option<String>,
    /// The body as it came.
    pub(crate) text: String,
    /// The body as it is read; null if there is none.
    pub(crate) body: Value,
}

/// What must hold for a write to happen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Nothing.
    Anything,
    /// It is not there yet.
    Absent,
    /// It is at this version.
    Version(u64),
}

/// A question in the making.
struct Question {
    method: Method,
    path: String,
    body: Bytes,
    expect: Expect,
    bulk: bool,
}

impl Question {
    fn new(method: Method, path: &str) -> Self {
        let (body, expect) = (Bytes::new(), Expect::Anything);
        Question { method, path: path.to_owned(), body, expect, bulk: false }
    }
}

impl Client {
    /// A client for a server. An empty key is none. The files are looked at only if the server is asked through TLS.
    pub(crate) fn new(target: Target, key: Option<Secret>, files: &TlsFiles) -> Result<Self, ClientError> {
        let tls = target.is_tls().then(|| files.connector()).transpose()?;
        let key = key.filter(|key| !key.reveal().is_empty());
        let bearer = |key: Secret| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal().trim_end()))?;
            value.set_sensitive(true);
            Ok(value)
        };
        let key =
            key.map(bearer).transpose().map_err(|_: http::header::InvalidHeaderValue| ClientError::Key)?;
        Ok(Client { target, key, tls, hint: None })
    }

    /// The same, with what to say if it turns out that a key was needed.
    pub(crate) fn with_hint(self, hint: Option<String>) -> Self {
        Client { hint, ..self }
    }

    /// What should be known before anything is asked.
    pub(crate) fn warning(&self) -> Option<String> {
        let heard = self.key.is_some() && !self.target.is_tls() && !self.target.is_loopback();
        heard.then(|| {
            format!(
                "the key goes to {} unencrypted, and who is on the way can read it: use https://",
                self.target
            )
        })
    }

    /// Asks with `GET`.
    pub(crate) fn get(&self, path: &str) -> Result<Answer, ClientError> {
        self.ask(Question::new(Method::GET, path))
    }

    /// Asks with `POST` and a JSON body.
    pub(crate) fn post(&self, path: &str, body: &impl Serialize) -> Result<Answer, ClientError> {
        let body = self.json(body)?;
        self.ask(Question { body, ..Question::new(Method::POST, path) })
    }

    /// Asks with `PUT` and a JSON body.
    pub(crate) fn put(
        &self,
        path: &str,
        body: &impl Serialize,
        expect: Expect,
    ) -> Result<Answer, ClientError> {
        let body = self.json(body)?;
        self.ask(Question { body, expect, ..Question::new(Method::PUT, path) })
    }

    /// Asks with `DELETE`.
    pub(crate) fn delete(&self, path: &str, expect: Expect) -> Result<Answer, ClientError> {
        self.ask(Question { expect, ..Question::new(Method::DELETE, path) })
    }

    /// Sends a body with `POST` that may be large and take its time.
    pub(crate) fn post_bulk(
        &self,
        path: &str,
        body: &impl Serialize,
        expect: Expect,
    ) -> Result<Answer, ClientError> {
        let body = self.json(body)?;
        self.ask(Question { body, expect, bulk: true, ..Question::new(Method::POST, path) })
    }

    /// Asks with `GET` for what may be large and take its time.
    pub(crate) fn get_bulk(&self, path: &str) -> Result<Answer, ClientError> {
        self.ask(Question { bulk: true, ..Question::new(Method::GET, path) })
    }

    fn json(&self, body: &impl Serialize) -> Result<Bytes, ClientError> {
        serde_json::to_vec(body).map(Bytes::from).map_err(|error| self.broken(error))
    }

    #[allow(clippy::needless_pass_by_value, reason = "a question is asked once")]
    fn ask(&self, question: Question) -> Result<Answer, ClientError> {
        let request = self.request(&question)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.broken(error))?;
        let (waited, bytes_max) =
            if question.bulk { (DEADLINE_BULK, ANSWER_BYTES_MAX_BULK) } else { (DEADLINE, ANSWER_BYTES_MAX) };
        let exchange = async { tokio::time::timeout(waited, self.exchange(request, bytes_max)).await };
        let timeout = |_| ClientError::Timeout { target: self.target.clone(), waited };
        let (head, body) = runtime.block_on(exchange).map_err(timeout)??.into_parts();
        self.read(&head, String::from_utf8_lossy(&body).into_owned())
    }

    fn request(&self, question: &Question) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder()
            .method(&question.method)
            .uri(self.target.path(&question.path))
            .header(header::HOST, self.target.host())
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("tollgate-cli/", env!("CARGO_PKG_VERSION")));
        if !question.body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request = match question.expect {
            Expect::Anything => request,
            Expect::Absent => request.header(header::IF_NONE_MATCH, "*"),
            Expect::Version(version) => request.header(header::IF_MATCH, format!("\"{version}\"")),
        };
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, key);
        }
        request.body(Full::new(question.body.clone())).map_err(|error| self.broken(error))
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        bytes_max: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let stream =
            TcpStream::connect(&self.target.authority).await.map_err(|error| self.unreachable(error))?;
        let (Some(tls), Some(name)) = (&self.tls, &self.target.certified) else {
            return self.converse(stream, request, bytes_max).await;
        };
        let stream = tls.connect(name.clone(), stream).await;
        let stream = stream.map_err(|error| match HandshakeError::of(&error) {
            Some(why) => self.untrusted(why),
            None => self.unreachable(error),
        })?;
        self.converse(stream, request, bytes_max).await
    }

    async fn converse(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Full<Bytes>>,
        bytes_max: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(error))?;
        // Ends with the exchange: the runtime is dropped right after it.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| self.interrupted(error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, bytes_max).collect().await;
        let body = body.map_err(|source| self.broken(io::Error::other(source)))?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    fn read(&self, head: &Parts, text: String) -> Result<Answer, ClientError> {
        let status = head.status;
        let etag = word(head, &header::ETAG);
        if status == StatusCode::NO_CONTENT {
            return Ok(Answer { status, etag, text: String::new(), body: Value::Null });
        }
        match serde_json::from_str::<Value>(&text) {
            Ok(body) if body.get("error").is_some_and(Value::is_object) => {
                let hint = self.hint.as_deref().or(self.key.is_none().then_some(NO_KEY));
                let hint = hint.filter(|_| status == StatusCode::UNAUTHORIZED);
                Err(ClientError::Api(Box::new(ApiError::read(text, status, &body["error"], hint))))
            }
            Ok(body) if body.is_object() => Ok(Answer { status, etag, text, body }),
            _ => Err(self.gate(head, &text).unwrap_or_else(|| self.stranger(status))),
        }
    }

    /// What stands between us and tollgate and answers in its place, if that can be told.
    fn gate(&self, head: &Parts, text: &str) -> Option<ClientError> {
        let target = self.target.clone();
        match word(head, &header::LOCATION) {
            Some(to) if head.status.is_redirection() => Some(ClientError::Redirected { target, to }),
            _ if head.status != StatusCode::BAD_REQUEST => None,
            _ if self.target.is_tls() => HandshakeError::told_in(text).map(|why| self.untrusted(why)),
            _ => WANTS_TLS.iter().any(|part| text.contains(part)).then_some(ClientError::WantsTls(target)),
        }
    }

    /// The error for an answer that tollgate does not give.
    pub(crate) fn stranger(&self, status: StatusCode) -> ClientError {
        ClientError::NotTollgate { target: self.target.clone(), status }
    }

    /// The error for an answer in JSON that lacks the list that was asked for.
    pub(crate) fn no_such_list(&self, name: &str) -> ClientError {
        ClientError::NoList { target: self.target.clone(), name: name.to_owned() }
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        let target = self.target.clone();
        match source.kind() {
            io::ErrorKind::ConnectionRefused => ClientError::NothingAnswers(target),
            _ => ClientError::Connection { target, source },
        }
    }

    /// A connection that ended before the answer. Of TLS 1.3, the server may tell only now that it does not want us.
    fn interrupted(&self, error: hyper::Error) -> ClientError {
        let target = self.target.clone();
        match HandshakeError::of(&error) {
            Some(why) => self.untrusted(why),
            None if self.target.is_tls() => self.broken(error),
            None if error.is_parse() => ClientError::WantsTls(target),
            None if hung_up(&error) => ClientError::HungUp(target),
            None => self.broken(error),
        }
    }

    fn untrusted(&self, why: HandshakeError) -> ClientError {
        ClientError::Handshake { target: self.target.clone(), source: Box::new(why) }
    }

    fn broken<E: Into<Box<dyn std::error::Error + Send + Sync>>>(&self, error: E) -> ClientError {
        ClientError::Connection { target: self.target.clone(), source: io::Error::other(error) }
    }
}

fn word(head: &Parts, name: &HeaderName) -> Option<String> {
    head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// Whether the other side ended the connection without an answer: before, while or after it was asked.
fn hung_up(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    error.is_incomplete_message() || error.is_canceled() || error.is_closed() || cause.is_some_and(hangs_up)
}
