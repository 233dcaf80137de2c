//! `[server.tls]`: the certificates of a listener, and the client certificates that it accepts.
//!
//! The files are read and checked with the settings, so that a mistake in one keeps the old certificates in force.

mod certificate;
mod client_auth;
pub(crate) mod upstream;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};
use tollgate::config::values::{text, word};
use tollgate::config::{TableReader, Value};

use self::certificate::CertificatesByName;
pub use self::certificate::ServerCertificate;
pub use self::client_auth::ClientAuthSettings;
pub use self::upstream::UpstreamTlsSettings;

/// Larger than any bundle of certificates.
const PEM_BYTES_MAX: u64 = 4 << 20;
/// Sessions that clients may resume; about 1 KB each.
const SESSIONS_MAX: usize = 4_096;
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// TLS of one listener.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The certificates; the first one is the default.
    pub certificates: Vec<ServerCertificate>,
    /// The oldest version that is accepted.
    pub min_version: TlsVersion,
    /// The client certificates that are accepted, if any.
    pub client_auth: Option<ClientAuthSettings>,
    /// All of it, for handshakes.
    pub config: Arc<ServerConfig>,
}

impl PartialEq for TlsSettings {
    /// Compares what is written, not the contents of the files.
    fn eq(&self, other: &Self) -> bool {
        (&self.certificates, self.min_version, &self.client_auth)
            == (&other.certificates, other.min_version, &other.client_auth)
    }
}

impl Eq for TlsSettings {}

/// A version of TLS.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

impl TlsVersion {
    /// Both versions; older ones are insecure.
    pub const ALL: [TlsVersion; 2] = [TlsVersion::V1_2, TlsVersion::V1_3];

    /// Its name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            TlsVersion::V1_2 => "1.2",
            TlsVersion::V1_3 => "1.3",
        }
    }

    /// The versions from this one on.
    fn and_newer(self) -> &'static [&'static rustls::SupportedProtocolVersion] {
        static VERSIONS: [&rustls::SupportedProtocolVersion; 2] =
            [&rustls::version::TLS13, &rustls::version::TLS12];
        match self {
            TlsVersion::V1_2 => &VERSIONS,
            TlsVersion::V1_3 => &VERSIONS[..1],
        }
    }
}

/// Reads the table. `None` after an error, which is reported.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> Option<TlsSettings> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificates = read_certificates(fields, &provider);
    let known = TlsVersion::ALL.map(|version| (version.as_str(), version));
    let min_version = fields.read("min_version", word(&known)).unwrap_or(TlsVersion::V1_3);
    let client_auth = client_auth::read(fields, &provider);
    if fields.has_problems() {
        return None;
    }
    let config =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(min_version.and_newer());
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            fields.report("min_version", error.to_string());
            return None;
        }
    };
    let config = match &client_auth {
        Some(client_auth) => config.with_client_cert_verifier(Arc::clone(&client_auth.verifier)),
        None => config.with_no_client_auth(),
    };
    let mut config = config.with_cert_resolver(Arc::new(CertificatesByName::new(&certificates)?));
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    // A request in 0-RTT data could be replayed.
    config.max_early_data_size = 0;
    if client_auth.is_some() {
        // A resumed session would not verify the client's certificate again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    } else {
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS_MAX);
    }
    Some(TlsSettings { certificates, min_version, client_auth, config: Arc::new(config) })
}

/// One certificate in the table itself, or several in `certificates`.
fn read_certificates(
    fields: &mut TableReader<'_, '_>,
    provider: &Arc<CryptoProvider>,
) -> Vec<ServerCertificate> {
    let direct = ["certificate_file", "key_file"].into_iter().find(|key| fields.has(key));
    if !fields.has("certificates") {
        return certificate::read(fields, provider).into_iter().collect();
    }
    if let Some(key) = direct {
        let reason = "set either certificate_file and key_file, or certificates, not both";
        fields.report(key, reason.to_owned());
    }
    fields.skip("certificate_file");
    fields.skip("key_file");
    if fields.has_empty_list("certificates") {
        fields.report("certificates", "must list at least one certificate".to_owned());
    }
    fields.list_of_tables("certificates", |one| certificate::read(one, provider))
}

/// The files named in a table that may be invalid, to watch them for changes.
pub(super) fn named_files(fields: &mut TableReader<'_, '_>) -> Vec<PathBuf> {
    let keys = ["certificate_file", "key_file", "client_ca_file", "client_crl_file"];
    let named = |fields: &TableReader<'_, '_>| -> Vec<PathBuf> {
        keys.iter().filter_map(|key| fields.peek(key, text)).map(PathBuf::from).collect()
    };
    let mut files = named(fields);
    files.extend(fields.list_of_tables("certificates", |one| Some(named(one))).into_iter().flatten());
    files
}

/// Reads a file that a key names.
fn file(value: &Value) -> Result<(PathBuf, Vec<u8>), String> {
    let path = PathBuf::from(text(value)?);
    let unreadable = |error: std::io::Error| {
        let fix = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; make it readable for the user that runs tollgate",
            _ => "",
        };
        format!("cannot read {}: {error}{fix}", path.display())
    };
    let size = std::fs::metadata(&path).map_err(unreadable)?.len();
    if size > PEM_BYTES_MAX {
        return Err(format!("{} is larger than {PEM_BYTES_MAX} bytes", path.display()));
    }
    let bytes = std::fs::read(&path).map_err(unreadable)?;
    Ok((path, bytes))
}

/// The message about a file without what it should contain.
fn contains_no(path: &Path, what: &str, label: &str) -> String {
    format!("{} contains no {what} in PEM format (`-----BEGIN {label}-----`)", path.display())
}
