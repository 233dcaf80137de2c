//! The bytes of a connection, plain or decrypted, and the TLS handshake before them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::tcp::Tcp;
use crate::auth::ClientCertificate;

/// Encrypted bytes that wait for the socket: one record, because what waits here is not counted as unsent.
const TLS_BUFFER_BYTES_MAX: usize = 16 * 1024;

/// How long a client has to read the alert of a failed handshake, and what it may send meanwhile.
const ALERT_LINGER: Duration = Duration::from_secs(1);
const ALERT_DISCARD_BYTES_MAX: u64 = 64 << 10;

/// A connection.
pub(super) enum Transport {
    Plain(Tcp),
    Tls(Box<TlsStream<Tcp>>),
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the client speaks plain HTTP: it must use https://")]
    PlainHttp,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Transport {
    /// Performs the handshake. Verifies the client's certificate, if it presents one.
    pub(super) async fn accept_tls(
        stream: TcpStream,
        config: Arc<ServerConfig>,
    ) -> Result<Self, HandshakeError> {
        let mut first = [0];
        // A handshake begins with 22; a method begins with a letter.
        if stream.peek(&mut first).await? == 1 && first[0].is_ascii_alphabetic() {
            return Err(HandshakeError::PlainHttp);
        }
        let limit =
            |session: &mut rustls::ServerConnection| session.set_buffer_limit(Some(TLS_BUFFER_BYTES_MAX));
        match TlsAcceptor::from(config).accept_with(Tcp(stream), limit).into_fallible().await {
            Ok(stream) => Ok(Transport::Tls(Box::new(stream))),
            Err((error, stream)) => {
                deliver_alert(stream).await;
                Err(error.into())
            }
        }
    }

    /// The verified certificate of the client.
    pub(super) fn client_certificate(&self) -> Option<ClientCertificate> {
        let Transport::Tls(stream) = self else { return None };
        let certificates = stream.get_ref().1.peer_certificates()?;
        ClientCertificate::parse(certificates.first()?)
    }

    /// Whether bytes that were written may wait in a buffer until they are flushed.
    pub(super) const fn buffers_writes(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }
}

/// Waits until the client has read why its handshake failed. It may have sent a request already, and closing a socket with unread
/// bytes discards what was written.
async fn deliver_alert(mut stream: Tcp) {
    let delivering = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(ALERT_DISCARD_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // A client that does not close its side has had its time.
    let _ = tokio::time::timeout(ALERT_LINGER, delivering).await;
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
