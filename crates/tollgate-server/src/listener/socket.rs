//! The socket under hyper: records when bytes are read, and lingers on close so that the client receives the last response.
//!
//! Closing a socket with unread bytes resets the connection, and the client may lose a response that it has not read yet, such as
//! 413 or 431. If the client may still be sending, the write half is closed first and incoming bytes are discarded, up to a bound.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connection::Activity;

/// Discarded at most.
const DISCARD_BYTES_MAX: usize = 1024 * 1024;

/// The socket of one connection.
pub(super) struct LingeringSocket {
    stream: TcpStream,
    activity: Arc<Activity>,
    /// Bytes that may still be discarded, once the write half is closed.
    discarding: Option<usize>,
}

impl LingeringSocket {
    pub(super) fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        LingeringSocket { stream, activity, discarding: None }
    }

    /// Ready when the client has stopped sending, or the bound is reached.
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

impl AsyncRead for LingeringSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.activity.read(&buf.filled()[before..]);
        result
    }
}

impl AsyncWrite for LingeringSocket {
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
            self.discarding = Some(if self.activity.needs_linger() { DISCARD_BYTES_MAX } else { 0 });
        }
        self.poll_discard(cx).map(Ok)
    }
}
