//! The socket under hyper: leaves a mark when something is read, and closes so that the last answer is heard.
//!
//! Whoever closes a socket on which bytes wait unread resets the connection, and the client may lose an answer that it has not
//! read yet: the one that says that its head (431) or its body (413) is too large. So, if the client may still be sending, only
//! our half is closed at first, and what comes is thrown away until it stops: within bounds.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connection::Activity;

/// So much is thrown away at most.
const DISCARD_BYTES_MAX: usize = 1024 * 1024;

/// The socket of one connection.
pub(super) struct Watched {
    stream: TcpStream,
    pulse: Arc<Activity>,
    /// How much may still be thrown away, once our half is closed.
    discarding: Option<usize>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, pulse: Arc<Activity>) -> Self {
        Watched { stream, pulse, discarding: None }
    }

    /// Ready when the client has stopped, or should have.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [MaybeUninit::uninit(); 8 * 1024];
        while let Some(left) = self.discarding.filter(|left| *left > 0) {
            let mut buf = ReadBuf::uninit(&mut bytes);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {
                    self.discarding = Some(left.saturating_sub(buf.filled().len()));
                }
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.pulse.read(&buf.filled()[before..]);
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.discarding.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            self.discarding = Some(if self.pulse.closes_early() { DISCARD_BYTES_MAX } else { 0 });
        }
        self.poll_discard(cx).map(Ok)
    }
}
