//! Parsing of limits: `limits`, `requests_per_second` and so on.

use std::sync::Arc;

use jiff::civil::Weekday;

use super::document::{TableReader, Value};
use super::flat_names;
use super::values::{integer, span, text, word};
use crate::calendar::{Calendar, CalendarUnit};
use crate::limit::{Algorithm, Limit, LimitError, Window};
use crate::rules::Action;
use crate::time::Span;

/// The default maximum delay of `throttle`.
const MAX_DELAY_DEFAULT: Span = Span::from_secs(1);
/// Limits by their window in seconds.
const UNITS: [(&str, u64); 4] = [
    ("requests_per_second", 1),
    ("requests_per_minute", 60),
    ("requests_per_hour", 3_600),
    ("requests_per_day", 86_400),
];
/// The keys that define limits.
pub(super) const FORMS: [&str; 6] = ["limits", UNITS[0].0, UNITS[1].0, UNITS[2].0, UNITS[3].0, "limit_count"];

/// Reads the limits of a rule from `limits` or `requests_per_*`. Without a valid action, missing limits are not reported.
pub(super) fn read_limits(fields: &mut TableReader<'_, '_>, action: Option<Action>) -> Vec<Limit> {
    let algorithm = fields.read("algorithm", algorithm).unwrap_or(Algorithm::TokenBucket);
    let max_delay = fields.read("max_delay", span);
    let max_delay = match (action, max_delay) {
        (Some(Action::Throttle), _) if !algorithm.has_burst() => {
            let reason = format!("needs token_bucket, gcra or leaky_bucket, not {algorithm}");
            fields.report("action", format!("\"throttle\" {reason}"));
            None
        }
        (Some(Action::Throttle), None) => Some(MAX_DELAY_DEFAULT),
        (Some(Action::Throttle) | None, given) => given.filter(|_| algorithm.has_burst()),
        (_, given) if algorithm == Algorithm::LeakyBucket => given,
        (_, Some(_)) => {
            fields.report(
                "max_delay",
                "needs action = \"throttle\" or algorithm = \"leaky_bucket\"".to_owned(),
            );
            None
        }
        (_, None) => None,
    };
    let mut limits = fields.list_of_tables("limits", |fields| read_limit(fields, algorithm, max_delay));
    limits.extend(read_per_unit(fields, algorithm, max_delay));
    limits.extend(flat_names::read_limit(fields, algorithm, max_delay));
    check_limits(fields, &limits, action);
    limits
}

fn check_limits(fields: &mut TableReader<'_, '_>, limits: &[Limit], action: Option<Action>) {
    let written = |key: &&&str| fields.has(key) && !fields.has_empty_list(key);
    let written = FORMS.iter().find(written).copied();
    match (action, written) {
        (Some(action), Some(key)) if !action.limits() => {
            let hint = if action == Action::Block {
                ": write \"reject\" to refuse only what exceeds a limit"
            } else {
                ""
            };
            fields.report(key, format!("is not allowed with action = {:?}{hint}", action.as_str()));
        }
        (Some(action), None) if action.limits() => {
            fields.report("limits", "is missing: [{ requests = 100, window = \"1m\" }]".to_owned());
        }
        _ if limits.len() > 8 => fields.report("limits", "a rule has at most 8 limits".to_owned()),
        _ => {}
    }
    let windows: Vec<String> = limits.iter().map(|limit| limit.window().to_string()).collect();
    if let Some(twice) = (1..windows.len()).find(|n| windows[..*n].contains(&windows[*n])) {
        let window = &windows[twice];
        fields.report("limits", format!("two limits have the window {window}: keep the lower one"));
    }
}

/// An algorithm by its name or alias.
pub(super) fn algorithm(value: &Value) -> Result<Algorithm, String> {
    let name = text(value)?;
    Algorithm::parse(&name).ok_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::as_str);
        format!("{name:?} is not one of {}", names.join(", "))
    })
}

fn read_limit(
    fields: &mut TableReader<'_, '_>,
    algorithm: Algorithm,
    max_delay: Option<Span>,
) -> Option<Limit> {
    let requests = fields.require("requests", integer(0..=u32::MAX));
    let window = read_window(fields);
    let burst = fields.read("burst", integer(0..=u32::MAX));
    build(
        fields,
        ["requests", "window", "burst"],
        LimitFields { algorithm, requests, window, burst, max_delay },
    )
}

/// The fields of a limit that could be read.
pub(super) struct LimitFields {
    pub(super) algorithm: Algorithm,
    pub(super) requests: Option<u32>,
    pub(super) window: Option<Window>,
    pub(super) burst: Option<u32>,
    pub(super) max_delay: Option<Span>,
}

/// Builds a limit; reports errors at the keys of requests, window and burst.
pub(super) fn build(
    fields: &mut TableReader<'_, '_>,
    keys: [&'static str; 3],
    limit: LimitFields,
) -> Option<Limit> {
    let LimitFields { algorithm, requests, window, burst, max_delay } = limit;
    // Each field is checked beside valid ones, so that one error does not hide the next.
    let second = || Window::Length(Span::from_secs(1));
    let few = requests.unwrap_or(0).min(1);
    let alone = [
        Limit::new(algorithm, requests.unwrap_or(0), second()).err(),
        window.clone().and_then(|window| Limit::new(algorithm, 0, window).err()),
        Limit::with_options(algorithm, few, second(), burst, None).err(),
    ];
    let mut errors: Vec<LimitError> = alone.into_iter().flatten().collect();
    let mut limit = None;
    if let (true, Some(requests), Some(window)) = (errors.is_empty(), requests, window) {
        let made = Limit::with_options(algorithm, requests, window, burst, max_delay);
        limit = made.map_err(|error| errors.push(error)).ok();
    }
    for error in errors {
        fields.report(error_key(error, keys), error.to_string());
    }
    limit
}

/// The key that an error is reported at.
fn error_key(error: LimitError, [requests, window, burst]: [&'static str; 3]) -> &'static str {
    match error {
        LimitError::TooLarge | LimitError::LogTooLong => requests,
        LimitError::BurstZero | LimitError::BurstWithoutBucket => burst,
        _ => window,
    }
}

fn read_window(fields: &mut TableReader<'_, '_>) -> Option<Window> {
    let unit = |value: &Value| match value {
        Value::Text(name) if ["day", "week", "month"].contains(&&**name) => Ok(None),
        other => span(other).map(Some),
    };
    let length = fields.require("window", unit);
    let zone = fields.read("time_zone", text);
    let Some(None) = length else {
        for key in ["time_zone", "anchor"] {
            if fields.has(key) {
                fields.report(key, "needs a calendar window: \"day\", \"week\" or \"month\"".to_owned());
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
                fields.report(
                    "anchor",
                    "is not allowed with window = \"day\": use \"week\" or \"month\"".to_owned(),
                );
                let _ = fields.read("anchor", |_| Ok(()));
            }
            CalendarUnit::Day
        }
    };
    let calendar = Calendar::new(unit, zone.as_deref().unwrap_or("UTC"));
    let calendar = calendar.map_err(|error| fields.report("time_zone", error.to_string())).ok()?;
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

/// Reads `requests_per_second` and so on. `burst_size` belongs to the shortest window.
fn read_per_unit(
    fields: &mut TableReader<'_, '_>,
    algorithm: Algorithm,
    max_delay: Option<Span>,
) -> Vec<Limit> {
    let burst = fields.read("burst_size", integer(1..=u32::MAX));
    let (mut limits, mut shortest) = (Vec::new(), true);
    for (key, secs) in UNITS {
        if let Some(requests) = fields.read(key, integer(0..=u32::MAX)) {
            let window = Some(Window::Length(Span::from_secs(secs)));
            let burst = shortest.then_some(burst).flatten();
            shortest = false;
            let limit = LimitFields { algorithm, requests: Some(requests), window, burst, max_delay };
            limits.extend(build(fields, [key, key, "burst_size"], limit));
        }
    }
    if burst.is_some() && !UNITS.iter().any(|(key, _)| fields.has(key)) {
        fields.report("burst_size", "needs requests_per_second, _minute, _hour or _day".to_owned());
    }
    limits
}
