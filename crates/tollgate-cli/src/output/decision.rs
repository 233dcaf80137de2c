//! A decision in one line of text.
//!
//! Responses are read leniently: unknown fields are ignored, and missing ones are left out of the line.

use serde_json::Value;

use super::format::{format_duration, format_full_at, seconds_until};
use super::{Output, Style, escape};

/// The decision in one line: `refused by free-tier: 0 of 2 left, retry in 30s`.
pub(crate) fn decision(body: &Value, output: &Output) -> String {
    let (style, word) = verdict(body);
    let mut line = output.paint(style, word);
    if let Some(rule) = body["rule"].as_str() {
        line.push_str(" by ");
        line.push_str(&escape(rule));
    }
    let details = details(body);
    if !details.is_empty() {
        line.push_str(": ");
        line.push_str(&details.join(", "));
    }
    output.wrapped(&line)
}

/// Whether the response admits the request; `None` if it contains no decision.
pub(crate) fn admits(body: &Value) -> Option<bool> {
    let blocked = body["decision"].as_str() == Some("blocked");
    body["allowed"].as_bool().or(blocked.then_some(false))
}

fn verdict(body: &Value) -> (Style, &'static str) {
    if admits(body) == Some(true) {
        (Style::Good, "admitted")
    } else if body["decision"].as_str() == Some("blocked") {
        (Style::Bad, "blocked")
    } else {
        (Style::Bad, "refused")
    }
}

fn details(body: &Value) -> Vec<String> {
    let mut details = Vec::new();
    if let (Some(remaining), Some(limit)) = (body["remaining"].as_u64(), body["limit"].as_u64()) {
        details.push(available(body, remaining, limit));
    }
    if let Some(wait) = body["retry_after"].as_u64() {
        details.push(format!("retry in {}", format_duration(wait)));
    } else {
        details.extend(format_full_at(&body["reset_at"]));
    }
    if let Some(until) = seconds_until(&body["blocked_until"]) {
        details.push(format!("for {}", format_duration(until)));
    }
    if let Some(delay) = body["delay_ms"].as_u64() {
        details.push(format!("delay {delay} ms"));
    }
    // A rule that blocks gives its message as the reason.
    let message = body["message"].as_str().filter(|message| body["reason"].as_str() != Some(*message));
    let words = [body["reason"].as_str(), message, body["strategy"].as_str()];
    details.extend(words.into_iter().flatten().map(escape));
    if body["degraded"].as_bool() == Some(true) {
        details.push("degraded: decided without the shared counters".to_owned());
    }
    details
}

/// What is left: `1 of 2 left`, or with a burst `20 of 20 available now, 60 per minute`.
pub(crate) fn available(body: &Value, remaining: u64, limit: u64) -> String {
    // More than the limit is never reported as remaining.
    let Some(capacity) = body["capacity"].as_u64().filter(|capacity| *capacity != limit) else {
        return format!("{remaining} of {limit} left");
    };
    let share = if body["degraded"].as_bool() == Some(true) { " of this node's share" } else { "" };
    let per = body["window"].as_str().map(|window| format!(" per {}", escape(unit(window))));
    format!("{remaining} of {}{share} available now, {limit}{}", capacity.min(limit), per.unwrap_or_default())
}

/// A window after "per": `minute` for `1m`.
fn unit(window: &str) -> &str {
    match window {
        "1s" => "second",
        "1m" => "minute",
        "1h" => "hour",
        "1d" => "day",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::Color;

    #[test]
    fn decision_is_one_line() {
        let output = Output::new(false, Color::Never);
        let refused = json!({"allowed": false, "limit": 2, "remaining": 0, "reset_at": 1, "retry_after": 30,
                             "strategy": "token_bucket", "rule": "free-tier"});
        assert_eq!(
            decision(&refused, &output),
            "refused by free-tier: 0 of 2 left, retry in 30s, token_bucket\n"
        );
        let admitted = json!({"allowed": true, "limit": 2, "remaining": 1, "reset_at": 1, "degraded": true,
                              "delay_ms": 20});
        assert_eq!(
            decision(&admitted, &output),
            "admitted: 1 of 2 left, delay 20 ms, degraded: decided without the shared counters\n"
        );
        let blocked =
            json!({"allowed": false, "decision": "blocked", "reason": "abuse\x1b[2J", "blocked_until": 1});
        assert_eq!(decision(&blocked, &output), "blocked: for 0s, abuse\\u{1b}[2J\n");
        let by_rule =
            json!({"allowed": false, "decision": "blocked", "rule": "bots", "reason": "go", "message": "go"});
        assert_eq!(decision(&by_rule, &output), "blocked by bots: go\n");
    }

    #[test]
    fn burst_and_share_are_shown_beside_the_rate() {
        let shown = |remaining, limit, capacity, window: &str, degraded: bool| {
            let body = json!({"capacity": capacity, "window": window, "degraded": degraded});
            available(&body, remaining, limit)
        };
        assert_eq!(shown(20, 60, 20, "1m", false), "20 of 20 available now, 60 per minute");
        assert_eq!(shown(60, 60, 90, "90s", false), "60 of 60 available now, 60 per 90s");
        assert_eq!(shown(30, 60, 30, "1h", true), "30 of 30 of this node's share available now, 60 per hour");
        assert_eq!(shown(3, 60, 60, "1m", false), "3 of 60 left");
    }

    #[test]
    fn only_a_boolean_true_admits() {
        assert_eq!(admits(&json!({"allowed": true})), Some(true));
        assert_eq!(admits(&json!({"allowed": false})), Some(false));
        assert_eq!(admits(&json!({"decision": "blocked"})), Some(false));
        for body in [json!({}), json!({"allowed": "true"}), json!({"allowed": null}), json!({"allowed": 1})] {
            assert_eq!(admits(&body), None);
        }
    }
}
