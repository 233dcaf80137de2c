//! A certificate of the server with its key, and the choice between several by the name that a client asks for (SNI).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tollgate::Timestamp;
use tollgate::config::TableReader;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{contains_no, file};

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// The certificate and those that sign it.
    pub certificate_file: PathBuf,
    /// The private key.
    pub key_file: PathBuf,
    /// Not valid before this time, in seconds since 1970.
    pub not_before: i64,
    /// Not valid after this time, in seconds since 1970.
    pub not_after: i64,
    /// DNS names in lower case; a wildcard as `*.example.com`.
    names: Vec<Box<str>>,
    key: Arc<CertifiedKey>,
}

impl PartialEq for ServerCertificate {
    fn eq(&self, other: &Self) -> bool {
        (&self.certificate_file, &self.key_file) == (&other.certificate_file, &other.key_file)
    }
}

impl Eq for ServerCertificate {}

impl ServerCertificate {
    /// Seconds until it expires; negative once it has.
    pub fn expires_in(&self, now: Timestamp) -> i64 {
        self.not_after.saturating_sub(seconds(now))
    }

    pub(super) fn certified_key(&self) -> &Arc<CertifiedKey> {
        &self.key
    }

    /// Whether its validity has begun.
    pub fn has_begun(&self, now: Timestamp) -> bool {
        self.not_before <= seconds(now)
    }
}

fn seconds(now: Timestamp) -> i64 {
    i64::try_from(now.as_micros() / 1_000_000).unwrap_or(i64::MAX)
}

/// Reads `certificate_file` and `key_file`.
pub(super) fn read(
    fields: &mut TableReader<'_, '_>,
    provider: &Arc<CryptoProvider>,
) -> Option<ServerCertificate> {
    let chain = fields.require("certificate_file", |value| {
        let (path, bytes) = file(value)?;
        let chain = parse_chain(&path, &bytes)?;
        Ok((path, chain))
    });
    let key = fields.require("key_file", |value| {
        let (path, bytes) = file(value)?;
        // The cause is not shown: it would describe bytes of the key.
        let key = PrivateKeyDer::from_pem_slice(&bytes);
        let key = key.map_err(|_| contains_no(&path, "unencrypted private key", "PRIVATE KEY"))?;
        Ok((path, key))
    });
    let ((certificate_file, chain), (key_file, key)) = (chain?, key?);
    match certificate(certificate_file, key_file, chain, key, provider) {
        Ok(certificate) => Some(certificate),
        Err((key, reason)) => {
            fields.report(key, reason);
            None
        }
    }
}

/// All certificates of a file: at least one, and all valid PEM.
pub(super) fn parse_chain(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(contains_no(path, "certificate", "CERTIFICATE")),
        Ok(chain) => Ok(chain),
        Err(error) => Err(format!("{} is not valid PEM: {error}", path.display())),
    }
}

fn certificate(
    certificate_file: PathBuf,
    key_file: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<ServerCertificate, (&'static str, String)> {
    let invalid =
        || ("certificate_file", format!("{} has an invalid certificate", certificate_file.display()));
    let leaf = chain.first().ok_or_else(invalid)?.clone();
    let (_, parsed) = X509Certificate::from_der(&leaf).map_err(|_| invalid())?;
    let signer = provider.key_provider.load_private_key(key);
    let signer =
        signer.map_err(|error| ("key_file", format!("{} cannot be used: {error}", key_file.display())))?;
    let key = CertifiedKey::new(chain, signer);
    key.keys_match().map_err(|_| {
        let shown = (certificate_file.display(), key_file.display());
        ("key_file", format!("{} is not the key of the first certificate in {}", shown.1, shown.0))
    })?;
    let names = (parsed.subject_alternative_name().ok().flatten())
        .map(|names| names.value.general_names.iter().filter_map(dns_name).collect())
        .unwrap_or_default();
    let validity = parsed.validity();
    Ok(ServerCertificate {
        not_before: validity.not_before.timestamp(),
        not_after: validity.not_after.timestamp(),
        names,
        key: Arc::new(key),
        certificate_file,
        key_file,
    })
}

fn dns_name(name: &GeneralName<'_>) -> Option<Box<str>> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into()),
        _ => None,
    }
}

/// Chooses a certificate by name. Of certificates with the same name, the first one is used.
#[derive(Debug)]
pub(super) struct CertificatesByName {
    /// For clients that name no server or an unknown one.
    default: Arc<CertifiedKey>,
    by_name: HashMap<Box<str>, Arc<CertifiedKey>>,
}

impl CertificatesByName {
    pub(super) fn new(certificates: &[ServerCertificate]) -> Option<Self> {
        let default = Arc::clone(&certificates.first()?.key);
        let mut by_name = HashMap::new();
        for certificate in certificates {
            for name in &certificate.names {
                by_name.entry(name.clone()).or_insert_with(|| Arc::clone(&certificate.key));
            }
        }
        Some(CertificatesByName { default, by_name })
    }

    /// An exact name precedes a wildcard, which stands for one label.
    fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        self.by_name.get(&*name).or_else(|| {
            let (_, parent) = name.split_once('.')?;
            self.by_name.get(&*format!("*.{parent}"))
        })
    }
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = hello.server_name().and_then(|name| self.find(name));
        Some(Arc::clone(found.unwrap_or(&self.default)))
    }
}
