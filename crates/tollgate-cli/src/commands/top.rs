//! `tollgate top`: the busiest and most refused clients, live on a terminal, else once as text.

mod draw;
mod live;
mod rows;
mod stores;
mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use self::rows::{LISTS, rate};
use self::stores::stores;
use crate::client::url::query;
use crate::output::table::{Cell, Table};
use crate::output::{Style, escape};
use crate::{CliError, Client, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate top
  tollgate top --tenant acme
  tollgate top --json | jq '.clients[0]'

Keys: q quit, tab next list, up and down select, s sort, / filter, enter open a
client, esc back, ? help. Without a terminal, the lists are printed once.")]
pub(crate) struct Top {
    /// Only requests of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Seconds between updates
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Entries of each list
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
    limit: u8,
}

pub(crate) fn run(top: &Top, client: &Client, output: &Output) -> Result<Exit, CliError> {
    if !output.json() && io::stdout().is_terminal() && io::stdin().is_terminal() {
        return Ok(live::run(top, client, output.has_colors())?);
    }
    let response = client.get(&top.path(None, top.tenant.as_deref()))?;
    Ok(output.response(&response.text, || text(&response.body, output))?)
}

impl Top {
    fn path(&self, identifier: Option<&str>, tenant: Option<&str>) -> String {
        let limit = self.limit.to_string();
        let pairs = [("limit", Some(&*limit)), ("tenant", tenant), ("identifier", identifier)];
        format!("/v1/admin/top{}", query(&pairs))
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(self.every)
    }
}

/// `8120 requests in 52s on 2 nodes, 95 refused`.
fn summary(top: &Value) -> String {
    let number = |key: &str| top[key].as_u64();
    let nodes = number("nodes").unwrap_or(1);
    let nodes = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    let seconds = number("window_seconds").unwrap_or(0);
    let mut text = match (number("requests"), number("refused")) {
        (Some(requests), Some(refused)) => {
            format!("{requests} requests in {seconds}s on {nodes}, {refused} refused")
        }
        _ => format!("requests of the last {seconds}s on {nodes}"),
    };
    if let Some(missing) = number("nodes_missing").filter(|missing| *missing > 0) {
        text.extend(["; counts of ", &missing.to_string(), " more missing"]);
    }
    if top["degraded"].as_bool() == Some(true) {
        text += "; Redis is unreachable, counts are of this node only";
    }
    text
}

/// The stores and all lists, one after the other.
fn text(top: &Value, output: &Output) -> String {
    let mut text = output.wrapped(&summary(top));
    text += &stores_text(top, output);
    for list in LISTS {
        let rows = list.rows(top);
        text.extend(["\n", &output.paint(Style::Heading, list.title()), "\n"]);
        if rows.is_empty() {
            text += "  none\n";
            continue;
        }
        let mut table = Table::new(&list.headings());
        for row in &rows {
            let refused = if row.refused > 0 { Style::Bad } else { Style::Plain };
            let requests = Cell::from(row.requests_text());
            let cells = [
                Cell::from(&row.name),
                Cell::from(&row.tenant),
                requests,
                Cell::from(rate(row.requests, top)),
            ];
            let refused = Cell::styled(refused, row.refused.to_string());
            let skip_tenant = !list.has_tenants();
            let cells = cells.into_iter().enumerate().filter(|(column, _)| !(skip_tenant && *column == 1));
            table.row(cells.map(|(_, cell)| cell).chain([refused]));
        }
        text += &table.render(output);
    }
    text
}

fn stores_text(top: &Value, output: &Output) -> String {
    let stores = stores(top);
    if stores.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["STORE", "STATE", "DETAILS"]);
    for store in stores {
        let style = if store.is_up() { Style::Good } else { Style::Bad };
        table.row([Cell::from(store.name), Cell::styled(style, &store.state), Cell::from(&store.detail)]);
    }
    format!("\n{}\n{}", output.paint(Style::Heading, "Stores"), table.render(output))
}

/// The name of a client, for messages.
fn client_text(identifier: &str, tenant: &str) -> String {
    if tenant.is_empty() {
        escape(identifier)
    } else {
        format!("{} of tenant {}", escape(identifier), escape(tenant))
    }
}

#[cfg(test)]
mod tests;
