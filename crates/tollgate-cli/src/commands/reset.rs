//! `tollgate reset`: forget what a user has used.

use super::Counters;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::{Failure, counted};
use crate::output::Output;

pub(crate) fn run(counters: &Counters, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let answer = client.post("/v1/rate-limit/reset", counters)?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else {
        let count = answer.body["counters"].as_u64().and_then(|count| usize::try_from(count).ok());
        let count = count.map(|count| format!(": {}", counted(count, "counter"))).unwrap_or_default();
        output.text(&format!("reset {}{count}\n", counters.whose.told()))?;
    }
    Ok(Exit::Ok)
}
