//! `tollgate rules history` and `rollback`: earlier definitions of a rule, from the audit trail.

use clap::Args;
use http::StatusCode;
use serde_json::{Map, Value};

use crate::client::Precondition;
use crate::commands::audit::changed_keys;
use crate::commands::items::{DryRunArg, Items, NameArg};
use crate::commands::list::{Columns, ListQuery};
use crate::input::confirm::ConfirmArgs;
use crate::output::changes::{self, Counts};
use crate::output::format::{format_time, text_of};
use crate::output::table::Cell;
use crate::{CliError, Exit};

#[derive(Args)]
pub(crate) struct History {
    #[command(flatten)]
    rule: NameArg,
    /// Maximum number of changes
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

#[derive(Args)]
pub(crate) struct Rollback {
    #[command(flatten)]
    rule: NameArg,
    /// Version to restore, as `history` lists it; the definition in force then
    #[arg(long, value_name = "VERSION")]
    to: u64,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    dry: DryRunArg,
}

const COLUMNS: Columns =
    Columns { headings: &["VERSION", "WHEN", "BY", "ACTION", "CHANGED", "ENTRY"], optional: &[], row };
const PATH: &str = "/v1/admin/audit";

pub(super) fn history(history: &History, items: &Items<'_>) -> Result<Exit, CliError> {
    let filters = filters(&history.rule.name);
    let query = ListQuery { name: "entries", path: PATH, filters: &filters, limit: Some(history.limit) };
    query.print(items.client, &COLUMNS, items.output)
}

pub(super) fn rollback(rollback: &Rollback, items: &Items<'_>) -> Result<Exit, CliError> {
    let Items { output, .. } = items;
    let name = &rollback.rule.name;
    let definition = definition_at(name, rollback.to, items)?;
    let precondition = match items.get(name) {
        Ok(rule) => rule.body["version"].as_u64().map_or(Precondition::None, Precondition::Version),
        Err(CliError::Client(error)) if error.status() == Some(StatusCode::NOT_FOUND) => Precondition::Absent,
        Err(error) => return Err(error),
    };
    let plan = items.write(name, &definition, precondition, &DryRunArg { dry_run: true })?;
    if rollback.dry.dry_run || Counts::of(&plan.body).total() == 0 {
        return items.report_written("restored", name, &plan, &DryRunArg { dry_run: true });
    }
    if !output.json() {
        output.text(&changes::render(&plan.body, output))?;
    }
    let action = format!("restore rule {name} as of version {}", rollback.to);
    if !rollback.confirm.confirmed(&action)? {
        return Ok(Exit::Refused);
    }
    let written = items.write(name, &definition, precondition, &rollback.dry)?;
    items.report_written("restored", name, &written, &rollback.dry)
}

fn filters(rule: &str) -> [(&str, Option<&str>); 3] {
    [("kind", Some("rule")), ("subject", Some(rule)), ("newest", Some("true"))]
}

/// The definition that was in force at a version: that of the last change up to it.
fn definition_at(rule: &str, version: u64, items: &Items<'_>) -> Result<Map<String, Value>, CliError> {
    let filters = filters(rule);
    let query = ListQuery { name: "entries", path: PATH, filters: &filters, limit: None };
    let is_at = |entry: &Value| entry["version"].as_u64().is_some_and(|made| made <= version);
    let found = query.find(items.client, is_at)?;
    match found.as_ref().map(|entry| &entry["after"]) {
        Some(Value::Object(definition)) => Ok(definition.clone()),
        Some(_) => Err(CliError::Arguments(format!(
            "rule {rule:?} did not exist at version {version}: it was deleted; `tollgate rules history {rule}` lists its versions"
        ))),
        None => Err(CliError::Arguments(format!(
            "the audit trail has no change of rule {rule:?} up to version {version}; `tollgate rules history {rule}` lists its \
             versions"
        ))),
    }
}

fn row(entry: &Value) -> Vec<Cell> {
    vec![
        text_of(&entry["version"]).into(),
        format_time(&entry["at"]).into(),
        text_of(&entry["by"]).into(),
        text_of(&entry["action"]).into(),
        changed_keys(&entry["before"], &entry["after"]).into(),
        text_of(&entry["id"]).into(),
    ]
}
