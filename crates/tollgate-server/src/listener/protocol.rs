//! A connection in the protocol of its client: HTTP/1, or HTTP/2 with prior knowledge.
//!
//! hyper-util can detect them too. It passes the bytes that it looked at to hyper on their own, and hyper doubles the read
//! buffer of a connection for what follows. Every HTTP/1 connection also has the space of an HTTP/2 connection there.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, ReadBuf};

use super::service::{ConnectionService, HttpService};
use super::socket::LingeringSocket;

/// What a client that speaks HTTP/2 sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HTTP1_HEAD_BYTES_MAX: usize = 64 * 1024;
/// More is read at a time if it has arrived.
const HTTP1_BUFFER_BYTES_MAX: usize = HTTP1_HEAD_BYTES_MAX;
const HTTP2_HEADER_BYTES_MAX: u32 = 16 * 1024;
const HTTP2_STREAMS_MAX: u32 = 100;
/// Streams that a client may open and reset before they are accepted (rapid reset, CVE-2023-44487).
const HTTP2_RESETS_MAX: usize = 20;
/// Streams that a client may make the server reset (`MadeYouReset`, CVE-2025-8671).
const HTTP2_FAULTS_MAX: usize = 256;
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How connections are served.
pub(super) struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl Protocols {
    /// `joins_writes`: see [`HttpService::JOINS_WRITES`].
    pub(super) fn new(joins_writes: bool) -> Self {
        let mut http1 = http1::Builder::new();
        // hyper's default of 100 header fields stays: setting it would allocate them at each request.
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(None) // see `connection.rs`
            .max_buf_size(HTTP1_BUFFER_BYTES_MAX)
            .max_header_size(HTTP1_HEAD_BYTES_MAX)
            // A client may close its side behind the request. `pipeline_flush` stays off: it would also hold back a response while
            // an incomplete request is buffered, so that responses to malformed or oversized heads are never sent.
            .half_close(true);
        if joins_writes {
            http1.writev(false);
        }
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            .max_header_list_size(HTTP2_HEADER_BYTES_MAX)
            .max_pending_accept_reset_streams(HTTP2_RESETS_MAX)
            .max_local_error_reset_streams(HTTP2_FAULTS_MAX)
            .keep_alive_interval(HTTP2_PING_EVERY)
            .keep_alive_timeout(HTTP2_PING_TIMEOUT);
        Protocols { http1, http2 }
    }

    pub(super) fn serve<S: HttpService>(
        &self,
        socket: LingeringSocket,
        service: ConnectionService<S>,
    ) -> HttpConnection<'_, S> {
        HttpConnection::Unknown(Some(Unknown { protocols: self, socket, service, first: Vec::new() }))
    }
}

type Io = TokioIo<LingeringSocket>;
type Http1<S> = http1::UpgradeableConnection<Io, ConnectionService<S>>;
type Http2<S> = http2::Connection<Io, ConnectionService<S>, TokioExecutor>;

/// Serves one connection. Ends with it, or when it is upgraded.
#[expect(clippy::large_enum_variant, reason = "almost every connection becomes the largest one")]
pub(super) enum HttpConnection<'p, S: HttpService> {
    /// The client has not sent enough. `None` at the end.
    Unknown(Option<Unknown<'p, S>>),
    Http1(Http1<S>),
    /// Boxed, so that HTTP/1 connections do not reserve its space.
    Http2(Pin<Box<Http2<S>>>),
}

/// A connection whose protocol is not known yet.
pub(super) struct Unknown<'p, S> {
    protocols: &'p Protocols,
    socket: LingeringSocket,
    service: ConnectionService<S>,
    /// The bytes so far.
    first: Vec<u8>,
}

impl<S: HttpService> Unknown<'_, S> {
    /// Ready when the protocol is known; returns whether it is HTTP/2. A connection that ends before that is served as HTTP/1.
    fn poll_is_http2(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        while PREFACE.starts_with(&self.first) {
            let mut bytes = [0; PREFACE.len()];
            let mut read = ReadBuf::new(&mut bytes[self.first.len()..]);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut read))?;
            self.first.extend_from_slice(read.filled());
            match read.filled().len() {
                0 => return Poll::Ready(Ok(false)),
                _ if self.first == PREFACE => return Poll::Ready(Ok(true)),
                _ => {}
            }
        }
        Poll::Ready(Ok(false))
    }

    fn begin(self, is_http2: bool) -> HttpConnection<'static, S> {
        let Unknown { protocols, mut socket, service, first } = self;
        socket.unread(first);
        let io = TokioIo::new(socket);
        if is_http2 {
            service.activity.begin_http2();
            HttpConnection::Http2(Box::pin(protocols.http2.serve_connection(io, service)))
        } else {
            HttpConnection::Http1(protocols.http1.serve_connection(io, service).with_upgrades())
        }
    }
}

impl<S: HttpService> HttpConnection<'_, S> {
    /// Serves requests in flight, then ends.
    pub(super) fn graceful_shutdown(&mut self) {
        match self {
            HttpConnection::Unknown(unknown) => *unknown = None,
            HttpConnection::Http1(connection) => Pin::new(connection).graceful_shutdown(),
            HttpConnection::Http2(connection) => connection.as_mut().graceful_shutdown(),
        }
    }
}

impl<S: HttpService> Future for HttpConnection<'_, S> {
    type Output = Result<(), Box<dyn Error + Send + Sync>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let connection = self.get_mut();
        if let HttpConnection::Unknown(unknown) = connection {
            let Some(reading) = unknown else { return Poll::Ready(Ok(())) };
            let is_http2 = ready!(reading.poll_is_http2(cx))?;
            if let Some(known) = unknown.take() {
                *connection = known.begin(is_http2);
            }
        }
        match connection {
            HttpConnection::Unknown(_) => Poll::Ready(Ok(())),
            HttpConnection::Http1(connection) => Pin::new(connection).poll(cx).map_err(Into::into),
            HttpConnection::Http2(connection) => connection.as_mut().poll(cx).map_err(Into::into),
        }
    }
}
