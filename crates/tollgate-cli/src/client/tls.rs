//! Trusted CAs and the client certificate.
//!
//! Verification cannot be turned off: an impostor would receive the key. A private CA is trusted with a file instead.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// Certificate files in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// CAs to trust in addition to the system's.
    pub(crate) ca: Option<PathBuf>,
    /// The client certificate.
    pub(crate) cert: Option<PathBuf>,
    /// Its private key; by default in the same file.
    pub(crate) cert_key: Option<PathBuf>,
}

/// Why certificate files cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be read: check its name and permissions.
    #[error("{what} {path}: {source}")]
    Read { what: &'static str, path: PathBuf, source: io::Error },
    /// A file does not contain what it should.
    #[error("{what} {path} contains no {item} in PEM (`-----BEGIN {label}-----`)")]
    Empty { what: &'static str, path: PathBuf, item: &'static str, label: &'static str },
    /// The contents of a file are invalid.
    #[error("{what} {path} cannot be used: {reason}")]
    Unusable { what: &'static str, path: PathBuf, reason: String },
    #[error("--cert-key-file requires --cert-file")]
    KeyWithoutCertificate,
    /// The system has no trusted CAs.
    #[error("this machine has no trusted CA certificates{0}: install ca-certificates, or pass --ca-file")]
    NoTrustedCas(String),
}

const CA_FILE: &str = "CA file";
const CERT_FILE: &str = "client certificate";
const CERT_KEY_FILE: &str = "client certificate key";

impl TlsFiles {
    /// The TLS settings of the client. All certificates are checked here, because ureq skips or panics on invalid ones.
    pub(super) fn tls_config(&self) -> Result<TlsConfig, TlsError> {
        let client_cert = self.client_cert()?;
        // Set explicitly, because rustls has no default provider unless one is installed for the process.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Ok(TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::new_with_certs(&self.trusted_cas()?))
            .client_cert(client_cert)
            .build())
    }

    fn trusted_cas(&self) -> Result<Vec<Certificate<'static>>, TlsError> {
        let system = rustls_native_certs::load_native_certs();
        let mut store = RootCertStore::empty();
        // Invalid certificates of the system are skipped; the user cannot correct them.
        let (valid, _) = store.add_parsable_certificates(system.certs.iter().cloned());
        let mut trusted = if valid == 0 { Vec::new() } else { system.certs };
        if let Some(path) = &self.ca {
            for certificate in read_certificates(CA_FILE, path)? {
                store.add(certificate.clone()).map_err(|error| unusable(CA_FILE, path, &error))?;
                trusted.push(certificate);
            }
        }
        if trusted.is_empty() {
            let reason = system.errors.first().map(|error| format!(" ({error})"));
            return Err(TlsError::NoTrustedCas(reason.unwrap_or_default()));
        }
        Ok(trusted.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect())
    }

    fn client_cert(&self) -> Result<Option<ClientCert>, TlsError> {
        let Some(cert_path) = &self.cert else {
            return if self.cert_key.is_some() { Err(TlsError::KeyWithoutCertificate) } else { Ok(None) };
        };
        let chain = read_certificates(CERT_FILE, cert_path)?;
        let path = self.cert_key.as_ref().unwrap_or(cert_path);
        // The cause is not shown, because it would describe bytes of the key.
        let (item, label) = ("unencrypted private key", "PRIVATE KEY");
        let empty = |_| TlsError::Empty { what: CERT_KEY_FILE, path: path.clone(), item, label };
        let pem = read_file(CERT_KEY_FILE, path)?;
        let der = PrivateKeyDer::from_pem_slice(&pem).map_err(empty)?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        CertifiedKey::from_der(chain.clone(), der, &provider)
            .map_err(|error| unusable(CERT_FILE, cert_path, &error))?;
        let key =
            PrivateKey::from_pem(&pem).map_err(|_| unusable(CERT_KEY_FILE, path, &"unsupported format"))?;
        let chain: Vec<_> = chain.iter().map(|cert| Certificate::from_der(cert).to_owned()).collect();
        Ok(Some(ClientCert::new_with_certs(&chain, key)))
    }
}

/// All certificates of a file: at least one, and all valid PEM.
fn read_certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_file(what, path)?).collect();
    match found {
        Ok(found) if found.is_empty() => {
            let (path, item, label) = (path.to_owned(), "certificate", "CERTIFICATE");
            Err(TlsError::Empty { what, path, item, label })
        }
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(what, path, &error)),
    }
}

fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { what, path: path.to_owned(), source })
}

fn unusable(what: &'static str, path: &Path, error: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable { what, path: path.to_owned(), reason: error.to_string() }
}
