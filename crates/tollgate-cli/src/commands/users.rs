//! `tollgate users`: blocks and unblocks clients.

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::client_name::{ClientName, KINDS};
use super::items::{Items, TenantArg, WriteArgs};
use super::list::{Columns, LimitArg};
use crate::input::expiry::{Expiry, parse_duration, parse_expiry};
use crate::item_kind::ItemKind;
use crate::output::format::{format_time, text_of};
use crate::output::table::Cell;
use crate::{CliError, Client, Exit, Output};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Block a user, API key, tenant, login or network
    #[command(after_help = "\
Examples:
  tollgate users block alice --reason 'unpaid invoice'
  tollgate users block ip:192.0.2.0/24 --reason 'password guessing' --for 1h
  tollgate users block tenant:acme --reason unpaid --until 2027-01-31T00:00:00Z
  tollgate users block bob --tenant acme --reason abuse
  tollgate users block alice --reason test --dry-run

If the client is already blocked, reason and expiry are replaced.")]
    Block {
        #[command(flatten)]
        target: BlockTarget,
        /// Reason, returned to the client
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Expiry: a duration (24h, 90d) or a time (2027-01-31T12:00:00Z); never by default
        #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
        until: Option<Expiry>,
        /// Expiry as a duration (24h, 90d)
        #[arg(long = "for", value_name = "DURATION", value_parser = parse_block_duration, conflicts_with = "until")]
        duration: Option<Expiry>,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Unblock a client
    #[command(after_help = "\
Examples:
  tollgate users unblock alice
  tollgate users unblock ip:192.0.2.0/24")]
    Unblock {
        #[command(flatten)]
        target: BlockTarget,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// List blocked clients
    #[command(after_help = "\
Examples:
  tollgate users blocked
  tollgate users blocked --kind ip --json
  tollgate users blocked --all")]
    Blocked {
        /// Only clients of this kind
        #[arg(long, value_parser = KINDS)]
        kind: Option<String>,
        #[command(flatten)]
        tenant: TenantArg,
        /// Include expired blocks
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        limit: LimitArg,
    },
}

#[derive(Args)]
pub(crate) struct BlockTarget {
    /// Client: `alice`, 203.0.113.7, 192.0.2.0/24, or with a prefix: `user:`, `api_key:` (the key's id), `ip:`, `login:`, `tenant:`
    #[arg(value_name = "CLIENT", value_parser = ClientName::parse_blockable)]
    client: ClientName,
    /// Tenant (organization) of a user, login or address; an address without one is blocked in every tenant
    #[arg(long)]
    tenant: Option<String>,
}

const COLUMNS: Columns = Columns {
    headings: &["CLIENT", "TENANT", "UNTIL", "REASON", "BY", "SINCE"],
    optional: &["SINCE", "BY", "TENANT"],
    row,
};

pub(crate) fn run(command: &Command, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let tenant = match command {
        Command::Block { target, .. } | Command::Unblock { target, .. } => target.tenant.as_deref(),
        Command::Blocked { tenant, .. } => tenant.tenant.as_deref(),
    };
    let blocks = Items { kind: ItemKind::Block, tenant, client, output };
    match command {
        Command::Block { target, reason, until, duration, write } => {
            let name = target.client.to_string();
            let body = body(&name, reason, until.as_ref().or(duration.as_ref()));
            blocks.put(&name, &body, write.precondition(), &write.dry)
        }
        Command::Unblock { target, write } => blocks.delete_unconfirmed(&target.client.to_string(), write),
        Command::Blocked { kind, all, limit, .. } => {
            let active = (!all).then_some("true");
            let filters = [("kind", kind.as_deref()), ("tenant", tenant), ("active", active)];
            blocks.list(&filters, limit, &COLUMNS)
        }
    }
}

/// Parses the value of `--for`.
fn parse_block_duration(text: &str) -> Result<Expiry, String> {
    parse_duration(text).map(Expiry::After)
}

fn body(client: &str, reason: &str, until: Option<&Expiry>) -> Map<String, Value> {
    let end = until.map(|until| match until {
        Expiry::After(duration) => ("for", duration.as_str()),
        Expiry::At(time) => ("until", time.as_str()),
    });
    let pairs = [("client", client), ("reason", reason)];
    pairs.into_iter().chain(end).map(|(key, value)| (key.to_owned(), value.into())).collect()
}

fn row(block: &Value) -> Vec<Cell> {
    let until = format_time(&block["until"]);
    vec![
        text_of(&block["client"]).into(),
        text_of(&block["tenant"]).into(),
        if until.is_empty() { "never expires".into() } else { until.into() },
        text_of(&block["reason"]).into(),
        text_of(&block["created_by"]).into(),
        format_time(&block["created_at"]).into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_sent_as_for_or_until() {
        let sent = |until: &str| Value::Object(body("user:a", "why", parse_expiry(until).ok().as_ref()));
        assert_eq!(sent("1h"), serde_json::json!({"client": "user:a", "reason": "why", "for": "1h"}));
        assert_eq!(sent("2027-01-31T12:00:00Z")["until"], "2027-01-31T12:00:00Z");
    }
}
