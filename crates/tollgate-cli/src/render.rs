//! A server's answer in words.
//!
//! Answers are read leniently: a newer server may say more, and what is missing is left out of the sentence.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::output::{Output, Style, escape};

/// How it is told that something is over.
const NOW: &str = "now";

/// What the server decided, in one line: `refused by free-tier: 0 of 2 left, retry in 30s`.
pub(crate) fn decision(body: &Value, output: &Output) -> String {
    let (style, word) = verdict(body);
    let mut line = output.paint(style, word);
    if let Some(rule) = body["rule"].as_str() {
        line.push_str(" by ");
        line.push_str(&escape(rule));
    }
    let facts = facts(body);
    if !facts.is_empty() {
        line.push_str(": ");
        line.push_str(&facts.join(", "));
    }
    line.push('\n');
    line
}

/// Whether the answer admits: only a plain yes does. Nothing if it is no decision at all.
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

fn facts(body: &Value) -> Vec<String> {
    let mut facts = Vec::new();
    if let (Some(remaining), Some(limit)) = (body["remaining"].as_u64(), body["limit"].as_u64()) {
        facts.push(format!("{remaining} of {limit} left"));
    }
    if let Some(wait) = body["retry_after"].as_u64() {
        facts.push(format!("retry in {}", lasting(wait)));
    } else {
        facts.extend(full_again(&body["reset_at"]));
    }
    if let Some(until) = remaining_time(&body["blocked_until"]) {
        facts.push(format!("for {}", lasting(until)));
    }
    if let Some(delay) = body["delay_ms"].as_u64() {
        facts.push(format!("to be held for {delay} ms"));
    }
    let words = ["reason", "message", "strategy"].map(|key| body[key].as_str());
    facts.extend(words.into_iter().flatten().map(escape));
    if body["degraded"].as_bool() == Some(true) {
        facts.push("degraded: decided without the shared counters".to_owned());
    }
    facts
}

/// When a counter is full again, unless it is already.
pub(crate) fn full_again(at: &Value) -> Option<String> {
    reset(at).filter(|reset| reset != NOW).map(|reset| format!("full again {reset}"))
}

/// A reset as people read it: `in 30s`, `now`, or the date as the server wrote it.
pub(crate) fn reset(at: &Value) -> Option<String> {
    match at {
        Value::String(text) => Some(escape(text)),
        other => match remaining_time(other)? {
            0 => Some(NOW.to_owned()),
            left => Some(format!("in {}", lasting(left))),
        },
    }
}

/// The seconds until an instant in Unix seconds.
fn remaining_time(at: &Value) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(seconds_left(at.as_u64()?, now))
}

/// The server has rounded the instant up to a whole second, so what is left of it beyond whole seconds is not to be waited.
fn seconds_left(at: u64, now: Duration) -> u64 {
    Duration::from_secs(at).saturating_sub(now).as_secs()
}

/// A value as a word; nothing for what is missing.
pub(crate) fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Seconds as people read them, in the two largest units: `1h 30m`.
pub(crate) fn lasting(secs: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut rest = secs;
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        if rest >= unit {
            parts.push(format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    parts.truncate(2);
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::args::Color;

    #[test]
    fn decisions_read_as_sentences() {
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
            "admitted: 1 of 2 left, to be held for 20 ms, degraded: decided without the shared counters\n"
        );
        let blocked =
            json!({"allowed": false, "decision": "blocked", "reason": "abuse\x1b[2J", "blocked_until": 1});
        assert_eq!(decision(&blocked, &output), "blocked: for 0s, abuse\\u{1b}[2J\n");
    }

    #[test]
    fn an_answer_without_a_plain_yes_does_not_admit() {
        assert_eq!(admits(&json!({"allowed": true})), Some(true));
        assert_eq!(admits(&json!({"allowed": false})), Some(false));
        assert_eq!(admits(&json!({"decision": "blocked"})), Some(false));
        for body in [json!({}), json!({"allowed": "true"}), json!({"allowed": null}), json!({"allowed": 1})] {
            assert_eq!(admits(&body), None);
        }
    }

    #[test]
    fn what_the_server_rounded_up_is_not_told_as_a_second_more() {
        // A window of a minute that begins at 100.3 ends at 160.3, which is told as 161.
        assert_eq!(seconds_left(161, Duration::from_millis(100_300)), 60);
        assert_eq!(seconds_left(160, Duration::from_secs(100)), 60);
        // A counter that is full is so from now on: 100.3 is told as 101.
        assert_eq!(seconds_left(101, Duration::from_millis(100_300)), 0);
        assert_eq!(seconds_left(99, Duration::from_millis(100_300)), 0);
        assert_eq!(full_again(&json!(1)), None);
    }

    #[test]
    fn long_times_are_told_in_two_units() {
        let told: Vec<String> = [0, 59, 60, 90, 3_600, 5_400, 90_061].map(lasting).into();
        assert_eq!(told, ["0s", "59s", "1m", "1m 30s", "1h", "1h 30m", "1d 1h"]);
    }
}
