//! `tollgate check`: may this request pass?

use super::Facts;
use crate::client::{Client, ClientError};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::render;

pub(crate) fn run(facts: &Facts, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let answer = client.post("/v1/rate-limit/check", facts)?;
    let admits = render::admits(&answer.body).ok_or(ClientError::NoDecision)?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else {
        output.text(&render::decision(&answer.body, output))?;
    }
    Ok(if admits { Exit::Ok } else { Exit::Refused })
}
