//! Clients that speak HTTP/1.1 over TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::upstream::connect;

/// Connects to the proxy and trusts one CA.
pub(crate) struct TlsClient {
    config: Arc<ClientConfig>,
    proxy: SocketAddr,
}

/// A connection that stays open between requests.
pub(crate) struct TlsConnection(StreamOwned<ClientConnection, TcpStream>);

impl TlsClient {
    pub(crate) fn new(proxy: SocketAddr, authority: &Path) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(authority)).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        // Each connection sees the certificate.
        config.resumption = rustls::client::Resumption::disabled();
        TlsClient { config: Arc::new(config), proxy }
    }

    pub(crate) fn connect(&self) -> TlsConnection {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::clone(&self.config), name).unwrap();
        TlsConnection(StreamOwned::new(connection, connect(self.proxy)))
    }
}

impl TlsConnection {
    /// Sends a request whose response is `hello`; returns what arrived before its end.
    pub(crate) fn get(&mut self) -> std::io::Result<String> {
        self.0.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
        let (mut received, mut chunk) = (String::new(), [0; 4096]);
        while !received.ends_with("\r\n\r\nhello") {
            match self.0.read(&mut chunk)? {
                0 => return Err(std::io::Error::other(format!("closed after {received:?}"))),
                count => received.push_str(&String::from_utf8_lossy(&chunk[..count])),
            }
        }
        Ok(received)
    }

    /// Whether the server presented this certificate.
    pub(crate) fn saw(&self, file: &Path) -> bool {
        self.0.conn.peer_certificates().is_some_and(|chain| chain.first() == Some(&certificate(file)))
    }
}

fn certificate(file: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file).unwrap()
}
