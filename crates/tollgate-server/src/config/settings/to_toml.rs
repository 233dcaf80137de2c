//! Prints settings as a settings file, with defaults, short forms expanded to rules, and secrets masked.

use std::fmt::{Display, Write};
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tollgate::counters::memory::MemoryBounds;
use tollgate::identity::{DescriptorNormalization, IdNormalization, Normalization};
use tollgate::limit::Window;
use tollgate::rules::{Matcher, Response, Rule, RuleLimit};
use tollgate::{Limit, RuleSet, Span};
use tollgate_stores::redis::{Address, Login, RedisSettings, Topology};

use super::redis::topology_name;
use super::{CounterSettings, KeySecretSettings, Settings, TlsFiles};

impl Settings {
    /// The settings as TOML, with secrets masked.
    pub fn to_toml(&self) -> String {
        let mut out = Toml::default();
        self.write_server(&mut out);
        self.write_counters(&mut out);
        self.database.write(&mut out);
        self.write_auth(&mut out);
        if let Some(callers) = &self.callers {
            callers.write(&mut out);
        }
        out.section("log");
        out.text("format", self.log.format.as_str());
        out.text("level", &self.log.filter);
        out.section("identity");
        out.plain("ipv6_prefix", self.ipv6_prefix);
        out.plain("nat64", self.nat64);
        write_spelling(self.rules.normalization(), &mut out);
        write_rules(&self.rules, &mut out);
        out.0
    }

    fn write_server(&self, out: &mut Toml) {
        let server = &self.server;
        out.section("server");
        out.text("listen", self.listen);
        out.text("data_dir", self.data_dir.display());
        out.plain("connections_max", server.connections_max);
        out.plain("connections_per_ip_max", server.connections_per_ip_max);
        out.text("header_timeout", Span::from(server.header_timeout));
        out.text("body_timeout", Span::from(server.body_timeout));
        out.text("idle_timeout", Span::from(server.idle_timeout));
        out.text("drain_timeout", Span::from(server.drain_timeout));
        out.plain("headers", list(server.headers.iter().map(|profile| profile.as_str())));
    }

    fn write_counters(&self, out: &mut Toml) {
        out.section("counters");
        match &self.counters {
            CounterSettings::Memory { bounds, save_every } => {
                out.text("store", "memory");
                write_bounds(bounds, out);
                out.text("save_every", Span::from(*save_every));
            }
            CounterSettings::Redis(settings) => {
                out.text("store", "redis");
                write_redis(&settings.redis, &settings.tls_files, out);
                write_bounds(&settings.bounds, out);
            }
        }
    }

    fn write_auth(&self, out: &mut Toml) {
        out.section("auth");
        out.plain("open_checks", self.auth.open_checks);
        if let Some(max) = self.auth.override_max {
            out.plain("override_max", max);
        }
        match &self.auth.key_secret {
            Some(KeySecretSettings { file: Some(file), .. }) => out.text("key_secret_file", file.display()),
            Some(_) => out.text("key_secret", "***"),
            None => {}
        }
        for caller in &self.auth.callers {
            out.item("auth.callers");
            out.text("name", &caller.name);
            out.text("key_sha256", "***");
            out.plain("scopes", list(caller.scopes.iter()));
        }
    }
}

fn write_spelling(normalization: &Normalization, out: &mut Toml) {
    let IdNormalization { user, tenant, login } = normalization.ids;
    let descriptors = match &normalization.descriptors {
        DescriptorNormalization::All(fold) => quoted(fold.as_str()),
        DescriptorNormalization::Named(folds) => {
            let named =
                folds.iter().map(|(name, fold)| format!("{} = {}", quoted(name), quoted(fold.as_str())));
            format!("{{ {} }}", named.collect::<Vec<_>>().join(", "))
        }
    };
    let ids = [("user_id", user), ("tenant", tenant), ("login", login)];
    let ids = ids.map(|(key, fold)| format!("{key} = {}", quoted(fold.as_str()))).join(", ");
    out.plain("normalize", format_args!("{{ {ids}, descriptors = {descriptors} }}"));
    out.plain("ignore_path_case", normalization.ignore_path_case);
    out.text("head", normalization.head.as_str());
}

fn write_bounds(bounds: &MemoryBounds, out: &mut Toml) {
    out.plain("keys_max", bounds.keys_max);
    out.plain("log_bytes_max", bounds.log_bytes_max);
    out.plain("penalties_max", bounds.penalties_max);
}

fn write_redis(redis: &RedisSettings, files: &TlsFiles, out: &mut Toml) {
    out.text("topology", topology_name(&redis.topology));
    match &redis.topology {
        Topology::Single(server) => out.text("url", redis_url(server, redis.tls.is_some())),
        other => out.plain("nodes", list(other.servers())),
    }
    write_login("user", "password", &redis.login, out);
    out.plain("database", redis.database);
    match &redis.topology {
        Topology::Sentinel { master, login, .. } => {
            out.text("sentinel_master", master);
            write_login("sentinel_user", "sentinel_password", login, out);
        }
        Topology::Ring { virtual_nodes, .. } => out.plain("virtual_nodes", virtual_nodes),
        _ => {}
    }
    if let Some(tls) = &redis.tls {
        let mut parts = vec!["enabled = true".to_owned(), format!("insecure = {}", tls.insecure)];
        let named =
            [("ca_file", &files.ca_file), ("cert_file", &files.cert_file), ("key_file", &files.key_file)];
        let file = |(key, file): (&str, &Option<PathBuf>)| {
            file.as_ref().map(|file| format!("{key} = {}", quoted(file.display())))
        };
        parts.extend(named.into_iter().filter_map(file));
        out.plain("tls", format_args!("{{ {} }}", parts.join(", ")));
    }
    out.plain("connections", redis.connections);
    out.text("timeout", Span::from(redis.timeout));
    out.text("connect_timeout", Span::from(redis.connect_timeout));
    out.plain("leases", redis.leases);
    out.plain("refusal_cache", redis.refusal_cache);
}

fn write_login(user: &str, password: &str, login: &Login, out: &mut Toml) {
    if let Some(name) = &login.user {
        out.text(user, name);
    }
    if login.password.is_some() {
        out.text(password, "***");
    }
}

fn redis_url(server: &Address, encrypted: bool) -> String {
    const IN_PATHS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
    match server {
        Address::Unix(path) => {
            let path = path.to_string_lossy();
            format!("redis+unix://{}", utf8_percent_encode(&path, IN_PATHS))
        }
        Address::Tcp { .. } => format!("{}://{server}", if encrypted { "rediss" } else { "redis" }),
    }
}

fn write_rules(rules: &RuleSet, out: &mut Toml) {
    if let Some(policy) = rules.penalties() {
        out.section("progressive_penalties");
        out.plain("enabled", true);
        out.text("detection_window", policy.detection_window);
        out.plain("violation_threshold", policy.violation_threshold);
        out.text("base_cooldown", policy.base_cooldown);
        let multipliers: Vec<String> = policy.multipliers.iter().map(ToString::to_string).collect();
        out.plain("penalty_multipliers", format_args!("[{}]", multipliers.join(", ")));
        out.text("max_cooldown", policy.cooldown_max);
    }
    for rule in rules.rules() {
        write_rule(rule, out);
    }
}

fn write_rule(rule: &Rule, out: &mut Toml) {
    out.item("rules");
    out.text("name", &rule.name);
    out.plain("priority", rule.priority);
    let when = matcher(&rule.when);
    if !when.is_empty() {
        out.plain("when", format_args!("{{ {} }}", when.join(", ")));
    }
    out.text("layer", &rule.layer);
    out.text("action", rule.action.as_str());
    if let Some(first) = rule.limits.first() {
        out.plain("per", list(&rule.per));
        out.text("algorithm", first.limit.algorithm());
        if let Some(delay) = first.limit.max_delay() {
            out.text("max_delay", delay);
        }
        out.plain("limits", limits(&rule.limits));
        out.plain("leases", rule.leases);
    }
    out.text("on_store_failure", rule.on_store_failure.as_str());
    out.plain("response", response(&rule.response));
    out.plain("enabled", rule.enabled);
}

fn matcher(when: &Matcher) -> Vec<String> {
    let mut conditions = Vec::new();
    let mut condition = |key: &str, values: Vec<String>| {
        if !values.is_empty() {
            conditions.push(format!("{key} = {}", list(values)));
        }
    };
    condition("tiers", strings(&when.tiers));
    condition("endpoints", strings(&when.endpoints));
    condition("methods", strings(&when.methods));
    condition("ips", strings(&when.ips));
    condition("users", strings(&when.users));
    condition("tenants", strings(&when.tenants));
    if !when.descriptors.is_empty() {
        let pair =
            |(name, values): &(Box<str>, Vec<Box<str>>)| format!("{} = {}", quoted(name), list(values));
        let pairs: Vec<String> = when.descriptors.iter().map(pair).collect();
        conditions.push(format!("descriptors = {{ {} }}", pairs.join(", ")));
    }
    conditions
}

pub(super) fn limits(limits: &[RuleLimit]) -> String {
    let limits: Vec<String> = limits.iter().map(|one| limit(&one.limit)).collect();
    format!("[{}]", limits.join(", "))
}

fn limit(limit: &Limit) -> String {
    let burst = limit.burst().map(|burst| format!(", burst = {burst}")).unwrap_or_default();
    format!("{{ requests = {}, {}{burst} }}", limit.requests(), window(limit.window()))
}

/// Calendar windows print as `week-1@Europe/Berlin`.
fn window(window: &Window) -> String {
    let name = window.to_string();
    let Some((unit, zone)) = name.split_once('@') else { return format!("window = {}", quoted(&name)) };
    let zone = format!("time_zone = {}", quoted(zone));
    let days = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    match unit.split_once('-') {
        Some(("week", day)) => {
            let day = day.parse::<usize>().ok().and_then(|day| days.get(day.wrapping_sub(1)));
            format!("window = \"week\", anchor = {}, {zone}", quoted(day.unwrap_or(&"monday")))
        }
        Some((unit, day)) => format!("window = {}, anchor = {day}, {zone}", quoted(unit)),
        None => format!("window = {}, {zone}", quoted(unit)),
    }
}

fn response(response: &Response) -> String {
    let message = response.message.as_ref().map(|text| format!(", message = {}", quoted(text)));
    let floor = quoted(response.retry_after_floor);
    format!("{{ status = {}, retry_after_floor = {floor}{} }}", response.status, message.unwrap_or_default())
}

fn strings(items: &[impl Display]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    let items: Vec<String> = items.into_iter().map(quoted).collect();
    format!("[{}]", items.join(", "))
}

fn quoted(text: impl Display) -> String {
    toml::Value::String(text.to_string()).to_string()
}

/// Builds the text. Writing to a `String` cannot fail.
#[derive(Default)]
pub(super) struct Toml(String);

impl Toml {
    pub(super) fn section(&mut self, name: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.0, "{gap}[{name}]");
    }

    fn item(&mut self, name: &str) {
        let _ = writeln!(self.0, "\n[[{name}]]");
    }

    pub(super) fn plain(&mut self, key: &str, value: impl Display) {
        let _ = writeln!(self.0, "{key} = {value}");
    }

    pub(super) fn text(&mut self, key: &str, value: impl Display) {
        self.plain(key, quoted(value));
    }
}
