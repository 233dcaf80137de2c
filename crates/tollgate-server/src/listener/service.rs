//! Between hyper and the surface: marks of a request's begin and end.
//!
//! The surface stands on hyper itself. A router with layers costs boxes for the request's body, for the answer's body
//! and for each route; the routes here are a table of our own.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;

use super::connection::{Activity, InFlight};

/// What answers requests.
pub trait HttpService: Send + Sync + 'static {
    /// An answer in the making.
    type ResponseFuture: Future<Output = Response<Full<Bytes>>> + Send + Unpin;

    /// Answers a request that came from this address.
    fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Self::ResponseFuture;
}

impl<S, F> HttpService for S
where
    S: Fn(Request<Incoming>, SocketAddr) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + Unpin,
{
    type ResponseFuture = F;

    fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> F {
        self(request, peer)
    }
}

/// The surface, for one connection.
pub(super) struct ConnectionService<S> {
    pub(super) surface: Arc<S>,
    pub(super) peer: SocketAddr,
    pub(super) pulse: Arc<Activity>,
}

impl<S: HttpService> hyper::service::Service<Request<Incoming>> for ConnectionService<S> {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = ResponseFuture<S::ResponseFuture>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_flight = self.pulse.begin(request.version() == Version::HTTP_2);
        ResponseFuture { answer: self.surface.answer(request, self.peer), in_flight: Some(in_flight) }
    }
}

/// An answer in the making.
pub(super) struct ResponseFuture<F> {
    answer: F,
    in_flight: Option<InFlight>,
}

impl<F: Future<Output = Response<Full<Bytes>>> + Unpin> Future for ResponseFuture<F> {
    type Output = Result<Response<Full<Bytes>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(Pin::new(&mut self.answer).poll(cx));
        // HTTP/1 clients learn from an answer that the connection ends; HTTP/2 has a frame for it.
        if self.in_flight.as_ref().is_some_and(InFlight::is_the_last) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.in_flight = None;
        Poll::Ready(Ok(response))
    }
}
