//! Client certificates: the authorities that sign them, and whether every client needs one.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tollgate::config::values::word;
use tollgate::config::{TableReader, Value};

use super::certificate::parse_chain;
use super::{contains_no, file};

/// The client certificates that a listener accepts.
#[derive(Clone, Debug)]
pub struct ClientAuthSettings {
    /// The authorities that sign them.
    pub ca_file: PathBuf,
    /// Revoked certificates.
    pub crl_file: Option<PathBuf>,
    /// Whether connections without a certificate are refused.
    pub required: bool,
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
}

impl PartialEq for ClientAuthSettings {
    fn eq(&self, other: &Self) -> bool {
        (&self.ca_file, &self.crl_file, self.required) == (&other.ca_file, &other.crl_file, other.required)
    }
}

impl Eq for ClientAuthSettings {}

/// Reads the keys `client_…`.
pub(super) fn read(
    fields: &mut TableReader<'_, '_>,
    provider: &Arc<CryptoProvider>,
) -> Option<ClientAuthSettings> {
    let authorities = fields.read("client_ca_file", authorities);
    let revoked = fields.read("client_crl_file", revocation_lists);
    let required =
        fields.read("client_certificates", word(&[("required", true), ("optional", false)])).unwrap_or(true);
    for key in ["client_crl_file", "client_certificates"] {
        if fields.has(key) && !fields.has("client_ca_file") {
            fields.report(key, "requires client_ca_file".to_owned());
        }
    }
    let (ca_file, roots) = authorities?;
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let (crl_file, lists) = revoked.unzip();
    if let Some(lists) = lists {
        builder = builder.with_crls(lists).only_check_end_entity_revocation();
    }
    if !required {
        builder = builder.allow_unauthenticated();
    }
    match builder.build() {
        Ok(verifier) => Some(ClientAuthSettings { ca_file, crl_file, required, verifier }),
        Err(error) => {
            let key = if crl_file.is_some() { "client_crl_file" } else { "client_ca_file" };
            fields.report(key, format!("cannot be used: {error}"));
            None
        }
    }
}

pub(super) fn authorities(value: &Value) -> Result<(PathBuf, RootCertStore), String> {
    let (path, bytes) = file(value)?;
    let mut roots = RootCertStore::empty();
    for (number, certificate) in parse_chain(&path, &bytes)?.into_iter().enumerate() {
        let invalid = |error| format!("{}: certificate {} is invalid: {error}", path.display(), number + 1);
        roots.add(certificate).map_err(invalid)?;
    }
    Ok((path, roots))
}

fn revocation_lists(value: &Value) -> Result<(PathBuf, Vec<CertificateRevocationListDer<'static>>), String> {
    let (path, bytes) = file(value)?;
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    match lists {
        Ok(lists) if lists.is_empty() => Err(contains_no(&path, "revocation list", "X509 CRL")),
        Ok(lists) => Ok((path, lists)),
        Err(error) => Err(format!("{} is not valid PEM: {error}", path.display())),
    }
}
