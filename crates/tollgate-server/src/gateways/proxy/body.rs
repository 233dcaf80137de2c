//! Bodies on their way through the proxy. Nothing is buffered but the login body; a part that does not arrive in time ends the body.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::upstream::InFlight;
use crate::listener::StreamAborted;

/// Why the rest of a body cannot be had.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyError {
    /// It ended early, or its framing is invalid.
    #[error("the body could not be read")]
    Invalid,
    /// Nothing arrived for too long.
    #[error("the body did not arrive in time")]
    Slow,
}

/// The body of a request to an upstream.
pub(super) enum RequestBody {
    /// All of it, so that it can be sent again.
    Whole(Bytes),
    /// As it arrives from the client.
    Streamed(Timed),
}

impl RequestBody {
    /// A body that arrives from the client; empty if the client sends none.
    pub(super) fn streamed(body: Incoming, idle_timeout: Duration) -> Self {
        if body.is_end_stream() {
            return RequestBody::Whole(Bytes::new());
        }
        RequestBody::Streamed(Timed::new(body, idle_timeout))
    }

    /// The body, if all of it is at hand.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        match self {
            RequestBody::Whole(bytes) => Some(bytes),
            RequestBody::Streamed(_) => None,
        }
    }

    /// The same body once more, if it is at hand.
    pub(super) fn again(&self) -> Option<Self> {
        match self {
            RequestBody::Whole(bytes) => Some(RequestBody::Whole(bytes.clone())),
            RequestBody::Streamed(_) => None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            RequestBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            RequestBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            RequestBody::Streamed(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Whole(bytes) => bytes.is_empty(),
            RequestBody::Streamed(body) => body.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestBody::Streamed(body) => body.body.size_hint(),
        }
    }
}

/// The body of an upstream's response. The request is in flight until it ends.
pub(super) struct UpstreamBody {
    body: Timed,
    _in_flight: InFlight,
}

impl UpstreamBody {
    pub(super) fn new(body: Incoming, idle_timeout: Duration, in_flight: InFlight) -> Self {
        UpstreamBody { body: Timed::new(body, idle_timeout), _in_flight: in_flight }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = StreamAborted;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamAborted>>> {
        self.get_mut().body.poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(|_| StreamAborted)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.body.size_hint()
    }
}

/// A body whose parts must not be further apart than a timeout.
pub(super) struct Timed {
    body: Incoming,
    timeout: Duration,
    /// Made when a part is waited for the first time: most bodies arrive with their head.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl Timed {
    fn new(body: Incoming, timeout: Duration) -> Self {
        Timed { body, timeout, timer: None, is_waiting: false }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.is_waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(|_| BodyError::Invalid)));
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.timeout)));
        if !std::mem::replace(&mut self.is_waiting, true) {
            timer.as_mut().reset(Instant::now() + self.timeout);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Some(Err(BodyError::Slow)))
    }
}
