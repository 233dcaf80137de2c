//! `tollgate tiers`: the plans of clients, on a running server.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, Value, json};

use super::item_file::{self, ItemFile};
use crate::client::{Client, Expect};
use crate::confirm::Confirm;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::items::{self, Columns, Count, Kind, Writing};
use crate::moment::span;
use crate::output::Output;
use crate::render::word;
use crate::table::Cell;

/// The flags of `tiers`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate tiers list
  tollgate tiers put premium --limit 1000 --window 1m
  tollgate tiers delete trial")]
pub(crate) struct Tiers {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List tiers
    #[command(after_help = "\
Examples:
  tollgate tiers list
  tollgate tiers list --prefix team- --json")]
    List {
        /// Only those whose names begin so
        #[arg(long)]
        prefix: Option<String>,
        #[command(flatten)]
        count: Count,
    },
    /// Print one tier as TOML
    #[command(after_help = "\
Examples:
  tollgate tiers get premium
  tollgate tiers get premium --json")]
    Get {
        /// Its name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Create a tier, or replace it
    #[command(after_help = "\
Examples:
  tollgate tiers put premium --limit 1000 --window 1m --burst 50 --description 'paying customers'
  tollgate tiers put trial --requests-per-minute 10 --requests-per-day 500
  tollgate tiers get premium > premium.toml; $EDITOR premium.toml; tollgate tiers put --file premium.toml
  tollgate tiers put premium --limit 10 --window 1m --dry-run")]
    Put(Box<Put>),
    /// Delete a tier
    #[command(after_help = "\
Examples:
  tollgate tiers delete trial
  tollgate tiers delete trial --yes
  tollgate tiers delete trial --dry-run")]
    Delete {
        /// Its name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        writing: Writing,
    },
}

#[derive(Args)]
#[command(group = ArgGroup::new("source").args(["name", "file"]).required(true))]
#[command(group = ArgGroup::new("numbers").multiple(true).conflicts_with("file")
    .args(["limit", "requests_per_second", "requests_per_minute", "requests_per_hour", "requests_per_day"]))]
struct Put {
    /// Its name
    #[arg(value_parser = NonEmptyStringValueParser::new(), requires = "numbers")]
    name: Option<String>,
    /// A file with one [[tiers]], or its JSON; - reads standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Requests per window
    #[arg(long, value_name = "N", requires = "window")]
    limit: Option<u32>,
    /// The window, such as 60s or 1h
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "limit")]
    window: Option<String>,
    /// Requests at once, if not as many as the limit
    #[arg(long, value_name = "N", requires = "numbers")]
    burst: Option<u32>,
    /// Requests per second
    #[arg(long, value_name = "N", conflicts_with = "limit")]
    requests_per_second: Option<u32>,
    /// Requests per minute
    #[arg(long, value_name = "N", conflicts_with = "limit")]
    requests_per_minute: Option<u32>,
    /// Requests per hour
    #[arg(long, value_name = "N", conflicts_with = "limit")]
    requests_per_hour: Option<u32>,
    /// Requests per day
    #[arg(long, value_name = "N", conflicts_with = "limit")]
    requests_per_day: Option<u32>,
    /// The algorithm; `token_bucket` if not given
    #[arg(long, value_name = "NAME", requires = "numbers")]
    algorithm: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    description: Option<String>,
    /// Fail if it exists already
    #[arg(long, conflicts_with = "if_version")]
    create: bool,
    #[command(flatten)]
    writing: Writing,
}

const COLUMNS: Columns = Columns { headings: &["TIER", "LIMITS", "DESCRIPTION", "SOURCE"], row };

pub(crate) fn run(tiers: &Tiers, client: &Client, output: &Output) -> Result<Exit, Failure> {
    match &tiers.command {
        Command::List { prefix, count } => {
            let filters = [("prefix", prefix.as_deref())];
            items::print_list(client, Kind::Tier, &filters, count, &COLUMNS, output)
        }
        Command::Get { name } => item_file::print(client, Kind::Tier, name, output),
        Command::Put(put) => run_put(put, client, output),
        Command::Delete { name, confirm, writing } => {
            items::delete(client, Kind::Tier, name, (confirm, writing), output)
        }
    }
}

fn run_put(put: &Put, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let ItemFile { name, body, version } = match (&put.file, &put.name) {
        (Some(file), _) => item_file::read(file, Kind::Tier)?,
        (None, name) => ItemFile { name: name.clone().unwrap_or_default(), body: body(put), version: None },
    };
    let expect = if put.create { Some(Expect::Absent) } else { version.map(Expect::Version) };
    let expect = expect.filter(|_| put.writing.if_version.is_none());
    items::put(client, Kind::Tier, &name, &body, (expect, &put.writing), output)
}

fn body(put: &Put) -> Map<String, Value> {
    // Beside `limit` a burst has one name, beside the other forms another.
    let burst = if put.limit.is_some() { "burst" } else { "burst_size" };
    let pairs = [
        ("name", json!(put.name)),
        ("description", json!(put.description)),
        ("limit", json!(put.limit)),
        ("window", json!(put.window)),
        (burst, json!(put.burst)),
        ("requests_per_second", json!(put.requests_per_second)),
        ("requests_per_minute", json!(put.requests_per_minute)),
        ("requests_per_hour", json!(put.requests_per_hour)),
        ("requests_per_day", json!(put.requests_per_day)),
        ("algorithm", json!(put.algorithm)),
    ];
    pairs
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

fn row(tier: &Value) -> Vec<Cell> {
    let limits = limits(tier);
    vec![
        word(&tier["name"]).into(),
        limits.into(),
        word(&tier["description"]).into(),
        word(&tier["source"]).into(),
    ]
}

/// Numbers in short, whichever way they are written: `1000/1m burst 20`, `5/s 100/h`.
pub(super) fn limits(item: &Value) -> String {
    let one = |limit: &Value| {
        let burst = limit["burst"].as_u64().map(|burst| format!(" burst {burst}")).unwrap_or_default();
        let requests = if limit["requests"].is_null() { &limit["limit"] } else { &limit["requests"] };
        let algorithm = limit["algorithm"].as_str().map(|name| format!(" {name}")).unwrap_or_default();
        format!("{}/{}{burst}{algorithm}", word(requests), word(&limit["window"]))
    };
    let mut told: Vec<String> = match item["limits"].as_array() {
        Some(limits) => limits.iter().map(one).collect(),
        None if !item["limit"].is_null() => vec![one(item)],
        None => Vec::new(),
    };
    for (key, unit) in [("second", "s"), ("minute", "m"), ("hour", "h"), ("day", "d")] {
        let number = &item[format!("requests_per_{key}")];
        told.extend(number.as_u64().map(|number| format!("{number}/{unit}")));
    }
    told.extend(item["burst_size"].as_u64().map(|burst| format!("burst {burst}")));
    // Beside a single limit it was told with that.
    let whole = &item["algorithm"];
    told.extend(whole.as_str().filter(|_| item["limit"].is_null()).map(str::to_owned));
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_alike_whichever_way_they_are_written() {
        for (item, told) in [
            (json!({"limit": 10, "window": "1m", "burst": 5}), "10/1m burst 5"),
            (json!({"requests_per_second": 5, "requests_per_day": 9, "burst_size": 7}), "5/s, 9/d, burst 7"),
            (
                json!({"limits": [{"requests": 1, "window": 60}, {"requests": 2, "window": "1h"}], "algorithm": "gcra"}),
                "1/60, 2/1h, gcra",
            ),
            (json!({}), ""),
        ] {
            assert_eq!(limits(&item), told);
        }
    }
}
