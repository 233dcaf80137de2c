//! `tollgate upstreams`: the upstreams of the reverse proxy and their health.

use serde_json::Value;

use super::list::Columns;
use crate::output::Style;
use crate::output::format::text_of;
use crate::output::table::Cell;
use crate::{CliError, Client, Exit, Output};

const COLUMNS: Columns = Columns {
    headings: &["ROUTE", "UPSTREAM", "STATE", "IN FLIGHT", "CONNECTIONS", "REQUESTS", "ERRORS", "RETRIES"],
    optional: &[],
    row,
};

/// The list has no pages.
pub(crate) fn run(client: &Client, output: &Output) -> Result<Exit, CliError> {
    let mut response = client.get("/v1/admin/upstreams")?;
    match response.body.get_mut("upstreams").map(Value::take) {
        Some(Value::Array(items)) => Ok(COLUMNS.print("upstreams", &items, None, output)?),
        _ => Err(client.missing_field("upstreams").into()),
    }
}

fn row(upstream: &Value) -> Vec<Cell> {
    let text = |key: &str| Cell::from(text_of(&upstream[key]));
    let state = match (upstream["healthy"].as_bool(), upstream["check_error"].as_str()) {
        (Some(true), _) => Cell::styled(Style::Good, "up"),
        (_, Some(error)) => Cell::styled(Style::Bad, format!("down: {error}")),
        _ => Cell::styled(Style::Bad, "down"),
    };
    let count = |key: &str| upstream[key].as_u64().unwrap_or(0);
    let errors = count("connect_errors") + count("response_errors");
    vec![
        text("route"),
        text("url"),
        state,
        text("in_flight"),
        text("connections"),
        text("requests"),
        Cell::from(errors.to_string()),
        text("retries"),
    ]
}
