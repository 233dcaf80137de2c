//! Fetches a key set over HTTP.
//!
//! Each fetch resolves the host, refuses forbidden addresses and connects to one that was checked, so that DNS cannot lead it
//! elsewhere. Redirects are not followed.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_rustls::ConfigBuilderExt;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::JwksSource;
use super::url::JwksUrl;
use crate::auth::jwt::keys::{KeyError, SET_BYTES_MAX};

/// How long a whole fetch may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A fetched key set.
pub(super) struct Fetched {
    pub(super) text: Vec<u8>,
    /// How long it is fresh, if the server says so.
    pub(super) fresh_for: Option<Duration>,
}

/// Why a key set cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("no response within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("cannot resolve {host}: {source}")]
    Resolve { host: String, source: io::Error },
    #[error("{0} has no address that may be used: link-local and metadata addresses are refused")]
    ForbiddenAddress(String),
    #[error("cannot connect to {host}: {source}")]
    Connect { host: String, source: io::Error },
    #[error("TLS: {0}; set jwks_ca_file if the server has a certificate of a private CA")]
    Tls(String),
    #[error("HTTP: {0}")]
    Http(String),
    #[error("the server redirects (status {0}), which is not followed; set jwks_url to the final URL")]
    Redirect(u16),
    #[error("the server answered with status {0}")]
    Status(u16),
    #[error("the response is larger than {SET_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the response {0}")]
    Keys(KeyError),
}

/// Fetches the key set once.
pub(super) async fn fetch(source: &JwksSource) -> Result<Fetched, FetchError> {
    let exchange = async {
        let stream = connect(&source.url).await?;
        if !source.url.is_encrypted() {
            return get(stream, &source.url).await;
        }
        let config = tls_config(source.ca.as_ref().map(|(_, pem)| pem.clone())).await?;
        let name = ServerName::try_from(source.url.host().to_owned()).map_err(tls_error)?;
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(tls_error)?;
        get(stream, &source.url).await
    };
    tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| FetchError::Timeout)?
}

async fn connect(url: &JwksUrl) -> Result<TcpStream, FetchError> {
    let host = || url.host().to_owned();
    let resolved = tokio::net::lookup_host((url.host(), url.port())).await;
    let resolved = resolved.map_err(|source| FetchError::Resolve { host: host(), source })?;
    let mut last_error = FetchError::ForbiddenAddress(host());
    for address in resolved.filter(|address| url.accepts(address.ip())) {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(source) => last_error = FetchError::Connect { host: host(), source },
        }
    }
    Err(last_error)
}

/// Loads the system's certificate authorities anew for each fetch: they are replaced while the service runs.
async fn tls_config(ca: Option<Vec<u8>>) -> Result<Arc<ClientConfig>, FetchError> {
    let load = move || {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(tls_error)?;
        let builder = match ca {
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(&pem) {
                    roots.add(certificate.map_err(tls_error)?).map_err(tls_error)?;
                }
                builder.with_root_certificates(roots)
            }
            None => builder.with_native_roots().map_err(tls_error)?,
        };
        Ok(Arc::new(builder.with_no_client_auth()))
    };
    tokio::task::spawn_blocking(load).await.map_err(tls_error)?
}

async fn get<S>(stream: S, url: &JwksUrl) -> Result<Fetched, FetchError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http_error)?;
    // Ends with this function.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::get(url.path_and_query())
        .header(header::HOST, url.authority())
        .header(header::ACCEPT, "application/jwk-set+json, application/json")
        .header(header::USER_AGENT, concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(http_error)?;
    let (head, body) = sender.send_request(request).await.map_err(http_error)?.into_parts();
    if head.status.is_redirection() {
        return Err(FetchError::Redirect(head.status.as_u16()));
    }
    if head.status != StatusCode::OK {
        return Err(FetchError::Status(head.status.as_u16()));
    }
    let body = Limited::new(body, SET_BYTES_MAX).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            FetchError::TooLarge
        } else {
            FetchError::Http(error.to_string())
        }
    })?;
    Ok(Fetched { text: body.to_bytes().into(), fresh_for: max_age(&head.headers) })
}

/// `max-age` of `Cache-Control`.
fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::CACHE_CONTROL)?.to_str().ok()?;
    let secs = value.split(',').find_map(|directive| directive.trim().strip_prefix("max-age="))?;
    secs.parse().map(Duration::from_secs).ok()
}

fn tls_error(error: impl StdError) -> FetchError {
    FetchError::Tls(with_causes(&error))
}

fn http_error(error: impl StdError) -> FetchError {
    FetchError::Http(with_causes(&error))
}

/// An error with its causes, which the messages of hyper and rustls omit.
fn with_causes(error: &dyn StdError) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        message = format!("{message}: {next}");
        cause = next.source();
    }
    message
}
