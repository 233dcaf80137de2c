//! `tollgate status`: shows how much of a limit is left.

use serde_json::Value;

use super::request_args::RequestArgs;
use crate::output::decision::available;
use crate::output::format::{format_full_at, format_reset};
use crate::output::{Style, escape};
use crate::secret::contains_key;
use crate::{CliError, Client, Exit, Output};

const KEY_IN_URL: &str = "--api-key: `status` would send the key in its URL, which servers and proxies log; use `tollgate explain`, \
    which sends it in the body";

pub(crate) fn run(request: &RequestArgs, client: &Client, output: &Output) -> Result<Exit, CliError> {
    if request.target.api_key.as_ref().is_some_and(|key| contains_key(key.reveal())) {
        return Err(CliError::Arguments(KEY_IN_URL.to_owned()));
    }
    // In the query, not in the path: some proxies decode `%2F` in paths.
    let response = client.get(&format!("/v1/rate-limit/status{}", request.query()))?;
    output.warnings(&response.body);
    Ok(output.response(&response.text, || {
        let subject = output.paint(Style::Heading, &request.target.describe());
        format!("{subject}: {}\n", details(&response.body).join(", "))
    })?)
}

fn details(body: &Value) -> Vec<String> {
    let until = |key: &str| format_reset(&body[key]).map(|reset| format!("ends {reset}"));
    let reason = body["reason"].as_str().filter(|reason| !reason.is_empty()).map(escape);
    let blocked = body["decision"].as_str() == Some("blocked");
    let in_cooldown = !body["cooldown_until"].is_null();
    let left = match (body["remaining"].as_u64(), body["limit"].as_u64()) {
        _ if in_cooldown => "in cooldown".to_owned(),
        (Some(remaining), Some(limit)) => available(body, remaining, limit),
        // Blocked by a rule or an administrator, so there is no counter to report.
        _ if blocked || body["allowed"].as_bool() == Some(false) => "blocked".to_owned(),
        _ => "no limit applies".to_owned(),
    };
    if blocked || in_cooldown {
        let ends = until("blocked_until").or_else(|| until("cooldown_until"));
        return [Some(left), reason.filter(|_| !in_cooldown), ends, degraded(body)]
            .into_iter()
            .flatten()
            .collect();
    }
    let used = body["usage_percentage"].as_f64().map(|used| format!("{used:.1} % used"));
    let reset = format_full_at(&body["reset_at"]);
    let strategy = body["strategy"].as_str().map(escape);
    [Some(left), used, reason, reset, strategy, degraded(body)].into_iter().flatten().collect()
}

fn degraded(body: &Value) -> Option<String> {
    (body["degraded"].as_bool() == Some(true))
        .then(|| "degraded: read without the shared counters".to_owned())
}
