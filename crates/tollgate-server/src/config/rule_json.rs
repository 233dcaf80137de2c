//! A compiled rule as JSON with the keys of `[[rules]]`, without default values.

use serde_json::{Map, Value as Json, json};
use tollgate::calendar::CalendarUnit;
use tollgate::rules::{
    Action, Matcher, OnStoreFailure, RefundPolicy, Response, RuleCost, SampleRate, StatusPattern,
};
use tollgate::{Algorithm, Limit, Rule, Span, Window};

const PRIORITY_DEFAULT: u32 = 100;

/// A rule with the keys of `[[rules]]`. Parsed again, it is the same rule.
pub(crate) fn definition(rule: &Rule) -> Map<String, Json> {
    let mut all = Map::new();
    let per: Vec<String> = rule.per.iter().map(ToString::to_string).collect();
    put(&mut all, "name", Some(&*rule.name));
    put(&mut all, "priority", Some(rule.priority).filter(|priority| *priority != PRIORITY_DEFAULT));
    put(&mut all, "when", Some(conditions(&rule.when)).filter(|when| !when.is_empty()));
    put(&mut all, "layer", Some(&*rule.layer).filter(|layer| *layer != per.join("+")));
    put(&mut all, "per", Some(json!(per)).filter(|_| rule.action.limits()));
    put(&mut all, "action", Some(rule.action.as_str()).filter(|_| rule.action != Action::Reject));
    put_limits(&mut all, rule);
    put(&mut all, "cost", cost(&rule.cost));
    put(&mut all, "across_tenants", Some(true).filter(|_| rule.across_tenants));
    put(&mut all, "count", Some("on_failure").filter(|_| rule.refund_policy == RefundPolicy::OnSuccess));
    put(&mut all, "refund_statuses", refund_statuses(&rule.refund_policy));
    put(&mut all, "leases", Some(false).filter(|_| !rule.leases));
    put(&mut all, "on_store_failure", rule.on_store_failure.map(OnStoreFailure::as_str));
    put(&mut all, "sample_allowed", rule.sample_allowed.map(SampleRate::share));
    put(&mut all, "response", Some(response(&rule.response)).filter(|response| !response.is_empty()));
    put(&mut all, "enabled", Some(false).filter(|_| !rule.enabled));
    all
}

/// The cost as it is written; `None` if it is the default.
fn cost(cost: &RuleCost) -> Option<Json> {
    match cost {
        RuleCost::Times(1) => None,
        RuleCost::Times(factor) => Some(json!(factor)),
        descriptor @ RuleCost::Descriptor(_) => Some(json!(descriptor.to_string())),
    }
}

/// The statuses as they are written; `None` if the rule lists none.
fn refund_statuses(policy: &RefundPolicy) -> Option<Json> {
    let RefundPolicy::Statuses(patterns) = policy else { return None };
    let written = |pattern: &StatusPattern| match pattern {
        StatusPattern::Status(status) => json!(status),
        class @ StatusPattern::Class(_) => json!(class.to_string()),
    };
    Some(patterns.iter().map(written).collect())
}

fn put_limits(all: &mut Map<String, Json>, rule: &Rule) {
    let Some(first) = rule.limits.first().map(|each| &each.limit) else { return };
    let algorithm = first.algorithm();
    let named = Some(algorithm.as_str()).filter(|_| algorithm != Algorithm::TokenBucket);
    put(all, "algorithm", named);
    put(all, "max_delay", first.max_delay().map(|delay| delay.to_string()));
    let limits = rule.limits.iter().map(|each| Json::Object(limit(&each.limit)));
    put(all, "limits", Some(Json::Array(limits.collect())));
}

/// A limit with the keys of `limits`.
pub(crate) fn limit(limit: &Limit) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "requests", Some(limit.requests()));
    match limit.window() {
        Window::Length(span) => put(&mut all, "window", Some(span.to_string())),
        Window::Calendar(calendar) => {
            let (unit, anchor) = match calendar.unit() {
                CalendarUnit::Day => ("day", None),
                CalendarUnit::Week(start) => ("week", Some(json!(format!("{start:?}").to_lowercase()))),
                CalendarUnit::Month(day) => ("month", Some(json!(day))),
            };
            put(&mut all, "window", Some(unit));
            put(&mut all, "anchor", anchor);
            // Calendar windows print as `month@Europe/Berlin`.
            let printed = calendar.to_string();
            put(&mut all, "time_zone", printed.split_once('@').map(|(_, zone)| zone));
        }
    }
    put(&mut all, "burst", limit.burst());
    all
}

pub(crate) fn conditions(when: &Matcher) -> Map<String, Json> {
    let mut all = Map::new();
    let mut some = |key: &str, values: Vec<String>| {
        put(&mut all, key, Some(json!(values)).filter(|_| !values.is_empty()));
    };
    let texts = |values: &[Box<str>]| values.iter().map(ToString::to_string).collect::<Vec<String>>();
    some("tiers", texts(&when.tiers));
    some("endpoints", when.endpoints.iter().map(ToString::to_string).collect());
    some("methods", when.methods.iter().map(ToString::to_string).collect());
    some("ips", when.ips.iter().map(ToString::to_string).collect());
    some("users", texts(&when.users));
    some("tenants", texts(&when.tenants));
    let descriptors = when.descriptors.iter().map(|(name, values)| (name.to_string(), json!(texts(values))));
    let descriptors: Map<String, Json> = descriptors.collect();
    put(&mut all, "descriptors", Some(descriptors).filter(|descriptors| !descriptors.is_empty()));
    all
}

fn response(response: &Response) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "status", Some(response.status).filter(|status| *status != 429));
    put(&mut all, "message", response.message.as_deref());
    let floor = response.retry_after_floor;
    put(&mut all, "retry_after_floor", Some(floor.to_string()).filter(|_| floor != Span::ZERO));
    all
}

fn put(all: &mut Map<String, Json>, key: &str, value: Option<impl Into<Json>>) {
    if let Some(value) = value {
        all.insert(key.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use tollgate::RuleSet;
    use tollgate::config::{Document, Origin, Problems, Value, read_rule};

    use super::*;

    #[test]
    fn definition_parses_as_the_same_rule() {
        let text = include_str!("../../../tollgate/tests/valid_rules/everything.toml");
        let set = RuleSet::from_toml(text).unwrap();
        assert!(set.rules().len() > 5);
        for rule in set.rules() {
            let definition = definition(rule);
            let value: Value = serde_json::from_value(Json::Object(definition.clone())).unwrap();
            let document = Document::from_value(value, Origin::Named("test".to_owned())).unwrap();
            let mut problems = Problems::default();
            let mut fields = document.fields(&mut problems);
            let again = read_rule(&mut fields);
            fields.finish();
            let again = problems.into_result(again).unwrap_or_else(|error| panic!("{definition:?}: {error}"));
            // Rules without limits have no `per`.
            let (per, layer) =
                if rule.action.limits() { (&rule.per, &rule.layer) } else { (&again.per, &again.layer) };
            let rule = Rule { per: per.clone(), layer: layer.clone(), ..rule.clone() };
            assert_eq!(format!("{again:?}"), format!("{rule:?}"), "{definition:?}");
        }
    }
}
