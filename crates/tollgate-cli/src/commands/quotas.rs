//! `tollgate quotas`: what single users may do, on a running server.

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::item_file::configured;
use crate::client::{Client, Expect};
use crate::confirm::Confirm;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::items::{self, Columns, Count, Kind, Writing};
use crate::moment;
use crate::output::{Output, Style};
use crate::record::print_record;
use crate::render::word;
use crate::table::Cell;

/// The flags of `quotas`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate quotas list --tier pro
  tollgate quotas set alice --tier pro --requests-per-day 50000
  tollgate quotas delete alice")]
pub(crate) struct Quotas {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List users that have a tier or numbers of their own, and what they use
    #[command(after_help = "\
Examples:
  tollgate quotas list
  tollgate quotas list --tier pro --limit 20
  tollgate quotas list --prefix team-7- --json")]
    List {
        /// Only users whose names begin so
        #[arg(long)]
        prefix: Option<String>,
        /// Only users of this tier
        #[arg(long)]
        tier: Option<String>,
        #[command(flatten)]
        count: Count,
    },
    /// Print what one user may do and has used
    #[command(after_help = "\
Examples:
  tollgate quotas get alice
  tollgate quotas get alice --json")]
    Get {
        /// The user
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        user: String,
    },
    /// Give a user a tier or numbers; what is not named stays as it is
    #[command(after_help = "\
Examples:
  tollgate quotas set alice --tier pro
  tollgate quotas set alice --requests-per-hour 1000 --requests-per-day 5000 --burst 50
  tollgate quotas set alice --unset burst,requests-per-hour
  tollgate quotas set alice --requests-per-hour 10 --dry-run

It reads before it writes, so the key needs the scopes `read` and `config`, or `admin`.")]
    Set(Set),
    /// Take a user's tier and numbers away: rules apply again as to anyone
    #[command(after_help = "\
Examples:
  tollgate quotas delete alice
  tollgate quotas delete alice --yes")]
    Delete {
        /// The user
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        user: String,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        writing: Writing,
    },
}

#[derive(Args)]
#[command(group = ArgGroup::new("what").multiple(true).required(true)
    .args(["tier", "requests_per_hour", "requests_per_day", "burst", "unset"]))]
struct Set {
    /// The user
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    user: String,
    /// The user's tier
    #[arg(long)]
    tier: Option<String>,
    /// Requests per hour
    #[arg(long, value_name = "N")]
    requests_per_hour: Option<u32>,
    /// Requests per day
    #[arg(long, value_name = "N")]
    requests_per_day: Option<u32>,
    /// Requests at once
    #[arg(long, value_name = "N")]
    burst: Option<u32>,
    /// Take these away
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    unset: Vec<Field>,
    #[command(flatten)]
    writing: Writing,
}

/// What a quota may have. Its variants have no comments of their own: clap would print them, one to a line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Field {
    Tier,
    RequestsPerHour,
    RequestsPerDay,
    Burst,
}

impl Field {
    fn key(self) -> &'static str {
        match self {
            Field::Tier => "tier",
            Field::RequestsPerHour => "requests_per_hour",
            Field::RequestsPerDay => "requests_per_day",
            Field::Burst => "burst",
        }
    }
}

/// Somebody else may write the same user at the same time, and again; not for ever.
const ATTEMPTS: usize = 5;

const COLUMNS: Columns = Columns {
    headings: &[
        "USER",
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
    row,
};

pub(crate) fn run(quotas: &Quotas, client: &Client, output: &Output) -> Result<Exit, Failure> {
    match &quotas.command {
        Command::List { prefix, tier, count } => {
            let filters = [("prefix", prefix.as_deref()), ("tier", tier.as_deref())];
            items::print_list(client, Kind::Quota, &filters, count, &COLUMNS, output)
        }
        Command::Get { user } => {
            let answer = items::get(client, Kind::Quota, user)?;
            print_record(&answer, &ORDER, output)
        }
        Command::Set(set) => run_set(set, client, output),
        Command::Delete { user, confirm, writing } => {
            items::delete(client, Kind::Quota, user, (confirm, writing), output)
        }
    }
}

/// What a person looks for first.
const ORDER: [&str; 12] = [
    "user_id",
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
];

/// Reads, changes what is named and writes, unless somebody else wrote in between: then again.
fn run_set(set: &Set, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let mut attempts = ATTEMPTS;
    loop {
        attempts -= 1;
        let (current, expect) = current(client, &set.user)?;
        let body = changed(current, set);
        let expect = set.writing.if_version.map_or(expect, Expect::Version);
        let written = items::put(client, Kind::Quota, &set.user, &body, (Some(expect), &set.writing), output);
        match written {
            Err(Failure::Client(error))
                if error.status() == Some(StatusCode::PRECONDITION_FAILED)
                    && set.writing.if_version.is_none()
                    && attempts > 0 => {}
            other => return other,
        }
    }
}

fn current(client: &Client, user: &str) -> Result<(Map<String, Value>, Expect), Failure> {
    match items::get(client, Kind::Quota, user) {
        Ok(answer) => {
            let etag = answer.etag.as_deref().and_then(|etag| etag.trim_matches('"').parse().ok());
            let (item, version) = configured(answer.body.as_object().cloned().unwrap_or_default());
            Ok((item, etag.or(version).map_or(Expect::Anything, Expect::Version)))
        }
        Err(Failure::Client(error)) if error.status() == Some(StatusCode::NOT_FOUND) => {
            Ok((Map::new(), Expect::Absent))
        }
        Err(failure) => Err(failure),
    }
}

fn changed(mut item: Map<String, Value>, set: &Set) -> Map<String, Value> {
    for field in &set.unset {
        item.remove(field.key());
    }
    let pairs = [
        ("user_id", json!(set.user)),
        ("tier", json!(set.tier)),
        ("requests_per_hour", json!(set.requests_per_hour)),
        ("requests_per_day", json!(set.requests_per_day)),
        ("burst", json!(set.burst)),
    ];
    item.extend(
        pairs.into_iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.to_owned(), value)),
    );
    item
}

fn row(quota: &Value) -> Vec<Cell> {
    let text = |key: &str| Cell::from(word(&quota[key]));
    let mut cells: Vec<Cell> = COLUMN_KEYS.map(text).into();
    cells.push(moment::told(&quota["last_request_at"]).into());
    cells.push(blocked(quota));
    cells
}

const COLUMN_KEYS: [&str; 8] = [
    "user_id",
    "tier",
    "requests_per_hour",
    "requests_per_day",
    "burst",
    "requests_today",
    "requests_month",
    "exceeded_count",
];

fn blocked(quota: &Value) -> Cell {
    if quota["blocked"].as_bool() != Some(true) {
        return "".into();
    }
    let until = moment::told(&quota["blocked_until"]);
    let until = if until.is_empty() { "yes".to_owned() } else { format!("until {until}") };
    let reason = word(&quota["block_reason"]);
    let told = if reason.is_empty() { until } else { format!("{until}: {reason}") };
    Cell::styled(Style::Bad, told)
}
