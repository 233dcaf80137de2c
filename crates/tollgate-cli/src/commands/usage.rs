//! `tollgate usage`: the requests of one client.

use clap::Args;
use serde_json::Value;

use super::audit::parse_time;
use super::client_name::ClientName;
use crate::client::url::{query, segment};
use crate::output::format::{format_time, text_of};
use crate::output::table::{Cell, Table};
use crate::output::{Style, escape};
use crate::{CliError, Client, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate usage alice
  tollgate usage alice --since 24h --per hour
  tollgate usage ip:203.0.113.7 --since 1h
  tollgate usage alice --tenant acme --json

Counts every request of the client, as far back as windows are kept
(records.window_retention). The client needs no quota.")]
pub(crate) struct UsageArgs {
    /// A user, `api_key:ID`, `ip:ADDRESS`, `login:NAME` or `tenant:NAME`
    #[arg(value_name = "CLIENT", value_parser = ClientName::parse)]
    client: ClientName,
    /// The tenant of the client
    #[arg(long)]
    tenant: Option<String>,
    /// Only requests since then: how long ago (2h) or a time; 30 days ago by default
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    since: Option<String>,
    /// Only requests before then: how long ago or a time
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    until: Option<String>,
    /// Length of the periods; by default it depends on the time
    #[arg(long, value_parser = ["minute", "hour", "day"])]
    per: Option<String>,
    /// Only requests on this route: the endpoint pattern of a rule, or a path
    #[arg(long)]
    route: Option<String>,
}

pub(crate) fn run(args: &UsageArgs, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let parameters = query(&[
        ("tenant", args.tenant.as_deref()),
        ("since", args.since.as_deref()),
        ("until", args.until.as_deref()),
        ("per", args.per.as_deref()),
        ("route", args.route.as_deref()),
    ]);
    let path = format!("/v1/admin/usage/{}{parameters}", segment(&args.client.to_string()));
    let response = client.get(&path)?;
    if !response.body["total"].is_object() {
        return Err(client.missing_field("total").into());
    }
    Ok(output.response(&response.text, || describe(&response.body, output))?)
}

/// The totals, then the requests by route and by period.
fn describe(body: &Value, output: &Output) -> String {
    let tenant = body["tenant"].as_str().map(|tenant| format!(" (tenant {})", escape(tenant)));
    let title = format!("{}{}", escape(&text_of(&body["identifier"])), tenant.unwrap_or_default());
    let mut totals = counts_table("");
    for (name, counts) in [("today", &body["today"]), ("this month", &body["month"])] {
        totals.row(counts_row(name, counts));
    }
    totals.row(counts_row(&format!("since {}", format_time(&body["since"])), &body["total"]));
    let text = format!("{}\n{}", output.paint(Style::Heading, &title), totals.render(output));
    let last = format_time(&body["last_request_at"]);
    if last.is_empty() {
        return format!("{text}no requests in this time\n");
    }
    let routes = named_rows(&body["routes"], "ROUTE", |route| text_of(&route["route"]), output);
    let heading = text_of(&body["per"]).to_uppercase();
    let periods = named_rows(&body["periods"], &heading, |period| format_time(&period["start"]), output);
    format!("{text}\n{routes}\n{periods}\nlast request {last}\n")
}

fn named_rows(items: &Value, heading: &str, name: impl Fn(&Value) -> String, output: &Output) -> String {
    let mut table = counts_table(heading);
    for item in items.as_array().into_iter().flatten() {
        table.row(counts_row(&name(item), item));
    }
    table.render(output)
}

fn counts_table(heading: &str) -> Table {
    Table::new(&[heading, "REQUESTS", "ALLOWED", "REFUSED"])
}

fn counts_row(name: &str, counts: &Value) -> Vec<Cell> {
    let refused = text_of(&counts["refused"]);
    let style = if refused == "0" { Style::Plain } else { Style::Bad };
    vec![
        name.into(),
        text_of(&counts["requests"]).into(),
        text_of(&counts["allowed"]).into(),
        Cell::styled(style, refused),
    ]
}
