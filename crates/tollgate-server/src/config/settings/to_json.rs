//! Settings as JSON with the keys of the settings file: defaults included, short forms expanded to rules, secrets masked.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value as Json, json};
use tollgate::counters::memory::MemoryBounds;
use tollgate::identity::DescriptorNormalization;
use tollgate::penalties::PenaltyPolicy;
use tollgate::{RuleSet, Span};
use tollgate_stores::archive::ArchiveSettings;
use tollgate_stores::redis::{Address, Login, RedisSettings, Topology};

use super::records::NO_DATABASE;
use super::redis::topology_name;
use super::{
    ArchiveSection, Caller, CounterSettings, Credential, JwtIssuer, JwtKeys, KeyOrigin, KeySecretSettings,
    LoginEndpoint, ParquetSection, ProxySettings, RouteSettings, Settings, TlsFiles, TlsSettings,
    UpstreamTimeouts, UpstreamTlsSettings, database,
};
use crate::auth::client_certificate::CertificateName;
use crate::auth::jwt::keys;
use crate::config::rule_json;

const MASK: &str = "***";

impl Settings {
    /// The settings with the keys of the settings file, and secrets masked.
    pub fn to_json(&self) -> Json {
        let server = &self.server;
        without_nulls(json!({
            "enabled": self.rules.settings().enabled,
            "on_store_failure": self.rules.settings().on_store_failure.as_str(),
            "server": {
                "listen": text(self.listen),
                "data_dir": path(&self.data_dir),
                "connections_max": server.connections_max,
                "connections_per_ip_max": server.connections_per_ip_max,
                "header_timeout": duration(server.header_timeout),
                "body_timeout": duration(server.body_timeout),
                "idle_timeout": duration(server.idle_timeout),
                "write_timeout": duration(server.write_timeout),
                "drain_timeout": duration(server.drain_timeout),
                "headers": list(server.headers.iter().map(|profile| profile.as_str())),
                "hosts": server.hosts,
                "tls": server.tls.as_ref().map(tls_json),
                "region": Some(&*server.region).filter(|region| !region.is_empty()),
                "id": &*server.id,
            },
            "counters": self.counters_json(),
            "database": {
                "url": self.database.url.as_ref().map(|url| database::masked(&url.0)),
                "poll_every": duration(self.database.poll_every),
                "connect_timeout": duration(self.database.connect_timeout),
                "statement_timeout": duration(self.database.statement_timeout),
                "connections": self.database.connections,
            },
            "records": self.records_json(),
            "proxy": self.proxy.as_ref().map(proxy_json),
            "auth": self.auth_json(),
            "callers": self.callers_json(),
            "log": {
                "format": self.log.format.as_str(),
                "level": self.log.filter,
                "refusals": if self.log.refusals { "sampled" } else { "off" },
            },
            "api": { "strict": self.strict_checks },
            "identity": identity_json(self),
            "progressive_penalties": self.rules.penalties().map(penalties_json),
            "rules": rules_json(&self.rules),
        }))
    }

    /// The settings as TOML.
    #[cfg(test)]
    pub(crate) fn to_toml(&self) -> String {
        toml::to_string(&self.to_json()).unwrap_or_default()
    }

    fn counters_json(&self) -> Json {
        match &self.counters {
            CounterSettings::Memory { bounds, save_every } => {
                let mut json = bounds_json(bounds);
                json.insert("store".to_owned(), "memory".into());
                json.insert("save_every".to_owned(), duration(*save_every));
                json.into()
            }
            CounterSettings::Redis(settings) => {
                let mut json = bounds_json(&settings.bounds);
                json.extend(redis_json(&settings.redis, &settings.tls_files));
                json.into()
            }
        }
    }

    fn records_json(&self) -> Json {
        let records = &self.records;
        json!({
            "enabled": records.enabled,
            "url": if records.has_database {
                records.url.as_ref().map(|url| database::masked(&url.0))
            } else {
                Some(NO_DATABASE.to_owned())
            },
            "sample_allowed": records.sample_allowed.share(),
            "fsync_every": duration(records.fsync_every),
            "spool_bytes_max": records.spool_bytes_max,
            "sqlite_bytes_max": records.sqlite_bytes_max,
            "log_retention": duration(records.log_retention),
            "window_retention": duration(records.window_retention),
            "rollup_retention": duration(records.rollup_retention),
            "archive": records.archive.as_ref().map(archive_json),
            "parquet": records.parquet.as_ref().map(parquet_json),
        })
    }

    fn auth_json(&self) -> Json {
        let auth = &self.auth;
        let file = auth.key_secret.as_ref().and_then(|secret| secret.file.as_deref());
        let is_inline = matches!(auth.key_secret, Some(KeySecretSettings { file: None, .. }));
        let callers = auth.callers.iter().map(caller_json);
        json!({
            "open_checks": auth.open_checks,
            "override_max": auth.override_max,
            "key_secret_file": file.map(path),
            "key_secret": is_inline.then_some(MASK),
            "callers": callers.collect::<Vec<_>>(),
        })
    }

    fn callers_json(&self) -> Option<Json> {
        let limits = &self.callers.as_ref()?.0;
        let algorithm = limits.first()?.limit.algorithm().as_str();
        let limits: Vec<_> = limits.iter().map(|limit| rule_json::limit(&limit.limit)).collect();
        Some(json!({ "algorithm": algorithm, "limits": limits }))
    }
}

fn proxy_json(proxy: &ProxySettings) -> Json {
    let mut json = timeouts_json(proxy.timeouts);
    json.insert("listen".to_owned(), text(proxy.listen));
    json.insert("delayed_max".to_owned(), proxy.delayed_max.into());
    json.insert("access_log".to_owned(), proxy.access_log.as_str().into());
    json.insert("tls".to_owned(), proxy.tls.as_ref().map_or(Json::Null, tls_json));
    json.insert("upstream_tls".to_owned(), upstream_tls_json(proxy.upstream_tls.as_deref()));
    json.insert("routes".to_owned(), proxy.routes.iter().map(route_json).collect());
    json.into()
}

fn route_json(route: &RouteSettings) -> Json {
    let mut json = timeouts_json(route.timeouts);
    json.insert("match".to_owned(), text(&route.path));
    json.insert("hosts".to_owned(), list(&route.hosts));
    json.insert("upstreams".to_owned(), list(&route.upstreams));
    json.insert("balance".to_owned(), route.balance.as_str().into());
    json.insert("host".to_owned(), route.host.as_str().into());
    json.insert("upstream_tls".to_owned(), upstream_tls_json(route.upstream_tls.as_deref()));
    if let Some(health) = &route.health {
        let (interval, timeout) = (duration(health.interval), duration(health.timeout));
        let health = json!({ "path": health.path, "interval": interval, "timeout": timeout });
        json.insert("health".to_owned(), health);
    }
    json.into()
}

fn timeouts_json(timeouts: UpstreamTimeouts) -> Map<String, Json> {
    let UpstreamTimeouts { connect, response, idle } = timeouts;
    let keys = [("connect_timeout", connect), ("response_timeout", response), ("idle_timeout", idle)];
    keys.into_iter().map(|(key, value)| (key.to_owned(), duration(value))).collect()
}

fn upstream_tls_json(tls: Option<&UpstreamTlsSettings>) -> Json {
    let Some(tls) = tls else { return Json::Null };
    let certificate = tls.client_certificate.as_ref();
    json!({
        "ca_file": tls.ca_file.as_deref().map(path),
        "certificate_file": certificate.map(|one| path(&one.certificate_file)),
        "key_file": certificate.map(|one| path(&one.key_file)),
    })
}

fn tls_json(tls: &TlsSettings) -> Json {
    let certificates = tls.certificates.iter().map(
        |one| json!({ "certificate_file": path(&one.certificate_file), "key_file": path(&one.key_file) }),
    );
    let client = tls.client_auth.as_ref();
    json!({
        "certificates": certificates.collect::<Vec<_>>(),
        "min_version": tls.min_version.as_str(),
        "client_ca_file": client.map(|client| path(&client.ca_file)),
        "client_crl_file": client.and_then(|client| client.crl_file.as_deref()).map(path),
        "client_certificates": client.map(|client| if client.required { "required" } else { "optional" }),
    })
}

fn caller_json(caller: &Caller) -> Json {
    let (key, certificate) = match &caller.credential {
        Credential::KeySha256(_) => (Some(MASK), None),
        Credential::Certificate(CertificateName::Subject(name)) => (None, Some(json!({ "subject": name }))),
        Credential::Certificate(CertificateName::Dns(name)) => (None, Some(json!({ "dns": name }))),
        Credential::Certificate(CertificateName::Uri(name)) => (None, Some(json!({ "uri": name }))),
    };
    json!({
        "name": caller.name,
        "key_sha256": key,
        "certificate": certificate,
        "scopes": list(caller.scopes.iter()),
        "tenant": caller.tenant,
    })
}

fn identity_json(settings: &Settings) -> Json {
    let (normalization, ids) = (&settings.normalization, settings.normalization.ids);
    let (policy, prefixes) = (&settings.client_address, settings.rules.ip_prefixes());
    let descriptors = match &normalization.descriptors {
        DescriptorNormalization::All(form) => form.as_str().into(),
        DescriptorNormalization::Named(forms) => {
            let named = forms.iter().map(|(name, form)| (name.to_string(), form.as_str().into()));
            Json::Object(named.collect())
        }
    };
    json!({
        "client_address": policy.source.as_str(),
        "trusted_proxies": list(&policy.trusted_proxies),
        "trusted_proxy_depth": policy.depth,
        "ipv4_prefix": prefixes.ipv4,
        "ipv6_prefix": prefixes.ipv6,
        "nat64": settings.rules.nat64(),
        "default_tier": settings.rules.settings().default_tier.as_deref(),
        "normalize": {
            "user_id": ids.user.as_str(),
            "tenant": ids.tenant.as_str(),
            "login": ids.login.as_str(),
            "descriptors": descriptors,
        },
        "ignore_path_case": normalization.ignore_path_case,
        "head": normalization.head.as_str(),
        "api_key_headers": list(&settings.client_ids.api_key_headers),
        "login_endpoints": settings.client_ids.login_endpoints.iter().map(login_endpoint_json).collect::<Vec<_>>(),
        "unknown_tier": if settings.rejects_unknown_tiers { "reject" } else { "warn" },
        "invalid_token": settings.jwt.invalid_token.as_str(),
        "jwt": settings.jwt.issuers.iter().map(jwt_json).collect::<Vec<_>>(),
    })
}

fn jwt_json(issuer: &JwtIssuer) -> Json {
    let ((key, value), ca) = match &issuer.keys {
        JwtKeys::Configured { origin: KeyOrigin::Secret, .. } => (("secret", MASK.into()), None),
        JwtKeys::Configured { origin: KeyOrigin::PublicKey(pem), .. } => (("public_key", text(pem)), None),
        JwtKeys::Configured { origin: KeyOrigin::File(key, file), .. } => ((*key, path(file)), None),
        JwtKeys::Remote(source) => (("jwks_url", text(&source.url)), source.ca.as_ref()),
    };
    let mut json = json!({
        "issuer": issuer.issuer,
        "audience": issuer.audiences,
        "algorithm": list(issuer.algorithms.iter().map(|algorithm| keys::name(*algorithm))),
        "jwks_ca_file": ca.map(|(file, _)| path(file)),
        "leeway": duration(issuer.leeway),
        "user_claim": issuer.user_claim,
        "tenant_claim": issuer.tenant_claim,
        "tier_claim": issuer.tier_claim,
        "user_prefix": issuer.user_prefix,
    });
    json[key] = value;
    json
}

fn login_endpoint_json(one: &LoginEndpoint) -> Json {
    json!({
        "endpoint": text(&one.endpoint),
        "methods": list(&one.methods),
        "field": one.field,
        "body_bytes_max": one.body_bytes_max,
    })
}

fn bounds_json(bounds: &MemoryBounds) -> Map<String, Json> {
    let keys = [
        ("keys_max", bounds.keys_max.get()),
        ("log_bytes_max", bounds.log_bytes_max),
        ("penalties_max", bounds.penalties_max),
    ];
    keys.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
}

fn redis_json(redis: &RedisSettings, files: &TlsFiles) -> Map<String, Json> {
    let none = Login::default();
    let (url, nodes) = match &redis.topology {
        Topology::Single(server) => (Some(redis_url(server, redis.tls.is_some())), None),
        other => (None, Some(list(other.servers()))),
    };
    let (master, sentinel_login) = match &redis.topology {
        Topology::Sentinel { master, login, .. } => (Some(master), login),
        _ => (None, &none),
    };
    let virtual_nodes = match &redis.topology {
        Topology::Ring { virtual_nodes, .. } => Some(virtual_nodes.get()),
        _ => None,
    };
    let file = |file: &Option<std::path::PathBuf>| file.as_deref().map(path);
    let tls = redis.tls.as_ref().map(|tls| {
        json!({
            "enabled": true,
            "insecure": tls.insecure,
            "ca_file": file(&files.ca_file),
            "cert_file": file(&files.cert_file),
            "key_file": file(&files.key_file),
        })
    });
    let json = json!({
        "store": "redis",
        "topology": topology_name(&redis.topology),
        "url": url,
        "nodes": nodes,
        "user": redis.login.user,
        "password": masked(&redis.login),
        "database": redis.database,
        "sentinel_master": master,
        "sentinel_user": sentinel_login.user,
        "sentinel_password": masked(sentinel_login),
        "virtual_nodes": virtual_nodes,
        "tls": tls,
        "connections": redis.connections.get(),
        "timeout": duration(redis.timeout),
        "connect_timeout": duration(redis.connect_timeout),
        "leases": redis.leases,
        "refusal_cache": redis.refusal_cache,
    });
    if let Json::Object(map) = json { map } else { Map::new() }
}

fn masked(login: &Login) -> Option<&'static str> {
    login.password.as_ref().map(|_| MASK)
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

fn penalties_json(policy: &PenaltyPolicy) -> Json {
    json!({
        "enabled": true,
        "detection_window": text(policy.detection_window),
        "violation_threshold": policy.violation_threshold,
        "base_cooldown": text(policy.base_cooldown),
        "penalty_multipliers": policy.multipliers,
        "max_cooldown": text(policy.cooldown_max),
    })
}

fn rules_json(rules: &RuleSet) -> Vec<Json> {
    rules.rules().iter().map(|rule| Json::Object(rule_json::definition(rule))).collect()
}

/// Removes absent keys.
fn without_nulls(value: Json) -> Json {
    match value {
        Json::Object(map) => {
            let present = map.into_iter().filter(|(_, value)| !value.is_null());
            Json::Object(present.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Json::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

fn text(value: impl Display) -> Json {
    value.to_string().into()
}

fn archive_json(section: &ArchiveSection) -> Json {
    let ArchiveSection { archive, keep, secret_file } = section;
    let mut json = store_json(archive, secret_file.as_deref());
    json["keep"] = duration(*keep);
    json
}

fn parquet_json(section: &ParquetSection) -> Json {
    let ParquetSection { files, every, buffer_bytes_max, compact, secret_file } = section;
    let mut json = store_json(files, secret_file.as_deref());
    json["every"] = duration(*every);
    json["buffer_bytes_max"] = (*buffer_bytes_max).into();
    json["compact"] = (*compact).into();
    json
}

fn store_json(store: &ArchiveSettings, secret_file: Option<&Path>) -> Json {
    let credentials = store.credentials.as_ref();
    json!({
        "url": text(&store.place),
        "endpoint": store.endpoint,
        "region": store.region,
        "access_key_id": credentials.map(|credentials| credentials.access_key_id.as_str()),
        "secret_access_key": credentials.filter(|_| secret_file.is_none()).map(|_| MASK),
        "secret_access_key_file": secret_file.map(path),
        "allow_http": store.allow_http,
    })
}

fn path(path: &Path) -> Json {
    text(path.display())
}

fn duration(duration: Duration) -> Json {
    text(Span::from(duration))
}

fn list(items: impl IntoIterator<Item = impl Display>) -> Json {
    items.into_iter().map(text).collect()
}
