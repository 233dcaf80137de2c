//! `tollgate inspect`: what the counters of a user, key or address hold, in plain words.

use std::net::IpAddr;

use clap::Args;
use serde_json::Value;

use crate::client::Client;
use crate::exit::Exit;
use crate::failure::{Failure, counted};
use crate::output::{Output, Style, escape};
use crate::render;
use crate::secret::{WHOLE, is_whole_key};
use crate::url::segment;

/// Whose counters.
#[derive(Args)]
pub(crate) struct Inspect {
    /// Whom: `alice`, 203.0.113.7, or with its kind, as `user:`, `api_key:` (its id), `ip:`, `login:` or `tenant:`
    #[arg(value_parser = subject)]
    subject: Subject,
    /// Only rules that apply on this endpoint
    #[arg(long)]
    endpoint: Option<String>,
    /// Only rules for this plan
    #[arg(long)]
    tier: Option<String>,
    /// The method, for rules that count by it
    #[arg(long)]
    method: Option<String>,
}

/// A client by its kind. It may be an API key, so it is never printed.
#[derive(Clone, PartialEq, Eq)]
struct Subject {
    kind: &'static str,
    name: String,
}

pub(super) const KINDS: [&str; 5] = ["user", "api_key", "ip", "login", "tenant"];

fn subject(text: &str) -> Result<Subject, &'static str> {
    let kind = |kind, name: &str| Subject { kind, name: name.to_owned() };
    // First, because an address may look like a name with a kind: `::1`.
    if text.parse::<IpAddr>().is_ok() {
        return Ok(kind("ip", text));
    }
    let named =
        KINDS.iter().find_map(|known| Some(kind(known, text.strip_prefix(known)?.strip_prefix(':')?)));
    let subject = named.unwrap_or_else(|| kind("user", text));
    if subject.name.is_empty() { Err("must not be empty") } else { Ok(subject) }
}

pub(crate) fn run(inspect: &Inspect, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let Subject { kind, name } = &inspect.subject;
    if *kind == "api_key" && is_whole_key(name) {
        return Err(Failure::Arguments(format!("SUBJECT {WHOLE}")));
    }
    let answer = client.get(&path(inspect))?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else {
        output.text(&told(&answer.body, output))?;
    }
    Ok(Exit::Ok)
}

fn path(inspect: &Inspect) -> String {
    let Subject { kind, name } = &inspect.subject;
    let pairs = [
        (*kind, Some(name)),
        ("endpoint", inspect.endpoint.as_ref()),
        ("tier", inspect.tier.as_ref()),
        ("method", inspect.method.as_ref()),
    ];
    let pair = |(key, value): (&str, Option<&String>)| value.map(|value| format!("{key}={}", segment(value)));
    let query: Vec<String> = pairs.into_iter().filter_map(pair).collect();
    format!("/v1/admin/counters?{}", query.join("&"))
}

fn told(body: &Value, output: &Output) -> String {
    let none = Vec::new();
    let list = |key: &str| body[key].as_array().unwrap_or(&none).iter();
    let client = body["client"].as_str().map_or_else(|| "the client".to_owned(), escape);
    let place = if body["store"].as_str() == Some("redis") { "on Redis" } else { "in memory" };
    let count = counted(list("counters").len(), "counter");
    let mut lines = vec![format!("{}: {count} {place}", output.paint(Style::Heading, &client))];
    if body["degraded"].as_bool() == Some(true) {
        let words = "  the shared counters cannot be reached: this is what this node has counted itself";
        lines.push(words.to_owned());
    }
    if body["blocked"].as_bool() == Some(true) {
        let reason = body["block_reason"].as_str().map(|reason| format!(": {}", escape(reason)));
        let until = render::reset(&body["blocked_until"]).map(|until| format!(", ends {until}"));
        let words = format!("blocked{}{}", reason.unwrap_or_default(), until.unwrap_or_default());
        lines.push(format!("  {}", output.paint(Style::Bad, &words)));
    }
    if let Some(until) = render::reset(&body["cooldown_until"]) {
        let words = format!("kept out for running into its limits, ends {until}");
        lines.push(format!("  {}", output.paint(Style::Bad, &words)));
    }
    lines.extend(list("counters").map(|counter| format!("  {}", sentence(counter))));
    let skipped = |rule| format!("  {}: {}", escape(rule), unsaid(&body["skipped_for"][rule]));
    lines.extend(list("skipped").filter_map(Value::as_str).map(skipped));
    lines.push(String::new());
    lines.join("\n")
}

/// What a rule counts by that was not said, and how to say it where that can be done.
fn unsaid(by: &Value) -> String {
    let by: Vec<String> = by.as_array().into_iter().flatten().filter_map(Value::as_str).map(escape).collect();
    let flag = |by: &String| match &**by {
        "endpoint" => Some("--endpoint"),
        "method" => Some("--method"),
        _ => None,
    };
    let flags: Option<Vec<&str>> = by.iter().map(flag).collect();
    match (by.is_empty(), flags) {
        (true, _) => "counts by more than was said".to_owned(),
        (false, Some(flags)) => format!("counts by {} too; add {}", by.join(" and "), flags.join(" and ")),
        (false, None) => {
            let all = if by.len() == 1 { "" } else { "all " };
            format!("counts by {} too, which cannot {all}be said here", by.join(" and "))
        }
    }
}

/// `free-tier (10 per 1m): 3 used, 7 left, full again in 18s`.
fn sentence(counter: &Value) -> String {
    let text = |key: &str| counter[key].as_str().map(escape).unwrap_or_default();
    let number = |key: &str| counter[key].as_u64().unwrap_or_default();
    let (used, left) = (number("used"), number("remaining"));
    let burst = Some(number("capacity")).filter(|capacity| *capacity != number("limit"));
    let burst = burst.map(|burst| format!(", {burst} at once")).unwrap_or_default();
    let mut facts = vec![if used == 0 { "unused".to_owned() } else { format!("{used} used") }];
    facts.push(format!("{left} left"));
    facts
        .extend(counter["retry_after"].as_u64().map(|wait| format!("refused for {}", render::lasting(wait))));
    facts.extend(render::full_again(&counter["restored_at"]));
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
    use crate::args::Color;

    #[test]
    fn a_subject_is_known_by_its_kind_or_its_looks() {
        let is = |text: &str| subject(text).ok().map(|subject| (subject.kind, subject.name));
        let expected = |kind, name: &str| Some((kind, name.to_owned()));
        assert_eq!(is("alice"), expected("user", "alice"));
        assert_eq!(is("user:ip:x"), expected("user", "ip:x"));
        assert_eq!(is("203.0.113.7"), expected("ip", "203.0.113.7"));
        assert_eq!(is("::1"), expected("ip", "::1"));
        assert_eq!(is("api_key:k:1"), expected("api_key", "k:1"));
        assert_eq!(is("other:x"), expected("user", "other:x"));
        assert_eq!((is(""), is("tenant:")), (None, None));
    }

    #[test]
    fn counters_read_as_sentences() {
        let body = json!({"client": "user:alice", "store": "redis", "degraded": false, "cooldown_until": 1,
            "blocked": true, "block_reason": "unpaid", "blocked_until": 1, "counters": [
                {"rule": "free", "limit": 10, "window": "1m", "strategy": "token_bucket", "capacity": 20, "used": 20,
                 "remaining": 0, "restored_at": 1, "retry_after": 6},
                {"rule": "daily", "limit": 99, "window": "1d", "strategy": "fixed_window", "capacity": 99, "used": 0,
                 "remaining": 99, "restored_at": null, "retry_after": null}],
            "skipped": ["by-path", "by-both", "guard", "of-old"], "skipped_for": {"by-path": ["endpoint"],
                "by-both": ["endpoint", "method"], "guard": ["login", "method"]}});
        let expected = "user:alice: 2 counters on Redis\n  \
            blocked: unpaid, ends now\n  \
            kept out for running into its limits, ends now\n  \
            free (10 per 1m, 20 at once, token_bucket): 20 used, 0 left, refused for 6s\n  \
            daily (99 per 1d, fixed_window): unused, 99 left\n  \
            by-path: counts by endpoint too; add --endpoint\n  \
            by-both: counts by endpoint and method too; add --endpoint and --method\n  \
            guard: counts by login and method too, which cannot all be said here\n  \
            of-old: counts by more than was said\n";
        assert_eq!(told(&body, &Output::new(false, Color::Never)), expected);
    }
}
