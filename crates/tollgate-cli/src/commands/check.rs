//! `tollgate check`: checks a request and counts it.

use super::request_args::RequestArgs;
use crate::client::{Client, ClientError};
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Output, decision};

pub(crate) fn run(request: &RequestArgs, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let response = client.post("/v1/rate-limit/check", request)?;
    let admits = decision::admits(&response.body).ok_or(ClientError::NoDecision)?;
    if output.json() {
        output.body(&response.text)?;
    } else {
        output.text(&decision::decision(&response.body, output))?;
    }
    Ok(if admits { Exit::Ok } else { Exit::Refused })
}
