//! The limits of a rule: `limits`, or `requests_per_second` and its like.

use std::sync::Arc;

use jiff::civil::Weekday;

use super::document::{Fields, Value};
use super::values::{integer, span, text, word};
use crate::calendar::{Calendar, CalendarUnit};
use crate::limit::{Algorithm, Limit, LimitError, Window};
use crate::rules::Action;
use crate::time::Span;

/// How long `throttle` holds a request unless the rule says otherwise.
const MAX_DELAY_DEFAULT: Span = Span::from_secs(1);

/// The limits of a rule, from `limits` or from `requests_per_*`.
pub(super) fn read_limits(fields: &mut Fields<'_, '_>, action: Action) -> Vec<Limit> {
    let algorithm = fields.read("algorithm", algorithm).unwrap_or(Algorithm::TokenBucket);
    let max_delay = fields.read("max_delay", span);
    let max_delay = match (action, max_delay) {
        (Action::Throttle, _) if !algorithm.has_burst() => {
            let reason = format!("needs token_bucket, gcra or leaky_bucket, not {algorithm}");
            fields.complain("action", format!("\"throttle\" {reason}"));
            None
        }
        (Action::Throttle, None) => Some(MAX_DELAY_DEFAULT),
        (Action::Throttle, given) => given,
        (_, given) if algorithm == Algorithm::LeakyBucket => given,
        (_, Some(_)) => {
            fields.complain(
                "max_delay",
                "needs action = \"throttle\" or algorithm = \"leaky_bucket\"".to_owned(),
            );
            None
        }
        (_, None) => None,
    };
    let mut limits = fields.list_of_tables("limits", |fields| read_limit(fields, algorithm, max_delay));
    limits.extend(read_per_unit(fields, algorithm, max_delay));
    check_limits(fields, &limits, action);
    limits
}

fn check_limits(fields: &mut Fields<'_, '_>, limits: &[Limit], action: Action) {
    if fields.has_problems() {
        return;
    }
    if !action.limits() && !limits.is_empty() {
        fields.complain("limits", format!("has no meaning for action = {:?}", action.as_str()));
    } else if action.limits() && limits.is_empty() {
        fields.complain("limits", "is missing: [{ requests = 100, window = \"1m\" }]".to_owned());
    } else if limits.len() > 8 {
        fields.complain("limits", "a rule has at most 8 limits".to_owned());
    }
    let windows: Vec<String> = limits.iter().map(|limit| limit.window().to_string()).collect();
    if let Some(twice) = (1..windows.len()).find(|n| windows[..*n].contains(&windows[*n])) {
        let window = &windows[twice];
        fields.complain("limits", format!("two limits have the window {window}: only the lower would count"));
    }
}

fn algorithm(value: &Value) -> Result<Algorithm, String> {
    let name = text(value)?;
    Algorithm::parse(&name).ok_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::as_str);
        format!("{name:?} is not one of {}", names.join(", "))
    })
}

fn read_limit(fields: &mut Fields<'_, '_>, algorithm: Algorithm, max_delay: Option<Span>) -> Option<Limit> {
    let requests = fields.require("requests", integer(0..=u32::MAX));
    let window = read_window(fields);
    let burst = fields.read("burst", integer(0..=u32::MAX));
    let limit = Limit::shaped(algorithm, requests?, window?, burst, max_delay);
    limit
        .map_err(|error| fields.complain(blame(error, ["requests", "window", "burst"]), error.to_string()))
        .ok()
}

/// Which of the keys that stand for requests, window and burst an error is about.
pub(super) fn blame(error: LimitError, [requests, window, burst]: [&'static str; 3]) -> &'static str {
    match error {
        LimitError::TooLarge | LimitError::LogTooLong => requests,
        LimitError::BurstZero | LimitError::BurstWithoutBucket => burst,
        _ => window,
    }
}

fn read_window(fields: &mut Fields<'_, '_>) -> Option<Window> {
    let unit = |value: &Value| match value {
        Value::Text(name) if ["day", "week", "month"].contains(&&**name) => Ok(None),
        other => span(other).map(Some),
    };
    let length = fields.require("window", unit);
    let zone = fields.read("time_zone", text);
    let Some(None) = length else {
        for key in ["time_zone", "anchor"] {
            if fields.has(key) {
                fields.complain(key, "needs a calendar window: \"day\", \"week\" or \"month\"".to_owned());
            }
        }
        let _ = fields.read("anchor", |_| Ok(()));
        return length.flatten().map(Window::Length);
    };
    let unit = match fields.read("window", text).as_deref() {
        Some("week") => CalendarUnit::Week(fields.read("anchor", weekday).unwrap_or(Weekday::Monday)),
        Some("month") => CalendarUnit::Month(fields.read("anchor", integer(1..=31)).unwrap_or(1)),
        _ => {
            if fields.has("anchor") {
                fields.complain("anchor", "has no meaning for \"day\": use \"week\" or \"month\"".to_owned());
                let _ = fields.read("anchor", |_| Ok(()));
            }
            CalendarUnit::Day
        }
    };
    let calendar = Calendar::new(unit, zone.as_deref().unwrap_or("UTC"));
    let calendar = calendar.map_err(|error| fields.complain("time_zone", error.to_string())).ok()?;
    Some(Window::Calendar(Arc::new(calendar)))
}

fn weekday(value: &Value) -> Result<Weekday, String> {
    word(&[
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ])(value)
}

/// `requests_per_second` and so on, with one `burst_size` for all of them.
fn read_per_unit(fields: &mut Fields<'_, '_>, algorithm: Algorithm, max_delay: Option<Span>) -> Vec<Limit> {
    let units = [
        ("requests_per_second", 1),
        ("requests_per_minute", 60),
        ("requests_per_hour", 3_600),
        ("requests_per_day", 86_400),
    ];
    let burst = fields.read("burst_size", integer(1..=u32::MAX));
    let mut limits = Vec::new();
    for (key, secs) in units {
        if let Some(requests) = fields.read(key, integer(0..=u32::MAX)) {
            let window = Window::Length(Span::from_secs(secs));
            match Limit::shaped(algorithm, requests, window, burst, max_delay) {
                Ok(limit) => limits.push(limit),
                Err(error) => fields.complain(blame(error, [key, key, "burst_size"]), error.to_string()),
            }
        }
    }
    if burst.is_some() && limits.is_empty() && !fields.has_problems() {
        fields.complain("burst_size", "needs requests_per_second, _minute, _hour or _day".to_owned());
    }
    limits
}
