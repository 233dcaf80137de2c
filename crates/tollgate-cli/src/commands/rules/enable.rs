//! `tollgate rules enable` and `disable`: switches rules of a server on and off, all of them or none.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Map, Value};

use super::apply;
use crate::commands::items::{DryRunArg, Items};
use crate::input::import_set::ImportSet;
use crate::input::item_file::without_server_fields;
use crate::output::escape;
use crate::{CliError, Exit};

#[derive(Args)]
pub(crate) struct Enable {
    /// Names
    #[arg(required = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,
    #[command(flatten)]
    dry: DryRunArg,
}

pub(super) fn run(enable: &Enable, enabled: bool, items: &Items<'_>) -> Result<Exit, CliError> {
    let Items { client, output, .. } = items;
    let rules: Result<Vec<Value>, CliError> =
        enable.names.iter().map(|name| switched(name, enabled, items)).collect();
    let imports = ImportSet::of_rules(rules?);
    let plan = apply::import(&imports, false, None, client)?;
    // A rule that changed since it was read would be set back.
    if !changes(&plan.body).all(only_switches) {
        return Err(CliError::Conflict);
    }
    let is_plan = enable.dry.dry_run;
    let version = plan.body["version"].as_u64().filter(|_| !is_plan);
    let result = if is_plan { plan } else { apply::import(&imports, false, version, client)? };
    output.warnings(&result.body);
    let names = enable.names.iter().map(|name| (name, was_changed(name, &result.body)));
    let word = if enabled { "enabled" } else { "disabled" };
    let lines = names.map(|(name, changed)| match (changed, is_plan) {
        (false, _) => format!("rule {} is already {word}\n", escape(name)),
        (true, false) => format!("{word} rule {}\n", escape(name)),
        (true, true) => String::new(),
    });
    let lines: String = lines.collect();
    Ok(output.response(&result.text, || {
        if is_plan {
            output.note("dry run: nothing was changed");
            return crate::output::changes::render(&result.body, output) + &lines;
        }
        lines
    })?)
}

/// The definition of a rule, switched on or off.
fn switched(name: &str, enabled: bool, items: &Items<'_>) -> Result<Value, CliError> {
    let body = items.get(name)?.body;
    if body["source"].as_str() != Some("database") {
        return Err(CliError::Arguments(format!(
            "rule {name:?} is not in the database of the server: set `enabled` in its settings file, then run `tollgate reload`"
        )));
    }
    let (mut rule, _) = without_server_fields(body.as_object().cloned().unwrap_or_default());
    rule.remove("enabled");
    if !enabled {
        rule.insert("enabled".to_owned(), false.into());
    }
    Ok(rule.into())
}

fn changes(body: &Value) -> impl Iterator<Item = &Value> {
    body["changes"].as_array().into_iter().flatten()
}

/// Whether a change is one of `enabled` alone.
fn only_switches(change: &Value) -> bool {
    let rest = |side: &Value| -> Option<Map<String, Value>> {
        let mut rest = side.as_object()?.clone();
        rest.remove("enabled");
        Some(without_server_fields(rest).0)
    };
    let before = rest(&change["before"]);
    before.is_some() && before == rest(&change["after"])
}

fn was_changed(name: &str, body: &Value) -> bool {
    changes(body).any(|change| change["id"].as_str() == Some(name))
}
