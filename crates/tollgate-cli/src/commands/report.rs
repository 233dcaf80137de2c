//! `tollgate report`: traffic and refusals of a time as one HTML file.

mod chart;
mod html;

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::audit::parse_time;
use crate::client::url::query;
use crate::{CliError, Client, Exit, Output};

/// Entries of a ranking.
const ENTRIES: &str = "15";

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate report
  tollgate report --since 7d --out week.html
  tollgate report --since 24h --tenant acme --out acme.html
  tollgate report --since 24h --json

The file needs no other files and no network. It follows the light or dark theme
of the browser.")]
pub(crate) struct Report {
    /// Start of the report: how long ago (2h) or a time (2027-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", default_value = "24h", value_parser = parse_time)]
    since: String,
    /// End of the report: how long ago or a time; now by default
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    until: Option<String>,
    /// Only requests with this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Length of the periods; by default it depends on the time
    #[arg(long, value_parser = ["minute", "hour", "day"])]
    per: Option<String>,
    /// The file to write; `-` for standard output
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
}

pub(crate) fn run(report: &Report, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let data = report.fetch(client)?;
    if output.json() {
        return Ok(output.result(|| data, String::new)?);
    }
    let page = html::page(&data);
    if report.out.as_os_str() == "-" {
        output.text(&page)?;
        return Ok(Exit::Ok);
    }
    std::fs::write(&report.out, page)
        .map_err(|error| CliError::Arguments(format!("--out {}: {error}", report.out.display())))?;
    output.note(&format!("wrote {}", report.out.display()));
    Ok(Exit::Ok)
}

impl Report {
    /// All data of the report. The other requests use the times of the first one, so that all parts agree.
    fn fetch(&self, client: &Client) -> Result<Value, CliError> {
        let trend =
            self.get(client, "trend", (&self.since, self.until.as_deref()), &[("per", self.per.as_deref())])?;
        let since = trend["since"].as_str().ok_or_else(|| client.missing_field("since"))?;
        let until = trend["until"].as_str().ok_or_else(|| client.missing_field("until"))?;
        let times = (since, Some(until));
        let top = |of: &str, by: &str| {
            let parameters = [("of", Some(of)), ("by", Some(by)), ("limit", Some(ENTRIES))];
            self.get(client, "top", times, &parameters).map(|mut body| body["entries"].take())
        };
        Ok(json!({
            "since": since,
            "until": until,
            "per": trend["per"],
            "tenant": self.tenant,
            "points": trend["points"],
            "clients": top("clients", "requests")?,
            "refused_clients": top("clients", "refused")?,
            "routes": top("routes", "requests")?,
            "rules": top("rules", "requests")?,
            "violations": self.get(client, "violations", times, &[("limit", Some(ENTRIES))])?["violations"],
        }))
    }

    fn get(
        &self,
        client: &Client,
        what: &str,
        (since, until): (&str, Option<&str>),
        parameters: &[(&str, Option<&str>)],
    ) -> Result<Value, CliError> {
        let times = [("since", Some(since)), ("until", until), ("tenant", self.tenant.as_deref())];
        let pairs: Vec<_> = times.iter().chain(parameters).copied().collect();
        Ok(client.bulk().get(&format!("/v1/admin/records/{what}{}", query(&pairs)))?.body)
    }
}
