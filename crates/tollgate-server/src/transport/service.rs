//! Between hyper and the router: the client's address in, and marks of a request's begin and end.
//!
//! Everything here is held in place: a request allocates nothing beyond what hyper and axum do.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use hyper::body::{Frame, Incoming, SizeHint};
use tower::Service;

use super::connection::{InFlight, Pulse};

/// The address of the client's socket, in the extensions of every request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// The router, for one connection.
pub(super) struct RouterService {
    pub(super) router: Router,
    pub(super) peer: Peer,
    pub(super) pulse: Arc<Pulse>,
}

impl hyper::service::Service<Request<Incoming>> for RouterService {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        let in_flight = self.pulse.begin(request.version() == Version::HTTP_2);
        request.extensions_mut().insert(self.peer);
        // A router is always ready, and a clone of it is a clone of a pointer.
        Answering { route: self.router.clone().call(request), in_flight: Some(in_flight) }
    }
}

type Route = <Router as Service<Request<Incoming>>>::Future;

/// An answer in the making.
pub(super) struct Answering {
    route: Route,
    in_flight: Option<InFlight>,
}

impl Future for Answering {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = std::task::ready!(Pin::new(&mut self.route).poll(cx))?;
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
    body: Body,
    _in_flight: Option<InFlight>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
