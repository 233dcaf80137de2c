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
    let url = url.as_ref();
    let kind = setting(fields, url, "topology", word(&KINDS));
    let servers = read_servers(fields, url, kind.unwrap_or(TopologyKind::Single));
    let login = read_login(fields, url);
    let database = read_database(fields, url, kind);
    let (tls, files) = read_tls(fields, url);
    let topology = read_topology(fields, url, kind.unwrap_or(TopologyKind::Single), servers);
    let min = Duration::from_millis(1);
    let count = setting(fields, url, "connections", integer(1..=CONNECTIONS_MAX)).and_then(NonZeroUsize::new);
    let timeout = setting(fields, url, "timeout", duration(min, Duration::from_secs(10)));
    let connect_timeout = setting(fields, url, "connect_timeout", duration(min, Duration::from_mins(1)));
    let leases = setting(fields, url, "leases", boolean);
    let refusal_cache = setting(fields, url, "refusal_cache", boolean);
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
    let url = ServerUrl::parse(&text(value)?).map_err(|error| error.to_string())?;
    let known = |name: &str| PARAMETERS.contains(&name);
    if !url.parameters.iter().all(|(name, _)| known(name)) {
        return Err(format!("has an unknown parameter; known are {}", PARAMETERS.join(", ")));
    }
    Ok(url)
}

/// The value of a key, or of the URL parameter of the same name.
fn setting<T>(
    fields: &mut TableReader<'_, '_>,
    url: Option<&ServerUrl>,
    key: &'static str,
    parse: impl Fn(&Value) -> Result<T, String>,
) -> Option<T> {
    let written = fields.read(key, &parse);
    let Some(parameter) = url.and_then(|url| url.parameter(key)) else { return written };
    if fields.has(key) {
        fields.report(key, "is also in the url; set it once".to_owned());
        return written;
    }
    // URL parameters are untyped.
    let number = parameter.parse().map(Value::Integer).ok();
    let typed = number.or_else(|| parameter.parse().map(Value::Boolean).ok());
    let parsed = match (parse(&Value::Text(parameter.to_owned())), typed) {
        (Err(_), Some(typed)) => parse(&typed),
        (parsed, _) => parsed,
    };
    match parsed {
        Ok(parsed) => Some(parsed),
        Err(reason) => {
            fields.report("url", format!("{key}: {reason}"));
            None
        }
    }
}

/// Whether a key is set, by itself or in the URL.
fn is_set(fields: &TableReader<'_, '_>, url: Option<&ServerUrl>, key: &str) -> bool {
    fields.has(key) || url.is_some_and(|url| url.parameter(key).is_some())
}

fn read_servers(
    fields: &mut TableReader<'_, '_>,
    url: Option<&ServerUrl>,
    kind: TopologyKind,
) -> Option<Vec<Address>> {
    let nodes = fields.items("nodes", node);
    if fields.has("nodes") && fields.has("url") {
        fields.report("nodes", "set either url or nodes, not both".to_owned());
        return None;
    }
    if let Some(nodes) = nodes {
        if kind == TopologyKind::Single {
            let reason = "requires topology = \"sentinel\", \"cluster\", \"ring\" or \"modulo\"; set url for a single server";
            fields.report("nodes", reason.to_owned());
        } else if fields.has_empty_list("nodes") {
            fields.report("nodes", "must list at least one server".to_owned());
        } else if let Some(duplicate) = duplicate(&nodes) {
            let reason = format!("\"{duplicate}\" is listed twice");
            fields.report("nodes", reason);
        }
        return Some(nodes);
    }
    match url {
        Some(url) => {
            if kind == TopologyKind::Single && url.servers.len() > 1 {
                let reason = "several servers require topology = \"sentinel\", \"cluster\", \"ring\" or \"modulo\", or a \
                              scheme such as redis+cluster://";
                fields.report("url", reason.to_owned());
            } else if let Some(duplicate) = duplicate(&url.servers) {
                let reason = format!("\"{duplicate}\" is listed twice");
                fields.report("url", reason);
            }
            Some(url.servers.clone())
        }
        // An invalid URL was reported already.
        None if fields.has("url") => None,
        None if kind == TopologyKind::Single => {
            fields.report("url", "is missing; set the server, such as redis://127.0.0.1:6379".to_owned());
            None
        }
        None => {
            fields.report("nodes", "is missing; set the servers, such as [\"10.0.0.1:6379\"]".to_owned());
            None
        }
    }
}

fn node(value: &Value) -> Result<Address, String> {
    let text = text(value)?;
    // Not quoted: a URL in place of an address may contain a password.
    Address::parse(&text)
        .filter(|_| !text.contains(['@', ' ']) && !text.contains("//"))
        .ok_or_else(|| "must be a host and port such as \"10.0.0.1:6379\"".to_owned())
}

fn read_topology(
    fields: &mut TableReader<'_, '_>,
    url: Option<&ServerUrl>,
    kind: TopologyKind,
    servers: Option<Vec<Address>>,
) -> Option<Topology> {
    let master = setting(fields, url, "sentinel_master", text);
    let login = Login {
        user: setting(fields, url, "sentinel_user", text),
        password: setting(fields, url, "sentinel_password", text).map(Secret),
    };
    let virtual_nodes = setting(fields, url, "virtual_nodes", integer(1..=VIRTUAL_NODES_MAX));
    let virtual_nodes = virtual_nodes.and_then(NonZeroUsize::new).unwrap_or(VIRTUAL_NODES_DEFAULT);
    for (key, only) in [
        ("sentinel_master", TopologyKind::Sentinel),
        ("sentinel_user", TopologyKind::Sentinel),
        ("sentinel_password", TopologyKind::Sentinel),
        ("virtual_nodes", TopologyKind::Ring),
    ] {
        if is_set(fields, url, key) && kind != only {
            let word = if only == TopologyKind::Ring { "ring" } else { "sentinel" };
            fields.report(key, format!("requires topology = \"{word}\""));
        }
    }
    if kind == TopologyKind::Sentinel && !is_set(fields, url, "sentinel_master") {
        fields.report("sentinel_master", "is missing; set the name of the master".to_owned());
    }
    require_password(fields, "sentinel_user", &login);
    let servers = servers?;
    Some(match kind {
        TopologyKind::Single => Topology::Single(servers.into_iter().next()?),
        TopologyKind::Sentinel => Topology::Sentinel { sentinels: servers, master: master?, login },
        TopologyKind::Cluster => Topology::Cluster(servers),
        TopologyKind::Ring => Topology::Ring { servers, virtual_nodes },
        TopologyKind::Modulo => Topology::Modulo(servers),
    })
}

fn read_login(fields: &mut TableReader<'_, '_>, url: Option<&ServerUrl>) -> Login {
    let in_url = url.map(|url| url.login.clone()).unwrap_or_default();
    let user = fields.read("user", text);
    let password = fields.read("password", text).map(Secret);
    for (key, is_duplicate) in [
        ("user", user.is_some() && in_url.user.is_some()),
        ("password", password.is_some() && in_url.password.is_some()),
    ] {
        if is_duplicate {
            fields.report(key, "is also in the url; set it once".to_owned());
        }
    }
    let login = Login { user: user.or(in_url.user), password: password.or(in_url.password) };
    require_password(fields, "user", &login);
    login
}

/// Without a password the user is not sent to the server, which would then use the default user.
fn require_password(fields: &mut TableReader<'_, '_>, key: &str, login: &Login) {
    if fields.has(key) && login.user.is_some() && login.password.is_none() {
        fields.report(key, "requires a password".to_owned());
    }
}

fn read_database(
    fields: &mut TableReader<'_, '_>,
    url: Option<&ServerUrl>,
    kind: Option<TopologyKind>,
) -> u32 {
    let in_url = url.map_or(0, |url| url.database);
    let written = fields.read("database", integer(0..=DATABASE_MAX));
    if written.is_some() && in_url != 0 {
        fields.report("database", "is also in the url; set it once".to_owned());
    }
    let database = written.unwrap_or(in_url);
    if kind == Some(TopologyKind::Cluster) && database != 0 {
        let key = if written.is_some() { "database" } else { "url" };
        fields.report(key, "a cluster supports only database 0".to_owned());
    }
    database
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
fn pem(
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
