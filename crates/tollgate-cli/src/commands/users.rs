//! `tollgate users`: who is kept out of a running server, whatever the rules say.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value};

use super::inspect::KINDS;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::items::{self, Columns, Count, Kind, Writing};
use crate::moment::{self, Moment, moment};
use crate::output::Output;
use crate::render::word;
use crate::secret::{WHOLE, is_whole_key};
use crate::table::Cell;

/// The flags of `users`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate users block alice --reason 'scraping' --until 24h
  tollgate users unblock alice
  tollgate users blocked")]
pub(crate) struct Users {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep a user, API key, tenant, login or network out
    #[command(after_help = "\
Examples:
  tollgate users block alice --reason 'unpaid invoice'
  tollgate users block ip:192.0.2.0/24 --reason 'password guessing' --for 1h
  tollgate users block tenant:acme --reason 'contract ended' --until 2027-01-31T00:00:00Z
  tollgate users block alice --reason test --dry-run

Who is blocked already gets the new reason and end.")]
    Block {
        #[command(flatten)]
        who: Who,
        /// Why; the client is told
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// When it ends by itself: after a time (24h, 90d) or at an instant (2027-01-31T12:00:00Z)
        #[arg(long, visible_alias = "for", value_name = "WHEN", value_parser = moment)]
        until: Option<Moment>,
        #[command(flatten)]
        writing: Writing,
    },
    /// Let a client in again
    #[command(after_help = "\
Examples:
  tollgate users unblock alice
  tollgate users unblock ip:192.0.2.0/24")]
    Unblock {
        #[command(flatten)]
        who: Who,
        #[command(flatten)]
        writing: Writing,
    },
    /// List who is blocked
    #[command(after_help = "\
Examples:
  tollgate users blocked
  tollgate users blocked --kind ip --json
  tollgate users blocked --all")]
    Blocked {
        /// Only clients of this kind
        #[arg(long)]
        kind: Option<ClientKind>,
        /// Also blocks that have ended
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        count: Count,
    },
}

/// Who is meant.
#[derive(Args)]
struct Who {
    /// Whom: `alice`, 203.0.113.7, 192.0.2.0/24, or with its kind, as `user:`, `api_key:` (its id), `ip:`, `login:` or `tenant:`
    #[arg(value_name = "CLIENT", value_parser = client_name)]
    client: String,
}

impl Who {
    /// The client, unless a key is told whole: it must get into no path, and not be asked for here, where complaints repeat it.
    fn checked(&self) -> Result<&str, Failure> {
        let whole = self.client.strip_prefix("api_key:").is_some_and(is_whole_key);
        if whole { Err(Failure::Arguments(format!("CLIENT {WHOLE}"))) } else { Ok(&self.client) }
    }
}

/// A kind of client. Its variants have no comments of their own: clap would print them, one to a line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum ClientKind {
    User,
    ApiKey,
    Tenant,
    Login,
    Ip,
}

const COLUMNS: Columns = Columns { headings: &["CLIENT", "UNTIL", "REASON", "BY", "SINCE"], row };

pub(crate) fn run(users: &Users, client: &Client, output: &Output) -> Result<Exit, Failure> {
    match &users.command {
        Command::Block { who, reason, until, writing } => {
            let name = who.checked()?;
            let body = body(name, reason, until.as_ref());
            items::put(client, Kind::Block, name, &body, (None, writing), output)
        }
        Command::Unblock { who, writing } => {
            items::remove(client, Kind::Block, who.checked()?, writing, output)
        }
        Command::Blocked { kind, all, count } => {
            let kind = kind.and_then(|kind| kind.to_possible_value());
            let kind = kind.as_ref().map(clap::builder::PossibleValue::get_name);
            let filters = [("kind", kind), ("active", (!all).then_some("true"))];
            items::print_list(client, Kind::Block, &filters, count, &COLUMNS, output)
        }
    }
}

fn body(client: &str, reason: &str, until: Option<&Moment>) -> Map<String, Value> {
    let end = until.map(|until| match until {
        Moment::In(span) => ("for", span),
        Moment::At(instant) => ("until", instant),
    });
    let pairs = [("client", client), ("reason", reason)];
    let end = end.map(|(key, value)| (key, value.as_str()));
    pairs.into_iter().chain(end).map(|(key, value)| (key.to_owned(), value.into())).collect()
}

fn row(block: &Value) -> Vec<Cell> {
    let until = moment::told(&block["until"]);
    vec![
        word(&block["client"]).into(),
        if until.is_empty() { "for good".into() } else { until.into() },
        word(&block["reason"]).into(),
        word(&block["created_by"]).into(),
        moment::told(&block["created_at"]).into(),
    ]
}

/// A client with its kind: by its prefix, by its looks if it is an address or a network, else a user.
fn client_name(text: &str) -> Result<String, &'static str> {
    if is_network(text) {
        return Ok(format!("ip:{text}"));
    }
    let kind = KINDS.iter().find(|kind| text.strip_prefix(**kind).is_some_and(|rest| rest.starts_with(':')));
    let name = kind.map_or(text, |kind| &text[kind.len() + 1..]);
    match kind {
        _ if name.is_empty() => Err("must not be empty"),
        Some(&"ip") if !is_network(name) => {
            Err("ip: must be followed by an address or a network, 192.0.2.0/24")
        }
        Some(_) => Ok(text.to_owned()),
        None => Ok(format!("user:{text}")),
    }
}

fn is_network(text: &str) -> bool {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= bits_max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_known_by_its_kind_or_its_looks() {
        for (text, name) in [
            ("alice", "user:alice"),
            ("user:ip:x", "user:ip:x"),
            ("203.0.113.7", "ip:203.0.113.7"),
            ("192.0.2.0/24", "ip:192.0.2.0/24"),
            ("ip:2001:db8::/32", "ip:2001:db8::/32"),
            ("::1", "ip:::1"),
            ("tenant:acme", "tenant:acme"),
            ("other:x", "user:other:x"),
            ("a/b", "user:a/b"),
        ] {
            assert_eq!(client_name(text).as_deref(), Ok(name));
        }
        for text in ["", "user:", "ip:", "ip:x", "ip:10.0.0.0/33"] {
            assert!(client_name(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_end_is_sent_under_the_name_for_what_it_is() {
        let sent = |until: &str| Value::Object(body("user:a", "why", moment(until).ok().as_ref()));
        assert_eq!(sent("1h"), serde_json::json!({"client": "user:a", "reason": "why", "for": "1h"}));
        assert_eq!(sent("2027-01-31T12:00:00Z")["until"], "2027-01-31T12:00:00Z");
    }
}
