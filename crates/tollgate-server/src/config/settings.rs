//! Settings: from the settings file, environment variables and flags, validated as a whole.
//!
//! File and environment are merged into one [`Document`]; flags override both. Only a document without any error becomes
//! [`Settings`], so a reload applies all of the new settings or none.

mod archive;
mod auth;
mod callers;
mod client_ids;
mod database;
mod environment;
mod error;
mod file;
mod hosts;
mod identity;
mod jwt;
mod parquet;
mod proxy;
mod read;
mod records;
mod redis;
mod schema;
mod short_names;
mod tls;
mod to_json;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use tollgate::RuleSet;
use tollgate::config::{Document, Problems, flat_rule_warnings};
use tollgate::counters::memory::MemoryBounds;
use tollgate::headers::HeaderProfile;
use tollgate::identity::{ClientAddressPolicy, Normalization};
use tollgate_stores::redis::{Address, RedisSettings, Secret};

pub use self::archive::ArchiveSection;
pub use self::callers::CallerLimits;
pub use self::client_ids::{ClientIdSettings, LoginEndpoint};
pub use self::database::DatabaseSettings;
pub(crate) use self::database::masked as masked_url;
pub use self::environment::environment;
pub use self::error::SettingsError;
pub(crate) use self::file::FileStamp;
use self::file::read_file;
pub use self::file::read_text;
pub(crate) use self::jwt::{InvalidToken, JwtIssuer, JwtKeys, JwtSettings, KeyOrigin};
pub use self::parquet::ParquetSection;
pub use self::proxy::{
    AccessLogFormat, Balance, HealthCheckSettings, HostHeader, ProxySettings, RouteSettings,
    UpstreamProtocol, UpstreamTimeouts, UpstreamUrl,
};
pub use self::records::RecordSettings;
pub use self::redis::TlsFiles;
pub use self::schema::schema;
pub(crate) use self::tls::upstream::{client_config, system_roots};
pub use self::tls::{ClientAuthSettings, ServerCertificate, TlsSettings, TlsVersion, UpstreamTlsSettings};
use crate::auth::client_certificate::CertificateName;
use crate::auth::scope::Scopes;

/// All settings, validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The listen address.
    pub listen: SocketAddr,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The settings file, if any.
    pub config_file: Option<PathBuf>,
    /// Connections and response headers.
    pub server: ServerSettings,
    /// The counter store.
    pub counters: CounterSettings,
    /// The configuration database.
    pub database: DatabaseSettings,
    /// Records of decisions.
    pub records: RecordSettings,
    /// The reverse proxy, if any.
    pub proxy: Option<ProxySettings>,
    /// Authentication of callers.
    pub auth: AuthSettings,
    /// Limits of callers, if any.
    pub callers: Option<CallerLimits>,
    /// Logging.
    pub log: LogSettings,
    /// Whether unknown fields of a check are errors (`api.strict`).
    pub strict_checks: bool,
    /// Whether tiers that no rule names are errors (`identity.unknown_tier = "reject"`).
    pub rejects_unknown_tiers: bool,
    /// How the address of a client is found (`identity.client_address`).
    pub client_address: ClientAddressPolicy,
    /// Tokens of clients (`identity.jwt`, `identity.invalid_token`).
    pub(crate) jwt: JwtSettings,
    /// Where gateways find the ids of a client in its request.
    pub client_ids: ClientIdSettings,
    /// The rules as written, and how addresses are counted. [`Settings::rule_set`] normalizes them.
    pub rules: RuleSet,
    /// How identifiers are normalized.
    pub normalization: Normalization,
    /// What may not be as meant.
    pub warnings: Vec<String>,
    /// The sources, for a reload.
    pub(crate) source: Source,
}

/// `[server]`: connections and response headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Maximum number of open connections per address (IPv6: per /64).
    pub connections_per_ip_max: usize,
    /// Timeout for receiving the head of a request.
    pub header_timeout: Duration,
    /// Timeout for receiving the body of a request.
    pub body_timeout: Duration,
    /// Idle connections are closed after this time.
    pub idle_timeout: Duration,
    /// Connections whose client does not take its responses are closed after this time.
    pub write_timeout: Duration,
    /// How long requests in flight may take after a shutdown signal.
    pub drain_timeout: Duration,
    /// The families of rate limit headers in responses.
    pub headers: Vec<HeaderProfile>,
    /// The region, in records and metrics.
    pub region: Box<str>,
    /// The name of this node, in records and metrics; by default its host name.
    pub id: Box<str>,
    /// Names of this server beside loopback names, in lower case; IPv6 addresses in brackets.
    pub hosts: Vec<Box<str>>,
    /// TLS; without it the listener speaks plain HTTP.
    pub tls: Option<TlsSettings>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        ServerSettings {
            connections_max: 10_000,
            connections_per_ip_max: 1_024,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(30),
            headers: vec![HeaderProfile::XRateLimit],
            hosts: Vec::new(),
            tls: None,
            region: "".into(),
            id: host_name(),
        }
    }
}

/// The host name, which names a node unless `server.id` does.
fn host_name() -> Box<str> {
    rustix::system::uname().nodename().to_string_lossy().into()
}

/// `[counters]`: the counter store.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterSettings {
    /// In memory, saved to the data directory.
    Memory {
        /// Memory bounds.
        bounds: MemoryBounds,
        /// The interval between saves.
        save_every: Duration,
    },
    /// On Redis or Valkey, shared by all nodes.
    Redis(Box<RedisCounterSettings>),
}

/// `[counters]` with `store = "redis"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisCounterSettings {
    /// The servers and connection options.
    pub redis: RedisSettings,
    /// The files that `redis.tls` was loaded from.
    pub tls_files: TlsFiles,
    /// Memory bounds of the fallback counters.
    pub bounds: MemoryBounds,
}

impl RedisCounterSettings {
    /// Remote servers that are used without TLS and without a password.
    pub fn unprotected(&self) -> Vec<&Address> {
        if self.redis.tls.is_some() || self.redis.login.password.is_some() {
            return Vec::new();
        }
        self.redis.topology.servers().iter().filter(|server| !server.is_local()).collect()
    }
}

impl CounterSettings {
    /// The memory bounds of counters in this process.
    pub fn bounds(&self) -> MemoryBounds {
        match self {
            CounterSettings::Memory { bounds, .. } => *bounds,
            CounterSettings::Redis(settings) => settings.bounds,
        }
    }
}

impl Default for CounterSettings {
    fn default() -> Self {
        CounterSettings::Memory { bounds: MemoryBounds::default(), save_every: Duration::from_mins(1) }
    }
}

/// `[auth]`: authentication of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSettings {
    /// Whether checks need no key.
    pub open_checks: bool,
    /// Maximum requests per window of a limit that is sent with a check.
    pub override_max: Option<u32>,
    /// Callers with their own keys.
    pub callers: Vec<Caller>,
    /// The secret that hashes API keys; by default a generated one in the data directory.
    pub key_secret: Option<KeySecretSettings>,
}

/// The secret that hashes API keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySecretSettings {
    /// The secret.
    pub secret: Secret,
    /// The file that it was read from, if any.
    pub file: Option<PathBuf>,
}

impl Default for AuthSettings {
    fn default() -> Self {
        AuthSettings { open_checks: true, override_max: None, callers: Vec::new(), key_secret: None }
    }
}

/// A caller of the API.
#[derive(Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its name in logs and the audit log.
    pub name: Box<str>,
    /// What identifies it.
    pub credential: Credential,
    /// Its permissions.
    pub scopes: Scopes,
    /// The tenant to which it is bound.
    pub tenant: Option<Box<str>>,
}

/// What identifies a caller.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// The SHA-256 of its key. The key itself is not in the settings.
    KeySha256([u8; 32]),
    /// A name in its client certificate.
    Certificate(CertificateName),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credential::KeySha256(_) => f.write_str("***"),
            Credential::Certificate(name) => write!(f, "{name:?}"),
        }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Caller({:?}, {:?}, {:?})", self.name, self.credential, self.scopes)
    }
}

/// `[log]`: logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The format of log lines.
    pub format: LogFormat,
    /// The filter in the syntax of `RUST_LOG`: `info`, or `warn,tollgate_server=debug`.
    pub filter: String,
    /// Whether refusals are logged, some of them each second.
    pub refusals: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
        let format = if is_terminal { LogFormat::Pretty } else { LogFormat::Json };
        LogSettings { format, filter: "info".to_owned(), refusals: true }
    }
}

/// The format of log lines.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Pretty,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// All formats.
    pub const ALL: [LogFormat; 2] = [LogFormat::Pretty, LogFormat::Json];

    /// Its name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            LogFormat::Pretty => "pretty",
            LogFormat::Json => "json",
        }
    }
}

/// Settings from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The settings file.
    pub config: Option<PathBuf>,
    /// The listen address.
    pub listen: Option<SocketAddr>,
    /// The data directory.
    pub data_dir: Option<PathBuf>,
    /// The listen address of the reverse proxy.
    pub proxy_listen: Option<SocketAddr>,
    /// The upstreams of a reverse proxy with one route, in place of those in the file.
    pub upstreams: Vec<UpstreamUrl>,
}

/// The sources of settings. A reload reads the file again; flags and environment are kept.
#[derive(Clone, Default)]
pub(crate) struct Source {
    flags: Flags,
    environment: Vec<(String, String)>,
    /// The state of the file before it was read, to detect later changes.
    pub(crate) stamp: Option<FileStamp>,
}

impl fmt::Debug for Source {
    /// Prints only the number of environment variables: they may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({:?}, {} variables)", self.flags, self.environment.len())
    }
}

impl Settings {
    /// Loads settings from the file, the environment (see [`environment`]) and flags; later sources take precedence.
    ///
    /// # Errors
    /// When the file cannot be read, or with every error in it and in the environment, each with its location.
    pub fn load(
        flags: &Flags,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Settings, SettingsError> {
        let source = Source {
            flags: flags.clone(),
            environment: environment.filter(environment::is_relevant).collect(),
            stamp: flags.config.as_deref().and_then(FileStamp::of),
        };
        let text = flags.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
        Self::from_source(source, &text)
    }

    /// Parses the text of a settings file.
    ///
    /// # Errors
    /// Every error in the text.
    pub fn from_toml(text: &str) -> Result<Settings, SettingsError> {
        Self::from_source(Source::default(), text)
    }

    /// Parses only the rules of a settings file. Files that other sections name may not exist on this machine.
    ///
    /// # Errors
    /// Every error in the rules and in `[identity]`.
    pub fn rules_from_toml(text: &str) -> Result<RuleSet, Problems> {
        Self::rules_from(Document::from_toml(text)?)
    }

    /// Like [`rules_from_toml`](Self::rules_from_toml), from a parsed document.
    ///
    /// # Errors
    /// Every error in the rules and in `[identity]`.
    pub fn rules_from(mut document: Document) -> Result<RuleSet, Problems> {
        // Settings are not applied here, so what is unusual about them does not matter.
        let _ = short_names::expand(&mut document);
        let mut problems = Problems::default();
        let mut fields = document.fields(&mut problems);
        let rules = read::rules(&mut fields);
        fields.finish();
        problems.into_result(rules)
    }

    /// Loads settings from the same sources again. An empty file is an error: it is probably being written.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub fn reload(&self) -> Result<Settings, SettingsError> {
        let text = self.config_file.as_deref().map(read_file).transpose()?.unwrap_or_default();
        match &self.config_file {
            Some(path) if text.trim().is_empty() => {
                let source = io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty");
                Err(SettingsError::Unreadable { path: path.clone(), source })
            }
            _ => Self::from_source(self.source.clone(), &text),
        }
    }

    /// The certificates of all listeners, each file once.
    pub(crate) fn certificates(&self) -> Vec<&ServerCertificate> {
        let proxy = self.proxy.as_ref().and_then(|proxy| proxy.tls.as_ref());
        let mut found: Vec<&ServerCertificate> = Vec::new();
        for certificate in self.server.tls.iter().chain(proxy).flat_map(|tls| &tls.certificates) {
            if found.iter().all(|other| other.certificate_file != certificate.certificate_file) {
                found.push(certificate);
            }
        }
        found
    }

    /// The files of `[server.tls]` and `[proxy]` as they are written now, even if they are invalid: creating one of them may make them
    /// valid.
    pub(crate) fn tls_files(&self) -> Vec<PathBuf> {
        let text = self.config_file.as_deref().and_then(|file| read_file(file).ok()).unwrap_or_default();
        let Ok(mut document) = Document::from_toml(&text) else { return Vec::new() };
        let mut problems = environment::apply(&mut document, &self.source.environment);
        let mut fields = document.fields(&mut problems);
        let of_server = fields.table("server", |server| server.table("tls", tls::named_files)).flatten();
        let of_proxy = fields.table("proxy", proxy::named_files);
        of_server.into_iter().chain(of_proxy).flatten().collect()
    }

    /// The rules, normalized.
    pub fn rule_set(&self) -> RuleSet {
        self.rules.clone().with_normalization(self.normalization.clone())
    }

    /// The changed keys that require a restart.
    pub fn needs_restart(&self, new: &Settings) -> Vec<&'static str> {
        // Header families, host names and certificates are reloaded.
        let connections = |server: &ServerSettings| ServerSettings {
            headers: Vec::new(),
            hosts: Vec::new(),
            tls: None,
            ..server.clone()
        };
        let pairs = [
            ("server.listen", self.listen != new.listen),
            ("server.data_dir", self.data_dir != new.data_dir),
            (
                "server (connections, timeouts, region and id)",
                connections(&self.server) != connections(&new.server),
            ),
            ("server.tls (on or off)", self.server.tls.is_some() != new.server.tls.is_some()),
            ("counters", self.counters != new.counters),
            ("database", self.database != new.database),
            ("records", self.records != new.records),
            (
                "proxy (listen, delayed_max and access_log)",
                self.proxy.as_ref().map(without_routes) != new.proxy.as_ref().map(without_routes),
            ),
            ("proxy.tls (on or off)", has_proxy_tls(self) != has_proxy_tls(new)),
            ("auth.key_secret", self.auth.key_secret != new.auth.key_secret),
            ("log", self.log != new.log),
        ];
        pairs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    fn from_source(source: Source, text: &str) -> Result<Settings, SettingsError> {
        let file = source.flags.config.clone();
        let invalid = |problems| SettingsError::Invalid { file: file.clone(), problems };
        let mut document = Document::from_toml(text).map_err(invalid)?;
        let mut problems = environment::apply(&mut document, &source.environment);
        let mut warnings = short_names::expand(&mut document);
        let mut fields = document.fields(&mut problems);
        let settings = read::settings(&mut fields, source);
        fields.finish();
        let mut settings = problems.into_result(settings).map_err(invalid)?;
        let warning = |(rule, reason)| format!("rule {rule:?} {reason}");
        warnings.append(&mut settings.warnings);
        warnings.extend(flat_rule_warnings(&document).into_iter().map(warning));
        Ok(Settings { warnings, ..settings })
    }
}

/// Routes, their timeouts and certificates are reloaded.
fn without_routes(proxy: &ProxySettings) -> ProxySettings {
    let timeouts = UpstreamTimeouts::default();
    ProxySettings { routes: Vec::new(), timeouts, tls: None, upstream_tls: None, ..proxy.clone() }
}

fn has_proxy_tls(settings: &Settings) -> bool {
    settings.proxy.as_ref().is_some_and(|proxy| proxy.tls.is_some())
}

/// Reachable from this machine only.
fn listen_default() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))
}

#[cfg(test)]
mod tests;
