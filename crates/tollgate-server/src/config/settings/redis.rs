//! `[counters]` with `store = "redis"`: servers and connection options.
//!
//! Servers are given as one `url`, whose parameters have the names of the keys here, or as separate keys. Duplicate or
//! contradictory settings are errors. Messages contain neither URLs nor passwords.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::config::values::{boolean, integer, text, word};
use tollgate::config::{TableReader, Value};
use tollgate_stores::redis::{
    Address, Login, RedisSettings, Secret, ServerUrl, Tls, Topology, VIRTUAL_NODES_DEFAULT,
};

use super::read::{duplicate, duration};

/// Keys that require `store = "redis"`, besides [`PARAMETERS`].
pub(super) const KEYS: [&str; 6] = ["url", "nodes", "user", "password", "database", "tls"];

/// Keys that may also be parameters of the URL.
pub(super) const PARAMETERS: [&str; 10] = [
    "topology",
    "connections",
    "timeout",
    "connect_timeout",
    "sentinel_master",
    "sentinel_user",
    "sentinel_password",
    "virtual_nodes",
    "leases",
    "refusal_cache",
];

const CONNECTIONS_MAX: usize = 256;
const DATABASE_MAX: u32 = 65_535;
const VIRTUAL_NODES_MAX: usize = 10_000;
/// Larger than any bundle of certificates.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// The files of `counters.tls`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Trusted certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// The client certificate.
    pub cert_file: Option<PathBuf>,
    /// The private key of the client certificate.
    pub key_file: Option<PathBuf>,
}

/// The values of `topology`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum TopologyKind {
    Single,
    Sentinel,
    Cluster,
    Ring,
    Modulo,
}

const KINDS: [(&str, TopologyKind); 5] = [
    ("single", TopologyKind::Single),
    ("sentinel", TopologyKind::Sentinel),
    ("cluster", TopologyKind::Cluster),
    ("ring", TopologyKind::Ring),
    ("modulo", TopologyKind::Modulo),
];

/// The value of `topology`.
pub(super) fn topology_name(topology: &Topology) -> &'static str {
    match topology {
        Topology::Single(_) => "single",
        Topology::Sentinel { .. } => "sentinel",
        Topology::Cluster(_) => "cluster",
        Topology::Ring { .. } => "ring",
        Topology::Modulo(_) => "modulo",
    }
}

/// Reads the keys of [`KEYS`] and [`PARAMETERS`]. `None` if the servers are invalid.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> Option<(RedisSettings, TlsFiles)> {
    let url = fields.read("url", url);
    let mut keys = RedisKeys { fields, url };
    let kind = keys.read("topology", word(&KINDS)).unwrap_or(TopologyKind::Single);
    let servers = keys.servers(kind);
    let login = keys.login("user", "password");
    let database = keys.read("database", integer(0..=DATABASE_MAX)).unwrap_or(0);
    if kind == TopologyKind::Cluster && database != 0 {
        let key = if keys.fields.has("database") { "database" } else { "url" };
        keys.fields.report(key, "a cluster supports only database 0".to_owned());
    }
    let (tls, files) = read_tls(keys.fields, keys.url.as_ref());
    let topology = keys.topology(kind, servers);
    let min = Duration::from_millis(1);
    let count = keys.read("connections", integer(1..=CONNECTIONS_MAX)).and_then(NonZeroUsize::new);
    let timeout = keys.read("timeout", duration(min, Duration::from_secs(10)));
    let connect_timeout = keys.read("connect_timeout", duration(min, Duration::from_mins(1)));
    let leases = keys.read("leases", boolean);
    let refusal_cache = keys.read("refusal_cache", boolean);
    let default = RedisSettings::new(topology?);
    let settings = RedisSettings {
        login,
        database,
        tls,
        connections: count.unwrap_or(default.connections),
        timeout: timeout.unwrap_or(default.timeout),
        connect_timeout: connect_timeout.unwrap_or(default.connect_timeout),
        leases: leases.unwrap_or(default.leases),
        refusal_cache: refusal_cache.unwrap_or(default.refusal_cache),
        ..default
    };
    Some((settings, files))
}

/// The message does not quote the URL, which may contain a password.
fn url(value: &Value) -> Result<ServerUrl, String> {
    let mut url = ServerUrl::parse(&text(value)?).map_err(|error| error.to_string())?;
    if !url.parameters.iter().all(|(name, _)| PARAMETERS.contains(&&**name)) {
        return Err(format!("has an unknown parameter; known are {}", PARAMETERS.join(", ")));
    }
    let Login { user, password } = url.login.clone();
    let database = Some(url.database).filter(|database| *database != 0);
    let parts = [
        ("user", user),
        ("password", password.map(|password| password.0)),
        ("database", database.map(|database| database.to_string())),
    ];
    let parts = parts.into_iter().filter_map(|(key, part)| Some((key.to_owned(), part?)));
    url.parameters.extend(parts);
    Ok(url)
}

/// The keys of the table, and those in the URL.
struct RedisKeys<'f, 'n, 'p> {
    fields: &'f mut TableReader<'n, 'p>,
    url: Option<ServerUrl>,
}

impl RedisKeys<'_, '_, '_> {
    /// The value of a key, or of the part of the URL of the same name.
    fn read<T>(&mut self, key: &'static str, parse: impl Fn(&Value) -> Result<T, String>) -> Option<T> {
        let written = self.fields.read(key, &parse);
        let Some(part) = self.url.as_ref().and_then(|url| url.parameter(key)) else { return written };
        if self.fields.has(key) {
            self.fields.report(key, "is also in the url; set it once".to_owned());
            return written;
        }
        // URLs are untyped.
        let number = part.parse().map(Value::Integer).ok();
        let typed = number.or_else(|| part.parse().map(Value::Boolean).ok());
        let parsed = match (parse(&Value::Text(part.to_owned())), typed) {
            (Err(_), Some(typed)) => parse(&typed),
            (parsed, _) => parsed,
        };
        match parsed {
            Ok(parsed) => Some(parsed),
            Err(reason) => {
                self.fields.report("url", format!("{key}: {reason}"));
                None
            }
        }
    }

    /// Whether a key is set, by itself or in the URL.
    fn has(&self, key: &str) -> bool {
        self.fields.has(key) || self.url.as_ref().is_some_and(|url| url.parameter(key).is_some())
    }

    fn servers(&mut self, kind: TopologyKind) -> Option<Vec<Address>> {
        let (fields, is_single) = (&mut *self.fields, kind == TopologyKind::Single);
        let nodes = fields.items("nodes", node);
        if fields.has("nodes") && fields.has("url") {
            fields.report("nodes", "set either url or nodes, not both".to_owned());
            return None;
        }
        let (key, servers) = match (nodes, &self.url) {
            (Some(nodes), _) => ("nodes", nodes),
            (None, Some(url)) => ("url", url.servers.clone()),
            // An invalid URL was reported already.
            (None, None) if fields.has("url") => return None,
            (None, None) => {
                let (key, reason) = if is_single {
                    ("url", "is missing; set the server, such as redis://127.0.0.1:6379")
                } else {
                    ("nodes", "is missing; set the servers, such as [\"10.0.0.1:6379\"]")
                };
                fields.report(key, reason.to_owned());
                return None;
            }
        };
        let several = "topology = \"sentinel\", \"cluster\", \"ring\" or \"modulo\"";
        if is_single && key == "nodes" {
            fields.report(key, format!("requires {several}; set url for a single server"));
        } else if is_single && servers.len() > 1 {
            let reason = format!("several servers require {several}, or a scheme such as redis+cluster://");
            fields.report(key, reason);
        } else if fields.has_empty_list("nodes") {
            fields.report(key, "must list at least one server".to_owned());
        } else if let Some(duplicate) = duplicate(&servers) {
            fields.report(key, format!("\"{duplicate}\" is listed twice"));
        }
        Some(servers)
    }

    fn topology(&mut self, kind: TopologyKind, servers: Option<Vec<Address>>) -> Option<Topology> {
        let master = self.read("sentinel_master", text);
        let login = self.login("sentinel_user", "sentinel_password");
        let virtual_nodes = self.read("virtual_nodes", integer(1..=VIRTUAL_NODES_MAX));
        let virtual_nodes = virtual_nodes.and_then(NonZeroUsize::new).unwrap_or(VIRTUAL_NODES_DEFAULT);
        for (key, only, word) in [
            ("sentinel_master", TopologyKind::Sentinel, "sentinel"),
            ("sentinel_user", TopologyKind::Sentinel, "sentinel"),
            ("sentinel_password", TopologyKind::Sentinel, "sentinel"),
            ("virtual_nodes", TopologyKind::Ring, "ring"),
        ] {
            if self.has(key) && kind != only {
                self.fields.report(key, format!("requires topology = \"{word}\""));
            }
        }
        if kind == TopologyKind::Sentinel && !self.has("sentinel_master") {
            self.fields.report("sentinel_master", "is missing; set the name of the master".to_owned());
        }
        let servers = servers?;
        Some(match kind {
            TopologyKind::Single => Topology::Single(servers.into_iter().next()?),
            TopologyKind::Sentinel => Topology::Sentinel { sentinels: servers, master: master?, login },
            TopologyKind::Cluster => Topology::Cluster(servers),
            TopologyKind::Ring => Topology::Ring { servers, virtual_nodes },
            TopologyKind::Modulo => Topology::Modulo(servers),
        })
    }

    /// Without a password the user is not sent to the server, which would then use the default user.
    fn login(&mut self, user: &'static str, password: &'static str) -> Login {
        let login = Login { user: self.read(user, text), password: self.read(password, text).map(Secret) };
        if self.fields.has(user) && login.user.is_some() && login.password.is_none() {
            self.fields.report(user, "requires a password".to_owned());
        }
        login
    }
}

fn node(value: &Value) -> Result<Address, String> {
    let text = text(value)?;
    // Not quoted: a URL in place of an address may contain a password.
    Address::parse(&text)
        .filter(|_| !text.contains(['@', ' ']) && !text.contains("//"))
        .ok_or_else(|| "must be a host and port such as \"10.0.0.1:6379\"".to_owned())
}

/// The table `tls`.
#[derive(Default)]
struct TlsTable {
    enabled: Option<bool>,
    tls: Tls,
    files: TlsFiles,
}

fn read_tls(fields: &mut TableReader<'_, '_>, url: Option<&ServerUrl>) -> (Option<Tls>, TlsFiles) {
    let is_present = fields.has("tls");
    let TlsTable { enabled, tls, files } = fields.table("tls", read_tls_table).unwrap_or_default();
    let wanted = enabled.unwrap_or(is_present);
    let is_socket = |url: &ServerUrl| matches!(url.servers.as_slice(), [Address::Unix(_)]);
    let in_url = url.map(|url| (url.encrypted, is_socket(url)));
    match in_url {
        Some((true, _)) if enabled == Some(false) => {
            fields.report("tls", "cannot be disabled: the url starts with rediss://".to_owned());
        }
        Some((_, true)) if wanted => {
            fields.report("tls", "cannot be used with a Unix socket".to_owned());
        }
        Some((false, false)) if wanted => {
            fields.report("tls", "requires a url that starts with rediss://".to_owned());
        }
        _ => {}
    }
    let on = wanted || in_url.is_some_and(|(encrypted, _)| encrypted);
    (on.then_some(tls), files)
}

fn read_tls_table(fields: &mut TableReader<'_, '_>) -> TlsTable {
    let enabled = fields.read("enabled", boolean);
    let insecure = fields.read("insecure", boolean).unwrap_or(false);
    let certificates = pem("certificate", Tls::are_certificates);
    let authorities = fields.read("ca_file", &certificates);
    let certificate = fields.read("cert_file", &certificates);
    let key = fields.read("key_file", pem("private key", Tls::is_private_key));
    for (this, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if fields.has(this) && !fields.has(other) {
            fields.report(this, format!("requires {other}"));
        }
    }
    if insecure && fields.has("ca_file") {
        fields.report("insecure", "accepts any certificate and cannot be combined with ca_file".to_owned());
    }
    let path = |read: &Option<(PathBuf, Vec<u8>)>| read.as_ref().map(|(path, _)| path.clone());
    let files = TlsFiles { ca_file: path(&authorities), cert_file: path(&certificate), key_file: path(&key) };
    let bytes = |read: Option<(PathBuf, Vec<u8>)>| read.map(|(_, bytes)| bytes);
    let tls = Tls {
        authorities: bytes(authorities),
        client_certificate: bytes(certificate).zip(bytes(key)),
        insecure,
    };
    TlsTable { enabled, tls, files }
}

/// Reads a PEM file at once, so that errors are found at the start.
pub(super) fn pem(
    what: &'static str,
    is_valid: fn(&[u8]) -> bool,
) -> impl Fn(&Value) -> Result<(PathBuf, Vec<u8>), String> {
    move |value| {
        let path = PathBuf::from(text(value)?);
        let size = std::fs::metadata(&path).map(|found| found.len());
        let read = match size {
            Ok(size) if size > PEM_BYTES_MAX => return Err(format!("is larger than {PEM_BYTES_MAX} bytes")),
            _ => std::fs::read(&path),
        };
        let bytes = read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        if is_valid(&bytes) { Ok((path, bytes)) } else { Err(format!("contains no {what} in PEM format")) }
    }
}

#[cfg(test)]
mod tests;
