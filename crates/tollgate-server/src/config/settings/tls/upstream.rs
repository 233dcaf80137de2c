//! `[proxy.upstream_tls]`: the authorities that sign the certificates of upstreams, and the certificate that the proxy presents to them.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256};
use tollgate::config::TableReader;
use tollgate::config::values::text;

use super::certificate::{self, ServerCertificate};
use super::client_auth::authorities;

/// TLS from the proxy to upstreams.
#[derive(Clone, Debug)]
pub struct UpstreamTlsSettings {
    /// The authorities that sign certificates of upstreams; those of the system if absent.
    pub ca_file: Option<PathBuf>,
    /// The certificate that upstreams see, if any.
    pub client_certificate: Option<ServerCertificate>,
    /// A hash of the certificates in the files.
    pub(crate) fingerprint: [u8; 32],
    pub(crate) config: Arc<ClientConfig>,
}

impl PartialEq for UpstreamTlsSettings {
    /// Compares what is written, not the contents of the files.
    fn eq(&self, other: &Self) -> bool {
        (&self.ca_file, &self.client_certificate) == (&other.ca_file, &other.client_certificate)
    }
}

impl Eq for UpstreamTlsSettings {}

/// Reads the table. `None` after an error, which is reported.
pub(in crate::config::settings) fn read(
    fields: &mut TableReader<'_, '_>,
) -> Option<Arc<UpstreamTlsSettings>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let ca = fields.read("ca_file", authorities);
    let has_certificate = ["certificate_file", "key_file"].into_iter().any(|key| fields.has(key));
    let certificate = has_certificate.then(|| certificate::read(fields, &provider)).flatten();
    if fields.has_problems() {
        return None;
    }
    let (ca_file, roots) = ca.unzip();
    let key = certificate.as_ref().map(ServerCertificate::certified_key);
    let fingerprint = fingerprint(roots.as_ref(), key);
    match client_config(roots.unwrap_or_else(system_roots), key) {
        Ok(config) => Some(Arc::new(UpstreamTlsSettings {
            ca_file,
            client_certificate: certificate,
            fingerprint,
            config: Arc::new(config),
        })),
        Err(error) => {
            fields.report("ca_file", format!("cannot be used: {error}"));
            None
        }
    }
}

/// The certificate authorities of the system.
pub(crate) fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// The TLS settings of a client of upstreams.
pub(crate) fn client_config(
    roots: RootCertStore,
    key: Option<&Arc<CertifiedKey>>,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    Ok(match key {
        Some(key) => {
            let key = CertifiedKey::new(key.cert.clone(), Arc::clone(&key.key));
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
        }
        None => builder.with_no_client_auth(),
    })
}

/// Changes when a reload must open new connections.
fn fingerprint(roots: Option<&RootCertStore>, key: Option<&Arc<CertifiedKey>>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for root in roots.into_iter().flat_map(|roots| &roots.roots) {
        hash.update(root.subject.as_ref());
        hash.update(root.subject_public_key_info.as_ref());
    }
    for certificate in key.into_iter().flat_map(|key| &key.cert) {
        hash.update(certificate.as_ref());
    }
    hash.finalize().into()
}

/// The files named in a table that may be invalid, to watch them for changes.
pub(in crate::config::settings) fn named_files(fields: &TableReader<'_, '_>) -> Vec<PathBuf> {
    let keys = ["ca_file", "certificate_file", "key_file"];
    keys.iter().filter_map(|key| fields.peek(key, text)).map(PathBuf::from).collect()
}
