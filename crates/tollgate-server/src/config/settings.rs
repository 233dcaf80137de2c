//! Settings: as written in a file, the environment and flags; then as used, checked whole.
//!
//! What was written becomes one [`Document`] (file < environment < flags), and only a document without a single
//! mistake becomes [`Settings`]. So a reload either has all of the new settings in hand or nothing.

mod callers;
mod database;
mod environment;
mod error;
mod file;
mod read;
mod redis;
mod to_toml;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use tollgate::RuleSet;
use tollgate::config::Document;
use tollgate::counters::memory::MemoryBounds;
use tollgate::headers::HeaderProfile;
use tollgate_stores::redis::{Address, RedisSettings, Secret};

pub use self::callers::CallerLimits;
pub use self::database::DatabaseSettings;
pub use self::environment::environment;
pub use self::error::SettingsError;
pub(crate) use self::file::FileStamp;
use self::file::read_file;
pub use self::file::read_text;
pub use self::redis::TlsFiles;
use crate::auth::scope::Scopes;

/// Everything that can be set, checked.
#[derive(Debug)]
pub struct Settings {
    /// Where the service listens.
    pub listen: SocketAddr,
    /// Where it keeps what must survive a restart.
    pub data_dir: PathBuf,
    /// The file they were read from, if there is one.
    pub config_file: Option<PathBuf>,
    /// Connections and answers.
    pub server: ServerSettings,
    /// Where counters are kept.
    pub counters: CounterSettings,
    /// Where rules, keys and the rest of what people configure are kept.
    pub database: DatabaseSettings,
    /// Who may call.
    pub auth: AuthSettings,
    /// How much each caller may ask, if that is limited.
    pub callers: Option<CallerLimits>,
    /// What is logged, and how.
    pub log: LogSettings,
    /// The leading bits by which IPv6 addresses are counted; the rules know them too.
    pub ipv6_prefix: u8,
    /// Whether addresses of `64:ff9b::/96` are the IPv4 addresses in them; the rules know that too.
    pub nat64: bool,
    /// The rules. They know which spellings of a request's facts are one.
    pub rules: RuleSet,
    /// Whether they are the built-in default, because none are written.
    pub has_built_in_default: bool,
    /// What they were made of, to be read again.
    pub(crate) source: Source,
}

/// Connections and answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Open connections at most.
    pub connections_max: usize,
    /// Open connections at most from one address (IPv6: one /64).
    pub connections_per_ip_max: usize,
    /// How long a client may take over the head of a request.
    pub header_timeout: Duration,
    /// How long a client may take over the body of a request.
    pub body_timeout: Duration,
    /// How long a connection may lie unused.
    pub idle_timeout: Duration,
    /// How long requests may take to finish once the service is told to stop.
    pub drain_timeout: Duration,
    /// Which header fields tell clients about their limits.
    pub headers: Vec<HeaderProfile>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        ServerSettings {
            connections_max: 10_000,
            connections_per_ip_max: 1_024,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_mins(1),
            drain_timeout: Duration::from_secs(30),
            headers: vec![HeaderProfile::XRateLimit],
        }
    }
}

/// Where counters are kept.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterSettings {
    /// In this process, saved to the data directory.
    Memory {
        /// How much may be held.
        bounds: MemoryBounds,
        /// How often it is saved.
        save_every: Duration,
    },
    /// On Redis or Valkey, shared with other nodes.
    Redis(Box<RedisCounterSettings>),
}

/// Counters on Redis or Valkey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisCounterSettings {
    /// The servers and how they are reached.
    pub redis: RedisSettings,
    /// The files that `redis.tls` was read from.
    pub tls_files: TlsFiles,
    /// How much may be held in this process while no server can be reached.
    pub bounds: MemoryBounds,
}

impl RedisCounterSettings {
    /// Servers to which counters travel in the open, and which would take them from anybody.
    pub fn unprotected(&self) -> Vec<&Address> {
        if self.redis.tls.is_some() || self.redis.login.password.is_some() {
            return Vec::new();
        }
        self.redis.topology.servers().iter().filter(|server| !server.is_local()).collect()
    }
}

impl CounterSettings {
    /// How much may be held in this process.
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

/// Who may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSettings {
    /// Whether anyone may ask for decisions.
    pub open_checks: bool,
    /// The most requests per window in numbers that a check brings itself, if there is a most.
    pub override_max: Option<u32>,
    /// CallerLimiter with a key of their own.
    pub callers: Vec<Caller>,
    /// What the hashes of API keys are keyed with; kept in the data directory if it is not said.
    pub key_secret: Option<KeySecretSettings>,
}

/// What the hashes of API keys are keyed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySecretSettings {
    /// The secret itself.
    pub secret: Secret,
    /// The file it was read from, if it was.
    pub file: Option<PathBuf>,
}

impl Default for AuthSettings {
    fn default() -> Self {
        AuthSettings { open_checks: true, override_max: None, callers: Vec::new(), key_secret: None }
    }
}

/// A caller of the API and what it may do.
#[derive(Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its name in logs and in the audit trail.
    pub name: Box<str>,
    /// The SHA-256 of its key: the key itself is nowhere in the settings.
    pub key_sha256: [u8; 32],
    /// What it may do.
    pub scopes: Scopes,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Caller({:?}, ***, {:?})", self.name, self.scopes)
    }
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// For people or for machines.
    pub format: LogFormat,
    /// Which events, in the notation of `RUST_LOG`: `info`, or `warn,tollgate_server=debug`.
    pub filter: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        let person = io::IsTerminal::is_terminal(&io::stderr());
        let format = if person { LogFormat::Pretty } else { LogFormat::Json };
        LogSettings { format, filter: "info".to_owned() }
    }
}

/// The form of log lines.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// All forms.
    pub const ALL: [LogFormat; 2] = [LogFormat::Pretty, LogFormat::Json];

    /// The name users write and read.
    pub const fn as_str(self) -> &'static str {
        match self {
            LogFormat::Pretty => "pretty",
            LogFormat::Json => "json",
        }
    }
}

/// What the command line says about settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The settings file.
    pub config: Option<PathBuf>,
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// Where to keep what must survive a restart.
    pub data_dir: Option<PathBuf>,
}

/// Where settings came from. The environment of a process does not change from outside, so it is kept, not read twice.
#[derive(Clone, Default)]
pub(crate) struct Source {
    flags: Flags,
    environment: Vec<(String, String)>,
    /// The file before it was read, so that a change from then on is noticed.
    pub(crate) stamp: Option<FileStamp>,
}

impl fmt::Debug for Source {
    /// The environment may hold anything: only its size is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({:?}, {} variables)", self.flags, self.environment.len())
    }
}

impl Clone for Settings {
    fn clone(&self) -> Self {
        Settings {
            listen: self.listen,
            data_dir: self.data_dir.clone(),
            config_file: self.config_file.clone(),
            server: self.server.clone(),
            counters: self.counters.clone(),
            database: self.database.clone(),
            auth: self.auth.clone(),
            callers: self.callers.clone(),
            log: self.log.clone(),
            ipv6_prefix: self.ipv6_prefix,
            nat64: self.nat64,
            // The compiled rules are shared, not compiled again.
            rules: self.rules.with_overrides(Arc::clone(self.rules.overrides())),
            has_built_in_default: self.has_built_in_default,
            source: self.source.clone(),
        }
    }
}

impl Settings {
    /// Reads the file, the environment (see [`environment`]) and the flags, each over the one before.
    ///
    /// # Errors
    /// When the file cannot be read, or with everything that is wrong in it and in the environment, each with its
    /// place.
    pub fn load(
        flags: &Flags,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Settings, SettingsError> {
        let source = Source {
            flags: flags.clone(),
            environment: environment.filter(environment::concerns_us).collect(),
            stamp: flags.config.as_deref().and_then(FileStamp::of),
        };
        let text = flags.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
        Self::from_source(source, &text)
    }

    /// Settings from the text of a file alone.
    ///
    /// # Errors
    /// Everything that is wrong with the text.
    pub fn from_toml(text: &str) -> Result<Settings, SettingsError> {
        Self::from_source(Source::default(), text)
    }

    /// Reads the same sources again. An empty file is refused here: that is a file being written, not a wish.
    ///
    /// # Errors
    /// As [`Settings::load`]; these settings stay as they are.
    pub fn reload(&self) -> Result<Settings, SettingsError> {
        let text = self.config_file.as_deref().map(read_file).transpose()?.unwrap_or_default();
        match &self.config_file {
            Some(path) if text.trim().is_empty() => Err(SettingsError::Empty { path: path.clone() }),
            _ => Self::from_source(self.source.clone(), &text),
        }
    }

    /// The keys that differ in `new` and take a restart to follow.
    pub fn needs_restart(&self, new: &Settings) -> Vec<&'static str> {
        // Header profiles follow at once.
        let connections = |server: &ServerSettings| ServerSettings { headers: Vec::new(), ..server.clone() };
        let pairs = [
            ("server.listen", self.listen != new.listen),
            ("server.data_dir", self.data_dir != new.data_dir),
            ("server (connections and timeouts)", connections(&self.server) != connections(&new.server)),
            ("counters", self.counters != new.counters),
            ("database", self.database != new.database),
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
        let mut fields = document.fields(&mut problems);
        let settings = read::settings(&mut fields, source);
        fields.finish();
        problems.into_result(settings).map_err(invalid)
    }
}

/// Where the service listens unless told otherwise: reachable from this machine alone.
fn listen_default() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))
}

#[cfg(test)]
mod tests;
