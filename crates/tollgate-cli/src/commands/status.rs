//! `tollgate status`: how much is left, without counting anything.

use serde_json::Value;

use super::Place;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Style, escape};
use crate::render;
use crate::url::query;

pub(crate) fn run(place: &Place, client: &Client, output: &Output) -> Result<Exit, Failure> {
    // Not in the path: a proxy that decodes `%2F` there would have us ask about somebody else.
    let asked = query(&[("user_id", Some(&place.user)), ("endpoint", Some(&place.endpoint))]);
    let answer = client.get(&format!("/v1/rate-limit/status{asked}"))?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
        return Ok(Exit::Ok);
    }
    let subject = format!("{} on {}", escape(&place.user), escape(&place.endpoint));
    let facts = facts(&answer.body).join(", ");
    output.text(&format!("{}: {facts}\n", output.paint(Style::Heading, &subject)))?;
    Ok(Exit::Ok)
}

fn facts(body: &Value) -> Vec<String> {
    let left = match (body["remaining"].as_u64(), body["limit"].as_u64()) {
        (Some(remaining), Some(limit)) => format!("{remaining} of {limit} left"),
        // No counter was asked: a rule or an administrator keeps the user out.
        _ if body["allowed"].as_bool() == Some(false) => "blocked".to_owned(),
        _ => "no limit applies".to_owned(),
    };
    let used = body["usage_percentage"].as_f64().map(|used| format!("{used:.1} % used"));
    let reset = render::reset(&body["reset_at"]).map(|reset| format!("full again {reset}"));
    let strategy = body["strategy"].as_str().map(escape);
    let degraded = (body["degraded"].as_bool() == Some(true))
        .then(|| "degraded: told without the shared counters".to_owned());
    [Some(left), used, reset, strategy, degraded].into_iter().flatten().collect()
}
