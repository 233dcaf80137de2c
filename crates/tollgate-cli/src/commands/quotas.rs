//! `tollgate quotas`: per-user quotas.

use clap::{ArgGroup, Args, Subcommand};
use http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value};

use super::items::{DeleteArgs, Items, TenantArg, UserArg, WriteArgs};
use super::list::{Columns, LimitArg};
use crate::client::{Precondition, without_nulls};
use crate::input::expiry::{Expiry, parse_expiry};
use crate::input::item_file::without_server_fields;
use crate::item_kind::ItemKind;
use crate::output::Style;
use crate::output::format::{format_time, text_of};
use crate::output::table::Cell;
use crate::{CliError, Client, Exit, Output};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List users with a quota, and their usage
    #[command(after_help = "\
Examples:
  tollgate quotas list
  tollgate quotas list --tier pro --limit 20
  tollgate quotas list --blocked
  tollgate quotas list --last-request-after 1h
  tollgate quotas list --prefix team-7- --json")]
    List {
        /// Only users whose id has this prefix
        #[arg(long)]
        prefix: Option<String>,
        /// Only users of this tier
        #[arg(long)]
        tier: Option<String>,
        /// Only users that are blocked
        #[arg(long)]
        blocked: bool,
        /// Only users with a request since this time, or within this duration
        #[arg(long, value_name = "TIME|SPAN", value_parser = parse_expiry)]
        last_request_after: Option<Expiry>,
        /// Only users without a request since this time, or within this duration
        #[arg(long, value_name = "TIME|SPAN", value_parser = parse_expiry)]
        last_request_before: Option<Expiry>,
        #[command(flatten)]
        tenant: TenantArg,
        #[command(flatten)]
        limit: LimitArg,
    },
    /// Print the quota and usage of one user
    #[command(after_help = "\
Examples:
  tollgate quotas get alice
  tollgate quotas get alice --tenant acme --json")]
    Get {
        #[command(flatten)]
        user: UserArg,
        #[command(flatten)]
        tenant: TenantArg,
    },
    /// Set a user's tier or limits; fields that are not given stay unchanged
    #[command(
        override_usage = "tollgate quotas set [OPTIONS] <USER>",
        after_help = "\
Examples:
  tollgate quotas set alice --tier pro
  tollgate quotas set alice --requests-per-hour 1000 --burst 50
  tollgate quotas set alice --unset burst,requests-per-hour
  tollgate quotas set alice --requests-per-hour 10 --dry-run

The command reads before it writes: the key needs the scopes `read` and
`config`, or `admin`."
    )]
    Set(Set),
    /// Delete a user's quota; the general rules apply again
    #[command(after_help = "\
Examples:
  tollgate quotas delete alice
  tollgate quotas delete alice --yes")]
    Delete {
        #[command(flatten)]
        user: UserArg,
        #[command(flatten)]
        tenant: TenantArg,
        #[command(flatten)]
        delete: DeleteArgs,
    },
}

/// The flags of `quotas set`. They serialize to the fields of the quota.
#[derive(Args, Serialize)]
#[command(group = ArgGroup::new("what").multiple(true).required(true)
    .args(["tier", "requests_per_hour", "requests_per_day", "burst", "unset"]))]
pub(crate) struct Set {
    #[command(flatten)]
    #[serde(flatten)]
    user: UserArg,
    #[command(flatten)]
    #[serde(flatten)]
    tenant: TenantArg,
    /// Tier of the user
    #[arg(long)]
    tier: Option<String>,
    /// Requests per hour
    #[arg(long, value_name = "N")]
    requests_per_hour: Option<u32>,
    /// Requests per day
    #[arg(long, value_name = "N")]
    requests_per_day: Option<u32>,
    /// Burst size: requests allowed at once
    #[arg(long, alias = "burst-size", value_name = "N")]
    burst: Option<u32>,
    /// Fields to remove
    #[arg(long, value_name = "FIELD", value_delimiter = ',', value_parser = UNSETTABLE)]
    #[serde(skip)]
    unset: Vec<String>,
    #[command(flatten)]
    #[serde(skip)]
    write: WriteArgs,
}

const UNSETTABLE: [&str; 4] = ["tier", "requests-per-hour", "requests-per-day", "burst"];

/// How often `set` retries when another writer changes the same quota.
const ATTEMPTS: usize = 5;

const COLUMNS: Columns = Columns {
    headings: &[
        "USER",
        "TENANT",
        "TIER",
        "PER HOUR",
        "PER DAY",
        "BURST",
        "TODAY",
        "MONTH",
        "EXCEEDED",
        "LAST REQUEST",
        "BLOCKED",
    ],
    optional: &["LAST REQUEST", "EXCEEDED", "MONTH", "BURST"],
    row,
};

/// The first columns, and the fields that `get` prints first.
const FIELDS: [&str; 14] = [
    "user_id",
    "tenant",
    "tier",
    "requests_per_hour",
    "requests_per_day",
    "burst",
    "requests_today",
    "requests_month",
    "exceeded_count",
    "last_request_at",
    "blocked",
    "block_reason",
    "blocked_until",
    "quota_reset_at",
];

pub(crate) fn run(command: &Command, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let tenant = match command {
        Command::List { tenant, .. } | Command::Get { tenant, .. } | Command::Delete { tenant, .. } => tenant,
        Command::Set(set) => &set.tenant,
    };
    let tenant = tenant.tenant.as_deref();
    let items = Items { kind: ItemKind::Quota, tenant, client, output };
    match command {
        Command::List { prefix, tier, blocked, last_request_after, last_request_before, limit, .. } => {
            let filters = [
                ("prefix", prefix.as_deref()),
                ("tier", tier.as_deref()),
                ("tenant", tenant),
                ("blocked", blocked.then_some("true")),
                ("last_request_after", last_request_after.as_ref().map(Expiry::as_str)),
                ("last_request_before", last_request_before.as_ref().map(Expiry::as_str)),
            ];
            items.list(&filters, limit, &COLUMNS)
        }
        Command::Get { user, .. } => items.print_fields(&user.user, &FIELDS),
        Command::Set(set) => run_set(set, &items),
        Command::Delete { user, delete, .. } => items.delete(&user.user, delete),
    }
}

/// Reads the quota, changes the given fields and writes it back, unless another writer was faster: then it retries.
fn run_set(set: &Set, items: &Items<'_>) -> Result<Exit, CliError> {
    let mut attempts = ATTEMPTS;
    loop {
        attempts -= 1;
        let (current, precondition) = current(items, &set.user.user)?;
        let body = changed(current, set);
        let precondition = set.write.if_version.map_or(precondition, Precondition::Version);
        match items.put(&set.user.user, &body, precondition, &set.write.dry) {
            Err(CliError::Client(error))
                if error.status() == Some(StatusCode::PRECONDITION_FAILED)
                    && set.write.if_version.is_none()
                    && attempts > 0 => {}
            result => return result,
        }
    }
}

fn current(items: &Items<'_>, user: &str) -> Result<(Map<String, Value>, Precondition), CliError> {
    match items.get(user) {
        Ok(response) => {
            let etag = response.version().and_then(|version| version.parse().ok());
            let (item, version) =
                without_server_fields(response.body.as_object().cloned().unwrap_or_default());
            Ok((item, etag.or(version).map_or(Precondition::None, Precondition::Version)))
        }
        Err(CliError::Client(error)) if error.status() == Some(StatusCode::NOT_FOUND) => {
            Ok((Map::new(), Precondition::Absent))
        }
        Err(error) => Err(error),
    }
}

fn changed(mut item: Map<String, Value>, set: &Set) -> Map<String, Value> {
    for field in &set.unset {
        item.remove(&field.replace('-', "_"));
    }
    // Serializing plain data does not fail.
    let flags = without_nulls(set).unwrap_or_default();
    item.extend(flags.as_object().cloned().unwrap_or_default());
    item
}

fn row(quota: &Value) -> Vec<Cell> {
    let mut cells: Vec<Cell> = FIELDS[..9].iter().map(|key| text_of(&quota[*key]).into()).collect();
    cells.push(format_time(&quota["last_request_at"]).into());
    cells.push(blocked(quota));
    cells
}

fn blocked(quota: &Value) -> Cell {
    if quota["blocked"].as_bool() != Some(true) {
        return "".into();
    }
    let until = format_time(&quota["blocked_until"]);
    let until = if until.is_empty() { "yes".to_owned() } else { format!("until {until}") };
    let reason = text_of(&quota["block_reason"]);
    Cell::styled(Style::Bad, if reason.is_empty() { until } else { format!("{until}: {reason}") })
}
