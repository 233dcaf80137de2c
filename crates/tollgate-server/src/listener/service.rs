//! The hyper service of one connection: records when a request begins and ends.
//!
//! There is no router with layers, because it would box the request body, the response body and each route.

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

/// Responds to requests.
pub trait HttpService: Send + Sync + 'static {
    /// A response in progress.
    type ResponseFuture: Future<Output = Response<Full<Bytes>>> + Send + Unpin;

    /// Responds to a request from this address.
    fn respond(&self, request: Request<Incoming>, peer: SocketAddr) -> Self::ResponseFuture;
}

impl<S, F> HttpService for S
where
    S: Fn(Request<Incoming>, SocketAddr) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + Unpin,
{
    type ResponseFuture = F;

    fn respond(&self, request: Request<Incoming>, peer: SocketAddr) -> F {
        self(request, peer)
    }
}

/// The service for one connection.
pub(super) struct ConnectionService<S> {
    pub(super) service: Arc<S>,
    pub(super) peer: SocketAddr,
    pub(super) activity: Arc<Activity>,
}

impl<S: HttpService> hyper::service::Service<Request<Incoming>> for ConnectionService<S> {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = ResponseFuture<S::ResponseFuture>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_flight = self.activity.begin(request.version() == Version::HTTP_2);
        ResponseFuture { response: self.service.respond(request, self.peer), in_flight: Some(in_flight) }
    }
}

/// A response in progress.
pub(super) struct ResponseFuture<F> {
    response: F,
    in_flight: Option<InFlight>,
}

impl<F: Future<Output = Response<Full<Bytes>>> + Unpin> Future for ResponseFuture<F> {
    type Output = Result<Response<Full<Bytes>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(Pin::new(&mut self.response).poll(cx));
        // HTTP/1 announces the end of the connection in the last response; HTTP/2 has GOAWAY.
        if self.in_flight.as_ref().is_some_and(InFlight::is_last) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.in_flight = None;
        Poll::Ready(Ok(response))
    }
}
