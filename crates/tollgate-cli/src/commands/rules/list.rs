//! `tollgate rules list` and `put` on a server.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::commands::items::{Items, PutArgs};
use crate::commands::list::{Columns, LimitArg};
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::format::{joined, text_of};
use crate::output::rule::{format_action, format_conditions, format_limits, rule_style};
use crate::output::table::Cell;

/// The flags of `rules list`.
#[derive(Args)]
pub(super) struct List {
    /// Rule file or settings file; - reads standard input; without it, the server's rules are listed
    pub(super) file: Option<PathBuf>,
    /// Only rules whose name has this prefix
    #[arg(long, conflicts_with = "file")]
    prefix: Option<String>,
    /// Only rules with this action
    #[arg(long, conflicts_with = "file")]
    action: Option<String>,
    /// Only rules of the settings file, of the database, or the built-in default
    #[arg(long, conflicts_with = "file")]
    source: Option<Source>,
    /// Only enabled or only disabled rules
    #[arg(long, conflicts_with = "file", value_name = "BOOL")]
    enabled: Option<bool>,
    #[command(flatten)]
    pub(super) limit: LimitArg,
}

/// Where a rule is defined. The variants have no doc comments, because clap would print each on its own line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    File,
    Database,
    BuiltIn,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::File => "file",
            Source::Database => "database",
            Source::BuiltIn => "built-in",
        }
    }
}

/// The flags of `rules put`.
#[derive(Args)]
pub(super) struct Put {
    /// File with one [[rules]] entry, or its JSON; - reads standard input
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) options: PutArgs,
}

const COLUMNS: Columns =
    Columns { headings: &["PRIORITY", "RULE", "ACTION", "PER", "WHEN", "LIMITS", "SOURCE", "VERSION"], row };

pub(super) fn list(list: &List, items: &Items<'_>) -> Result<Exit, CliError> {
    let filters = [
        ("prefix", list.prefix.as_deref()),
        ("action", list.action.as_deref()),
        ("source", list.source.map(Source::name)),
        ("enabled", list.enabled.map(|enabled| if enabled { "true" } else { "false" })),
    ];
    items.list(&filters, &list.limit, &COLUMNS)
}

fn row(rule: &Value) -> Vec<Cell> {
    let cells = [
        text_of(&rule["priority"]),
        text_of(&rule["name"]),
        format_action(rule),
        joined(&rule["per"], "+"),
        format_conditions(&rule["when"]),
        format_limits(rule),
        text_of(&rule["source"]),
        text_of(&rule["version"]),
    ];
    cells.map(|text| Cell::styled(rule_style(rule), text)).into()
}
