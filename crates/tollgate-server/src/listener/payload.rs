//! The body that a service returns: whole, or made while the client reads it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// The body of a response.
pub enum Payload {
    /// All of it.
    Whole(Bytes),
    /// Pieces that arrive one after another. An error closes the connection, so that the client does not take the body for
    /// complete.
    Stream(mpsc::Receiver<Result<Bytes, StreamAborted>>),
    /// Frames of another body, trailers included.
    Body(UnsyncBoxBody<Bytes, StreamAborted>),
}

/// The rest of a streamed body cannot be made.
#[derive(Copy, Clone, Debug, thiserror::Error)]
#[error("the response could not be completed")]
pub struct StreamAborted;

impl Default for Payload {
    fn default() -> Self {
        Payload::Whole(Bytes::new())
    }
}

impl<T: Into<Bytes>> From<T> for Payload {
    fn from(body: T) -> Self {
        Payload::Whole(body.into())
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = StreamAborted;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamAborted>>> {
        let piece = match self.get_mut() {
            Payload::Whole(bytes) if bytes.is_empty() => None,
            Payload::Whole(bytes) => Some(Ok(std::mem::take(bytes))),
            Payload::Stream(pieces) => ready!(pieces.poll_recv(cx)),
            Payload::Body(body) => return Pin::new(body).poll_frame(cx),
        };
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Payload::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Payload::Stream(_) => SizeHint::default(),
            Payload::Body(body) => body.size_hint(),
        }
    }
}
