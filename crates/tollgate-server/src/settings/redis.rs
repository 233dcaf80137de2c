//! `[counters]` with `store = "redis"`: from what was written to how the servers are reached.
//!
//! A server can be said as one `url` or as its parts; what is said twice, or contradicts itself, is a mistake. Messages
//! repeat neither URLs nor passwords.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::wire::values::{boolean, integer, text, word};
use tollgate::wire::{Fields, Value};
use tollgate_stores::redis::{Address, Login, RedisSettings, Secret, Tls, Topology, VIRTUAL_NODES_DEFAULT};

use super::read::{duration, repeated};

/// Every key that only Redis has a use for.
pub(super) const KEYS: [&str; 16] = [
    "url",
    "topology",
    "nodes",
    "user",
    "password",
    "database",
    "connections",
    "timeout",
    "connect_timeout",
    "sentinel_master",
    "sentinel_user",
    "sentinel_password",
    "virtual_nodes",
    "leases",
    "refusal_cache",
    "tls",
];

const CONNECTIONS_MAX: usize = 256;
const DATABASE_MAX: u32 = 65_535;
const VIRTUAL_NODES_MAX: usize = 10_000;
/// No bundle of certificates is larger.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// The files behind a protected link, as settings name them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whom to trust.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
}

/// The words for topologies.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Single,
    Sentinel,
    Cluster,
    Ring,
    Modulo,
}

const KINDS: [(&str, Kind); 5] = [
    ("single", Kind::Single),
    ("sentinel", Kind::Sentinel),
    ("cluster", Kind::Cluster),
    ("ring", Kind::Ring),
    ("modulo", Kind::Modulo),
];

/// The word for a topology.
pub(super) fn word_for(topology: &Topology) -> &'static str {
    match topology {
        Topology::Single(_) => "single",
        Topology::Sentinel { .. } => "sentinel",
        Topology::Cluster(_) => "cluster",
        Topology::Ring { .. } => "ring",
        Topology::Modulo(_) => "modulo",
    }
}

/// Reads the keys of [`KEYS`]. Nothing if the servers are not known; whether more is wrong, the fields know.
pub(super) fn read(fields: &mut Fields<'_, '_>) -> Option<(RedisSettings, TlsFiles)> {
    let url = fields.read("url", url);
    let kind = fields.read("topology", word(&KINDS));
    let servers = read_servers(fields, url.as_ref(), kind.unwrap_or(Kind::Single));
    let login = read_login(fields, url.as_ref());
    let database = read_database(fields, url.as_ref(), kind);
    let (tls, files) = read_tls(fields, url.as_ref());
    let topology = read_topology(fields, kind.unwrap_or(Kind::Single), servers);
    let moment = Duration::from_millis(1);
    let count = fields.read("connections", integer(1..=CONNECTIONS_MAX)).and_then(NonZeroUsize::new);
    let timeout = fields.read("timeout", duration(moment, Duration::from_secs(10)));
    let connect_timeout = fields.read("connect_timeout", duration(moment, Duration::from_mins(1)));
    let leases = fields.read("leases", boolean);
    let refusal_cache = fields.read("refusal_cache", boolean);
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

/// The message repeats nothing of the text: there may be a password in it.
fn url(value: &Value) -> Result<RedisSettings, String> {
    RedisSettings::from_url(&text(value)?).map_err(|error| error.to_string())
}

fn read_servers(
    fields: &mut Fields<'_, '_>,
    url: Option<&RedisSettings>,
    kind: Kind,
) -> Option<Vec<Address>> {
    let nodes = fields.items("nodes", node);
    if fields.has("nodes") && fields.has("url") {
        fields.complain("nodes", "say either url or nodes, not both".to_owned());
        return None;
    }
    if let Some(nodes) = nodes {
        if kind == Kind::Single {
            let reason = "one server is said with url; several need topology = \"sentinel\", \"cluster\", \
                          \"ring\" or \"modulo\"";
            fields.complain("nodes", reason.to_owned());
        } else if fields.has_empty_list("nodes") {
            fields.complain("nodes", "must name at least one server".to_owned());
        } else if let Some(twice) = repeated(&nodes) {
            let reason = format!("\"{twice}\" is listed twice");
            fields.complain("nodes", reason);
        }
        return Some(nodes);
    }
    match url {
        Some(settings) => Some(settings.topology.servers().to_vec()),
        // What is there and wrong was complained of.
        None if fields.has("url") => None,
        None if kind == Kind::Single => {
            fields.complain("url", "is missing: the server, such as redis://127.0.0.1:6379".to_owned());
            None
        }
        None => {
            fields.complain("nodes", "is missing: the servers, such as [\"10.0.0.1:6379\"]".to_owned());
            None
        }
    }
}

fn node(value: &Value) -> Result<Address, String> {
    let text = text(value)?;
    // A URL in place of an address may have a password in it.
    Address::parse(&text)
        .filter(|_| !text.contains(['@', ' ']) && !text.contains("//"))
        .ok_or_else(|| "must be a host and a port such as \"10.0.0.1:6379\"".to_owned())
}

fn read_topology(fields: &mut Fields<'_, '_>, kind: Kind, servers: Option<Vec<Address>>) -> Option<Topology> {
    let master = fields.read("sentinel_master", text);
    let login = Login {
        user: fields.read("sentinel_user", text),
        password: fields.read("sentinel_password", text).map(Secret),
    };
    let virtual_nodes = fields.read("virtual_nodes", integer(1..=VIRTUAL_NODES_MAX));
    let virtual_nodes = virtual_nodes.and_then(NonZeroUsize::new).unwrap_or(VIRTUAL_NODES_DEFAULT);
    for (key, only) in [
        ("sentinel_master", Kind::Sentinel),
        ("sentinel_user", Kind::Sentinel),
        ("sentinel_password", Kind::Sentinel),
        ("virtual_nodes", Kind::Ring),
    ] {
        if fields.has(key) && kind != only {
            let word = if only == Kind::Ring { "ring" } else { "sentinel" };
            fields.complain(key, format!("needs topology = \"{word}\""));
        }
    }
    if kind == Kind::Sentinel && !fields.has("sentinel_master") {
        fields.complain("sentinel_master", "is missing: what the sentinels call the master".to_owned());
    }
    needs_password(fields, "sentinel_user", &login);
    let servers = servers?;
    Some(match kind {
        Kind::Single => Topology::Single(servers.into_iter().next()?),
        Kind::Sentinel => Topology::Sentinel { sentinels: servers, master: master?, login },
        Kind::Cluster => Topology::Cluster(servers),
        Kind::Ring => Topology::Ring { servers, virtual_nodes },
        Kind::Modulo => Topology::Modulo(servers),
    })
}

fn read_login(fields: &mut Fields<'_, '_>, url: Option<&RedisSettings>) -> Login {
    let in_url = url.map(|url| url.login.clone()).unwrap_or_default();
    let user = fields.read("user", text);
    let password = fields.read("password", text).map(Secret);
    for (key, twice) in [
        ("user", user.is_some() && in_url.user.is_some()),
        ("password", password.is_some() && in_url.password.is_some()),
    ] {
        if twice {
            fields.complain(key, "is in the url too: say it once".to_owned());
        }
    }
    let login = Login { user: user.or(in_url.user), password: password.or(in_url.password) };
    needs_password(fields, "user", &login);
    login
}

/// A user without a password is not sent to the server: the default user would be meant.
fn needs_password(fields: &mut Fields<'_, '_>, key: &str, login: &Login) {
    if fields.has(key) && login.user.is_some() && login.password.is_none() {
        fields.complain(key, "means nothing without a password".to_owned());
    }
}

fn read_database(fields: &mut Fields<'_, '_>, url: Option<&RedisSettings>, kind: Option<Kind>) -> u32 {
    let in_url = url.map_or(0, |url| url.database);
    let written = fields.read("database", integer(0..=DATABASE_MAX));
    if written.is_some() && in_url != 0 {
        fields.complain("database", "is in the url too: say it once".to_owned());
    }
    let database = written.unwrap_or(in_url);
    if kind == Some(Kind::Cluster) && database != 0 {
        let key = if written.is_some() { "database" } else { "url" };
        fields.complain(key, "a cluster has only database 0".to_owned());
    }
    database
}

/// How `tls` was written.
#[derive(Default)]
struct Written {
    enabled: Option<bool>,
    tls: Tls,
    files: TlsFiles,
}

fn read_tls(fields: &mut Fields<'_, '_>, url: Option<&RedisSettings>) -> (Option<Tls>, TlsFiles) {
    let given = fields.has("tls");
    let Written { enabled, tls, files } = fields.table("tls", read_tls_table).unwrap_or_default();
    let wanted = enabled.unwrap_or(given);
    let in_url =
        url.map(|url| (url.tls.is_some(), matches!(&url.topology, Topology::Single(Address::Unix(_)))));
    match in_url {
        Some((true, _)) if enabled == Some(false) => {
            fields.complain("tls", "the url says rediss://, so it cannot be switched off here".to_owned());
        }
        Some((_, true)) if wanted => {
            fields.complain("tls", "has no meaning for a socket of this machine".to_owned());
        }
        Some((false, false)) if wanted => {
            fields.complain("tls", "the url says redis://, which is plain text: write rediss://".to_owned());
        }
        _ => {}
    }
    let on = wanted || in_url.is_some_and(|(encrypted, _)| encrypted);
    (on.then_some(tls), files)
}

fn read_tls_table(fields: &mut Fields<'_, '_>) -> Written {
    let enabled = fields.read("enabled", boolean);
    let insecure = fields.read("insecure", boolean).unwrap_or(false);
    let certificates = pem("certificate", Tls::are_certificates);
    let authorities = fields.read("ca_file", &certificates);
    let certificate = fields.read("cert_file", &certificates);
    let key = fields.read("key_file", pem("private key", Tls::is_private_key));
    for (this, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if fields.has(this) && !fields.has(other) {
            fields.complain(this, format!("needs {other} beside it"));
        }
    }
    if insecure && fields.has("ca_file") {
        fields.complain("insecure", "takes any certificate, so ca_file would mean nothing".to_owned());
    }
    let path = |read: &Option<(PathBuf, Vec<u8>)>| read.as_ref().map(|(path, _)| path.clone());
    let files = TlsFiles { ca_file: path(&authorities), cert_file: path(&certificate), key_file: path(&key) };
    let bytes = |read: Option<(PathBuf, Vec<u8>)>| read.map(|(_, bytes)| bytes);
    let tls = Tls { authorities: bytes(authorities), own: bytes(certificate).zip(bytes(key)), insecure };
    Written { enabled, tls, files }
}

/// A file that is read now, so that a wrong one is found before it is needed.
fn pem(
    what: &'static str,
    holds: fn(&[u8]) -> bool,
) -> impl Fn(&Value) -> Result<(PathBuf, Vec<u8>), String> {
    move |value| {
        let path = PathBuf::from(text(value)?);
        let size = std::fs::metadata(&path).map(|found| found.len());
        let read = match size {
            Ok(size) if size > PEM_BYTES_MAX => return Err(format!("is larger than {PEM_BYTES_MAX} bytes")),
            _ => std::fs::read(&path),
        };
        let bytes = read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        if holds(&bytes) { Ok((path, bytes)) } else { Err(format!("holds no {what} in PEM")) }
    }
}

#[cfg(test)]
mod tests;
