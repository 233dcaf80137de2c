//! `tollgate status`: how much is left, without counting anything.

use serde_json::Value;

use super::Facts;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Style, escape};
use crate::render;
use crate::secret::is_whole_key;

/// A status is asked for with a URL; `explain` has a body.
const KEY_IN_URL: &str = "--api-key: `status` would send the key in its URL, which servers and proxies write into their logs: \
    ask with `tollgate explain`, which does not";

pub(crate) fn run(facts: &Facts, client: &Client, output: &Output) -> Result<Exit, Failure> {
    if facts.whose.api_key.as_ref().is_some_and(|key| is_whole_key(key.reveal())) {
        return Err(Failure::Arguments(KEY_IN_URL.to_owned()));
    }
    // Not in the path: a proxy that decodes `%2F` there would have us ask about somebody else.
    let answer = client.get(&format!("/v1/rate-limit/status{}", facts.query()))?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
        return Ok(Exit::Ok);
    }
    let (subject, told) = (facts.whose.told(), told(&answer.body).join(", "));
    output.text(&format!("{}: {told}\n", output.paint(Style::Heading, &subject)))?;
    Ok(Exit::Ok)
}

fn told(body: &Value) -> Vec<String> {
    let until = |key: &str| render::reset(&body[key]).map(|reset| format!("which ends {reset}"));
    let reason = body["reason"].as_str().filter(|reason| !reason.is_empty()).map(escape);
    let blocked = body["decision"].as_str() == Some("blocked");
    let kept_out = !body["cooldown_until"].is_null();
    let left = match (body["remaining"].as_u64(), body["limit"].as_u64()) {
        _ if kept_out => "kept out".to_owned(),
        (Some(remaining), Some(limit)) => match body["capacity"].as_u64().filter(|most| *most < limit) {
            Some(most) => format!("{remaining} of {most} left at once, limit {limit}"),
            None => format!("{remaining} of {limit} left"),
        },
        // No counter was asked: a rule or an administrator keeps the user out.
        _ if blocked || body["allowed"].as_bool() == Some(false) => "blocked".to_owned(),
        _ => "no limit applies".to_owned(),
    };
    if blocked || kept_out {
        let ends = until("blocked_until").or_else(|| until("cooldown_until"));
        return [Some(left), reason, ends, degraded(body)].into_iter().flatten().collect();
    }
    let used = body["usage_percentage"].as_f64().map(|used| format!("{used:.1} % used"));
    let reset = render::full_again(&body["reset_at"]);
    let strategy = body["strategy"].as_str().map(escape);
    [Some(left), used, reason, reset, strategy, degraded(body)].into_iter().flatten().collect()
}

fn degraded(body: &Value) -> Option<String> {
    (body["degraded"].as_bool() == Some(true))
        .then(|| "degraded: told without the shared counters".to_owned())
}
