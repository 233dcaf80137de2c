//! `tollgate audit`: who changed what on a running server.

use clap::Args;
use serde_json::Value;

use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::items::{Columns, List};
use crate::moment;
use crate::output::Output;
use crate::render::word;
use crate::table::Cell;

/// The flags of `audit`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate audit
  tollgate audit --kind rule --subject free-tier --limit 10
  tollgate audit --by key:4kq2mz7ehv3xw5ta
  tollgate audit --after 1200 --limit 1000 --json

The newest come first; with --after the oldest behind that entry do, for programs that follow the trail.")]
pub(crate) struct Audit {
    /// Only changes of this kind: rule, tier, quota, key, block, `user_endpoint_limit`, counters
    #[arg(long)]
    kind: Option<String>,
    /// Only changes made by this caller
    #[arg(long, value_name = "CALLER")]
    by: Option<String>,
    /// Only changes of this item
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only entries behind this one, the oldest first
    #[arg(long, value_name = "ENTRY")]
    after: Option<u64>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const COLUMNS: Columns =
    Columns { headings: &["ENTRY", "WHEN", "BY", "ACTION", "KIND", "SUBJECT", "CHANGED"], row };

pub(crate) fn run(audit: &Audit, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let after = audit.after.map(|after| after.to_string());
    let filters = [
        ("kind", audit.kind.as_deref()),
        ("by", audit.by.as_deref()),
        ("subject", audit.subject.as_deref()),
        ("newest", audit.after.is_none().then_some("true")),
        ("after", after.as_deref()),
    ];
    let list = List { name: "entries", path: "/v1/admin/audit", filters: &filters, count: Some(audit.limit) };
    list.print(client, &COLUMNS, output)
}

fn row(entry: &Value) -> Vec<Cell> {
    vec![
        word(&entry["id"]).into(),
        moment::told(&entry["at"]).into(),
        word(&entry["by"]).into(),
        word(&entry["action"]).into(),
        word(&entry["kind"]).into(),
        subject(&entry["subject"]).into(),
        changed(&entry["before"], &entry["after"]).into(),
    ]
}

fn subject(subject: &Value) -> String {
    match subject {
        Value::Array(parts) => parts.iter().map(word).collect::<Vec<_>>().join(" "),
        other => word(other),
    }
}

/// The keys whose values differ; nothing where all of it is new or gone.
fn changed(before: &Value, after: &Value) -> String {
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
    fn an_update_names_the_keys_that_changed() {
        assert_eq!(changed(&json!({"a": 1, "b": 2, "d": 0}), &json!({"a": 1, "b": 3, "c": 4})), "b, c, d");
        assert_eq!(changed(&Value::Null, &json!({"a": 1})), "");
    }
}
