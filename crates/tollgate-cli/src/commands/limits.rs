//! `tollgate limits`: limits of single users on single endpoints.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};
use tollgate::config::values::parse_span;

use super::items::{DryRunArg, TenantArg};
use super::list::{Columns, LimitArg, ListQuery};
use crate::client::Precondition;
use crate::client::url::query;
use crate::input::confirm::ConfirmArgs;
use crate::output::format::{format_duration, format_time, text_of};
use crate::output::table::Cell;
use crate::output::{changes, escape};
use crate::{CliError, Client, Exit, Output};

const PATH: &str = "/v1/rate-limit/config";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Set the limit of a user on an endpoint; it replaces that of the rules
    #[command(
        override_usage = "tollgate limits set [OPTIONS] --limit <N> --window <SPAN>\n       <USER> <ENDPOINT>",
        after_help = "\
Examples:
  tollgate limits set alice /api/search --limit 100 --window 1m
  tollgate limits set alice /api/search --limit 100 --window 1h --burst 20
  tollgate limits set alice /api/search --limit 5 --window 1m --dry-run

What the user has consumed is carried over."
    )]
    Set(Set),
    /// List the limits of users on endpoints
    #[command(after_help = "\
Examples:
  tollgate limits list
  tollgate limits list --user alice --json")]
    List {
        /// Only limits of this user
        #[arg(long, alias = "user-id")]
        user: Option<String>,
        #[command(flatten)]
        tenant: TenantArg,
        #[command(flatten)]
        limit: LimitArg,
    },
    /// Delete the limit of a user on an endpoint; the rules apply again
    #[command(after_help = "\
Examples:
  tollgate limits delete alice /api/search
  tollgate limits delete alice /api/search --yes
  tollgate limits delete alice /api/search --dry-run")]
    Delete {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        dry: DryRunArg,
    },
}

/// A user and an endpoint.
#[derive(Args, Serialize)]
pub(crate) struct Target {
    /// User id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    #[serde(rename = "user_id")]
    user: String,
    /// Endpoint
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    endpoint: String,
    /// Tenant (organization) of the user
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
}

/// The flags of `limits set`. They serialize to the request body.
#[derive(Args, Serialize)]
pub(crate) struct Set {
    #[command(flatten)]
    #[serde(flatten)]
    target: Target,
    /// Requests per window
    #[arg(long, value_name = "N")]
    limit: u32,
    /// Window in whole seconds: 60s, 1m, 1h
    #[arg(long, value_name = "SPAN", value_parser = parse_seconds)]
    #[serde(rename = "window_seconds")]
    window: u64,
    /// Algorithm
    #[arg(long, alias = "strategy", value_name = "NAME", default_value = "token_bucket")]
    #[serde(rename = "strategy")]
    algorithm: String,
    /// Burst size, if different from the limit
    #[arg(long, alias = "burst-size", value_name = "N")]
    #[serde(rename = "burst_capacity")]
    burst: Option<u32>,
    #[command(flatten)]
    #[serde(skip)]
    dry: DryRunArg,
}

const COLUMNS: Columns = Columns {
    headings: &["USER", "ENDPOINT", "TENANT", "LIMIT", "ALGORITHM", "UPDATED"],
    optional: &["UPDATED", "TENANT"],
    row,
};

pub(crate) fn run(command: &Command, client: &Client, output: &Output) -> Result<Exit, CliError> {
    match command {
        Command::Set(limit) => set(limit, client, output),
        Command::List { user, tenant, limit } => {
            let filters = [("user_id", user.as_deref()), ("tenant", tenant.tenant.as_deref())];
            let list =
                ListQuery { name: "limits", path: "/v1/admin/limits", filters: &filters, limit: limit.limit };
            list.print(client, &COLUMNS, output)
        }
        Command::Delete { target, confirm, dry } => delete(target, confirm, dry, client, output),
    }
}

fn set(limit: &Set, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let path = format!("{PATH}{}", limit.dry.query());
    let response = client.put(&path, limit, Precondition::None)?;
    let body = &response.body;
    output.warnings(body);
    Ok(output.response(&response.text, || {
        let done = || format!("set {}: {}\n", limit.target.describe(), format_limit(body));
        changes::dry_run_or(limit.dry.dry_run, body, output, done)
    })?)
}

fn delete(
    target: &Target,
    confirm: &ConfirmArgs,
    dry: &DryRunArg,
    client: &Client,
    output: &Output,
) -> Result<Exit, CliError> {
    let action = format!("delete the limit of {}", target.describe());
    if !dry.dry_run && !confirm.confirmed(&action)? {
        return Ok(Exit::Refused);
    }
    let pairs = [
        ("user_id", Some(&*target.user)),
        ("endpoint", Some(&*target.endpoint)),
        ("tenant", target.tenant.as_deref()),
        ("dry_run", dry.dry_run.then_some("true")),
    ];
    let mut response = client.delete(&format!("{PATH}{}", query(&pairs)), Precondition::None)?;
    if response.body.is_null() {
        response.text = format!("{:#}", json!({ "deleted": target }));
    }
    Ok(output.response(&response.text, || {
        let done = || format!("deleted the limit of {}\n", target.describe());
        changes::dry_run_or(dry.dry_run, &response.body, output, done)
    })?)
}

impl Target {
    /// `alice on /search`.
    fn describe(&self) -> String {
        format!("{} on {}", escape(&self.user), escape(&self.endpoint))
    }
}

/// A window in seconds, which is what the API takes.
fn parse_seconds(text: &str) -> Result<u64, String> {
    let span = parse_span(text)?;
    let seconds = span.as_micros() / 1_000_000;
    if seconds == 0 || span.as_micros() % 1_000_000 != 0 {
        return Err("must be at least 1s and in whole seconds".to_owned());
    }
    Ok(seconds)
}

/// `100/1m burst 20`.
fn format_limit(limit: &Value) -> String {
    let window = limit["window_seconds"].as_u64().map(format_duration).unwrap_or_default();
    let burst = limit["burst_capacity"].as_u64().map(|burst| format!(" burst {burst}")).unwrap_or_default();
    format!("{}/{window}{burst}", text_of(&limit["limit"]))
}

fn row(limit: &Value) -> Vec<Cell> {
    vec![
        text_of(&limit["user_id"]).into(),
        text_of(&limit["endpoint"]).into(),
        text_of(&limit["tenant"]).into(),
        format_limit(limit).into(),
        text_of(&limit["strategy"]).into(),
        format_time(&limit["updated_at"]).into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_seconds() {
        assert_eq!((parse_seconds("1m30s"), parse_seconds("1d")), (Ok(90), Ok(86_400)));
        for text in ["", "60", "0s", "500ms", "1s1ms"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
