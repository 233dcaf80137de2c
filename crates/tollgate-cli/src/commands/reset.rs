//! `tollgate reset`: resets the counters of a client.

use super::request_args::ResetArgs;
use crate::client::Client;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::Output;
use crate::output::format::plural;

pub(crate) fn run(reset: &ResetArgs, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let response = client.post("/v1/rate-limit/reset", reset)?;
    if output.json() {
        output.body(&response.text)?;
    } else {
        let count = response.body["counters"].as_u64().and_then(|count| usize::try_from(count).ok());
        let count = count.map(|count| format!(": {}", plural(count, "counter"))).unwrap_or_default();
        output.text(&format!("reset {}{count}\n", reset.target.describe()))?;
    }
    Ok(Exit::Ok)
}
