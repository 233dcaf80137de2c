//! Single rules of a running server.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::item_file::{self, ItemFile};
use crate::client::{Client, Expect};
use crate::commands::tiers::limits;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::items::{self, Columns, Count, Kind, Writing};
use crate::output::{Output, Style};
use crate::render::word;
use crate::table::Cell;

/// The flags of `rules list`.
#[derive(Args)]
pub(super) struct List {
    /// A rule file or a whole tollgate.toml; - reads standard input; the server is asked if none is given
    pub(super) file: Option<PathBuf>,
    /// Only rules whose names begin so
    #[arg(long, conflicts_with = "file")]
    prefix: Option<String>,
    /// Only rules with this action
    #[arg(long, conflicts_with = "file")]
    action: Option<String>,
    /// Only rules of the server's file, of its database, or the one it has where none is configured
    #[arg(long, conflicts_with = "file")]
    source: Option<Source>,
    /// Only rules that are switched on, or off
    #[arg(long, conflicts_with = "file", value_name = "BOOL")]
    enabled: Option<bool>,
    #[command(flatten)]
    pub(super) count: Count,
}

/// Where a rule is kept. Its variants have no comments of their own: clap would print them, one to a line.
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
    /// A file with one [[rules]], or its JSON; - reads standard input
    file: PathBuf,
    /// Fail if it exists already
    #[arg(long, conflicts_with = "if_version")]
    create: bool,
    #[command(flatten)]
    writing: Writing,
}

const COLUMNS: Columns =
    Columns { headings: &["PRIORITY", "RULE", "ACTION", "PER", "WHEN", "LIMITS", "SOURCE", "VERSION"], row };

pub(super) fn list(list: &List, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let filters = [
        ("prefix", list.prefix.as_deref()),
        ("action", list.action.as_deref()),
        ("source", list.source.map(Source::name)),
        ("enabled", list.enabled.map(|enabled| if enabled { "true" } else { "false" })),
    ];
    items::print_list(client, Kind::Rule, &filters, &list.count, &COLUMNS, output)
}

pub(super) fn put(put: &Put, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let ItemFile { name, body, version } = item_file::read(&put.file, Kind::Rule)?;
    let expect = if put.create { Some(Expect::Absent) } else { version.map(Expect::Version) };
    let expect = expect.filter(|_| put.writing.if_version.is_none());
    items::put(client, Kind::Rule, &name, &body, (expect, &put.writing), output)
}

fn row(rule: &Value) -> Vec<Cell> {
    let enabled = rule["enabled"].as_bool() != Some(false);
    let style = if enabled { Style::Plain } else { Style::Faint };
    let action = if enabled { rule["action"].as_str().unwrap_or("reject") } else { "off" };
    let per = match &rule["per"] {
        Value::Array(per) => per.iter().map(word).collect::<Vec<_>>().join("+"),
        other => word(other),
    };
    let cells = [
        word(&rule["priority"]),
        word(&rule["name"]),
        action.to_owned(),
        per,
        when(&rule["when"]),
        limits(rule),
        word(&rule["source"]),
        word(&rule["version"]),
    ];
    cells.map(|text| Cell::styled(style, text)).into()
}

/// The conditions in short: `tiers=free endpoints=/a,/b`.
fn when(conditions: &Value) -> String {
    let Some(conditions) = conditions.as_object().filter(|conditions| !conditions.is_empty()) else {
        return "always".to_owned();
    };
    let values = |value: &Value| match value {
        Value::Array(values) => values.iter().map(word).collect::<Vec<_>>().join(","),
        other => word(other),
    };
    let mut told = Vec::new();
    for (key, value) in conditions {
        match value {
            Value::Object(descriptors) => {
                told.extend(
                    descriptors.iter().map(|(name, value)| format!("{key}.{name}={}", values(value))),
                );
            }
            other => told.push(format!("{key}={}", values(other))),
        }
    }
    told.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_told_in_short() {
        let conditions =
            json!({"tiers": ["free", "trial"], "endpoints": "/a", "descriptors": {"plan": ["eu"]}});
        assert_eq!(when(&conditions), "descriptors.plan=eu endpoints=/a tiers=free,trial");
        assert_eq!((when(&json!({})), when(&Value::Null)), ("always".to_owned(), "always".to_owned()));
    }
}
