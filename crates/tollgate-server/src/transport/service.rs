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
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::connection::{InFlight, Pulse};

/// What answers requests.
pub trait Surface: Send + Sync + 'static {
    /// An answer in the making.
    type Answering: Future<Output = Response<Full<Bytes>>> + Send + Unpin;

    /// Answers a request that came from this address.
    fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Self::Answering;
}

impl<S, F> Surface for S
where
    S: Fn(Request<Incoming>, SocketAddr) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + Unpin,
{
    type Answering = F;

    fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> F {
        self(request, peer)
    }
}

/// The surface, for one connection.
pub(super) struct ConnectionService<S> {
    pub(super) surface: Arc<S>,
    pub(super) peer: SocketAddr,
    pub(super) pulse: Arc<Pulse>,
}

impl<S: Surface> hyper::service::Service<Request<Incoming>> for ConnectionService<S> {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Answering<S::Answering>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_flight = self.pulse.begin(request.version() == Version::HTTP_2);
        Answering { answer: self.surface.answer(request, self.peer), in_flight: Some(in_flight) }
    }
}

/// An answer in the making.
pub(super) struct Answering<F> {
    answer: F,
    in_flight: Option<InFlight>,
}

impl<F: Future<Output = Response<Full<Bytes>>> + Unpin> Future for Answering<F> {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(Pin::new(&mut self.answer).poll(cx));
        // HTTP/1 clients learn from an answer that the connection ends; HTTP/2 has a frame for it.
        if self.in_flight.as_ref().is_some_and(InFlight::is_the_last) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let in_flight = self.in_flight.take();
        Poll::Ready(Ok(response.map(|body| Answer { body, _in_flight: in_flight })))
    }
}

/// The body of an answer. The request is in flight until it is sent.
pub(super) struct Answer {
    body: Full<Bytes>,
    _in_flight: Option<InFlight>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
