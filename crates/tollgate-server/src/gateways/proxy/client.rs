//! The HTTP client of one upstream: pooled connections over HTTP/1.1, HTTP/2 and TLS.

use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tower_service::Service;

use super::body::{BodyError, RequestBody};
use crate::config::settings::{UpstreamTimeouts, UpstreamUrl};

/// Idle connections kept per upstream.
const IDLE_CONNECTIONS_MAX: usize = 256;
/// Shorter than the keep-alive timeouts of common servers, so that they seldom close a connection that is being used.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(50);
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
const HEADER_BYTES_MAX: u32 = 64 * 1024;

/// What the clients of all upstreams share.
#[derive(Clone)]
pub(super) struct ClientSettings {
    tls: Arc<rustls::ClientConfig>,
    timeouts: UpstreamTimeouts,
}

impl ClientSettings {
    /// Upstream certificates are verified with the roots of the system.
    pub(super) fn new(timeouts: UpstreamTimeouts) -> std::io::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(std::io::Error::other)?;
        let tls = builder.with_root_certificates(roots).with_no_client_auth();
        Ok(ClientSettings { tls: Arc::new(tls), timeouts })
    }

    /// The same with other timeouts.
    pub(super) fn with_timeouts(&self, timeouts: UpstreamTimeouts) -> Self {
        ClientSettings { tls: Arc::clone(&self.tls), timeouts }
    }
}

/// Sends requests to one upstream.
pub(super) struct UpstreamClient {
    client: Client<Connector, RequestBody>,
    connections: Arc<ConnectionCounts>,
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
        // One protocol, because the `Host` of HTTP/2 is another header.
        let https = if url.protocol.is_http2() {
            https.enable_http2().wrap_connector(tcp)
        } else {
            https.enable_http1().wrap_connector(tcp)
        };
        let connections = Arc::new(ConnectionCounts::default());
        let connector =
            Connector { https, counts: Arc::clone(&connections), timeout: settings.timeouts.connect };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http2_only(url.protocol.is_http2())
            .http2_keep_alive_interval(HTTP2_PING_EVERY)
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            // The proxy sets it.
            .set_host(false)
            .build(connector);
        UpstreamClient { client, connections, response_timeout: settings.timeouts.response }
    }

    pub(super) fn connections(&self) -> &ConnectionCounts {
        &self.connections
    }

    /// Sends a request and waits for the head of the response. A request that was not written at all, because its pooled connection
    /// had just closed, is sent on another one.
    pub(super) async fn send(&self, request: Request<RequestBody>) -> Result<Response<Incoming>, SendError> {
        let sending = self.client.request(request);
        match tokio::time::timeout(self.response_timeout, sending).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(classify(&error)),
            Err(_) => Err(SendError::Timeout),
        }
    }
}

fn classify(error: &ClientError) -> SendError {
    let detail = || root_cause(error);
    if error.is_connect() {
        return SendError::Connect(detail());
    }
    let hyper = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    let body = hyper.and_then(|error| error.source()?.downcast_ref::<BodyError>());
    if let Some(error) = body {
        return SendError::RequestBody(*error);
    }
    let is_closed = hyper.is_some_and(|error| {
        error.is_incomplete_message() || error.is_canceled() || error.is_closed() || is_reset(error)
    });
    if is_closed { SendError::Closed } else { SendError::Response(detail()) }
}

fn is_reset(error: &hyper::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| matches!(io.kind(), BrokenPipe | ConnectionAborted | ConnectionReset))
}

/// The innermost message: the others repeat that there was an error.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Opens connections, within the time for them, and counts them.
#[derive(Clone)]
struct Connector {
    https: HttpsConnector<HttpConnector>,
    counts: Arc<ConnectionCounts>,
    timeout: Duration,
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
        let (counts, timeout) = (Arc::clone(&self.counts), self.timeout);
        Box::pin(async move {
            let stream = tokio::time::timeout(timeout, connecting).await;
            let stream = stream.map_err(|_| format!("no connection in {timeout:?}"))??;
            counts.open.fetch_add(1, Ordering::Relaxed);
            counts.opened.fetch_add(1, Ordering::Relaxed);
            Ok(CountedStream { stream, counts })
        })
    }
}

/// A connection to an upstream.
struct CountedStream {
    stream: Stream,
    counts: Arc<ConnectionCounts>,
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
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }
}
