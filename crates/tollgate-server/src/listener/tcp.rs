//! A TCP stream that sends few bytes with one plain call.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Copying up to this many bytes costs less than passing several slices to the system.
const JOINED_BYTES_MAX: usize = 2 * 1024;

/// Calls `write` with all bytes of the slices, if they are in one slice or few enough to be copied.
pub(crate) fn write_at_once<T>(slices: &[io::IoSlice<'_>], write: impl FnOnce(&[u8]) -> T) -> Option<T> {
    if let [bytes] = slices {
        return Some(write(bytes));
    }
    let length = slices.iter().map(|slice| slice.len()).sum();
    if length > JOINED_BYTES_MAX {
        return None;
    }
    let mut joined = [0; JOINED_BYTES_MAX];
    let mut rest = &mut joined[..length];
    for slice in slices {
        let (part, after) = rest.split_at_mut(slice.len());
        part.copy_from_slice(slice);
        rest = after;
    }
    Some(write(&joined[..length]))
}

/// The stream of a connection.
pub(super) struct Tcp(pub(super) TcpStream);

impl AsyncRead for Tcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut stream = Pin::new(&mut self.0);
        match write_at_once(slices, |bytes| stream.as_mut().poll_write(cx, bytes)) {
            Some(written) => written,
            None => stream.poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_are_written_at_once_in_their_order() {
        let large = [7; JOINED_BYTES_MAX];
        let cases: [(&[&[u8]], Option<usize>); 5] = [
            (&[b"head", b"", b"body"], Some(8)),
            (&[&large], Some(JOINED_BYTES_MAX)),
            (&[&large[1..], b"x"], Some(JOINED_BYTES_MAX)),
            (&[&large, b"x"], None),
            (&[], Some(0)),
        ];
        for (parts, expected) in cases {
            let slices: Vec<_> = parts.iter().map(|part| io::IoSlice::new(part)).collect();
            let written = write_at_once(&slices, <[u8]>::to_vec);
            assert_eq!(written.as_ref().map(Vec::len), expected);
            assert!(written.is_none_or(|written| written == parts.concat()));
        }
    }
}
