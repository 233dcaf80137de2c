//! The hyper service of one connection: records when a request begins and ends.
//!
//! There is no router with layers, because it would box the request body, the response body and each route.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use super::activity::{Activity, InFlight};
use super::payload::Payload;
use super::unsent::{ResponseBody, Source};
use crate::auth::ClientCertificate;

/// What is known of a connection before its first request.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// The client behind `peer`; another one only if a trusted proxy named it with the PROXY protocol.
    pub source: SocketAddr,
    /// The verified client certificate, if the client presented one.
    pub certificate: Option<ClientCertificate>,
    /// Whether the client speaks TLS.
    pub is_tls: bool,
    /// Keeps the connection counted as open while an upgraded connection holds this.
    pub(super) alive: Option<oneshot::Sender<Infallible>>,
    source_header: OnceLock<HeaderValue>,
}

impl ConnectionInfo {
    /// A connection without a proxy.
    pub fn direct(peer: SocketAddr) -> Self {
        let source_header = OnceLock::new();
        ConnectionInfo { peer, source: peer, certificate: None, is_tls: false, alive: None, source_header }
    }

    /// The address of `source` for a header, made once.
    pub(crate) fn source_header(&self) -> &HeaderValue {
        self.source_header.get_or_init(|| address_header(self.source.ip().to_canonical()))
    }
}

/// An address as the value of a header.
pub(crate) fn address_header(ip: IpAddr) -> HeaderValue {
    // An address has only characters of a header value.
    HeaderValue::from_maybe_shared(Bytes::from(ip.to_string())).unwrap_or(HeaderValue::from_static("unknown"))
}

/// Responds to requests.
pub trait HttpService: Send + Sync + 'static {
    /// A response in progress.
    type ResponseFuture: Future<Output = Response<Payload>> + Send + Unpin;
    /// Whether responses may switch protocols. The user of the upgraded connection holds its [`ConnectionInfo`] meanwhile.
    const UPGRADES: bool = false;
    /// Whether head and body of a response are copied into one buffer: faster for short bodies that were just made.
    const JOINS_WRITES: bool = true;

    /// Responds to a request of this connection.
    fn respond(&self, request: Request<Incoming>, connection: &Arc<ConnectionInfo>) -> Self::ResponseFuture;

    /// Whether the response may be so large that it is declined while too many responses wait for their clients.
    fn may_be_large(_: &Self::ResponseFuture) -> bool {
        false
    }

    /// The small response in place of one that is declined before it is begun.
    fn decline(_: &Self::ResponseFuture) -> Response<Payload> {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }
}

impl<S, F> HttpService for S
where
    S: Fn(Request<Incoming>, &Arc<ConnectionInfo>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Payload>> + Send + Unpin,
{
    type ResponseFuture = F;

    fn respond(&self, request: Request<Incoming>, connection: &Arc<ConnectionInfo>) -> F {
        self(request, connection)
    }
}

/// The service for one connection.
pub(super) struct ConnectionService<S> {
    pub(super) service: Arc<S>,
    pub(super) info: Arc<ConnectionInfo>,
    pub(super) activity: Arc<Activity>,
}

impl<S: HttpService> hyper::service::Service<Request<Incoming>> for ConnectionService<S> {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture<S>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_flight = self.activity.begin(request.version() == Version::HTTP_2);
        let response = self.service.respond(request, &self.info);
        ResponseFuture { response, in_flight: Some(in_flight), is_begun: false }
    }
}

/// A response in progress.
pub(super) struct ResponseFuture<S: HttpService> {
    response: S::ResponseFuture,
    in_flight: Option<InFlight>,
    is_begun: bool,
}

impl<S: HttpService> ResponseFuture<S> {
    /// Decided at the first poll, when the requests before this one have their responses.
    fn declined(&mut self) -> Option<Response<Payload>> {
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        let activity = self.in_flight.as_ref().filter(|_| is_first && S::may_be_large(&self.response))?;
        (!activity.activity().admits_large()).then(|| S::decline(&self.response))
    }
}

impl<S: HttpService> Future for ResponseFuture<S> {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = match self.declined() {
            Some(response) => response,
            None => ready!(Pin::new(&mut self.response).poll(cx)),
        };
        // Taken, because a future is not polled again after its end.
        let Some(in_flight) = self.in_flight.take() else { return Poll::Pending };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            in_flight.activity().switch_protocols();
        }
        // HTTP/1 announces the end of the connection in the last response; HTTP/2 has GOAWAY.
        if in_flight.is_last() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(Ok(response.map(|payload| match payload {
            Payload::Whole(bytes) => ResponseBody::new(bytes, in_flight.activity()),
            Payload::Stream(pieces) => ResponseBody::stream(Source::Pieces(pieces), in_flight),
            Payload::Body(body) => ResponseBody::stream(Source::Body(body), in_flight),
        })))
    }
}
