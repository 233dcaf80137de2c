//! The short forms `default_limit`, `[[tiers]]`, `[[endpoints]]` and `[[exemptions]]`, compiled to rules of one layer.
//!
//! The first that matches applies: exemption, endpoint, tier, default. Exemptions have priority 0 and so come before all
//! other `[[rules]]`, including those that block; the limits come after all `[[rules]]` with the default priority.

use hashbrown::HashSet;

use super::document::{TableReader, Value};
use super::limits::{FORMS, LimitFields, algorithm, build, read_limits};
use super::read_unique;
use super::rule::{PRIORITY_MAX, id, method, network, pattern, read_on_store_failure, some_of};
use super::values::{integer, span, text, word};
use crate::identity::Dimension;
use crate::limit::{Algorithm, Limit, Window};
use crate::rules::{Action, DEFAULT_RULE, Matcher, RefundPolicy, Response, Rule, RuleCost, RuleLimit};
use crate::time::Span;

/// The default limit.
const DEFAULT_LIMIT: u32 = 100;
const DEFAULT_WINDOW: Span = Span::from_secs(60);

const EXEMPTION: u32 = 0;
const ENDPOINT: u32 = PRIORITY_MAX - 2;
const TIER: u32 = PRIORITY_MAX - 1;
const DEFAULT: u32 = PRIORITY_MAX;

/// Reads the short forms, except the default.
pub(super) fn read(fields: &mut TableReader<'_, '_>, names: &mut HashSet<Box<str>>) -> Vec<Rule> {
    let mut rules =
        fields.list_of_tables("exemptions", |one| read_unique(names, one, "value", read_exemption));
    rules.extend(fields.list_of_tables("endpoints", |one| read_unique(names, one, "pattern", read_endpoint)));
    rules.extend(fields.list_of_tables("tiers", |one| read_unique(names, one, "name", read_tier)));
    rules
}

/// Reads the default. Without `default_limit` it is the built-in one, unless there are `others` that limit requests.
pub(super) fn read_default(fields: &mut TableReader<'_, '_>, others: bool) -> Option<Rule> {
    let given = fields.has("default_limit");
    let requests = fields.read("default_limit", integer(0..=u32::MAX)).unwrap_or(DEFAULT_LIMIT);
    if !given && fields.has("default_window") {
        fields.report("default_window", "needs default_limit".to_owned());
    }
    let window = fields.read("default_window", span).unwrap_or(DEFAULT_WINDOW);
    let algorithm = fields.read("default_algorithm", algorithm).unwrap_or(Algorithm::TokenBucket);
    let on_store_failure =
        read_on_store_failure(fields, ["default_on_store_failure", "default_failure_mode"]);
    if !given && others {
        if fields.has("default_algorithm") {
            fields.report("default_algorithm", "needs default_limit".to_owned());
        }
        return None;
    }
    let window = Some(Window::Length(window));
    let parsed = LimitFields { algorithm, requests: Some(requests), window, burst: None, max_delay: None };
    let limit = build(fields, ["default_limit", "default_window", "default_window"], parsed)?;
    let rule = client_rule(DEFAULT_RULE.to_owned(), DEFAULT, Matcher::default(), vec![limit]);
    Some(Rule { on_store_failure, ..rule })
}

/// Reads an entry of `[[tiers]]` as the rule `tier:<name>`. Returns `None` if it has problems.
pub fn read_tier(fields: &mut TableReader<'_, '_>) -> Option<Rule> {
    let name = fields.require("name", id);
    let limits = read_limit_and_window(fields);
    let on_store_failure = read_on_store_failure(fields, ["on_store_failure", "failure_mode"]);
    if fields.has_problems() {
        return None;
    }
    let name = name?;
    let rule = format!("tier:{name}");
    let rule = client_rule(rule, TIER, Matcher { tiers: vec![name], ..Matcher::default() }, limits);
    Some(Rule { on_store_failure, ..rule })
}

fn read_endpoint(fields: &mut TableReader<'_, '_>) -> Option<Rule> {
    let pattern = fields.require("pattern", pattern);
    let methods = some_of(fields, "methods", method);
    let limits = read_limit_and_window(fields);
    let on_store_failure = read_on_store_failure(fields, ["on_store_failure", "failure_mode"]);
    if fields.has_problems() {
        return None;
    }
    let pattern = pattern?;
    let verbs: Vec<&str> = methods.iter().map(|method| method.as_str()).collect();
    let name = match verbs.as_slice() {
        [] => format!("endpoint:{pattern}"),
        verbs => format!("endpoint:{} {pattern}", verbs.join(",")),
    };
    let when = Matcher { endpoints: vec![pattern], methods, ..Matcher::default() };
    Some(Rule { on_store_failure, ..client_rule(name, ENDPOINT, when, limits) })
}

fn read_exemption(fields: &mut TableReader<'_, '_>) -> Option<Rule> {
    let kind = fields.require("type", word(&[("ip", "ip"), ("user_id", "user_id"), ("tenant", "tenant")]));
    let value = fields.require("value", text)?;
    let kind = kind?;
    let name = format!("exempt:{kind}:{value}");
    let value = Value::Text(value);
    let when = match kind {
        "ip" => network(&value).map(|net| Matcher { ips: vec![net], ..Matcher::default() }),
        "user_id" => id(&value).map(|user| Matcher { users: vec![user], ..Matcher::default() }),
        _ => id(&value).map(|tenant| Matcher { tenants: vec![tenant], ..Matcher::default() }),
    };
    let when = when.map_err(|reason| fields.report("value", reason)).ok()?;
    Some(Rule { action: Action::Allow, ..client_rule(name, EXEMPTION, when, Vec::new()) })
}

/// Reads `limit` and `window`, or the forms of limits that `[[rules]]` has.
pub fn read_limit_and_window(fields: &mut TableReader<'_, '_>) -> Vec<Limit> {
    let short = fields.has("limit") || fields.has("window");
    let burst = fields.read("burst", integer(1..=u32::MAX));
    if !short && FORMS.iter().any(|key| fields.has(key)) {
        if fields.has("burst") {
            fields.report("burst", "needs limit and window".to_owned());
        }
        return read_limits(fields, Some(Action::Reject));
    }
    let requests = fields.require("limit", integer(0..=u32::MAX));
    let window = fields.require("window", span);
    let algorithm = fields.read("algorithm", algorithm).unwrap_or(Algorithm::TokenBucket);
    for key in FORMS {
        let _: Option<()> = fields.read(key, |_| Err("cannot be combined with limit and window".to_owned()));
    }
    let window = window.map(Window::Length);
    let parsed = LimitFields { algorithm, requests, window, burst, max_delay: None };
    build(fields, ["limit", "window", "burst"], parsed).into_iter().collect()
}

fn client_rule(name: String, priority: u32, when: Matcher, limits: Vec<Limit>) -> Rule {
    let limits = limits.into_iter().map(|limit| RuleLimit::new(&name, limit)).collect();
    Rule {
        name: name.into(),
        priority,
        when,
        per: vec![Dimension::Client],
        layer: "client".into(),
        action: Action::Reject,
        limits,
        cost: RuleCost::default(),
        across_tenants: false,
        refund_policy: RefundPolicy::Never,
        leases: true,
        sample_allowed: None,
        on_store_failure: None,
        response: Response::default(),
        enabled: true,
    }
}
