//! `tollgate reset`: forget what a user has used.

use super::Place;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::{Failure, counted};
use crate::output::{Output, escape};

pub(crate) fn run(place: &Place, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let answer = client.post("/v1/rate-limit/reset", place)?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else {
        let count = answer.body["counters"].as_u64().and_then(|count| usize::try_from(count).ok());
        let count = count.map(|count| format!(": {}", counted(count, "counter"))).unwrap_or_default();
        output.text(&format!("reset {} on {}{count}\n", escape(&place.user), escape(&place.endpoint)))?;
    }
    Ok(Exit::Ok)
}
