//! Parsing of `[[rules]]` entries.

use std::net::IpAddr;

use ipnet::IpNet;

use super::document::{TableReader, Value};
use super::flat_names::{self, has_flat_names};
use super::limits::read_limits;
use super::values::{boolean, integer, list, sample_rate, span, text, word};
use crate::identity::{Dimension, ID_BYTES_MAX, canonical_net};
use crate::method::Method;
use crate::rules::pattern::Pattern;
use crate::rules::{
    Action, Matcher, OnStoreFailure, RefundPolicy, Response, Rule, RuleCost, RuleLimit, StatusPattern,
};

/// The priority of rules without one.
const PRIORITY_DEFAULT: u32 = 100;
/// Above all useful priorities: the short forms come last.
pub(super) const PRIORITY_MAX: u32 = 1_000_000;
const NAME_BYTES_MAX: usize = 128;
const COST_MAX: u32 = 1_000_000;

/// Reads an entry of `[[rules]]`. Returns `None` if it has problems.
pub fn read(fields: &mut TableReader<'_, '_>) -> Option<Rule> {
    let rule_name = flat_names::read_name(fields);
    let priority = fields.read("priority", integer(0..=PRIORITY_MAX)).unwrap_or(PRIORITY_DEFAULT);
    let mut when = fields.table("when", read_matcher).unwrap_or_default();
    flat_names::read_conditions(fields, &mut when);
    let action = fields.read("action", word(&Action::ALL.map(|a| (a.as_str(), a))));
    let action = if fields.has("action") { action } else { Some(Action::Reject) };
    let action = if flat_names::throttle_rejects(fields) { Some(Action::Reject) } else { action };
    let scope = flat_names::read_scope(fields);
    let per = fields.items("per", dimension).or(scope);
    let limits = read_limits(fields, action);
    check_per(fields, action);
    let cost = fields.read("cost", cost);
    if fields.has("cost") && action.is_some_and(|action| !action.limits()) {
        fields.report("cost", "needs a rule with limits".to_owned());
    }
    let on_store_failure = read_on_store_failure(fields, ["on_store_failure", "failure_mode"]);
    let across_tenants = read_across_tenants(fields, action, per.as_deref());
    let refund_policy = read_refund_policy(fields, action);
    let leases = fields.read("leases", boolean).unwrap_or(true);
    let sample_allowed = fields.read("sample_allowed", sample_rate);
    let mut response = fields.table("response", read_response).unwrap_or_default();
    flat_names::read_response(fields, &mut response);
    let layer = fields.read("layer", name);
    let enabled = fields.read("enabled", boolean).unwrap_or(true);
    if fields.has_problems() {
        return None;
    }
    let (name, action) = (rule_name?, action?);
    let mut per = per.unwrap_or_default();
    if per.is_empty() {
        per.push(Dimension::Global);
    }
    per.sort();
    per.dedup();
    let by: Vec<String> = per.iter().map(Dimension::to_string).collect();
    let limits = limits.into_iter().map(|limit| RuleLimit::new(&name, limit)).collect();
    Some(Rule {
        layer: layer.unwrap_or_else(|| by.join("+")).into(),
        name: name.into(),
        priority,
        when,
        per,
        across_tenants,
        action,
        limits,
        cost: cost.unwrap_or_default(),
        refund_policy,
        leases,
        on_store_failure,
        sample_allowed,
        response,
        enabled,
    })
}

/// Reads `across_tenants`, which needs a rule that counts clients or descriptors without their tenant.
fn read_across_tenants(
    fields: &mut TableReader<'_, '_>,
    action: Option<Action>,
    per: Option<&[Dimension]>,
) -> bool {
    let across_tenants = fields.read("across_tenants", boolean).unwrap_or(false);
    if fields.has("across_tenants") && action.is_some_and(|action| !action.limits()) {
        fields.report("across_tenants", "needs a rule with limits".to_owned());
    } else if across_tenants && per.is_some_and(|per| per.contains(&Dimension::Tenant)) {
        fields.report("across_tenants", "contradicts per = \"tenant\": remove one of them".to_owned());
    }
    across_tenants
}

/// Reads `count` or `refund_statuses`.
fn read_refund_policy(fields: &mut TableReader<'_, '_>, action: Option<Action>) -> RefundPolicy {
    let only_failures = fields.read("count", word(&[("always", false), ("on_failure", true)]));
    let only_failures = only_failures.unwrap_or(false);
    if fields.has_empty_list("refund_statuses") {
        fields.report("refund_statuses", "must not be empty: leave it out to refund nothing".to_owned());
    }
    let statuses = fields.items("refund_statuses", status_pattern).unwrap_or_default();
    for key in ["count", "refund_statuses"] {
        if fields.has(key) && action.is_some_and(|action| !action.limits()) {
            fields.report(key, "needs a rule with limits".to_owned());
        }
    }
    if fields.has("refund_statuses") && only_failures {
        let reason =
            "contradicts count = \"on_failure\", which refunds every status below 400: remove one of them";
        fields.report("refund_statuses", reason.to_owned());
    }
    match (only_failures, statuses.is_empty()) {
        (true, _) => RefundPolicy::OnSuccess,
        (false, true) => RefundPolicy::Never,
        (false, false) => RefundPolicy::Statuses(statuses.into()),
    }
}

fn status_pattern(value: &Value) -> Result<StatusPattern, String> {
    match value {
        Value::Integer(_) => integer(200..=599)(value).map(StatusPattern::Status),
        Value::Text(text) => StatusPattern::parse_class(text)
            .ok_or_else(|| format!("{text:?} is not a class of statuses: 2xx, 3xx, 4xx or 5xx")),
        other => {
            Err(format!("must be a status such as 404 or a class such as \"5xx\", not {}", other.kind()))
        }
    }
}

/// Reads `on_store_failure` or its alias. Both take the names `fail_open` and `fail_closed`, too.
pub(super) fn read_on_store_failure(
    fields: &mut TableReader<'_, '_>,
    [key, alias]: [&'static str; 2],
) -> Option<OnStoreFailure> {
    let aliases = [("fail_open", OnStoreFailure::Open), ("fail_closed", OnStoreFailure::Closed)];
    let known: Vec<_> =
        OnStoreFailure::ALL.map(|mode| (mode.as_str(), mode)).into_iter().chain(aliases).collect();
    if fields.has(key) && fields.has(alias) {
        fields.report(alias, format!("is another name of {key}: keep one of them"));
    }
    let modes = [key, alias].map(|key| fields.read(key, word(&known)));
    modes.into_iter().flatten().next()
}

/// Checks that `per` fits the action. An invalid action is not checked further.
fn check_per(fields: &mut TableReader<'_, '_>, action: Option<Action>) {
    let Some(action) = action else { return };
    if !action.limits() && fields.has("per") {
        fields.report("per", format!("is not allowed with action = {:?}", action.as_str()));
    } else if action.limits() && fields.has_empty_list("per") {
        fields.report("per", "must not be empty: [\"global\"] is one shared counter".to_owned());
    } else if action.limits() && !fields.has("per") && !has_flat_names(fields) {
        let reason =
            "is missing: list what to count by, such as [\"client\"]; [\"global\"] is one shared counter";
        fields.report("per", reason.to_owned());
    }
}

/// A name of a rule or layer. Names starting with `@` are reserved.
pub(super) fn name(value: &Value) -> Result<String, String> {
    let name = text(value)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("must be 1 to {NAME_BYTES_MAX} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    if name.starts_with('@') {
        return Err("must not start with @: such names are reserved".to_owned());
    }
    Ok(name)
}

fn dimension(value: &Value) -> Result<Dimension, String> {
    let text = text(value)?;
    Dimension::parse(&text).ok_or_else(|| {
        format!(
            "{text:?} is not one of global, client, ip, tenant, user, api_key, login, endpoint, method, \
             descriptor:<name>"
        )
    })
}

fn cost(value: &Value) -> Result<RuleCost, String> {
    if let Value::Text(text) = value {
        let name = text.strip_prefix("descriptor:").filter(|name| (1..=ID_BYTES_MAX).contains(&name.len()));
        return name
            .map(|name| RuleCost::Descriptor(name.into()))
            .ok_or_else(|| format!("{text:?} is neither a number such as 10 nor \"descriptor:<name>\""));
    }
    integer(1..=COST_MAX)(value).map(RuleCost::Times)
}

fn read_matcher(fields: &mut TableReader<'_, '_>) -> Matcher {
    let descriptors = fields.entries("descriptors", ids).unwrap_or_default();
    Matcher {
        tiers: some_of(fields, "tiers", id),
        endpoints: some_of(fields, "endpoints", pattern),
        methods: some_of(fields, "methods", method),
        ips: some_of(fields, "ips", network),
        users: some_of(fields, "users", id),
        tenants: some_of(fields, "tenants", id),
        descriptors: descriptors.into_iter().map(|(name, values)| (name.into(), values)).collect(),
    }
}

/// The values of a condition. An empty list is rejected, because it would match everything.
pub(super) fn some_of<T>(
    fields: &mut TableReader<'_, '_>,
    key: &'static str,
    parse: impl FnMut(&Value) -> Result<T, String>,
) -> Vec<T> {
    if fields.has_empty_list(key) {
        fields.report(key, "must not be empty: leave it out to match all".to_owned());
    }
    fields.items(key, parse).unwrap_or_default()
}

/// An identifier of 1 to 256 bytes.
///
/// # Errors
/// When it is anything else.
pub fn id(value: &Value) -> Result<Box<str>, String> {
    let text = text(value)?;
    match text.len() {
        1..=ID_BYTES_MAX => Ok(text.into()),
        _ => Err(format!("must be 1 to {ID_BYTES_MAX} bytes")),
    }
}

/// A pattern of endpoints.
///
/// # Errors
/// When it is anything else.
pub fn pattern(value: &Value) -> Result<Pattern, String> {
    Pattern::parse(&text(value)?).map_err(|error| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    })
}

/// A method that HTTP defines, or `OTHER`. Any other name would match more than itself.
///
/// # Errors
/// When it is anything else.
pub fn method(value: &Value) -> Result<Method, String> {
    let name = text(value)?;
    match Method::parse(&name).map_err(|error| error.to_string())? {
        Method::Other if !name.eq_ignore_ascii_case(Method::Other.as_str()) => Err(format!(
            "{name:?} is not a method of HTTP: write \"OTHER\" for all such methods, or no condition for every method"
        )),
        method => Ok(method),
    }
}

/// A network or a single address. Host bits are cleared and IPv4-mapped addresses converted to IPv4.
///
/// # Errors
/// When it is neither.
pub fn network(value: &Value) -> Result<IpNet, String> {
    let text = text(value)?;
    let wrong = || format!("{text:?} is not an IP address or a network such as 10.0.0.0/8 or 2001:db8::/32");
    if let Ok(net) = text.parse::<IpNet>() {
        return Ok(canonical_net(net.trunc()));
    }
    text.parse().map(|ip: IpAddr| IpNet::from(ip.to_canonical())).map_err(|_| wrong())
}

fn ids(value: &Value) -> Result<Vec<Box<str>>, String> {
    match value {
        Value::List(items) if items.is_empty() => Err("must not be empty".to_owned()),
        Value::List(_) => list(id)(value),
        one => Ok(vec![id(one)?]),
    }
}

fn read_response(fields: &mut TableReader<'_, '_>) -> Response {
    let default = Response::default();
    Response {
        status: fields.read("status", integer(400..=599)).unwrap_or(default.status),
        message: fields.read("message", message).map(String::into_boxed_str),
        retry_after_floor: fields.read("retry_after_floor", span).unwrap_or_default(),
    }
}

pub(super) fn message(value: &Value) -> Result<String, String> {
    let text = text(value)?;
    if text.len() > 1_024 { Err("must be at most 1024 bytes".to_owned()) } else { Ok(text) }
}
