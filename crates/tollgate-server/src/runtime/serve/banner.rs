//! What a person is told when the service starts.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tollgate::Rule;

use super::Ready;
use crate::config::settings::CounterSettings;

/// Rules named one by one; the rest are counted.
const RULES_SHOWN: usize = 8;

/// LogThrottle where others than this machine can ask.
pub(super) const OPEN_TO_EVERYONE: &str =
    "checks are open to everyone who reaches this address: set auth.open_checks = false";

/// Where everything is, what applies, and a line to try. It shows the admin key only when that was made just now.
pub fn banner(ready: &Ready) -> String {
    let Ready { settings, address, new_admin_key, store_trouble, catalog_trouble } = ready;
    let url = format!("http://{}", reachable(*address));
    let mut text = String::new();
    let key_file = settings.data_dir.join("admin.key");
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "  {name:<10}{value}");
    };
    if settings.auth.open_checks && !address.ip().to_canonical().is_loopback() {
        line("open", &OPEN_TO_EVERYONE);
    }
    line("health", &format_args!("{url}/healthz"));
    line("docs", &format_args!("{url}/docs"));
    line("metrics", &format_args!("{url}/metrics"));
    match std::env::current_dir() {
        // Without a home it is wherever the process was started: whoever looks for it must know where.
        Ok(here) if settings.data_dir.is_relative() => {
            line("data", &format_args!("{} in {}", settings.data_dir.display(), here.display()));
        }
        _ => line("data", &settings.data_dir.display()),
    }
    match &settings.config_file {
        Some(file) => line("config", &file.display()),
        None => line("config", &"none: the defaults apply (--config FILE)"),
    }
    if let CounterSettings::Redis(shared) = &settings.counters {
        let servers: Vec<String> = shared.redis.topology.servers().iter().map(ToString::to_string).collect();
        line("counters", &format_args!("Redis at {}", servers.join(", ")));
        if let Some(trouble) = store_trouble {
            line("", &trouble);
        }
    }
    if settings.database.url.is_some() || catalog_trouble.is_some() {
        line("database", &settings.database.sql(&settings.data_dir).describe());
    }
    if let Some(trouble) = catalog_trouble {
        line("", &trouble);
    }
    line("admin key", &key_file.display());
    if let Some(key) = new_admin_key {
        line("", &format_args!("{} (made just now, shown once)", key.reveal()));
    }
    let rules = rules(settings.rules.rules());
    let place = if address.ip().is_unspecified() {
        format!("{address}, every address of this machine; from here {url}")
    } else {
        url.clone()
    };
    format!("tollgate is serving on {place}\n\n{text}\n{rules}\n{}", try_it(&url, settings.auth.open_checks))
}

/// An address to put into a browser: "all addresses" is not one.
fn reachable(address: SocketAddr) -> SocketAddr {
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
            .map(|limit| format!("{} requests per {}", limit.limit.requests(), limit.limit.window()))
            .collect();
        let per: Vec<String> = rule.per.iter().map(ToString::to_string).collect();
        let what = if limits.is_empty() {
            rule.action.as_str().to_owned()
        } else {
            format!("{}, counted by {} ({})", limits.join(" and "), per.join(" and "), rule.action.as_str())
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
