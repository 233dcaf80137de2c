//! Other names of the keys of a rule: one flat table, as in a relational schema.
//!
//! | flat | key |
//! |---|---|
//! | `rule_name` | `name` |
//! | `user_tier`, `plan_tiers` | `when.tiers` |
//! | `endpoint_pattern`, `endpoints` | `when.endpoints` |
//! | `http_method`, `ip_range` | `when.methods`, `when.ips` |
//! | `scope` | `per`; `client` if both are missing |
//! | `limit_count`, `window_seconds`, `burst_limit`, `refill_rate` | `limits` |
//! | `response_status`, `response_message`, `retry_after_seconds` | `response` |

use super::document::{Document, Problems, TableReader, Value};
use super::limits::{LimitFields, build};
use super::rule::{id, message, method, name, network, pattern};
use super::values::{integer, text, word};
use crate::identity::Dimension;
use crate::limit::{Algorithm, Limit, Window};
use crate::rules::{Matcher, Response};
use crate::time::Span;

/// Flat keys in whose company `throttle` means to refuse: it has no `max_delay` there.
const REFUSING_FORM: [&str; 8] = [
    "rule_name",
    "user_tier",
    "endpoint_pattern",
    "http_method",
    "ip_range",
    "response_status",
    "response_message",
    "retry_after_seconds",
];
const PRIORITY_NOTE: &str = "has a priority: rules with lower numbers are evaluated first";
const OTHERS: [&str; 7] =
    ["plan_tiers", "endpoints", "scope", "limit_count", "window_seconds", "burst_limit", "refill_rate"];

/// Whether a rule is written with flat names.
pub fn has_flat_names(fields: &TableReader<'_, '_>) -> bool {
    REFUSING_FORM.iter().chain(&OTHERS).any(|key| fields.has(key))
}

/// Whether `action = "throttle"` is read as `reject`.
pub(super) fn throttle_rejects(fields: &TableReader<'_, '_>) -> bool {
    let throttles = fields.peek("action", text).as_deref() == Some("throttle");
    throttles && !fields.has("max_delay") && REFUSING_FORM.iter().any(|key| fields.has(key))
}

/// What a rule with flat names may not do as meant.
pub fn flat_name_warnings(fields: &TableReader<'_, '_>) -> Vec<String> {
    let is_flat = REFUSING_FORM.iter().any(|key| fields.has(key));
    let priority = (is_flat && fields.has("priority")).then_some(PRIORITY_NOTE);
    let throttle = throttle_rejects(fields)
        .then_some("has action \"throttle\" without max_delay, which is read as \"reject\"; set max_delay to delay requests");
    [throttle, priority].into_iter().flatten().map(str::to_owned).collect()
}

/// The warnings of all rules of a document, each with the name of its rule. The note about priorities comes once.
pub fn flat_rule_warnings(document: &Document) -> Vec<(String, String)> {
    // Errors are reported when the rules are read.
    let mut ignored = Problems::default();
    let rules = document.fields(&mut ignored).list_of_tables("rules", |rule| {
        let name = rule.peek("rule_name", text).or_else(|| rule.peek("name", text))?;
        Some((name, flat_name_warnings(rule)))
    });
    let mut all: Vec<(String, String)> = Vec::new();
    for (name, reason) in rules
        .into_iter()
        .flat_map(|(name, reasons)| reasons.into_iter().map(move |reason| (name.clone(), reason)))
    {
        if reason != PRIORITY_NOTE || !all.iter().any(|(_, known)| *known == reason) {
            all.push((name, reason));
        }
    }
    all
}

/// Reads the name.
pub(super) fn read_name(fields: &mut TableReader<'_, '_>) -> Option<String> {
    if !fields.has("rule_name") {
        return fields.require("name", name);
    }
    let (flat, plain) = (fields.read("rule_name", name), fields.read("name", name));
    if flat.is_some() && plain.is_some() && flat != plain {
        fields.report("rule_name", "differs from name: keep one of them".to_owned());
    }
    flat
}

/// Adds flat conditions to those of `when`. An empty list matches all.
pub(super) fn read_conditions(fields: &mut TableReader<'_, '_>, when: &mut Matcher) {
    add(fields, ["user_tier", "plan_tiers"], "when.tiers", &mut when.tiers, id);
    add(fields, ["endpoint_pattern", "endpoints"], "when.endpoints", &mut when.endpoints, pattern);
    add(fields, ["http_method"], "when.methods", &mut when.methods, method);
    add(fields, ["ip_range"], "when.ips", &mut when.ips, network);
}

fn add<T, const N: usize>(
    fields: &mut TableReader<'_, '_>,
    keys: [&'static str; N],
    other: &str,
    values: &mut Vec<T>,
    parse: impl Fn(&Value) -> Result<T, String>,
) {
    for key in keys {
        let Some(more) = fields.items(key, &parse) else { continue };
        if !more.is_empty() && !values.is_empty() {
            fields.report(key, format!("is another name of {other}: keep one of them"));
        }
        values.extend(more);
    }
}

/// Reads `scope`. Without it, a rule with flat names counts clients.
pub(super) fn read_scope(fields: &mut TableReader<'_, '_>) -> Option<Vec<Dimension>> {
    let known = ["global", "tenant", "user", "ip", "endpoint"];
    let known: Vec<_> = known.into_iter().filter_map(|name| Some((name, Dimension::parse(name)?))).collect();
    let parse = |value: &Value| {
        let names: Vec<_> = known.iter().map(|(name, _)| (*name, *name)).collect();
        let name = word(&names)(value)?;
        known.iter().find(|(known, _)| *known == name).map(|(_, by)| by.clone()).ok_or_else(String::new)
    };
    if fields.has("scope") && fields.has("per") {
        fields.report("scope", "is another name of per: keep one of them".to_owned());
    }
    let scope = fields.read("scope", parse).map(|by| vec![by]);
    scope.or_else(|| has_flat_names(fields).then(|| vec![Dimension::Client]))
}

/// Reads `limit_count` per `window_seconds`.
pub(super) fn read_limit(
    fields: &mut TableReader<'_, '_>,
    algorithm: Algorithm,
    max_delay: Option<Span>,
) -> Option<Limit> {
    let requests = fields.read("limit_count", integer(0..=u32::MAX));
    let seconds = fields.read("window_seconds", integer(1..=u32::MAX));
    let burst = fields.read("burst_limit", integer(1..=u32::MAX));
    let rate = fields.read("refill_rate", rate);
    for (key, needed) in [
        ("limit_count", "window_seconds"),
        ("window_seconds", "limit_count"),
        ("burst_limit", "limit_count"),
        ("refill_rate", "limit_count"),
    ] {
        if fields.has(key) && !fields.has(needed) {
            fields.report(key, format!("needs {needed}"));
        }
    }
    let (requests, seconds) = (requests?, seconds?);
    if let Some(rate) = rate {
        check_rate(fields, rate, requests, seconds);
    }
    let window = Some(Window::Length(Span::from_secs(seconds.into())));
    let limit = LimitFields { algorithm, requests: Some(requests), window, burst, max_delay };
    build(fields, ["limit_count", "window_seconds", "burst_limit"], limit)
}

fn rate(value: &Value) -> Result<f64, String> {
    let number = match value {
        Value::Integer(number) => i32::try_from(*number).ok().map(f64::from),
        Value::Float(number) => Some(*number),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    };
    number
        .filter(|number| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| "must be a number of requests per second".to_owned())
}

/// A bucket refills `limit_count` per `window_seconds`. Another rate would be another limit; digits that were cut off
/// (1.666 for 100 per minute) are accepted.
fn check_rate(fields: &mut TableReader<'_, '_>, rate: f64, requests: u32, seconds: u32) {
    let (limit, refilled) = (f64::from(requests), rate * f64::from(seconds));
    if (refilled - limit).abs() > limit / 1_000.0 {
        let form = "limits = [{ requests = <refilled in the window>, window = \"…\", burst = <capacity> }]";
        let reason = format!(
            "must equal limit_count / window_seconds ({}): a bucket refills its limit in each window; for another \
             capacity write {form}",
            limit / f64::from(seconds)
        );
        fields.report("refill_rate", reason);
    }
}

/// Reads the flat keys of the response.
pub(super) fn read_response(fields: &mut TableReader<'_, '_>, response: &mut Response) {
    let status = fields.read("response_status", integer(400..=599));
    let text = fields.read("response_message", message);
    let floor = fields.read("retry_after_seconds", integer(0..=u32::MAX));
    for key in ["response_status", "response_message", "retry_after_seconds"] {
        if fields.has(key) && fields.has("response") {
            fields.report(key, "is a part of response: keep one of them".to_owned());
        }
    }
    response.status = status.unwrap_or(response.status);
    response.message = text.map(String::into_boxed_str).or_else(|| response.message.take());
    response.retry_after_floor =
        floor.map_or(response.retry_after_floor, |seconds| Span::from_secs(seconds.into()));
}
