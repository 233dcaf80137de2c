//! `tollgate decisions`: the decision log of a server.

mod archived;

use std::collections::HashSet;
use std::thread::sleep;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::archive::ArchiveArgs;
use super::audit::parse_time;
use super::client_name::ClientName;
use super::list::{Columns, ListQuery};
use crate::client::url::query;
use crate::output::Style;
use crate::output::format::{format_time, text_of};
use crate::output::table::{Cell, Table};
use crate::{CliError, Client, Exit, Output};

const PATH: &str = "/v1/admin/decisions";
/// How often `tail` asks for new decisions.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// How far back `tail` looks at each poll: decisions of several nodes arrive out of order.
const LOOK_BACK: &str = "1m";
const PAGE_SIZE: usize = 1_000;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List decisions, newest first
    #[command(after_help = "\
Examples:
  tollgate decisions search --since 1h --decision throttled
  tollgate decisions search --client alice --since 24h
  tollgate decisions search --client ip:203.0.113.7 --rule login-per-ip
  tollgate decisions search --since 24h --limit 5000 --json
  tollgate decisions search --archive --client alice --since 365d

The log has every refused request and a sample of the admitted ones
(records.sample_allowed).")]
    Search(Search),
    /// Show decisions as they are made
    #[command(after_help = "\
Examples:
  tollgate decisions tail
  tollgate decisions tail --decision throttled --client alice
  tollgate decisions tail --json

Decisions are shown about two seconds after they are made. Ctrl-C ends it.")]
    Tail(Tail),
}

#[derive(Args)]
struct Filters {
    /// Only decisions about this client: a user, `api_key:ID`, `ip:ADDRESS`,
    /// `login:NAME` or `tenant:NAME`
    #[arg(long, value_parser = ClientName::parse)]
    client: Option<ClientName>,
    /// Only decisions about requests with this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only decisions about this path
    #[arg(long, value_name = "PATH")]
    endpoint: Option<String>,
    /// Only decisions by this rule
    #[arg(long)]
    rule: Option<String>,
    /// Only decisions with this outcome
    #[arg(long, value_parser = ["allowed", "throttled", "blocked", "unavailable"])]
    decision: Option<String>,
}

#[derive(Args)]
pub(crate) struct Search {
    #[command(flatten)]
    filters: Filters,
    /// Only decisions since then: how long ago (2h) or a time (2027-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    since: Option<String>,
    /// Only decisions before then: how long ago or a time
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    until: Option<String>,
    /// Maximum number of decisions
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Search the archive of the settings file (`records.archive`) instead of asking a server
    #[arg(long)]
    archive: bool,
    #[command(flatten)]
    archive_args: ArchiveArgs,
}

#[derive(Args)]
pub(crate) struct Tail {
    #[command(flatten)]
    filters: Filters,
    /// How many earlier decisions to show first
    #[arg(long, value_name = "N", default_value_t = 10)]
    lines: usize,
}

const COLUMNS: Columns = Columns {
    headings: &[
        "WHEN", "DECISION", "CLIENT", "TENANT", "METHOD", "ENDPOINT", "RULE", "COUNT", "RETRY", "SERVER",
    ],
    optional: &["SERVER", "METHOD", "RETRY", "TENANT", "COUNT"],
    row,
};

pub(crate) fn run(
    command: &Command,
    output: &Output,
    connect: impl FnOnce() -> Result<Client, CliError>,
) -> Result<Exit, CliError> {
    match command {
        Command::Search(search) if search.archive => search.run_archived(&search.archive_args, output),
        Command::Search(search) => search.run(&connect()?, output),
        Command::Tail(tail) => tail.run(&connect()?, output),
    }
}

impl Filters {
    /// The parameters of the request; `client` is the name of the client.
    fn parameters<'a>(&'a self, client: Option<&'a str>) -> [(&'static str, Option<&'a str>); 5] {
        [
            ("identifier", client),
            ("tenant", self.tenant.as_deref()),
            ("endpoint", self.endpoint.as_deref()),
            ("rule", self.rule.as_deref()),
            ("decision", self.decision.as_deref()),
        ]
    }

    fn client(&self) -> Option<String> {
        self.client.as_ref().map(ClientName::to_string)
    }
}

impl Search {
    fn run(&self, client: &Client, output: &Output) -> Result<Exit, CliError> {
        let name = self.filters.client();
        let times =
            [("since", self.since.as_deref()), ("until", self.until.as_deref()), ("newest", Some("true"))];
        let filters: Vec<_> = self.filters.parameters(name.as_deref()).into_iter().chain(times).collect();
        let list = ListQuery { name: "decisions", path: PATH, filters: &filters, limit: Some(self.limit) };
        list.print(client, &COLUMNS, output)
    }
}

impl Tail {
    /// Polls until the process is ended, or its output is closed.
    fn run(&self, client: &Client, output: &Output) -> Result<Exit, CliError> {
        let mut seen = HashSet::new();
        let mut is_first = true;
        loop {
            let mut page = self.poll(client)?;
            page.reverse();
            let current: HashSet<u64> = page.iter().filter_map(|each| each["id"].as_u64()).collect();
            if page.len() == PAGE_SIZE && !is_first && seen.is_disjoint(&current) {
                output.note("more decisions than can be shown; some are left out");
            }
            page.retain(|each| each["id"].as_u64().is_none_or(|id| !seen.contains(&id)));
            if is_first {
                page.drain(..page.len().saturating_sub(self.lines));
            }
            print(&page, is_first, output)?;
            (seen, is_first) = (current, false);
            sleep(POLL_EVERY);
        }
    }

    /// The newest decisions.
    fn poll(&self, client: &Client) -> Result<Vec<Value>, CliError> {
        let name = self.filters.client();
        let size = PAGE_SIZE.to_string();
        let paging = [("since", Some(LOOK_BACK)), ("newest", Some("true")), ("limit", Some(&*size))];
        let pairs: Vec<_> = self.filters.parameters(name.as_deref()).into_iter().chain(paging).collect();
        let mut body = client.get(&format!("{PATH}{}", query(&pairs)))?.body;
        match body["decisions"].take() {
            Value::Array(decisions) => Ok(decisions),
            _ => Err(client.missing_field("decisions").into()),
        }
    }
}

fn print(decisions: &[Value], with_headings: bool, output: &Output) -> Result<(), CliError> {
    if output.json() {
        for decision in decisions {
            output.text(&format!("{decision}\n"))?;
        }
        return Ok(());
    }
    if decisions.is_empty() {
        return Ok(());
    }
    let mut table = if with_headings {
        Table::new(COLUMNS.headings).optional(COLUMNS.optional)
    } else {
        Table::without_headings()
    };
    for decision in decisions {
        table.row(row(decision));
    }
    Ok(output.text(&table.render(output))?)
}

fn row(decision: &Value) -> Vec<Cell> {
    let outcome = text_of(&decision["decision"]);
    let style = if outcome == "allowed" { Style::Good } else { Style::Bad };
    let count = match (decision["current_count"].as_u64(), decision["limit"].as_u64()) {
        (Some(count), Some(limit)) => format!("{count}/{limit}"),
        _ => String::new(),
    };
    let retry = decision["retry_after"].as_u64().map(|secs| format!("{secs}s")).unwrap_or_default();
    vec![
        format_time(&decision["at"]).into(),
        Cell::styled(style, outcome),
        text_of(&decision["identifier"]).into(),
        text_of(&decision["tenant"]).into(),
        text_of(&decision["method"]).into(),
        text_of(&decision["endpoint"]).into(),
        text_of(&decision["rule"]).into(),
        count.into(),
        retry.into(),
        text_of(&decision["server_id"]).into(),
    ]
}
