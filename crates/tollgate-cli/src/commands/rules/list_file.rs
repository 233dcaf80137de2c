//! `tollgate rules list FILE`: the rules of a file in order of evaluation.

use std::path::Path;

use serde_json::{Value, json};
use tollgate::Limit;
use tollgate::rules::{Matcher, Rule};

use crate::error::CliError;
use crate::exit::Exit;
use crate::input::rule_file::RuleFile;
use crate::output::table::{Cell, Table};
use crate::output::{Output, Style};

pub(super) fn run(path: &Path, output: &Output) -> Result<Exit, CliError> {
    let file = RuleFile::read(path)?;
    let rules = file.set.rules();
    if output.json() {
        output.value(&json!({ "rules": rules.iter().map(rule_json).collect::<Vec<_>>() }))?;
    } else {
        output.text(&table(rules).render(output))?;
    }
    Ok(Exit::Ok)
}

fn table(rules: &[Rule]) -> Table {
    let mut table = Table::new(&["PRIORITY", "RULE", "ACTION", "PER", "LAYER", "WHEN", "LIMITS"]);
    for rule in rules {
        let if_limiting = |text: String| if rule.action.limits() { text } else { "-".to_owned() };
        let limits: Vec<String> = rule.limits.iter().map(|limit| format_limit(&limit.limit)).collect();
        let action = if rule.enabled { rule.action.as_str() } else { "off" };
        let style = if rule.enabled { Style::Plain } else { Style::Faint };
        let cells = [
            rule.priority.to_string(),
            rule.name.to_string(),
            action.to_owned(),
            if_limiting(per(rule).join("+")),
            if_limiting(rule.layer.to_string()),
            format_conditions(&rule.when),
            if_limiting(limits.join(", ")),
        ];
        table.row(cells.map(|text| Cell::styled(style, text)));
    }
    table
}

fn per(rule: &Rule) -> Vec<String> {
    rule.per.iter().map(ToString::to_string).collect()
}

/// `1000/1h burst 20 token_bucket`.
fn format_limit(limit: &Limit) -> String {
    let burst = limit.burst().map(|burst| format!(" burst {burst}")).unwrap_or_default();
    let delay = limit.max_delay().map(|delay| format!(" delay {delay}")).unwrap_or_default();
    format!("{}/{}{burst}{delay} {}", limit.requests(), limit.window(), limit.algorithm())
}

/// `tiers=free endpoints=/a,/b`.
fn format_conditions(matcher: &Matcher) -> String {
    let conditions = conditions(matcher);
    if conditions.is_empty() {
        return "always".to_owned();
    }
    let parts: Vec<String> =
        conditions.iter().map(|(key, values)| format!("{key}={}", values.join(","))).collect();
    parts.join(" ")
}

/// The conditions by their names in rule files.
fn conditions(matcher: &Matcher) -> Vec<(String, Vec<String>)> {
    let texts = |texts: &[Box<str>]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let methods = matcher.methods.iter().map(|method| method.as_str().to_owned());
    let mut conditions = vec![
        ("tiers".to_owned(), texts(&matcher.tiers)),
        ("endpoints".to_owned(), matcher.endpoints.iter().map(ToString::to_string).collect()),
        ("methods".to_owned(), methods.collect()),
        ("ips".to_owned(), matcher.ips.iter().map(ToString::to_string).collect()),
        ("users".to_owned(), texts(&matcher.users)),
        ("tenants".to_owned(), texts(&matcher.tenants)),
    ];
    conditions.retain(|(_, values)| !values.is_empty());
    let descriptors = matcher.descriptors.iter();
    conditions.extend(descriptors.map(|(name, values)| (format!("descriptors.{name}"), texts(values))));
    conditions
}

fn rule_json(rule: &Rule) -> Value {
    let limits: Vec<Value> = (rule.limits.iter().map(|limit| &limit.limit))
        .map(|limit| {
            json!({
                "requests": limit.requests(),
                "window": limit.window().to_string(),
                "burst": limit.burst(),
                "max_delay": limit.max_delay().map(|delay| delay.to_string()),
                "algorithm": limit.algorithm().as_str(),
            })
        })
        .collect();
    let when: serde_json::Map<String, Value> =
        conditions(&rule.when).into_iter().map(|(key, values)| (key, values.into())).collect();
    json!({
        "name": *rule.name,
        "priority": rule.priority,
        "enabled": rule.enabled,
        "action": rule.action.as_str(),
        "per": per(rule),
        "layer": *rule.layer,
        "when": when,
        "limits": limits,
        "on_store_failure": rule.on_store_failure.as_str(),
    })
}
