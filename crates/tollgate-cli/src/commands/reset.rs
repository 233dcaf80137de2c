//! `tollgate reset`: forget what a user has used.

use super::Place;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, escape};

pub(crate) fn run(place: &Place, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let answer = client.post("/v1/rate-limit/reset", place)?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else {
        output.text(&format!("reset {} on {}\n", escape(&place.user), escape(&place.endpoint)))?;
    }
    Ok(Exit::Ok)
}
