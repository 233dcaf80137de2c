//! `tollgate tiers`: the tiers of a server.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value};

use super::items::{DeleteArgs, Items, NameArg, PutArgs};
use super::list::{Columns, LimitArg};
use crate::client::without_nulls;
use crate::input::expiry::parse_duration;
use crate::input::item_file::{self, ItemFile};
use crate::item_kind::ItemKind;
use crate::output::format::text_of;
use crate::output::rule::format_limits;
use crate::output::table::Cell;
use crate::{CliError, Client, Exit, Output};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List tiers
    #[command(after_help = "\
Examples:
  tollgate tiers list
  tollgate tiers list --prefix team- --json")]
    List {
        /// Only tiers whose name has this prefix
        #[arg(long)]
        prefix: Option<String>,
        #[command(flatten)]
        limit: LimitArg,
    },
    /// Print one tier as TOML
    #[command(after_help = "\
Examples:
  tollgate tiers get premium
  tollgate tiers get premium --json")]
    Get(NameArg),
    /// Create or replace a tier
    #[command(after_help = "\
Examples:
  tollgate tiers put premium --limit 1000 --window 1m --burst 50
  tollgate tiers put trial --requests-per-minute 10 --requests-per-day 500
  tollgate tiers put --file premium.toml
  tollgate tiers put premium --limit 10 --window 1m --dry-run")]
    Put(Box<Put>),
    /// Delete a tier
    #[command(after_help = "\
Examples:
  tollgate tiers delete trial
  tollgate tiers delete trial --yes
  tollgate tiers delete trial --dry-run")]
    Delete {
        #[command(flatten)]
        tier: NameArg,
        #[command(flatten)]
        delete: DeleteArgs,
    },
}

/// The flags of `tiers put`. They serialize to the request body, except for the burst.
#[derive(Args, Serialize)]
#[command(group = ArgGroup::new("source").args(["name", "file"]).required(true))]
#[command(group = ArgGroup::new("limits").multiple(true).conflicts_with("file")
    .args(["limit", "requests_per_second", "requests_per_minute", "requests_per_hour", "requests_per_day"]))]
pub(crate) struct Put {
    /// Name
    #[arg(value_parser = NonEmptyStringValueParser::new(), requires = "limits")]
    name: Option<String>,
    /// File with one [[tiers]] entry, or its JSON; - reads standard input
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    file: Option<PathBuf>,
    /// Requests per window
    #[arg(long, value_name = "N", requires = "window")]
    limit: Option<u32>,
    /// Window, such as 60s or 1h
    #[arg(long, value_name = "SPAN", value_parser = parse_duration, requires = "limit")]
    window: Option<String>,
    /// Burst size, if different from the limit
    #[arg(long, alias = "burst-size", value_name = "N", requires = "limits")]
    #[serde(skip)]
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
    /// Algorithm; `token_bucket` by default
    #[arg(long, alias = "strategy", value_name = "NAME", requires = "limits")]
    algorithm: Option<String>,
    /// Description
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    description: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    options: PutArgs,
}

const COLUMNS: Columns =
    Columns { headings: &["TIER", "LIMITS", "DESCRIPTION", "SOURCE"], optional: &["SOURCE"], row };

pub(crate) fn run(command: &Command, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let items = Items { kind: ItemKind::Tier, tenant: None, client, output };
    match command {
        Command::List { prefix, limit } => items.list(&[("prefix", prefix.as_deref())], limit, &COLUMNS),
        Command::Get(tier) => items.print_toml(&tier.name),
        Command::Put(put) => {
            let item = match (&put.file, &put.name) {
                (Some(file), _) => item_file::read(file, ItemKind::Tier)?,
                (None, name) => {
                    ItemFile { name: name.clone().unwrap_or_default(), body: body(put), version: None }
                }
            };
            items.put_item(&item, &put.options)
        }
        Command::Delete { tier, delete } => items.delete(&tier.name, delete),
    }
}

fn body(put: &Put) -> Map<String, Value> {
    // Serializing plain data does not fail.
    let flags = without_nulls(put).unwrap_or_default();
    let mut body = flags.as_object().cloned().unwrap_or_default();
    // The API names the burst of a single limit differently.
    let burst = if put.limit.is_some() { "burst" } else { "burst_size" };
    body.extend(put.burst.map(|value| (burst.to_owned(), value.into())));
    body
}

fn row(tier: &Value) -> Vec<Cell> {
    vec![
        text_of(&tier["name"]).into(),
        format_limits(tier).into(),
        text_of(&tier["description"]).into(),
        text_of(&tier["source"]).into(),
    ]
}
