//! A listener with TLS, and clients of it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper::body::Incoming;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tollgate_server::config::settings::{ServerSettings, Settings};
use tollgate_server::listener::{self, AcceptPolicy, ConnectionInfo, ConnectionStats, Payload};
use tollgate_testkit::Certificates;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// A listener that answers with the counted address and the names of the client certificate.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) stats: Arc<ConnectionStats>,
    pub(crate) policy: Arc<ArcSwap<AcceptPolicy>>,
}

fn respond(_: Request<Incoming>, connection: &Arc<ConnectionInfo>) -> std::future::Ready<Response<Payload>> {
    let mut text = format!("source={}", connection.source.ip());
    if let Some(certificate) = &connection.certificate {
        let _ = write!(text, " certificate={certificate}");
    }
    std::future::ready(Response::new(Payload::from(text)))
}

impl Server {
    pub(crate) async fn start(policy: AcceptPolicy, settings: ServerSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stats, policy) = (Arc::new(ConnectionStats::default()), Arc::new(ArcSwap::from_pointee(policy)));
        let (served, accept) = (Arc::clone(&stats), Arc::clone(&policy));
        tokio::spawn(async move {
            listener::run(listener, respond, &settings, accept, served, std::future::pending()).await
        });
        Server { address, stats, policy }
    }

    /// With the keys of `[server.tls]`.
    pub(crate) async fn with_tls(keys: &str) -> Self {
        Self::start(tls_policy(keys), ServerSettings::default()).await
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request over TLS; returns the response, or the error of the handshake or the first read.
    pub(crate) async fn get(&self, client: &Client) -> Result<String, String> {
        let mut stream = client.connect(self.connect().await).await?;
        request(&mut stream).await
    }

    pub(crate) async fn counted(&self, counter: fn(&ConnectionStats) -> &AtomicU64, count: u64) {
        let started = Instant::now();
        while counter(&self.stats).load(Ordering::Relaxed) != count {
            assert!(started.elapsed() < PATIENCE, "{:?}", self.stats);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn request(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<String, String> {
    stream.write_all(GET).await.map_err(|error| error.to_string())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.map_err(|error| error.to_string())?;
    Ok(text)
}

pub(crate) fn tls_policy(keys: &str) -> AcceptPolicy {
    AcceptPolicy::new(&Settings::from_toml(&format!("[server.tls]\n{keys}")).unwrap())
}

/// Files of one test.
pub(crate) struct Pki {
    pub(crate) certificates: Certificates,
    pub(crate) folder: TempDir,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        Pki { certificates: Certificates::create_in(folder.path()), folder }
    }

    /// The keys of `[server.tls]` with the server certificate of this authority.
    pub(crate) fn server(&self) -> String {
        let Certificates { server, server_key, .. } = &self.certificates;
        files(server, server_key)
    }
}

pub(crate) fn files(certificate: &Path, key: &Path) -> String {
    format!("certificate_file = {certificate:?}\nkey_file = {key:?}\n")
}

/// A TLS client that trusts the authority of the test.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) config: ClientConfig,
    pub(crate) name: &'static str,
}

impl Client {
    pub(crate) fn new(pki: &Pki) -> Self {
        Self::with(pki, rustls::ALL_VERSIONS, None)
    }

    pub(crate) fn with(
        pki: &Pki,
        versions: &[&'static SupportedProtocolVersion],
        certificate: Option<&(PathBuf, PathBuf)>,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&pki.certificates.authority).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_root_certificates(roots);
        let config = match certificate {
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(certificate).unwrap()],
                    PrivateKeyDer::from_pem_file(key).unwrap(),
                )
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        Client { config, name: "localhost" }
    }

    pub(crate) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let connector = TlsConnector::from(Arc::new(self.config.clone()));
        let name = ServerName::try_from(self.name).unwrap();
        connector.connect(name, stream).await.map_err(|error| error.to_string())
    }
}
