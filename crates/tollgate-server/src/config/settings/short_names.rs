//! Top-level keys that stand for keys of a section, and `[rate_limit]`, whose keys stand for those of the top level.
//!
//! They make the settings of other schemas loadable as written. Where a key means something else here, a warning says how.

use std::time::Duration;

use tollgate::Span;
use tollgate::config::values::{integer, text};
use tollgate::config::{Document, Origin, TableReader, Value};
use tollgate_stores::redis::TIMEOUT_DEFAULT;

use super::identity::DEPTH_MAX;

const TABLE: &str = "rate_limit";
const TABLE_KEYS: [&str; 13] = [
    "enabled",
    "default_limit",
    "default_window",
    "trusted_proxy_depth",
    "failure_mode",
    "redis_url",
    "redis_topology",
    "redis_pool_size",
    "redis_socket_timeout",
    "endpoints",
    "tiers",
    "progressive_penalties",
    "exemptions",
];
/// Keys that are written only in files of another schema, whose defaults differ.
const FOREIGN_KEYS: [&str; 4] = [TABLE, "trusted_proxy_depth", "redis_pool_size", "redis_socket_timeout"];
const SENTINEL_MASTER: &str = "mymaster";
const POOL_SIZE_MAX: u32 = 65_536;
const TIMEOUT_MIN: f64 = 0.001;
const TIMEOUT_MAX: f64 = 3_600.0;

/// Moves the keys to their sections. Keys that are invalid, or set there too, stay for [`read`] to report.
///
/// Returns what may not be as meant.
pub(super) fn expand(document: &mut Document) -> Vec<String> {
    let is_foreign = FOREIGN_KEYS.iter().any(|key| document.has(&[key]));
    document.lift_keys(TABLE, &TABLE_KEYS);
    if document.has(&["redis_url"]) && !document.has(&["counters", "store"]) {
        let origin = Origin::Named("redis_url".to_owned());
        // An error is reported when the section is read.
        let _ = document.set(&["counters", "store"], Value::Text("redis".to_owned()), &origin);
    }
    let uses_redis = text_at(document, &["counters", "store"]).as_deref() == Some("redis");
    document.move_key("redis_url", &["counters", "url"]);
    let mut warnings = Vec::new();
    if is_foreign && uses_redis {
        warnings.extend(differing_defaults(document));
    }
    warnings.extend(expand_topology(document));
    warnings.extend(expand_timeout(document, uses_redis));
    warnings.extend(expand_depth(document));
    if take(document, "redis_pool_size", pool_size).is_some() {
        let reason = "redis_pool_size is ignored: all requests share one connection to each server; set \
                      counters.connections if one is not enough";
        warnings.push(reason.to_owned());
    }
    warnings
}

/// Reports what [`expand`] left.
pub(super) fn read(fields: &mut TableReader<'_, '_>) {
    fields.table(TABLE, |table| {
        for key in TABLE_KEYS {
            if table.has(key) {
                table.report(key, format!("is also set at the top level, as {key}: keep one of them"));
            }
            table.skip(key);
        }
    });
    let twice = |name: &str| format!("is another name of {name}: keep one of them");
    let _: Option<()> = fields.read("redis_url", |_| Err(twice("counters.url")));
    let _: Option<()> = fields.read("redis_topology", |_| Err(twice("counters.topology")));
    let _: Option<()> = fields.read("redis_socket_timeout", |value| {
        seconds(value)?;
        Err(twice("counters.timeout"))
    });
    let _: Option<()> = fields.read("trusted_proxy_depth", |value| {
        depth(value)?;
        Err(twice("identity.trusted_proxy_depth"))
    });
    fields.read("redis_pool_size", pool_size);
}

/// Other defaults than in the schema that has these keys.
fn differing_defaults(document: &Document) -> impl Iterator<Item = String> {
    let has_any = |paths: &[&[&str]]| paths.iter().any(|path| document.has(path));
    let failure = (!has_any(&[&["failure_mode"], &["on_store_failure"]])).then_some(
        "failure_mode is not set: while Redis is unreachable, each node counts locally; set failure_mode = \"fail_open\" \
         to admit every request instead",
    );
    let in_url = text_at(document, &["counters", "url"]).is_some_and(|url| {
        url.contains("topology=") || url.split("://").next().is_some_and(|scheme| scheme.contains('+'))
    });
    let topology = (!in_url && !has_any(&[&["redis_topology"], &["counters", "topology"]])).then_some(
        "redis_topology is not set: redis_url is one server (\"single\"); set redis_topology = \"sentinel\" if it is a sentinel",
    );
    [failure, topology].into_iter().flatten().map(str::to_owned)
}

/// `redis_topology = "sentinel"` has no key for the name of the master beside it.
fn expand_topology(document: &mut Document) -> Option<String> {
    let is_sentinel = text_at(document, &["redis_topology"]).as_deref() == Some("sentinel");
    let origin = document.get(&["redis_topology"])?.origin.clone();
    document.move_key("redis_topology", &["counters", "topology"]);
    let master = ["counters", "sentinel_master"];
    let in_url = text_at(document, &["counters", "url"]).is_some_and(|url| url.contains("sentinel_master="));
    let is_named = document.has(&master) || in_url;
    if !is_sentinel
        || is_named
        || document.set(&master, Value::Text(SENTINEL_MASTER.to_owned()), &origin).is_err()
    {
        return None;
    }
    Some(format!("counters.sentinel_master is not set: the sentinels are asked for {SENTINEL_MASTER:?}"))
}

/// A decision must not wait as long as a socket may.
fn expand_timeout(document: &mut Document, uses_redis: bool) -> Option<String> {
    if document.has(&["counters", "timeout"]) {
        return None;
    }
    let (given, origin) = take(document, "redis_socket_timeout", seconds)?;
    if !uses_redis {
        return Some("redis_socket_timeout is ignored: counters are in memory".to_owned());
    }
    let shown = |duration: Duration| Span::from(duration).to_string();
    let timeout = given.min(TIMEOUT_DEFAULT);
    // An error is reported when the section is read.
    let _ = document.set(&["counters", "timeout"], Value::Text(shown(timeout)), &origin);
    (timeout < given).then(|| {
        let (given, timeout) = (shown(given), shown(timeout));
        format!(
            "redis_socket_timeout is {given}, but a decision waits for Redis at most {timeout}; to wait longer, remove it and \
             set counters.timeout"
        )
    })
}

/// Without trusted proxies no header is read, so a depth has no effect.
fn expand_depth(document: &mut Document) -> Option<String> {
    let proxies = ["identity", "trusted_proxies"];
    let is_empty = |value: &Value| matches!(value, Value::List(items) if items.is_empty());
    let has_proxies = document.get(&proxies).is_some_and(|node| !is_empty(&node.value));
    let place = ["identity", "trusted_proxy_depth"];
    if document.has(&place) {
        return None;
    }
    let (hops, origin) = take(document, "trusted_proxy_depth", depth)?;
    if !has_proxies {
        let reason = "trusted_proxy_depth has no effect without identity.trusted_proxies: list your proxies there; \
                      X-Forwarded-For is believed only from them";
        return Some(reason.to_owned());
    }
    // An error is reported when the section is read.
    let _ = document.set(&place, Value::Integer(hops.into()), &origin);
    Some(format!(
        "trusted_proxy_depth = {hops} is the number of proxies: the client is address {hops} from the right of \
         X-Forwarded-For, which is believed only from identity.trusted_proxies"
    ))
}

/// Removes a valid value; an invalid one stays.
fn take<T>(
    document: &mut Document,
    key: &str,
    parse: impl Fn(&Value) -> Result<T, String>,
) -> Option<(T, Origin)> {
    let parsed = parse(&document.get(&[key])?.value).ok()?;
    document.remove(key).map(|node| (parsed, node.origin))
}

fn text_at(document: &Document, path: &[&str]) -> Option<String> {
    text(&document.get(path)?.value).ok()
}

fn depth(value: &Value) -> Result<u8, String> {
    integer(1..=DEPTH_MAX)(value)
}

fn pool_size(value: &Value) -> Result<u32, String> {
    integer(1..=POOL_SIZE_MAX)(value)
}

/// A number of seconds, with or without a fraction.
fn seconds(value: &Value) -> Result<Duration, String> {
    let number = match value {
        Value::Integer(number) => i32::try_from(*number).ok().map(f64::from),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    number
        .filter(|number| (TIMEOUT_MIN..=TIMEOUT_MAX).contains(number))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("must be a number of seconds from {TIMEOUT_MIN} to {TIMEOUT_MAX}"))
}

#[cfg(test)]
mod tests;
