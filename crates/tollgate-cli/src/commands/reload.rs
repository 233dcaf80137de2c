//! `tollgate reload`: makes a server read its settings file again.

use serde_json::{Value, json};

use crate::client::Precondition;
use crate::output::escape;
use crate::output::format::plural;
use crate::{CliError, Client, Exit, Output};

pub(crate) fn run(client: &Client, output: &Output) -> Result<Exit, CliError> {
    let response = client.post("/v1/admin/reload", &json!({}), Precondition::None)?;
    let body = &response.body;
    for key in body["needs_restart"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        output.warning(&format!("{key} has changed and takes effect after a restart of the server"));
    }
    Ok(output.response(&response.text, || describe(body))?)
}

/// `reloaded: 3 rules in the file, 15 in force (generation 4)`.
fn describe(body: &Value) -> String {
    let count = |key: &str| body[key].as_u64().and_then(|count| usize::try_from(count).ok());
    let file = count("file_rules").map(|count| format!("{} in the file", plural(count, "rule")));
    let in_force = count("rules").map(|count| format!("{count} in force"));
    let parts: Vec<String> = [file, in_force].into_iter().flatten().collect();
    format!("reloaded: {} (generation {})\n", parts.join(", "), escape(&body["generation"].to_string()))
}
