//! Reads settings from a document and collects every error.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::config::values::{boolean, integer, span, text, word};
use tollgate::config::{TableReader, Value, read_rules};
use tollgate::counters::memory::MemoryBounds;
use tollgate::headers::HeaderProfile;
use tollgate::{Algorithm, RuleSet};
use tracing_subscriber::EnvFilter;

use super::{
    CounterSettings, LogFormat, LogSettings, RedisCounterSettings, ServerSettings, Settings, Source, auth,
    callers, database, hosts, identity, jwt, listen_default, proxy, records, redis, short_names, tls,
};

const CONNECTIONS_MAX: usize = 1_000_000;
const KEYS_MAX: usize = 1_000_000_000;
const LOG_BYTES_MAX: usize = 1 << 40;
const REGION_BYTES_MAX: usize = 50;
const ID_BYTES_MAX: usize = 100;

/// Reads all sections. `None` if the rules are invalid; the table reader collects all errors.
pub(super) fn settings(fields: &mut TableReader<'_, '_>, source: Source) -> Option<Settings> {
    // First, because the rule set is compiled only if there are no errors so far: duplicate names must be reported.
    let rules = read_rules(fields);
    let server = fields.table("server", read_server).unwrap_or_default();
    let largest_log = rules.as_ref().and_then(largest_log);
    let counters = fields.table("counters", |fields| read_counters(fields, largest_log)).unwrap_or_default();
    let database = fields.table("database", database::read).unwrap_or_default();
    let records = fields.table("records", records::read).unwrap_or_default();
    let proxy = fields.table("proxy", |fields| proxy::read(fields, &source.flags));
    let proxy = proxy.or_else(|| proxy::from_flags(&source.flags));
    let auth = fields.table("auth", auth::read).unwrap_or_default();
    let callers = fields.table("callers", callers::read);
    let log = fields.table("log", read_log).unwrap_or_default();
    let identity = fields.table("identity", |fields| (identity::read(fields), jwt::read(fields)));
    let (identity, jwt) = identity.unwrap_or_default();
    let rules = rules.map(|rules| identity.apply_to(rules));
    short_names::read(fields);
    let strict_checks = fields.table("api", |fields| fields.read("strict", boolean).unwrap_or(false));
    let flags = &source.flags;
    Some(Settings {
        listen: flags.listen.or(server.listen).unwrap_or_else(listen_default),
        data_dir: (flags.data_dir.clone()).or(server.data_dir).unwrap_or_else(|| data_dir_default(&source)),
        config_file: flags.config.clone(),
        server: server.settings,
        counters,
        database,
        records,
        proxy,
        auth,
        callers,
        log,
        strict_checks: strict_checks.unwrap_or(false),
        rejects_unknown_tiers: identity.rejects_unknown_tiers,
        client_address: identity.client_address,
        client_ids: identity.client_ids,
        jwt,
        rules: rules?,
        normalization: identity.normalization,
        warnings: identity.warnings,
        source,
    })
}

/// Reads the rules and `[identity]`, which changes what they match and count. The other sections are skipped.
pub(super) fn rules(fields: &mut TableReader<'_, '_>) -> Option<RuleSet> {
    let rules = read_rules(fields);
    let identity = fields.table("identity", |fields| {
        jwt::skip(fields);
        identity::read(fields)
    });
    let identity = identity.unwrap_or_default();
    short_names::read(fields);
    for section in ["server", "counters", "database", "records", "proxy", "auth", "callers", "log", "api"] {
        fields.skip(section);
    }
    Some(identity.apply_to(rules?).with_normalization(identity.normalization))
}

/// Follows the XDG base directory specification; without a home, a directory below the working directory.
fn data_dir_default(source: &Source) -> PathBuf {
    let variable = |name: &str| {
        let found = source.environment.iter().find(|(key, value)| key == name && !value.is_empty());
        found.map(|(_, value)| PathBuf::from(value))
    };
    (variable("XDG_DATA_HOME").filter(|path| path.is_absolute()))
        .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
        .map_or_else(|| PathBuf::from("./tollgate-data"), |data| data.join("tollgate"))
}

#[derive(Default)]
struct Server {
    listen: Option<SocketAddr>,
    data_dir: Option<PathBuf>,
    settings: ServerSettings,
}

fn read_server(fields: &mut TableReader<'_, '_>) -> Server {
    let default = ServerSettings::default();
    let count = integer(1..=CONNECTIONS_MAX);
    let (min, hour) = (Duration::from_millis(1), Duration::from_hours(1));
    let timeout = duration(min, hour);
    let connections_max = fields.read("connections_max", &count).unwrap_or(default.connections_max);
    Server {
        listen: fields.read("listen", address),
        data_dir: fields.read("data_dir", directory),
        settings: ServerSettings {
            connections_max,
            connections_per_ip_max: (fields.read("connections_per_ip_max", &count))
                .unwrap_or_else(|| default.connections_per_ip_max.min(connections_max)),
            header_timeout: fields.read("header_timeout", &timeout).unwrap_or(default.header_timeout),
            body_timeout: fields.read("body_timeout", &timeout).unwrap_or(default.body_timeout),
            idle_timeout: fields.read("idle_timeout", &timeout).unwrap_or(default.idle_timeout),
            write_timeout: fields.read("write_timeout", &timeout).unwrap_or(default.write_timeout),
            drain_timeout: (fields.read("drain_timeout", duration(Duration::ZERO, hour)))
                .unwrap_or(default.drain_timeout),
            headers: read_headers(fields).unwrap_or(default.headers),
            hosts: hosts::read(fields),
            tls: fields.table("tls", tls::read).flatten(),
            region: fields.read("region", node_name(REGION_BYTES_MAX)).unwrap_or(default.region),
            id: fields.read("id", node_name(ID_BYTES_MAX)).unwrap_or(default.id),
        },
    }
}

pub(super) fn address(value: &Value) -> Result<SocketAddr, String> {
    let text = text(value)?;
    text.parse().map_err(|_| format!("{text:?} is not an IP address and port such as \"127.0.0.1:8080\""))
}

/// A name in records, which must fit its column.
fn node_name(bytes_max: usize) -> impl Fn(&Value) -> Result<Box<str>, String> {
    move |value| {
        let name = text(value)?;
        if name.is_empty() || name.len() > bytes_max || name.chars().any(char::is_control) {
            return Err(format!("must be 1 to {bytes_max} printable bytes"));
        }
        Ok(name.into())
    }
}

fn directory(value: &Value) -> Result<PathBuf, String> {
    let text = text(value)?;
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.into()) }
}

pub(super) fn duration(min: Duration, max: Duration) -> impl Fn(&Value) -> Result<Duration, String> {
    let shown = |duration: Duration| tollgate::Span::from(duration).to_string();
    move |value| {
        let duration = Duration::from(span(value)?);
        if (min..=max).contains(&duration) {
            Ok(duration)
        } else {
            Err(format!("must be between {} and {}", shown(min), shown(max)))
        }
    }
}

fn read_headers(fields: &mut TableReader<'_, '_>) -> Option<Vec<HeaderProfile>> {
    let known = HeaderProfile::ALL.map(|profile| (profile.as_str(), profile));
    let profiles = fields.items("headers", word(&known))?;
    if let Some(duplicate) = duplicate(&profiles) {
        fields.report("headers", format!("{:?} is listed twice", duplicate.as_str()));
        return Some(profiles);
    }
    for (number, other) in profiles.iter().enumerate() {
        for one in &profiles[..number] {
            if let Some(field) = one.shared_field(*other) {
                let (one, other, field) = (one.as_str(), other.as_str(), field.as_str());
                fields.report("headers", format!("{one:?} and {other:?} conflict: both set {field}"));
            }
        }
    }
    Some(profiles)
}

/// The first item that equals an earlier one.
pub(super) fn duplicate<T: PartialEq>(items: &[T]) -> Option<&T> {
    items.iter().enumerate().find(|(number, item)| items[..*number].contains(item)).map(|(_, item)| item)
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Store {
    Memory,
    Redis,
}

/// The largest limit of a sliding window log, and its rule.
fn largest_log(rules: &RuleSet) -> Option<(u32, &str)> {
    let logs = rules.rules().iter().flat_map(|rule| {
        let limits = rule.limits.iter().filter(|one| one.limit.algorithm() == Algorithm::SlidingWindowLog);
        limits.map(|one| (one.limit.requests(), &*rule.name))
    });
    logs.max_by_key(|(requests, _)| *requests)
}

fn read_counters(fields: &mut TableReader<'_, '_>, largest_log: Option<(u32, &str)>) -> CounterSettings {
    let store = fields.read("store", word(&[("memory", Store::Memory), ("redis", Store::Redis)]));
    let bounds = read_bounds(fields, largest_log);
    let interval = duration(Duration::from_secs(1), Duration::from_hours(24));
    let save_every = fields.read("save_every", interval);
    if store == Some(Store::Redis) {
        if fields.has("save_every") {
            fields.report("save_every", "requires store = \"memory\"".to_owned());
        }
        let read = redis::read(fields);
        return read.map_or_else(CounterSettings::default, |(redis, tls_files)| {
            CounterSettings::Redis(Box::new(RedisCounterSettings { redis, tls_files, bounds }))
        });
    }
    for key in redis::KEYS.into_iter().chain(redis::PARAMETERS) {
        // Not reported if `store` itself is invalid.
        if fields.has(key) && (store.is_some() || !fields.has("store")) {
            fields.report(key, "requires store = \"redis\"".to_owned());
        }
        fields.skip(key);
    }
    CounterSettings::Memory { bounds, save_every: save_every.unwrap_or(Duration::from_mins(1)) }
}

fn read_bounds(fields: &mut TableReader<'_, '_>, largest_log: Option<(u32, &str)>) -> MemoryBounds {
    let default = MemoryBounds::default();
    let log_bytes_max = fields.read("log_bytes_max", integer(0..=LOG_BYTES_MAX));
    if let (Some(given), Some((requests, rule))) = (log_bytes_max, largest_log) {
        let min = MemoryBounds::log_bytes_min(requests);
        if given < min {
            let reason =
                format!("must be at least {min}, the size of one client's log under the rule {rule:?}");
            fields.report("log_bytes_max", reason);
        }
    }
    MemoryBounds {
        keys_max: (fields.read("keys_max", integer(1..=KEYS_MAX)))
            .and_then(NonZeroUsize::new)
            .unwrap_or(default.keys_max),
        log_bytes_max: log_bytes_max.unwrap_or(default.log_bytes_max),
        penalties_max: fields.read("penalties_max", integer(0..=KEYS_MAX)).unwrap_or(default.penalties_max),
    }
}

fn read_log(fields: &mut TableReader<'_, '_>) -> LogSettings {
    let default = LogSettings::default();
    let known = LogFormat::ALL.map(|format| (format.as_str(), format));
    LogSettings {
        format: fields.read("format", word(&known)).unwrap_or(default.format),
        filter: fields.read("level", filter).unwrap_or(default.filter),
        refusals: fields
            .read("refusals", word(&[("sampled", true), ("off", false)]))
            .unwrap_or(default.refusals),
    }
}

fn filter(value: &Value) -> Result<String, String> {
    let text = text(value)?;
    // An unknown word would be parsed as a module name and silence everything else.
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    let plain = |part: &str| part.contains('=') || levels.contains(&part.trim());
    let valid = text.split(',').all(plain) && EnvFilter::try_new(&text).is_ok();
    if valid { Ok(text) } else { Err(format!("{text:?} is not one of {}", levels.join(", "))) }
}
