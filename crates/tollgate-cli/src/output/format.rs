//! Values of a server's responses as text for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde_json::Value;

use super::escape;

const NOW: &str = "now";

/// `1 rule`, `2 rules`.
pub(crate) fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// A scalar as text; empty for null.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The elements of a list as text, or a scalar on its own.
pub(crate) fn joined(value: &Value, separator: &str) -> String {
    match value {
        Value::Array(items) => items.iter().map(text_of).collect::<Vec<_>>().join(separator),
        other => text_of(other),
    }
}

/// Seconds in the two largest units: `1h 30m`.
pub(crate) fn format_duration(secs: u64) -> String {
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

/// A point in time in RFC 3339, to the second. Text that is not a time is returned unchanged.
pub(crate) fn format_time(at: &Value) -> String {
    match at {
        Value::String(text) => {
            let seconds = text.parse::<Timestamp>().map(Timestamp::as_second);
            let time = seconds.and_then(Timestamp::from_second);
            time.map_or_else(|_| text.clone(), |time| time.to_string())
        }
        Value::Number(secs) => {
            let time = secs.as_i64().and_then(|secs| Timestamp::from_second(secs).ok());
            time.map_or_else(|| secs.to_string(), |time| time.to_string())
        }
        _ => String::new(),
    }
}

/// A reset time relative to now: `in 30s` or `now`. A date in text is shown as sent.
pub(crate) fn format_reset(at: &Value) -> Option<String> {
    match at {
        Value::String(text) => Some(escape(text)),
        other => match seconds_until(other)? {
            0 => Some(NOW.to_owned()),
            left => Some(format!("in {}", format_duration(left))),
        },
    }
}

/// When a counter is full again; `None` if it already is.
pub(crate) fn format_full_at(at: &Value) -> Option<String> {
    format_reset(at).filter(|reset| reset != NOW).map(|reset| format!("full again {reset}"))
}

/// The seconds from now until a Unix time.
pub(crate) fn seconds_until(at: &Value) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(seconds_between(now, at.as_u64()?))
}

/// The server rounds times up to a whole second, so a remaining fraction is dropped here.
fn seconds_between(now: Duration, at: u64) -> u64 {
    Duration::from_secs(at).saturating_sub(now).as_secs()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_shown_to_the_second() {
        let shown = |at: Value| format_time(&at);
        assert_eq!(shown("2027-01-31T12:00:00.123456Z".into()), "2027-01-31T12:00:00Z");
        assert_eq!(shown(1.into()), "1970-01-01T00:00:01Z");
        assert_eq!((shown("soon".into()), shown(Value::Null)), ("soon".to_owned(), String::new()));
    }

    #[test]
    fn rounded_up_reset_times_show_no_extra_second() {
        // A one-minute window that starts at 100.3 ends at 160.3, which the server reports as 161.
        assert_eq!(seconds_between(Duration::from_millis(100_300), 161), 60);
        assert_eq!(seconds_between(Duration::from_secs(100), 160), 60);
        // A full counter is reported as full from now on: 100.3 becomes 101.
        assert_eq!(seconds_between(Duration::from_millis(100_300), 101), 0);
        assert_eq!(seconds_between(Duration::from_millis(100_300), 99), 0);
        assert_eq!(format_full_at(&json!(1)), None);
    }

    #[test]
    fn durations_are_shown_in_two_units() {
        let shown: Vec<String> = [0, 59, 60, 90, 3_600, 5_400, 90_061].map(format_duration).into();
        assert_eq!(shown, ["0s", "59s", "1m", "1m 30s", "1h", "1h 30m", "1d 1h"]);
    }
}
