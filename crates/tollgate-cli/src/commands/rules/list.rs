//! `tollgate rules list`: the rules of a file or of a server.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use tollgate_server::rule_views;

use crate::commands::items::Items;
use crate::commands::list::{Columns, LimitArg, ListQuery};
use crate::input::rule_file::RuleFiles;
use crate::output::format::{joined, text_of};
use crate::output::rule::{format_action, format_conditions, format_limits, rule_style};
use crate::output::table::Cell;
use crate::{CliError, Exit, Output};

#[derive(Args)]
pub(crate) struct List {
    /// Rule files or a settings file; - reads standard input; without them, the server's rules are listed
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Only rules whose name has this prefix
    #[arg(long, conflicts_with = "files")]
    prefix: Option<String>,
    /// Only rules with this action
    #[arg(long, conflicts_with = "files")]
    action: Option<String>,
    /// Only rules of the settings file, of the database, or the built-in default
    #[arg(long, conflicts_with = "files", value_parser = ["file", "database", "built-in"])]
    source: Option<String>,
    /// Only enabled or only disabled rules
    #[arg(long, conflicts_with = "files", value_name = "BOOL")]
    enabled: Option<bool>,
    #[command(flatten)]
    pub(super) limit: LimitArg,
}

const COLUMNS: Columns = Columns {
    headings: &["PRIORITY", "RULE", "ACTION", "PER", "LAYER", "WHEN", "LIMITS", "SOURCE", "VERSION"],
    optional: &["VERSION", "LAYER", "SOURCE"],
    row,
};

/// Lists the rules of files in order of evaluation.
pub(super) fn list_files(paths: &[PathBuf], output: &Output) -> Result<Exit, CliError> {
    let files = RuleFiles::read(paths)?;
    Ok(COLUMNS.print("rules", &rule_views(&files.set), None, output)?)
}

/// Lists the rules of a server in order of evaluation. Rules that are not in force come last.
pub(super) fn list(list: &List, items: &Items<'_>) -> Result<Exit, CliError> {
    let filters = [
        ("prefix", list.prefix.as_deref()),
        ("action", list.action.as_deref()),
        ("source", list.source.as_deref()),
        ("enabled", list.enabled.map(|enabled| if enabled { "true" } else { "false" })),
    ];
    // The server pages by name: the order is known once all rules are there.
    let query = ListQuery { name: "rules", path: "/v1/admin/rules", filters: &filters, limit: None };
    let position = |rule: &Value| {
        let number = |key: &str| rule[key].as_u64().unwrap_or(u64::MAX);
        (number("position"), number("priority"))
    };
    query.print_sorted(items.client, &COLUMNS, position, list.limit.limit, items.output)
}

fn row(rule: &Value) -> Vec<Cell> {
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
        text_of(&rule["source"]),
        text_of(&rule["version"]),
    ];
    cells.map(|text| Cell::styled(rule_style(rule), text)).into()
}
