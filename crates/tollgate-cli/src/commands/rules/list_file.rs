//! `tollgate rules list FILE`: the rules of a file in order of evaluation.

use std::path::Path;

use serde_json::{Value, json};
use tollgate::rules::{Matcher, Rule};

use crate::error::CliError;
use crate::exit::Exit;
use crate::input::rule_file::RuleFile;
use crate::output::Output;
use crate::output::format::{joined, text_of};
use crate::output::rule::{format_action, format_conditions, format_limits, rule_style};
use crate::output::table::{Cell, Table};

pub(super) fn run(path: &Path, output: &Output) -> Result<Exit, CliError> {
    let file = RuleFile::read(path)?;
    let rules: Vec<Value> = file.set.rules().iter().map(rule_json).collect();
    if output.json() {
        output.value(&json!({ "rules": rules }))?;
    } else {
        output.text(&table(&rules).render(output))?;
    }
    Ok(Exit::Ok)
}

fn table(rules: &[Value]) -> Table {
    let mut table = Table::new(&["PRIORITY", "RULE", "ACTION", "PER", "LAYER", "WHEN", "LIMITS"]);
    for rule in rules {
        let has_limits = rule["limits"].as_array().is_some_and(|limits| !limits.is_empty());
        let if_limiting = |text: String| if has_limits { text } else { "-".to_owned() };
        let cells = [
            text_of(&rule["priority"]),
            text_of(&rule["name"]),
            format_action(rule),
            if_limiting(joined(&rule["per"], "+")),
            if_limiting(text_of(&rule["layer"])),
            format_conditions(&rule["when"]),
            if_limiting(format_limits(rule)),
        ];
        table.row(cells.map(|text| Cell::styled(rule_style(rule), text)));
    }
    table
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
        "per": rule.per.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "layer": *rule.layer,
        "when": when,
        "limits": limits,
        "on_store_failure": rule.on_store_failure.as_str(),
    })
}
