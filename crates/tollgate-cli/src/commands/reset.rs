//! `tollgate reset`: resets the counters of a client.

use super::request_args::TargetArgs;
use crate::client::Precondition;
use crate::output::format::plural;
use crate::{CliError, Client, Exit, Output};

pub(crate) fn run(target: &TargetArgs, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let response = client.post("/v1/rate-limit/reset", target, Precondition::None)?;
    output.warnings(&response.body);
    Ok(output.response(&response.text, || {
        let count = response.body["counters"].as_u64().and_then(|count| usize::try_from(count).ok());
        let count = count.map(|count| format!(": {}", plural(count, "counter"))).unwrap_or_default();
        format!("reset {}{count}\n", target.describe())
    })?)
}
