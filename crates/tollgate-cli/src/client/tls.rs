//! Whom we trust, and who we are to a server that asks.
//!
//! The same TLS and the same cryptography as towards Redis and databases. There is no way to trust just anybody:
//! whoever answered would be sent the key. A private authority is named with a file instead.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// The files that flags, environment or configuration name; all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// Authorities that are trusted beside the system's.
    pub(crate) authorities: Option<PathBuf>,
    /// Our own certificate.
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key; in the same file if there is no other.
    pub(crate) certificate_key: Option<PathBuf>,
}

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be read: look at its name and permissions.
    #[error("the {what} {path}: {source}")]
    Read {
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("the {what} {path} holds no {item} in PEM (`-----BEGIN {label}-----`)")]
    Empty {
        /// What it should be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What it should hold.
        item: &'static str,
        /// How that begins.
        label: &'static str,
    },
    /// A file holds what looks right and is not.
    #[error("the {what} {path} cannot be used: {reason}")]
    Unusable {
        /// What it should be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A key for which there is no certificate.
    #[error("--cert-key-file has no meaning without --cert-file")]
    KeyAlone,
    /// This machine trusts nobody.
    #[error("this machine has no list of trusted authorities{0}: install ca-certificates, or use --ca-file")]
    NoAuthorities(String),
    /// The cryptography does not work.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

const AUTHORITIES: &str = "file of authorities";
const CERTIFICATE: &str = "client certificate";
const CERTIFICATE_KEY: &str = "key of the client certificate";

impl TlsFiles {
    /// What makes a connection one with TLS.
    pub(super) fn connector(&self) -> Result<TlsConnector, TlsError> {
        let own = self.own()?;
        // Said here and not process-wide: who reads this sees what is used.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .with_root_certificates(self.roots()?);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
                unusable(CERTIFICATE, self.certificate.as_deref().unwrap_or(Path::new("")), &error)
            })?,
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        // A system's list may have odd ones in it that nobody here has chosen.
        roots.add_parsable_certificates(system.certs);
        if let Some(path) = &self.authorities {
            for certificate in certificates(AUTHORITIES, path)? {
                roots.add(certificate).map_err(|error| unusable(AUTHORITIES, path, &error))?;
            }
        }
        if roots.is_empty() {
            let why = system.errors.first().map(|error| format!(" ({error})"));
            return Err(TlsError::NoAuthorities(why.unwrap_or_default()));
        }
        Ok(roots)
    }

    fn own(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, TlsError> {
        let Some(path) = &self.certificate else {
            return if self.certificate_key.is_some() { Err(TlsError::KeyAlone) } else { Ok(None) };
        };
        let chain = certificates(CERTIFICATE, path)?;
        let path = self.certificate_key.as_ref().unwrap_or(path);
        let key = PrivateKeyDer::from_pem_slice(&read(CERTIFICATE_KEY, path)?);
        // Why not is not repeated: it would be about the bytes of a key.
        let (item, label) = ("unencrypted private key", "PRIVATE KEY");
        let empty = |_| TlsError::Empty { what: CERTIFICATE_KEY, path: path.clone(), item, label };
        Ok(Some((chain, key.map_err(empty)?)))
    }
}

/// All certificates of a file: at least one, and none that cannot be read.
fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(what, path)?).collect();
    match found {
        Ok(found) if found.is_empty() => {
            let (path, item, label) = (path.to_owned(), "certificate", "CERTIFICATE");
            Err(TlsError::Empty { what, path, item, label })
        }
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(what, path, &error)),
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { what, path: path.to_owned(), source })
}

fn unusable(what: &'static str, path: &Path, error: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable { what, path: path.to_owned(), reason: error.to_string() }
}
