//! The socket under hyper: records when bytes are read, and lingers on close so that the client receives the last response.
//!
//! Closing a socket with unread bytes resets the connection, and the client may lose a response that it has not read yet, such as
//! 413 or 431. If the client may still be sending, the write half is closed first and incoming bytes are discarded, up to a bound.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::framing::Framing;
use super::transport::Transport;

/// Discarded at most: the largest body that an ordinary client sends before it reads the response.
const DISCARD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Read at a time while many requests are in flight: a handful of HTTP/2 requests.
const TURN_BYTES_MAX: usize = 128;

/// The socket of one connection.
pub(super) struct LingeringSocket {
    stream: Transport,
    activity: Arc<Activity>,
    framing: Framing,
    /// Bytes that may still be discarded, once the write half is closed.
    discarding: Option<usize>,
    /// Whether a read was put off until the client takes what was written.
    read_waits: bool,
    /// Bytes that are read again.
    unread: Vec<u8>,
}

impl LingeringSocket {
    pub(super) fn new(stream: Transport, activity: Arc<Activity>) -> Self {
        let (framing, unread) = (Framing::default(), Vec::new());
        LingeringSocket { stream, activity, framing, discarding: None, read_waits: false, unread }
    }

    /// Gives back the first bytes: the next read has them again.
    pub(super) fn unread(&mut self, bytes: Vec<u8>) {
        self.unread = bytes;
    }

    fn poll_read_new(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // A client that does not read its responses gets no further requests served.
        if self.activity.is_blocked() && !self.activity.is_upgraded() {
            self.read_waits = true;
            return Poll::Pending;
        }
        if self.activity.must_take_turns() {
            return self.poll_read_in_turn(cx, buf);
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.record_read(&mut buf.filled_mut()[before..]);
        result
    }

    /// Reads a little, then lets other tasks run: what was read begins requests.
    fn poll_read_in_turn(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.activity.had_its_turn() {
            // Unlike waking itself, this lets all tasks run that are ready now.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        let mut bytes = [0; TURN_BYTES_MAX];
        let wanted = buf.remaining().min(TURN_BYTES_MAX);
        let mut part = ReadBuf::new(&mut bytes[..wanted]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        self.record_read(part.filled_mut());
        buf.put_slice(part.filled());
        self.activity.end_turn();
        Poll::Ready(Ok(()))
    }

    fn record_read(&mut self, bytes: &mut [u8]) {
        if self.activity.is_upgraded() {
            return;
        }
        self.framing.follow(bytes);
        self.activity.read(bytes, &self.framing);
    }

    fn record_write(&mut self, offered: usize, result: &Poll<io::Result<usize>>, cx: &Context<'_>) {
        match result {
            Poll::Pending => self.activity.block(offered),
            Poll::Ready(Ok(written)) => {
                if self.activity.unblock(*written) && std::mem::take(&mut self.read_waits) {
                    cx.waker().wake_by_ref();
                }
            }
            Poll::Ready(Err(_)) => {}
        }
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
        if self.unread.is_empty() {
            return self.poll_read_new(cx, buf);
        }
        buf.put_slice(&std::mem::take(&mut self.unread));
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // One read for the whole head: hyper enlarges its buffer for a second one. If it fails, the next one reports that.
        let _ = self.poll_read_new(cx, buf);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LingeringSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record_write(bytes.len(), &result, cx);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        // Bodies are counted as unsent until they are written.
        self.record_write(1, &result, cx);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        if self.stream.buffers_writes() {
            // What waits in the buffer of TLS was written, but the client has not taken it.
            let written = match &result {
                Poll::Pending => Poll::Pending,
                Poll::Ready(_) => Poll::Ready(Ok(0)),
            };
            self.record_write(1, &written, cx);
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.discarding.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            self.discarding = Some(if self.activity.needs_linger() { DISCARD_BYTES_MAX } else { 0 });
        }
        self.poll_discard(cx).map(Ok)
    }
}
