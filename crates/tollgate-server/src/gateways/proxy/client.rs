//! The HTTP client of one upstream, over HTTP/1.1, HTTP/2 and TLS.

use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{Response, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tower_service::Service;

use super::body::{BodyError, RequestBody};
use super::pool::{IDLE_CONNECTION_TIMEOUT, Outgoing, Pool, ReceivedBody};
use crate::config::settings::{
    UpstreamTimeouts, UpstreamTlsSettings, UpstreamUrl, client_config, system_roots,
};
use crate::listener::write_at_once;

const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
const HEADER_BYTES_MAX: u32 = 64 * 1024;
const UNKNOWN_ISSUER_HINT: &str = "; for a private CA, set upstream_tls.ca_file in [proxy] or in the route";

/// What the clients of all upstreams share.
#[derive(Clone)]
pub(super) struct ClientSettings {
    tls: Arc<rustls::ClientConfig>,
    timeouts: UpstreamTimeouts,
}

impl ClientSettings {
    /// Upstream certificates are verified with the roots of the system.
    pub(super) fn new(timeouts: UpstreamTimeouts) -> std::io::Result<Self> {
        let tls = client_config(system_roots(), None).map_err(std::io::Error::other)?;
        Ok(ClientSettings { tls: Arc::new(tls), timeouts })
    }

    /// The same with other timeouts and certificates.
    pub(super) fn of_route(&self, timeouts: UpstreamTimeouts, tls: Option<&UpstreamTlsSettings>) -> Self {
        ClientSettings { tls: Arc::clone(tls.map_or(&self.tls, |tls| &tls.config)), timeouts }
    }
}

/// Sends requests to one upstream.
pub(super) struct UpstreamClient {
    protocol: Protocol,
    connections: Arc<ConnectionCounts>,
}

/// One protocol per upstream, because the `Host` of HTTP/2 is another header.
enum Protocol {
    Http1(Arc<Pool>),
    Http2(Box<Http2Client>),
}

struct Http2Client {
    client: Client<Connector, RequestBody>,
    url: UpstreamUrl,
    response_timeout: Duration,
}

/// Connections to one upstream.
#[derive(Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) open: AtomicU64,
    pub(crate) opened: AtomicU64,
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// No connection: nothing was sent.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The upstream closed the connection before its response.
    #[error("the connection was closed before the response")]
    Closed,
    /// The response is not valid HTTP.
    #[error("no valid response: {0}")]
    Response(String),
    /// The head of the response did not arrive in time.
    #[error("no response in time")]
    Timeout,
    /// The client's body is at fault.
    #[error(transparent)]
    RequestBody(BodyError),
}

impl UpstreamClient {
    pub(super) fn new(url: &UpstreamUrl, settings: &ClientSettings) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(rustls::ClientConfig::clone(&settings.tls))
            .https_or_http();
        let is_http2 = url.protocol.is_http2();
        let https = if is_http2 {
            https.enable_http2().wrap_connector(tcp)
        } else {
            https.enable_http1().wrap_connector(tcp)
        };
        let connections = Arc::new(ConnectionCounts::default());
        let counts = Arc::clone(&connections);
        let UpstreamTimeouts { connect: timeout, response: response_timeout, idle } = settings.timeouts;
        let write_timeout = response_timeout.max(idle);
        let connector = Connector { https, counts, timeout, write_timeout };
        let protocol = if is_http2 {
            let client = http2_client(connector);
            Protocol::Http2(Box::new(Http2Client { client, url: url.clone(), response_timeout }))
        } else {
            let origin = absolute(url, PathAndQuery::from_static("/"));
            Protocol::Http1(Pool::new(connector, origin, response_timeout))
        };
        UpstreamClient { protocol, connections }
    }

    pub(super) fn connections(&self) -> &ConnectionCounts {
        &self.connections
    }

    /// Sends a request, with a path as its target, and waits for the head of the response. The time for it starts when the body has
    /// been sent.
    pub(super) async fn send(
        &self,
        request: Outgoing<'_>,
        now: Instant,
    ) -> Result<Response<ReceivedBody>, SendError> {
        match &self.protocol {
            Protocol::Http1(pool) => pool.send(request, now.into()).await,
            Protocol::Http2(client) => Box::pin(client.send(request)).await,
        }
    }
}

impl Http2Client {
    async fn send(&self, request: Outgoing<'_>) -> Result<Response<ReceivedBody>, SendError> {
        let Some(mut request) = request.take() else { return Err(SendError::Closed) };
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = absolute(&self.url, path.unwrap_or(PathAndQuery::from_static("/")));
        let progress = request.body().progress();
        let sending = self.client.request(request);
        let sent = match progress {
            None => tokio::time::timeout(self.response_timeout, sending).await.ok(),
            Some(progress) => tokio::select! {
                sent = sending => Some(sent),
                () = progress.stalled(self.response_timeout) => None,
            },
        };
        match sent.ok_or(SendError::Timeout)? {
            Ok(response) => Ok(response.map(ReceivedBody::from)),
            Err(error) if error.is_connect() => Err(connect_error(&error)),
            Err(error) => Err(match error.source().and_then(|source| source.downcast_ref()) {
                Some(error) => classify(error),
                None => SendError::Response(root_cause(&error)),
            }),
        }
    }
}

fn http2_client(connector: Connector) -> Client<Connector, RequestBody> {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
        .http2_only(true)
        .http2_keep_alive_interval(HTTP2_PING_EVERY)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        // The proxy sets it.
        .set_host(false)
        .build(connector)
}

fn absolute(url: &UpstreamUrl, path: PathAndQuery) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(url.protocol.scheme());
    parts.authority = Some(url.authority.clone());
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).unwrap_or_default()
}

/// Why no connection could be opened.
pub(super) fn connect_error(error: &(dyn std::error::Error + 'static)) -> SendError {
    let hint = if has_unknown_issuer(error) { UNKNOWN_ISSUER_HINT } else { "" };
    SendError::Connect(root_cause(error) + hint)
}

/// What an error of a connection means for the request.
pub(super) fn classify(error: &hyper::Error) -> SendError {
    if let Some(error) = error.source().and_then(|source| source.downcast_ref::<BodyError>()) {
        return SendError::RequestBody(*error);
    }
    match io_kind(error) {
        Some(kind) if is_reset(kind) => SendError::Closed,
        _ if error.is_incomplete_message() || error.is_canceled() || error.is_closed() => SendError::Closed,
        Some(std::io::ErrorKind::TimedOut) => SendError::Timeout,
        _ => SendError::Response(root_cause(error)),
    }
}

fn io_kind(error: &hyper::Error) -> Option<std::io::ErrorKind> {
    error.source()?.downcast_ref::<std::io::Error>().map(std::io::Error::kind)
}

fn is_reset(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset)
}

/// Whether the certificate of the upstream is signed by an unknown authority.
fn has_unknown_issuer(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustls::{CertificateError, Error};
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(Error::InvalidCertificate(reason)) = cause.downcast_ref() {
            return *reason == CertificateError::UnknownIssuer;
        }
        // An I/O error hides the error that it wraps from `source`.
        let wrapped = cause.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
        next =
            wrapped.map(|wrapped| wrapped as &(dyn std::error::Error + 'static)).or_else(|| cause.source());
    }
    false
}

/// The innermost message: the others repeat that there was an error.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Opens connections, within the time for them, and counts them.
#[derive(Clone)]
pub(super) struct Connector {
    https: HttpsConnector<HttpConnector>,
    counts: Arc<ConnectionCounts>,
    timeout: Duration,
    write_timeout: Duration,
}

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = CountedStream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<CountedStream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.https.call(uri);
        let (counts, timeout, write_timeout) = (Arc::clone(&self.counts), self.timeout, self.write_timeout);
        Box::pin(async move {
            let stream = tokio::time::timeout(timeout, connecting).await;
            let stream = stream.map_err(|_| format!("no connection in {timeout:?}"))??;
            counts.open.fetch_add(1, Ordering::Relaxed);
            counts.opened.fetch_add(1, Ordering::Relaxed);
            Ok(CountedStream { stream, counts, write_timeout, blocked: None })
        })
    }
}

/// A connection to an upstream. It fails if the upstream reads nothing for too long: hyper would keep it, and the client's body,
/// until everything is written.
pub(super) struct CountedStream {
    stream: Stream,
    counts: Arc<ConnectionCounts>,
    write_timeout: Duration,
    /// Runs while the upstream does not read.
    blocked: Option<Pin<Box<Sleep>>>,
}

impl CountedStream {
    fn in_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Stream>, &mut Context<'_>) -> Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), cx);
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let timer = self.blocked.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_timeout)));
        timer.as_mut().poll(cx).map(|()| Err(std::io::ErrorKind::TimedOut.into()))
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection for CountedStream {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl Read for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.in_time(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.in_time(cx, Write::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.in_time(cx, Write::poll_shutdown)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        self.in_time(cx, |mut stream, cx| {
            match write_at_once(slices, |bytes| stream.as_mut().poll_write(cx, bytes)) {
                Some(written) => written,
                None => stream.poll_write_vectored(cx, slices),
            }
        })
    }
}
