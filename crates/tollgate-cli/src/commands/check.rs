//! `tollgate check`: checks a request and counts it.

use super::request_args::RequestArgs;
use crate::client::{ClientError, Precondition};
use crate::output::decision;
use crate::{CliError, Client, Exit, Output};

pub(crate) fn run(request: &RequestArgs, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let response = client.post("/v1/rate-limit/check", request, Precondition::None)?;
    let admits = decision::admits(&response.body).ok_or(ClientError::NoDecision)?;
    output.warnings(&response.body);
    output.response(&response.text, || decision::decision(&response.body, output))?;
    Ok(if admits { Exit::Ok } else { Exit::Refused })
}
