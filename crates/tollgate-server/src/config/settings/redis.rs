//! `[counters]` with `store = "redis"`: from what was written to how the servers are reached.
//!
//! Servers can be said as one `url`, whose parameters are called as the keys here, or as their parts; what is said twice, or
//! contradicts itself, is a mistake. Messages repeat neither URLs nor passwords.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::config::values::{boolean, integer, text, word};
use tollgate::config::{TableReader, Value};
use tollgate_stores::redis::{
    Address, Login, RedisSettings, Secret, ServerUrl, Tls, Topology, VIRTUAL_NODES_DEFAULT,
};

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

/// Those that a URL may say as parameters.
const PARAMETERS: [&str; 10] = [
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
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> Option<(RedisSettings, TlsFiles)> {
    let url = fields.read("url", url);
    let url = url.as_ref();
    let kind = setting(fields, url, "topology", word(&KINDS));
    let servers = read_servers(fields, url, kind.unwrap_or(Kind::Single));
    let login = read_login(fields, url);
    let database = read_database(fields, url, kind);
    let (tls, files) = read_tls(fields, url);
    let topology = read_topology(fields, url, kind.unwrap_or(Kind::Single), servers);
    let moment = Duration::from_millis(1);
    let count = setting(fields, url, "connections", integer(1..=CONNECTIONS_MAX)).and_then(NonZeroUsize::new);
    let timeout = setting(fields, url, "timeout", duration(moment, Duration::from_secs(10)));
    let connect_timeout = setting(fields, url, "connect_timeout", duration(moment, Duration::from_mins(1)));
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

/// The message repeats nothing of the text: there may be a password in it.
fn url(value: &Value) -> Result<ServerUrl, String> {
    let url = ServerUrl::parse(&text(value)?).map_err(|error| error.to_string())?;
    let known = |name: &str| PARAMETERS.contains(&name);
    if !url.parameters.iter().all(|(name, _)| known(name)) {
        return Err(format!("has a parameter that is none of {}", PARAMETERS.join(", ")));
    }
    Ok(url)
}

/// What a key says, or the parameter of the URL that is called like it.
fn setting<T>(
    fields: &mut TableReader<'_, '_>,
    url: Option<&ServerUrl>,
    key: &'static str,
    parse: impl Fn(&Value) -> Result<T, String>,
) -> Option<T> {
    let written = fields.read(key, &parse);
    let Some(said) = url.and_then(|url| url.parameter(key)) else { return written };
    if fields.has(key) {
        fields.report(key, "is in the url too: say it once".to_owned());
        return written;
    }
    // A URL knows only texts.
    let number = said.parse().map(Value::Integer).ok();
    let typed = number.or_else(|| said.parse().map(Value::Boolean).ok());
    let parsed = match (parse(&Value::Text(said.to_owned())), typed) {
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

/// Whether a setting is said, by its key or in the URL.
fn is_said(fields: &TableReader<'_, '_>, url: Option<&ServerUrl>, key: &str) -> bool {
    fields.has(key) || url.is_some_and(|url| url.parameter(key).is_some())
}

fn read_servers(
    fields: &mut TableReader<'_, '_>,
    url: Option<&ServerUrl>,
    kind: Kind,
) -> Option<Vec<Address>> {
    let nodes = fields.items("nodes", node);
    if fields.has("nodes") && fields.has("url") {
        fields.report("nodes", "say either url or nodes, not both".to_owned());
        return None;
    }
    if let Some(nodes) = nodes {
        if kind == Kind::Single {
            let reason = "one server is said with url; several need topology = \"sentinel\", \"cluster\", \
                          \"ring\" or \"modulo\"";
            fields.report("nodes", reason.to_owned());
        } else if fields.has_empty_list("nodes") {
            fields.report("nodes", "must name at least one server".to_owned());
        } else if let Some(twice) = repeated(&nodes) {
            let reason = format!("\"{twice}\" is listed twice");
            fields.report("nodes", reason);
        }
        return Some(nodes);
    }
    match url {
        Some(url) => {
            if kind == Kind::Single && url.servers.len() > 1 {
                let reason = "several servers need topology = \"sentinel\", \"cluster\", \"ring\" or \"modulo\", or a \
                              scheme such as redis+cluster://";
                fields.report("url", reason.to_owned());
            } else if let Some(twice) = repeated(&url.servers) {
                let reason = format!("\"{twice}\" is in it twice");
                fields.report("url", reason);
            }
            Some(url.servers.clone())
        }
        // What is there and wrong was complained of.
        None if fields.has("url") => None,
        None if kind == Kind::Single => {
            fields.report("url", "is missing: the server, such as redis://127.0.0.1:6379".to_owned());
            None
        }
        None => {
            fields.report("nodes", "is missing: the servers, such as [\"10.0.0.1:6379\"]".to_owned());
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

fn read_topology(
    fields: &mut TableReader<'_, '_>,
    url: Option<&ServerUrl>,
    kind: Kind,
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
        ("sentinel_master", Kind::Sentinel),
        ("sentinel_user", Kind::Sentinel),
        ("sentinel_password", Kind::Sentinel),
        ("virtual_nodes", Kind::Ring),
    ] {
        if is_said(fields, url, key) && kind != only {
            let word = if only == Kind::Ring { "ring" } else { "sentinel" };
            fields.report(key, format!("needs topology = \"{word}\""));
        }
    }
    if kind == Kind::Sentinel && !is_said(fields, url, "sentinel_master") {
        fields.report("sentinel_master", "is missing: what the sentinels call the master".to_owned());
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

fn read_login(fields: &mut TableReader<'_, '_>, url: Option<&ServerUrl>) -> Login {
    let in_url = url.map(|url| url.login.clone()).unwrap_or_default();
    let user = fields.read("user", text);
    let password = fields.read("password", text).map(Secret);
    for (key, twice) in [
        ("user", user.is_some() && in_url.user.is_some()),
        ("password", password.is_some() && in_url.password.is_some()),
    ] {
        if twice {
            fields.report(key, "is in the url too: say it once".to_owned());
        }
    }
    let login = Login { user: user.or(in_url.user), password: password.or(in_url.password) };
    needs_password(fields, "user", &login);
    login
}

/// A user without a password is not sent to the server: the default user would be meant.
fn needs_password(fields: &mut TableReader<'_, '_>, key: &str, login: &Login) {
    if fields.has(key) && login.user.is_some() && login.password.is_none() {
        fields.report(key, "means nothing without a password".to_owned());
    }
}

fn read_database(fields: &mut TableReader<'_, '_>, url: Option<&ServerUrl>, kind: Option<Kind>) -> u32 {
    let in_url = url.map_or(0, |url| url.database);
    let written = fields.read("database", integer(0..=DATABASE_MAX));
    if written.is_some() && in_url != 0 {
        fields.report("database", "is in the url too: say it once".to_owned());
    }
    let database = written.unwrap_or(in_url);
    if kind == Some(Kind::Cluster) && database != 0 {
        let key = if written.is_some() { "database" } else { "url" };
        fields.report(key, "a cluster has only database 0".to_owned());
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

fn read_tls(fields: &mut TableReader<'_, '_>, url: Option<&ServerUrl>) -> (Option<Tls>, TlsFiles) {
    let given = fields.has("tls");
    let Written { enabled, tls, files } = fields.table("tls", read_tls_table).unwrap_or_default();
    let wanted = enabled.unwrap_or(given);
    let is_socket = |url: &ServerUrl| matches!(url.servers.as_slice(), [Address::Unix(_)]);
    let in_url = url.map(|url| (url.encrypted, is_socket(url)));
    match in_url {
        Some((true, _)) if enabled == Some(false) => {
            fields.report("tls", "the url says rediss://, so it cannot be switched off here".to_owned());
        }
        Some((_, true)) if wanted => {
            fields.report("tls", "has no meaning for a socket of this machine".to_owned());
        }
        Some((false, false)) if wanted => {
            fields.report("tls", "the url says redis://, which is plain text: write rediss://".to_owned());
        }
        _ => {}
    }
    let on = wanted || in_url.is_some_and(|(encrypted, _)| encrypted);
    (on.then_some(tls), files)
}

fn read_tls_table(fields: &mut TableReader<'_, '_>) -> Written {
    let enabled = fields.read("enabled", boolean);
    let insecure = fields.read("insecure", boolean).unwrap_or(false);
    let certificates = pem("certificate", Tls::are_certificates);
    let authorities = fields.read("ca_file", &certificates);
    let certificate = fields.read("cert_file", &certificates);
    let key = fields.read("key_file", pem("private key", Tls::is_private_key));
    for (this, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if fields.has(this) && !fields.has(other) {
            fields.report(this, format!("needs {other} beside it"));
        }
    }
    if insecure && fields.has("ca_file") {
        fields.report("insecure", "takes any certificate, so ca_file would mean nothing".to_owned());
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
