//! The text printed at start.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tollgate::Rule;

use super::Ready;
use crate::config::settings::CounterSettings;

/// Rules listed; the rest are counted.
const RULES_SHOWN: usize = 8;

/// Shown when checks are open on an address that is not loopback.
pub(super) const OPEN_TO_EVERYONE: &str =
    "checks need no key and this address is not loopback: set auth.open_checks = false";

/// Addresses, files, rules in force and a command to try. Shows the admin key only if this start generated it.
pub fn banner(ready: &Ready) -> String {
    let Ready { settings, address, proxy_address, new_admin_key, store_problem, config_problem } = ready;
    let scheme = if settings.server.tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", local_address(*address));
    let mut text = String::new();
    let key_file = settings.data_dir.join("admin.key");
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "  {name:<10}{value}");
    };
    if settings.auth.open_checks && !address.ip().to_canonical().is_loopback() {
        line("open", &OPEN_TO_EVERYONE);
    }
    let proxy_scheme =
        if settings.proxy.as_ref().is_some_and(|proxy| proxy.tls.is_some()) { "https" } else { "http" };
    let proxy = settings
        .proxy
        .as_ref()
        .zip(proxy_address.map(|address| format!("{}://{}", proxy_scheme, local_address(address))));
    if let Some((proxy, url)) = &proxy {
        let upstreams: Vec<String> =
            proxy.routes.iter().flat_map(|route| &route.upstreams).map(ToString::to_string).collect();
        line("proxy", &format_args!("{url} -> {}", upstreams.join(", ")));
    }
    line("health", &format_args!("{url}/healthz"));
    line("docs", &format_args!("{url}/docs"));
    line("metrics", &format_args!("{url}/metrics"));
    match std::env::current_dir() {
        // A relative path depends on the working directory, so show both.
        Ok(here) if settings.data_dir.is_relative() => {
            line("data", &format_args!("{} in {}", settings.data_dir.display(), here.display()));
        }
        _ => line("data", &settings.data_dir.display()),
    }
    match &settings.config_file {
        Some(file) => line("config", &file.display()),
        None => line("config", &"none: defaults apply (set one with --config FILE)"),
    }
    if let CounterSettings::Redis(shared) = &settings.counters {
        let servers: Vec<String> = shared.redis.topology.servers().iter().map(ToString::to_string).collect();
        line("counters", &format_args!("Redis at {}", servers.join(", ")));
        if let Some(problem) = store_problem {
            line("", &problem);
        }
    }
    if settings.database.url.is_some() || config_problem.is_some() {
        line("database", &settings.database.sql(&settings.data_dir).describe());
    }
    if let Some(problem) = config_problem {
        line("", &problem);
    }
    line("admin key", &key_file.display());
    if let Some(key) = new_admin_key {
        line("", &format_args!("{} (generated now, shown once)", key.0));
    }
    let rules = rules(settings.rules.rules());
    let place = if address.ip().is_unspecified() {
        format!("{address} (all addresses of this machine; locally {url})")
    } else {
        url.clone()
    };
    let try_it = match proxy {
        Some((_, url)) => format!("Try it:\n  curl -i {url}/\n"),
        None => try_it(&url, settings.auth.open_checks),
    };
    format!("tollgate is serving on {place}\n\n{text}\n{rules}\n{try_it}")
}

/// The address to connect to from this machine.
fn local_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn rules(rules: &[Rule]) -> String {
    let mut text = String::from("Rules in force:\n");
    for rule in rules.iter().take(RULES_SHOWN) {
        let limits: Vec<String> = (rule.limits.iter())
            .map(|limit| {
                let requests = limit.limit.requests();
                let unit = if requests == 1 { "request" } else { "requests" };
                format!("{requests} {unit} per {}", limit.limit.window())
            })
            .collect();
        let per: Vec<String> = rule.per.iter().map(ToString::to_string).collect();
        let what = if limits.is_empty() {
            rule.action.as_str().to_owned()
        } else {
            format!("{}, per {} ({})", limits.join(" and "), per.join(" and "), rule.action.as_str())
        };
        let off = if rule.enabled { "" } else { " [disabled]" };
        let _ = writeln!(text, "  {:?}: {what}{off}", rule.name);
    }
    if rules.len() > RULES_SHOWN {
        let _ = writeln!(text, "  and {} more", rules.len() - RULES_SHOWN);
    }
    text
}

fn try_it(url: &str, open_checks: bool) -> String {
    let key = if open_checks { "" } else { " \\\n    -H 'Authorization: Bearer …'" };
    format!(
        "Try it:\n  curl -i {url}/v1/rate-limit/check -H 'Content-Type: application/json'{key} \\\n    \
         -d '{{\"user_id\":\"alice\",\"endpoint\":\"/search\"}}'\n"
    )
}
