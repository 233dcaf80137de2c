//! `tollgate audit`: the audit log of a server.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::list::{Columns, ListQuery};
use crate::client::url::query;
use crate::input::expiry::parse_expiry;
use crate::output::changes;
use crate::output::format::{format_time, joined, text_of};
use crate::output::record::field_table;
use crate::output::table::Cell;
use crate::{CliError, Client, Exit, Output};

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  tollgate audit
  tollgate audit --since 2h
  tollgate audit --kind rule --subject free-tier --limit 10
  tollgate audit --by key:4kq2mz7ehv3xw5ta
  tollgate audit --after 1200 --limit 1000 --json
  tollgate audit show 1204

Entries are listed newest first. With --after they are listed oldest first, so
that a program can follow the log."
)]
pub(crate) struct Audit {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only changes of this kind: rule, tier, quota, key, block, limit, counters,
    /// penalty, settings
    #[arg(long)]
    kind: Option<String>,
    /// Only changes by this caller
    #[arg(long, value_name = "CALLER")]
    by: Option<String>,
    /// Only changes of this item
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only changes since then: how long ago (2h) or a time (2027-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    since: Option<String>,
    /// Only changes before then: how long ago or a time
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    until: Option<String>,
    /// Only changes of items and clients of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only entries after this one, oldest first
    #[arg(long, value_name = "ENTRY")]
    after: Option<u64>,
    /// Maximum number of entries
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show one entry with the difference between before and after
    #[command(after_help = "\
Examples:
  tollgate audit show 1204
  tollgate audit show 1204 --json")]
    Show {
        /// Number of the entry, as `audit` lists it
        #[arg(value_name = "ENTRY", value_parser = clap::value_parser!(u64).range(1..))]
        entry: u64,
    },
}

const COLUMNS: Columns = Columns {
    headings: &["ENTRY", "WHEN", "BY", "ACTION", "KIND", "SUBJECT", "TENANT", "CHANGED"],
    optional: &["CHANGED", "TENANT"],
    row,
};

const PATH: &str = "/v1/admin/audit";

pub(crate) fn run(audit: &Audit, client: &Client, output: &Output) -> Result<Exit, CliError> {
    if let Some(Command::Show { entry }) = &audit.command {
        return show(*entry, client, output);
    }
    let after = audit.after.map(|after| after.to_string());
    let filters = [
        ("kind", audit.kind.as_deref().map(kind_in_trail)),
        ("by", audit.by.as_deref()),
        ("subject", audit.subject.as_deref()),
        ("since", audit.since.as_deref()),
        ("until", audit.until.as_deref()),
        ("tenant", audit.tenant.as_deref()),
        ("newest", audit.after.is_none().then_some("true")),
        ("after", after.as_deref()),
    ];
    let limit = Some(audit.limit);
    let query = ListQuery { name: "entries", path: PATH, filters: &filters, limit };
    query.print(client, &COLUMNS, output)
}

/// Prints one entry: the first one that is not before it must be it.
fn show(entry: u64, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let after = entry.saturating_sub(1).to_string();
    let response =
        client.get(&format!("{PATH}{}", query(&[("after", Some(&*after)), ("limit", Some("1"))])))?;
    let found = &response.body["entries"][0];
    if found["id"].as_u64() != Some(entry) {
        return Err(CliError::Arguments(format!(
            "the audit log has no entry {entry}; `tollgate audit` lists them"
        )));
    }
    Ok(output.result(|| found.clone(), || describe(found, output))?)
}

/// The fields of an entry, and what it changed.
fn describe(entry: &Value, output: &Output) -> String {
    let mut fields = entry.clone();
    for state in ["before", "after"] {
        fields[state] = Value::Null;
    }
    fields["at"] = format_time(&entry["at"]).into();
    let order = ["id", "version", "at", "by", "action", "kind", "subject"];
    let change = json!({"kind": entry["kind"], "id": entry["subject"], "before": entry["before"], "after": entry["after"]});
    let change = changes::render(&json!({ "changes": [change] }), output);
    format!("{}\n{change}", field_table(&fields, &order).render(output))
}

/// The kind of limits of a user on an endpoint in the audit trail, which this command calls `limit`, as files do.
const LIMIT_IN_TRAIL: &str = "user_endpoint_limit";

fn kind_name(kind: &str) -> &str {
    if kind == LIMIT_IN_TRAIL { "limit" } else { kind }
}

fn kind_in_trail(kind: &str) -> &str {
    if kind == "limit" { LIMIT_IN_TRAIL } else { kind }
}

/// A time or a duration, sent as written: the server's clock decides.
pub(super) fn parse_time(text: &str) -> Result<String, String> {
    let reason = "must be how long ago, such as 2h, or a time such as 2027-01-31T12:00:00Z";
    parse_expiry(text).map(|_| text.trim().to_owned()).map_err(|_| reason.to_owned())
}

fn row(entry: &Value) -> Vec<Cell> {
    vec![
        text_of(&entry["id"]).into(),
        format_time(&entry["at"]).into(),
        text_of(&entry["by"]).into(),
        text_of(&entry["action"]).into(),
        kind_name(&text_of(&entry["kind"])).into(),
        joined(&entry["subject"], " ").into(),
        text_of(&entry["tenant"]).into(),
        changed_keys(&entry["before"], &entry["after"]).into(),
    ]
}

/// The keys whose values differ; empty if the item was created or deleted.
pub(super) fn changed_keys(before: &Value, after: &Value) -> String {
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
