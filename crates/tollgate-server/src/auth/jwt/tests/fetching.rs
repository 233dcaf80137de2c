//! Key sets from a URL: rotation, outages, hostile servers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tollgate_testkit::Certificates;

use super::signer::{KeyPair, Signer};
use super::{NOW, alice, claims, verifier, verifier_of};
use crate::auth::jwt::jwks::{JwksSource, JwksUrl};
use crate::auth::jwt::{JwtError, JwtVerifier};

/// A server of key sets that counts its requests.
struct KeyServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    requests: AtomicUsize,
    /// The whole response; empty to close the connection.
    response: Mutex<Vec<u8>>,
}

impl KeyServer {
    async fn start(keys: &[Json]) -> Self {
        KeyServer::with_tls(keys, None).await
    }

    async fn with_tls(keys: &[Json], tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { requests: AtomicUsize::new(0), response: Mutex::default() });
        let state = Arc::clone(&shared);
        let serve = async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                match &tls {
                    None => answer(stream, &state).await,
                    // Clients that do not trust the certificate end the handshake.
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            answer(stream, &state).await;
                        }
                    }
                }
            }
        };
        let server = KeyServer { address, shared, task: tokio::spawn(serve).abort_handle() };
        server.set_keys(keys);
        server
    }

    fn set_keys(&self, keys: &[Json]) {
        self.set_body(json!({ "keys": keys }).to_string().as_bytes());
    }

    fn set_body(&self, body: &[u8]) {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        *self.shared.response.lock() = [head.as_bytes(), body].concat();
    }

    fn set_response(&self, response: &str) {
        *self.shared.response.lock() = response.as_bytes().to_vec();
    }

    fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }

    fn url(&self) -> String {
        format!("http://{}/keys", self.address)
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, shared: &Shared) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {}
    shared.requests.fetch_add(1, Ordering::Relaxed);
    let response = shared.response.lock().clone();
    let _ = stream.write_all(&response).await;
    let _ = stream.shutdown().await;
}

fn settings(url: &str) -> String {
    format!("algorithm = 'ES256'\njwks_url = '{url}'")
}

fn started(url: &str) -> JwtVerifier {
    let verifier = verifier(&settings(url));
    verifier.start_fetching();
    verifier
}

async fn eventually(what: &str, is_true: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if is_true() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 30 s: {what}");
}

/// Waits for a failed fetch, and returns why no token can be verified.
async fn failure(verifier: &JwtVerifier) -> String {
    eventually("a failed fetch", || verifier.stats.fetch_failures() > 0).await;
    verifier.problem().unwrap()
}

#[tokio::test]
async fn rotated_keys_are_fetched_when_a_token_names_them() {
    let (first, second) = (Signer::ec256(), Signer::new("ES256", &KeyPair::ec("P-256")));
    let server = KeyServer::start(&[first.jwk("k1")]).await;
    let verifier = verifier(&settings(&server.url()));
    let [old, new] = [first.token_of("k1", &claims()), second.token_of("k2", &claims())];
    assert_eq!(verifier.verify(&old, NOW), Err(JwtError::KeysUnavailable));
    assert!(verifier.problem().unwrap().contains("were never fetched"));
    verifier.start_fetching();
    eventually("the first keys", || verifier.verify(&old, NOW) == Ok(alice())).await;
    assert_eq!((verifier.problem(), server.requests()), (None, 1));
    server.set_keys(&[second.jwk("k2")]);
    eventually("the new keys", || verifier.verify(&new, NOW) == Ok(alice())).await;
    // The cache does not keep tokens of removed keys.
    assert_eq!(verifier.verify(&old, NOW), Err(JwtError::UnknownKey));
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn last_keys_stay_in_force_during_an_outage() {
    let (signer, other) = (Signer::ec256(), Signer::new("ES256", &KeyPair::ec("P-256")));
    let server = KeyServer::start(&[signer.jwk("k1")]).await;
    let verifier = started(&server.url());
    let [known, unknown] = [signer.token_of("k1", &claims()), other.token_of("k2", &claims())];
    eventually("the keys", || verifier.verify(&known, NOW).is_ok()).await;
    server.set_response("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(verifier.verify(&unknown, NOW), Err(JwtError::UnknownKey));
    eventually("a failed fetch", || verifier.stats.fetch_failures() > 0).await;
    assert_eq!(verifier.verify(&known, NOW), Ok(alice()));
    // A set without usable keys counts as an outage.
    server.set_keys(&[Signer::rsa("RS256").jwk("k2")]);
    let failures = verifier.stats.fetch_failures();
    eventually("another failed fetch", || verifier.stats.fetch_failures() > failures).await;
    assert_eq!(verifier.verify(&signer.token_of("k1", &super::with("x", json!(1))), NOW), Ok(alice()));
    assert_eq!(verifier.problem(), None);
    server.set_keys(&[signer.jwk("k1"), other.jwk("k2")]);
    eventually("recovery", || verifier.verify(&unknown, NOW).is_ok()).await;
}

#[tokio::test]
async fn storm_of_unknown_keys_causes_one_fetch() {
    let signer = Signer::ec256();
    let server = KeyServer::start(&[signer.jwk("k1")]).await;
    let verifier = started(&server.url());
    eventually("the keys", || verifier.problem().is_none()).await;
    for number in 0..1_000 {
        let token = signer.token_of(&format!("unknown-{number}"), &claims());
        assert_eq!(verifier.verify(&token, NOW), Err(JwtError::UnknownKey));
        tokio::task::yield_now().await;
    }
    eventually("the extra fetch", || server.requests() == 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn oversized_sets_are_refused() {
    let signer = Signer::ec256();
    let server = KeyServer::start(&[signer.jwk("k1")]).await;
    server.set_body(
        &[json!({ "keys": [signer.jwk("k1")] }).to_string().as_bytes(), &vec![b' '; 300 << 10]].concat(),
    );
    assert!(failure(&started(&server.url())).await.contains("larger than 262144 bytes"));
    let keys: Vec<Json> = (0..101).map(|number| signer.jwk(&number.to_string())).collect();
    server.set_keys(&keys);
    assert!(failure(&started(&server.url())).await.contains("contains 101 keys"));
    // Without a length, and without an end.
    server.set_response(&format!("HTTP/1.1 200 OK\r\n\r\n{}", "[".repeat(1 << 20)));
    assert!(failure(&started(&server.url())).await.contains("larger than 262144 bytes"));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let signer = Signer::ec256();
    let target = KeyServer::start(&[signer.jwk("k1")]).await;
    let server = KeyServer::start(&[]).await;
    for status in [301, 302, 303, 307, 308] {
        server.set_response(&format!(
            "HTTP/1.1 {status} Moved\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n",
            target.url()
        ));
        assert!(failure(&started(&server.url())).await.contains(&format!("redirects (status {status})")));
    }
    assert_eq!(target.requests(), 0);
}

#[tokio::test]
async fn hostile_responses_leave_tokens_refused() {
    let signer = Signer::ec256();
    let server = KeyServer::start(&[]).await;
    for response in [
        "",
        "garbage",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"keys\":{}}",
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"keys\":[",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    ] {
        server.set_response(response);
        let verifier = started(&server.url());
        failure(&verifier).await;
        let token = signer.token_of("k1", &claims());
        assert_eq!(verifier.verify(&token, NOW), Err(JwtError::KeysUnavailable), "{response:?}");
    }
}

fn acceptor(certificate: &Path, key: &Path) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificates = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn https_keys_need_a_trusted_certificate() {
    let (folder, other_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let trusted = Certificates::create_in(folder.path());
    let other = Certificates::create_in(other_folder.path());
    let signer = Signer::ec256();
    let start = async |files: &Certificates, ca: Option<&Path>| {
        let tls = acceptor(&files.server, &files.server_key);
        let server = KeyServer::with_tls(&[signer.jwk("k1")], Some(tls)).await;
        let url = format!("https://localhost:{}/keys", server.address.port());
        let ca = ca.map(|file| format!("\njwks_ca_file = '{}'", file.display())).unwrap_or_default();
        let verifier = verifier(&format!("{}{ca}", settings(&url)));
        verifier.start_fetching();
        (verifier, server)
    };
    let (verifier, _server) = start(&trusted, Some(&trusted.authority)).await;
    eventually("the keys", || verifier.verify(&signer.token_of("k1", &claims()), NOW) == Ok(alice())).await;
    for (files, ca) in [
        (&trusted, Some(&other.authority)),
        (&trusted, None),
        (&trusted.expired(), Some(&trusted.authority)),
        (&trusted.for_other_host(), Some(&trusted.authority)),
    ] {
        let (verifier, server) = start(files, ca.map(|file| &**file)).await;
        let problem = failure(&verifier).await;
        assert!(problem.contains("TLS: "), "{problem}");
        assert_eq!(server.requests(), 0);
    }
}

#[tokio::test]
async fn reload_keeps_fetched_keys_of_unchanged_issuers() {
    let signer = Signer::ec256();
    let server = KeyServer::start(&[signer.jwk("k1")]).await;
    let token = signer.token_of("k1", &claims());
    let before = started(&server.url());
    eventually("the keys", || before.verify(&token, NOW).is_ok()).await;
    let reload = |settings: &str| {
        let settings =
            format!("[[identity.jwt]]\nissuer = '{}'\naudience = 'api'\n{settings}", super::ISSUER);
        let settings = crate::config::settings::Settings::from_toml(&settings).unwrap();
        JwtVerifier::new(&settings.jwt.issuers, &before.stats, Some(&before)).unwrap()
    };
    // Other settings of the issuer do not concern its keys.
    let same = reload(&format!("leeway = '1s'\n{}", settings(&server.url())));
    same.start_fetching();
    assert_eq!(same.verify(&token, NOW), Ok(alice()));
    let changed = reload(&settings(&format!("{}?v=2", server.url())));
    assert_eq!(changed.verify(&token, NOW), Err(JwtError::KeysUnavailable));
    drop(before);
    changed.start_fetching();
    eventually("the keys", || changed.verify(&token, NOW).is_ok()).await;
    assert_eq!((server.requests(), same.verify(&token, NOW)), (2, Ok(alice())));
}

#[tokio::test]
async fn numeric_forms_of_the_metadata_address_are_refused() {
    // These are resolved like host names.
    for host in ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376"] {
        let url = JwksUrl::parse(&format!("https://{host}/latest")).unwrap();
        let outcome = super::super::jwks::fetch_error(&JwksSource { url, ca: None }).await;
        assert!(outcome.contains("metadata addresses are refused"), "{host}: {outcome}");
    }
}

#[test]
fn fetching_needs_no_runtime_until_started() {
    let settings =
        format!("[[identity.jwt]]\nissuer = 'i'\naudience = []\n{}", settings("https://idp.example/k"));
    assert!(verifier_of(&settings).problem().unwrap().contains("\"i\""));
}
