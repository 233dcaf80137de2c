//! `tollgate inspect`: shows the live counters of a user, key or address.

use clap::Args;
use serde_json::Value;

use super::client_name::ClientName;
use crate::client::ClientError;
use crate::client::url::query;
use crate::output::format::{format_duration, format_full_at, format_reset, plural};
use crate::output::{Style, escape};
use crate::{CliError, Client, Exit, Output};

#[derive(Args)]
pub(crate) struct Inspect {
    /// Client: `alice`, 203.0.113.7, or with a prefix: `user:`, `api_key:` (the key's id), `ip:`, `login:`, `tenant:`
    #[arg(value_parser = ClientName::parse)]
    subject: ClientName,
    /// Tenant (organization) of the client
    #[arg(long)]
    tenant: Option<String>,
    /// Only rules that apply to this endpoint
    #[arg(long)]
    endpoint: Option<String>,
    /// Only rules for this tier
    #[arg(long)]
    tier: Option<String>,
    /// HTTP method, for rules that count per method
    #[arg(long)]
    method: Option<String>,
}

pub(crate) fn run(inspect: &Inspect, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let is_tenant = inspect.subject.kind == "tenant";
    if is_tenant && inspect.tenant.is_some() {
        return Err(CliError::Arguments("--tenant cannot be combined with a client tenant:NAME".to_owned()));
    }
    let pairs = [
        (inspect.subject.kind, Some(&*inspect.subject.name)),
        ("tenant", inspect.tenant.as_deref()),
        ("endpoint", inspect.endpoint.as_deref()),
        ("tier", inspect.tier.as_deref()),
        ("method", inspect.method.as_deref()),
    ];
    let response = client.get(&format!("/v1/admin/counters{}", query(&pairs)))?;
    output.warnings(&response.body);
    Ok(output.response(&response.text, || render(&response.body, output))?)
}

/// The counters of a client, as the command prints them.
pub(super) fn counters(
    name: &ClientName,
    tenant: Option<&str>,
    client: &Client,
    output: &Output,
) -> Result<String, ClientError> {
    let tenant = tenant.filter(|_| name.kind != "tenant");
    let path = format!("/v1/admin/counters{}", query(&[(name.kind, Some(&*name.name)), ("tenant", tenant)]));
    Ok(render(&client.get(&path)?.body, output))
}

fn render(body: &Value, output: &Output) -> String {
    let none = Vec::new();
    let list = |key: &str| body[key].as_array().unwrap_or(&none).iter();
    let mut client = body["client"].as_str().map_or_else(|| "the client".to_owned(), escape);
    if let Some(tenant) = body["tenant"].as_str().filter(|tenant| format!("tenant:{tenant}") != client) {
        client = format!("{client} of tenant {}", escape(tenant));
    }
    let client = output.paint(Style::Heading, &client);
    let mut lines = vec![format!("{client}: {}", counters_in_use(body))];
    if body["degraded"].as_bool() == Some(true) {
        lines.push("  degraded: Redis is unreachable, showing the counters of this node only".to_owned());
    }
    if let Some(status) = key_status(&body["key_status"]) {
        lines.push(format!("  {}", output.paint(Style::Bad, status)));
    }
    if body["blocked"].as_bool() == Some(true) {
        let reason = body["block_reason"].as_str().map(|reason| format!(": {}", escape(reason)));
        let until = format_reset(&body["blocked_until"]).map(|until| format!(", ends {until}"));
        let text = format!("blocked{}{}", reason.unwrap_or_default(), until.unwrap_or_default());
        lines.push(format!("  {}", output.paint(Style::Bad, &text)));
    }
    if let Some(until) = format_reset(&body["cooldown_until"]) {
        let text = format!("in cooldown after too many refusals, ends {until}");
        lines.push(format!("  {}", output.paint(Style::Bad, &text)));
    }
    lines.extend(list("counters").map(|counter| format!("  {}", counter_line(counter))));
    let skipped = |rule| format!("  {}: {}", escape(rule), skip_reason(&body["skipped_for"][rule]));
    lines.extend(list("skipped").filter_map(Value::as_str).map(skipped));
    lines.push(String::new());
    lines.join("\n")
}

/// `1 of 2 counters in use, in Redis`. A counter that was never charged does not exist in the store.
fn counters_in_use(body: &Value) -> String {
    let counters = body["counters"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let used = counters.iter().filter(|counter| counter["used"].as_u64() > Some(0)).count();
    let store = if body["store"].as_str() == Some("redis") { "in Redis" } else { "in memory" };
    match (used, counters.len()) {
        (0, 0) => "no limit applies".to_owned(),
        (0, _) => format!("no counters in use {store}; limits that would apply:"),
        (used, all) => format!("{used} of {} in use, {store}", plural(all, "counter")),
    }
}

/// What to know about an API key that is not active.
fn key_status(status: &Value) -> Option<&'static str> {
    match status.as_str()? {
        "revoked" => Some("this API key is revoked: checks with it are refused"),
        "expired" => Some("this API key has expired: checks with it are refused"),
        "unknown" => Some("unknown API key: this server did not issue it, and counts it by its text"),
        _ => None,
    }
}

/// Which dimensions a rule needs that were not given, and the flags to give them.
fn skip_reason(missing: &Value) -> String {
    let missing: Vec<String> =
        missing.as_array().into_iter().flatten().filter_map(Value::as_str).map(escape).collect();
    let flag = |dimension: &String| match &**dimension {
        "endpoint" => Some("--endpoint"),
        "method" => Some("--method"),
        _ => None,
    };
    let flags: Option<Vec<&str>> = missing.iter().map(flag).collect();
    let dimensions = missing.join(" and ");
    match flags {
        _ if missing.is_empty() => "skipped: also counts by other dimensions".to_owned(),
        Some(flags) => format!("skipped: also counts by {dimensions}; add {}", flags.join(" and ")),
        None => format!("skipped: also counts by {dimensions}, which `inspect` cannot select"),
    }
}

/// `free-tier (10 per 1m): 3 used, 7 left, full again in 18s`.
fn counter_line(counter: &Value) -> String {
    let text = |key: &str| counter[key].as_str().map(escape).unwrap_or_default();
    let number = |key: &str| counter[key].as_u64().unwrap_or_default();
    let (used, left) = (number("used"), number("remaining"));
    let burst = Some(number("capacity")).filter(|capacity| *capacity != number("limit"));
    let burst = burst.map(|burst| format!(", burst {burst}")).unwrap_or_default();
    let mut facts = vec![if used == 0 { "unused".to_owned() } else { format!("{used} used") }];
    facts.push(format!("{left} left"));
    facts
        .extend(counter["retry_after"].as_u64().map(|wait| format!("refused for {}", format_duration(wait))));
    facts.extend(format_full_at(&counter["restored_at"]));
    let facts = facts.join(", ");
    format!(
        "{} ({} per {}{burst}, {}): {facts}",
        text("rule"),
        number("limit"),
        text("window"),
        text("strategy")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::Color;

    #[test]
    fn every_counter_is_one_line() {
        let body = json!({"client": "user:alice", "store": "redis", "degraded": false, "cooldown_until": 1,
            "blocked": true, "block_reason": "unpaid", "blocked_until": 1, "counters": [
                {"rule": "free", "limit": 10, "window": "1m", "strategy": "token_bucket", "capacity": 20, "used": 20,
                 "remaining": 0, "restored_at": 1, "retry_after": 6},
                {"rule": "daily", "limit": 99, "window": "1d", "strategy": "fixed_window", "capacity": 99, "used": 0,
                 "remaining": 99, "restored_at": null, "retry_after": null}],
            "skipped": ["by-path", "by-both", "guard", "of-old"], "skipped_for": {"by-path": ["endpoint"],
                "by-both": ["endpoint", "method"], "guard": ["login", "method"]}});
        let expected = "user:alice: 1 of 2 counters in use, in Redis\n  \
            blocked: unpaid, ends now\n  \
            in cooldown after too many refusals, ends now\n  \
            free (10 per 1m, burst 20, token_bucket): 20 used, 0 left, refused for 6s\n  \
            daily (99 per 1d, fixed_window): unused, 99 left\n  \
            by-path: skipped: also counts by endpoint; add --endpoint\n  \
            by-both: skipped: also counts by endpoint and method; add --endpoint and --method\n  \
            guard: skipped: also counts by login and method, which `inspect` cannot select\n  \
            of-old: skipped: also counts by other dimensions\n";
        assert_eq!(render(&body, &Output::new(false, Color::Never)), expected);
    }

    #[test]
    fn unused_counters_and_inactive_keys_are_named() {
        let mut body = json!({"client": "api_key:k", "store": "memory", "key_status": "revoked", "counters": [
            {"rule": "free", "limit": 9, "window": "1m", "strategy": "gcra", "capacity": 9, "used": 0, "remaining": 9}]});
        let shown = |body: &Value| render(body, &Output::new(false, Color::Never));
        assert_eq!(
            shown(&body),
            "api_key:k: no counters in use in memory; limits that would apply:\n  \
             this API key is revoked: checks with it are refused\n  \
             free (9 per 1m, gcra): unused, 9 left\n"
        );
        (body["key_status"], body["counters"]) = (json!("active"), json!([]));
        assert_eq!(shown(&body), "api_key:k: no limit applies\n");
    }
}
