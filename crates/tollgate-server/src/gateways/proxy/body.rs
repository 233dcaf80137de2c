//! Bodies on their way through the proxy. Nothing is buffered but the login body; a part that does not arrive in time ends the body.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::headers::remove_spoofed_trailers;
use super::pool::ReceivedBody;
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

/// The body of a request on its way to an upstream.
pub(super) enum RequestBody {
    /// As hyper received it: nothing of it was read.
    Received(Incoming),
    /// All of it, so that it can be sent again.
    Whole(Bytes),
    /// As it arrives from the client.
    Streamed(Timed<Incoming>, Arc<SendProgress>),
}

impl Default for RequestBody {
    fn default() -> Self {
        RequestBody::Whole(Bytes::new())
    }
}

impl RequestBody {
    /// Forwards a received body as it arrives from the client.
    pub(super) fn stream(&mut self, idle_timeout: Duration) {
        let Some(body) = self.take_received() else { return };
        if !body.is_end_stream() {
            *self = RequestBody::Streamed(Timed::new(body, idle_timeout), Arc::default());
        }
    }

    /// The body as it was received, to be read; `None` if that has begun.
    pub(super) fn take_received(&mut self) -> Option<Incoming> {
        match std::mem::take(self) {
            RequestBody::Received(body) => Some(body),
            begun => {
                *self = begun;
                None
            }
        }
    }

    /// The body, if all of it is at hand.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        match self {
            RequestBody::Whole(bytes) => Some(bytes),
            RequestBody::Received(_) | RequestBody::Streamed(..) => None,
        }
    }

    /// How far a streamed body has been sent.
    pub(super) fn progress(&self) -> Option<Arc<SendProgress>> {
        match self {
            RequestBody::Received(_) | RequestBody::Whole(_) => None,
            RequestBody::Streamed(_, progress) => Some(Arc::clone(progress)),
        }
    }

    /// The same body once more, if it is at hand.
    pub(super) fn again(&self) -> Option<Self> {
        match self {
            RequestBody::Whole(bytes) => Some(RequestBody::Whole(bytes.clone())),
            RequestBody::Received(_) | RequestBody::Streamed(..) => None,
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
            // Forwarded as a stream, with its timeout.
            RequestBody::Received(_) => Poll::Ready(Some(Err(BodyError::Invalid))),
            RequestBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            RequestBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            RequestBody::Streamed(body, progress) => {
                let mut frame = body.poll_frame(cx);
                progress.note(frame.is_ready());
                if let Poll::Ready(Some(Ok(frame))) = &mut frame {
                    frame.trailers_mut().map(remove_spoofed_trailers);
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Received(body) => body.is_end_stream(),
            RequestBody::Whole(bytes) => bytes.is_empty(),
            RequestBody::Streamed(body, _) => body.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Received(body) => body.size_hint(),
            RequestBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestBody::Streamed(body, _) => body.body.size_hint(),
        }
    }
}

/// When the connection to the upstream took the last part of a request body; `None` while the next part is awaited from the client.
pub(super) struct SendProgress(Mutex<Option<Instant>>);

impl Default for SendProgress {
    fn default() -> Self {
        SendProgress(Mutex::new(Some(Instant::now())))
    }
}

impl SendProgress {
    fn note(&self, has_part: bool) {
        *self.0.lock() = has_part.then(Instant::now);
    }

    /// When the upstream will have had this time, with nothing left for it to wait for; `None` if that has passed. The body has a
    /// timeout of its own for the client.
    pub(super) fn stalls_at(&self, timeout: Duration) -> Option<Instant> {
        let now = Instant::now();
        Some(self.0.lock().unwrap_or(now) + timeout).filter(|at| *at > now)
    }

    /// Ends when the upstream has had this time.
    pub(super) async fn stalled(&self, timeout: Duration) {
        while let Some(at) = self.stalls_at(timeout) {
            tokio::time::sleep_until(at).await;
        }
    }
}

/// The body of an upstream's response. The request is in flight until it ends.
pub(super) struct UpstreamBody {
    body: Timed<ReceivedBody>,
    _in_flight: InFlight,
}

impl UpstreamBody {
    pub(super) fn new(body: ReceivedBody, idle_timeout: Duration, in_flight: InFlight) -> Self {
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
pub(super) struct Timed<B> {
    body: B,
    timeout: Duration,
    /// Made when a part is waited for the first time: most bodies arrive with their head.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl<B: Body<Data = Bytes> + Unpin> Timed<B> {
    fn new(body: B, timeout: Duration) -> Self {
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
