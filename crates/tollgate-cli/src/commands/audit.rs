//! `tollgate audit`: the audit log of a server.

use clap::Args;
use serde_json::Value;

use super::list::{Columns, ListQuery};
use crate::output::format::{format_time, joined, text_of};
use crate::output::table::Cell;
use crate::{CliError, Client, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate audit
  tollgate audit --kind rule --subject free-tier --limit 10
  tollgate audit --by key:4kq2mz7ehv3xw5ta
  tollgate audit --after 1200 --limit 1000 --json

Entries are listed newest first. With --after they are listed oldest first, so that a program can follow the log.")]
pub(crate) struct Audit {
    /// Only changes of this kind: rule, tier, quota, key, block, `user_endpoint_limit`, counters
    #[arg(long)]
    kind: Option<String>,
    /// Only changes by this caller
    #[arg(long, value_name = "CALLER")]
    by: Option<String>,
    /// Only changes of this item
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only entries after this one, oldest first
    #[arg(long, value_name = "ENTRY")]
    after: Option<u64>,
    /// Maximum number of entries
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const COLUMNS: Columns =
    Columns { headings: &["ENTRY", "WHEN", "BY", "ACTION", "KIND", "SUBJECT", "CHANGED"], row };

pub(crate) fn run(audit: &Audit, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let after = audit.after.map(|after| after.to_string());
    let filters = [
        ("kind", audit.kind.as_deref()),
        ("by", audit.by.as_deref()),
        ("subject", audit.subject.as_deref()),
        ("newest", audit.after.is_none().then_some("true")),
        ("after", after.as_deref()),
    ];
    let limit = Some(audit.limit);
    let query = ListQuery { name: "entries", path: "/v1/admin/audit", filters: &filters, limit };
    query.print(client, &COLUMNS, output)
}

fn row(entry: &Value) -> Vec<Cell> {
    vec![
        text_of(&entry["id"]).into(),
        format_time(&entry["at"]).into(),
        text_of(&entry["by"]).into(),
        text_of(&entry["action"]).into(),
        text_of(&entry["kind"]).into(),
        joined(&entry["subject"], " ").into(),
        changed_keys(&entry["before"], &entry["after"]).into(),
    ]
}

/// The keys whose values differ; empty if the item was created or deleted.
fn changed_keys(before: &Value, after: &Value) -> String {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else { return String::new() };
    let mut keys: Vec<&str> = before.keys().chain(after.keys()).map(String::as_str).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|key| before.get(*key) != after.get(*key));
    keys.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn update_lists_changed_keys() {
        let (before, after) = (json!({"a": 1, "b": 2, "d": 0}), json!({"a": 1, "b": 3, "c": 4}));
        assert_eq!(changed_keys(&before, &after), "b, c, d");
        assert_eq!(changed_keys(&Value::Null, &json!({"a": 1})), "");
    }
}
