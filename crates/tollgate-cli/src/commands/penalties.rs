//! `tollgate penalties`: clients with recorded violations, and their cooldowns.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client_name::ClientName;
use super::items::TenantArg;
use super::list::Columns;
use crate::client::Precondition;
use crate::client::url::{query, segment};
use crate::output::format::{format_reset, text_of};
use crate::output::table::Cell;
use crate::output::{Style, escape};
use crate::{CliError, Client, Exit, Output};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List clients with penalties, the longest cooldown first
    #[command(after_help = "\
Examples:
  tollgate penalties list
  tollgate penalties list --json

The server lists at most 1000 clients.")]
    List,
    /// Clear the violations and the cooldown of a client
    #[command(after_help = "\
Examples:
  tollgate penalties pardon alice
  tollgate penalties pardon ip:203.0.113.7")]
    Pardon(Pardon),
}

#[derive(Args)]
pub(crate) struct Pardon {
    /// Client as `list` names it: `alice`, 203.0.113.7, or with a prefix: `user:`, `api_key:`, `ip:`, `login:`, `tenant:`
    #[arg(value_name = "CLIENT", value_parser = ClientName::parse)]
    client: ClientName,
    #[command(flatten)]
    tenant: TenantArg,
}

const COLUMNS: Columns =
    Columns { headings: &["CLIENT", "TENANT", "VIOLATIONS", "COOLDOWN ENDS"], optional: &[], row };

pub(crate) fn run(command: &Command, client: &Client, output: &Output) -> Result<Exit, CliError> {
    match command {
        Command::List => list(client, output),
        Command::Pardon(target) => pardon(target, client, output),
    }
}

/// The list has no pages.
fn list(client: &Client, output: &Output) -> Result<Exit, CliError> {
    let mut response = client.get("/v1/admin/penalties")?;
    match response.body.get_mut("penalties").map(Value::take) {
        Some(Value::Array(items)) => Ok(COLUMNS.print("penalties", &items, None, output)?),
        _ => Err(client.missing_field("penalties").into()),
    }
}

fn pardon(target: &Pardon, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let (name, tenant) = (target.client.to_string(), target.tenant.tenant.as_deref());
    let path = format!("/v1/admin/penalties/{}{}", segment(&name), query(&[("tenant", tenant)]));
    client.delete(&path, Precondition::None)?;
    let done = || format!("pardoned {}\n", escape(&name));
    Ok(output.result(|| json!({ "pardoned": { "client": name, "tenant": tenant } }), done)?)
}

fn row(penalty: &Value) -> Vec<Cell> {
    let cooldown = match format_reset(&penalty["cooldown_until"]) {
        Some(ends) => Cell::styled(Style::Bad, ends),
        None => "not in cooldown".into(),
    };
    let text = |key: &str| Cell::from(text_of(&penalty[key]));
    vec![text("client"), text("tenant"), text("violations"), cooldown]
}
