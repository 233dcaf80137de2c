//! Responses that the client has not taken: bounded per connection and in total.
//!
//! A client can stop reading (a full TCP window, or an HTTP/2 window of 0) while it sends more requests, so each response would
//! stay in memory. The total is updated when a connection's task pauses, not per response: a response that is sent at once costs
//! the shared counter nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::activity::{Activity, InFlight};
use super::payload::StreamAborted;

/// What a response that waits on HTTP/2 needs besides its body: a task, a stream, the headers.
const STREAM_BYTES: usize = 4 * 1024;
/// Responses up to this size, such as those to checks, are added to the total only when their connection pauses.
const SMALL_BYTES_MAX: usize = 4 * 1024;
/// What waits on one connection when large responses are declined.
const CONNECTION_BYTES_MAX: usize = 2 * 1024 * 1024;
/// What waits on all connections when large responses are declined.
const TOTAL_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What may wait on one connection while the total is exceeded.
const SHARE_BYTES_MAX: usize = 16 * 1024;
/// Passed to hyper at once, which copies it or queues it whole.
const CHUNK_BYTES_MAX: usize = 32 * 1024;

/// Whether a large response may be generated, given what waits on its connection and in total.
pub(super) fn admits_large(connection: usize, total: usize) -> bool {
    connection < CONNECTION_BYTES_MAX && total < TOTAL_BYTES_MAX
}

/// Whether connections that take no responses must go soon.
pub(super) fn is_scarce(total: usize) -> bool {
    total > TOTAL_BYTES_MAX / 2
}

/// Whether a connection holds so much that it must go at once. A single response may exceed the total.
pub(super) fn is_excessive(connection: usize, total: usize) -> bool {
    connection > SHARE_BYTES_MAX && total.saturating_sub(connection) > TOTAL_BYTES_MAX
}

/// A sum over all connections, each of which reports its part when its task pauses.
#[derive(Debug, Default)]
pub(super) struct Total(AtomicUsize);

impl Total {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Replaces the part that a connection reported before.
    pub(super) fn report(&self, part: &mut usize, now: usize) {
        if *part != now {
            self.add(now);
            self.subtract(*part);
            *part = now;
        }
    }
}

/// The body of a response, counted until it is sent.
pub(super) struct ResponseBody {
    rest: Bytes,
    held: Held,
    /// What follows, if the body is made while the client reads it.
    pieces: Option<Pieces>,
    /// What ends the body.
    trailers: Option<HeaderMap>,
}

/// Where the parts of a body come from.
pub(super) enum Source {
    Pieces(mpsc::Receiver<Result<Bytes, StreamAborted>>),
    Body(UnsyncBoxBody<Bytes, StreamAborted>),
}

struct Pieces {
    source: Source,
    /// The request lasts until its whole response is sent.
    _in_flight: InFlight,
}

impl ResponseBody {
    pub(super) fn new(body: Bytes, activity: &Arc<Activity>) -> Self {
        let stream = if activity.is_http2() { STREAM_BYTES } else { 0 };
        let held = Held::new(body.len(), stream, activity);
        ResponseBody { rest: body, held, pieces: None, trailers: None }
    }

    pub(super) fn stream(source: Source, in_flight: InFlight) -> Self {
        let body = ResponseBody::new(Bytes::new(), in_flight.activity());
        let is_empty = matches!(&source, Source::Body(body) if body.is_end_stream());
        let pieces = (!is_empty).then_some(Pieces { source, _in_flight: in_flight });
        ResponseBody { pieces, ..body }
    }

    /// Waits for the next piece that is not empty, if all before it is passed on. Ready without one at the end.
    fn poll_pieces(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamAborted>> {
        while self.rest.is_empty() {
            let Some(pieces) = &mut self.pieces else { break };
            let piece = match &mut pieces.source {
                Source::Pieces(receiver) => ready!(receiver.poll_recv(cx)),
                Source::Body(body) => match ready!(Pin::new(body).poll_frame(cx)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => Some(Ok(data)),
                        Err(frame) => {
                            self.trailers = frame.into_trailers().ok();
                            None
                        }
                    },
                    Some(Err(aborted)) => Some(Err(aborted)),
                    None => None,
                },
            };
            let Some(piece) = piece else {
                self.pieces = None;
                break;
            };
            self.rest = piece?;
            let activity = Arc::clone(&self.held.activity);
            self.held = Held::new(self.rest.len(), 0, &activity);
        }
        Poll::Ready(Ok(()))
    }
}

impl Body for ResponseBody {
    type Data = Chunk;
    type Error = StreamAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, StreamAborted>>> {
        if let Err(aborted) = ready!(self.poll_pieces(cx)) {
            return Poll::Ready(Some(Err(aborted)));
        }
        if self.rest.is_empty() {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let bytes = if self.rest.len() > CHUNK_BYTES_MAX {
            self.rest.split_to(CHUNK_BYTES_MAX)
        } else {
            std::mem::take(&mut self.rest)
        };
        // All chunks share the memory of the body, and the last one is sent last: it holds everything.
        let held = if self.rest.is_empty() { std::mem::take(&mut self.held.bytes) } else { 0 };
        let activity = Arc::clone(&self.held.activity);
        let held = Held { activity, bytes: held, is_large: self.held.is_large };
        Poll::Ready(Some(Ok(Frame::data(Chunk { bytes, held }))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.pieces.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.pieces {
            Some(Pieces { source: Source::Body(body), .. }) if self.rest.is_empty() => {
                return body.size_hint();
            }
            Some(_) => return SizeHint::default(),
            None => {}
        }
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// Part of a body.
pub(super) struct Chunk {
    bytes: Bytes,
    held: Held,
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.held.activity.record_sent(count);
    }
}

/// Memory of a response, counted until dropped.
struct Held {
    activity: Arc<Activity>,
    bytes: usize,
    is_large: bool,
}

impl Held {
    /// A body of this size, and what its stream needs besides.
    fn new(body: usize, stream: usize, activity: &Arc<Activity>) -> Self {
        let (bytes, is_large) = (body + stream, body > SMALL_BYTES_MAX);
        activity.hold(bytes, is_large);
        Held { activity: Arc::clone(activity), bytes, is_large }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.activity.release(self.bytes, self.is_large);
    }
}
