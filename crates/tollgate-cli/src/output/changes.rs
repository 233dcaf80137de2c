//! Planned or applied changes as a diff: `+` created, `~` updated key by key, `-` deleted.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::format::{format_duration, plural, text_of};
use super::toml;
use super::{Output, Style, escape};

/// Fields that the server adds to an item; they cannot be configured.
pub(crate) const SERVER_FIELDS: [&str; 19] = [
    "source",
    "version",
    "created_by",
    "created_at",
    "updated_at",
    "updated_by",
    "blocked",
    "block_reason",
    "blocked_until",
    "requests_today",
    "requests_month",
    "last_request_at",
    "exceeded_count",
    "quota_reset_at",
    "last_used_at",
    "requests_total",
    "definition",
    "problem",
    "active",
];

/// The number of changes by kind.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) created: usize,
    pub(crate) updated: usize,
    pub(crate) deleted: usize,
}

impl Counts {
    pub(crate) fn of(body: &Value) -> Self {
        let mut counts = Counts::default();
        for change in changes(body) {
            match change_mark(change) {
                '+' => counts.created += 1,
                '~' => counts.updated += 1,
                _ => counts.deleted += 1,
            }
        }
        counts
    }

    pub(crate) fn total(self) -> usize {
        self.created + self.updated + self.deleted
    }
}

/// The changes in a response.
fn changes(body: &Value) -> &[Value] {
    body["changes"].as_array().map_or(&[], Vec::as_slice)
}

/// All changes, and their effect on recent traffic if the server reports it.
pub(crate) fn render(body: &Value, output: &Output) -> String {
    let mut text = String::new();
    for each in changes(body) {
        change(each, output, &mut text);
    }
    if !text.is_empty()
        && let Some(effect) = effect(&body["effect"], output)
    {
        text.push_str(&effect);
    }
    text
}

/// The changes of a dry run, or what was done.
pub(crate) fn dry_run_or(
    is_dry_run: bool,
    body: &Value,
    output: &Output,
    done: impl FnOnce() -> String,
) -> String {
    if !is_dry_run {
        return done();
    }
    output.note("dry run: nothing was changed");
    let changes = render(body, output);
    if changes.is_empty() { "no changes\n".to_owned() } else { changes }
}

/// `+` created, `~` updated, `-` deleted.
fn change_mark(change: &Value) -> char {
    match (change["before"].is_null(), change["after"].is_null()) {
        (true, _) => '+',
        (false, false) => '~',
        (false, true) => '-',
    }
}

fn change(change: &Value, output: &Output, text: &mut String) {
    let none = Map::new();
    let side = |key: &str| change[key].as_object().unwrap_or(&none);
    let (before, after) = (side("before"), side("after"));
    let id = id(change);
    let mark = change_mark(change);
    let style = match mark {
        '+' => Style::Good,
        '~' => Style::Warning,
        _ => Style::Bad,
    };
    let title = format!("{mark} {} {}", kind(&change["kind"]), id.join(" "));
    let _ = writeln!(text, "{}", output.paint(style, &title));
    let mut all = before.clone();
    all.extend(after.clone());
    for key in toml::ordered_keys(&all) {
        let (old, new) = (before.get(key), after.get(key));
        if SERVER_FIELDS.contains(&key) || old == new || is_in_title(key, change, &id) {
            continue;
        }
        for (value, style, mark) in [(old, Style::Bad, '-'), (new, Style::Good, '+')] {
            if let Some(value) = value.filter(|value| !value.is_null()) {
                let line = format!("{mark} {}", toml::line(key, value));
                let _ = writeln!(text, "    {}", output.paint(style, &line));
            }
        }
    }
}

/// Whether the title already shows the field.
fn is_in_title(key: &str, change: &Value, id: &[String]) -> bool {
    let in_title = |side: &&Value| side[key].is_null() || id.contains(&printable(&side[key]));
    ["name", "user_id", "client", "id", "endpoint", "tenant"].contains(&key)
        && [&change["before"], &change["after"]].iter().all(in_title)
}

/// The kind as files name it.
fn kind(value: &Value) -> String {
    match value.as_str() {
        Some("user_endpoint_limit") => "limit".to_owned(),
        _ => printable(value),
    }
}

/// The parts of an id. The server sends the parts of a compound id as JSON text.
fn id(change: &Value) -> Vec<String> {
    let written = change["id"].as_str().filter(|_| change["kind"] == "user_endpoint_limit");
    let parts: Option<Vec<Value>> = written.and_then(|text| serde_json::from_str(text).ok());
    parts.map_or_else(|| vec![printable(&change["id"])], |parts| parts.iter().map(printable).collect())
}

/// How many affected clients are listed.
const EXAMPLES_MAX: usize = 5;

/// The effect that the changes would have had on recent traffic.
fn effect(effect: &Value, output: &Output) -> Option<String> {
    let number = |key: &str| effect[key].as_u64();
    let count = |key: &str| usize::try_from(number(key).unwrap_or(0)).unwrap_or(usize::MAX);
    let requests = Some(count("requests")).filter(|requests| *requests > 0)?;
    let window = number("window_seconds").map(format_duration).unwrap_or_default();
    let sample = effect["sample"].as_f64().filter(|part| *part < 1.0);
    let sample = sample.map(|part| format!(" ({:.1} % of all clients)", part * 100.0)).unwrap_or_default();
    let refused = count("newly_refused");
    let style = if refused > 0 { Style::Warning } else { Style::Plain };
    let refused = output.paint(style, &format!("{refused} more refused"));
    let mut text = format!(
        "traffic of the last {window}: {} from {}{sample}, {refused}, {} more admitted\n",
        plural(requests, "request"),
        plural(count("clients"), "client"),
        count("newly_admitted"),
    );
    let examples = effect["examples"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    for example in examples.iter().take(EXAMPLES_MAX) {
        let field = |key: &str| escape(&text_of(&example[key]));
        let rule = Some(field("rule")).filter(|rule| !rule.is_empty());
        let by = rule.map(|rule| format!(" by {rule}")).unwrap_or_default();
        let (client, endpoint, before, after) =
            (field("client"), field("endpoint"), field("before"), field("after"));
        let _ = writeln!(
            text,
            "    {client} on {endpoint}: {before} -> {after}{by}, {} times",
            field("requests")
        );
    }
    Some(text)
}

/// A kind or an id, which may be a list of parts.
fn printable(value: &Value) -> String {
    match value {
        Value::String(text) => escape(text),
        Value::Array(parts) => parts.iter().map(printable).collect::<Vec<_>>().join(" "),
        other => escape(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::Color;

    #[test]
    fn changes_read_like_a_diff() {
        let body = json!({"changes": [
            {"kind": "rule", "id": "a", "action": "create", "before": null,
             "after": {"name": "a", "priority": 5, "when": {"tiers": ["free"]}}},
            {"kind": "rule", "id": "b", "action": "update",
             "before": {"name": "b", "priority": 5, "layer": "x", "version": 3, "enabled": true},
             "after": {"name": "b", "priority": 6, "version": 4, "enabled": true, "per": ["user"]}},
            {"kind": "tier", "id": "c\u{1b}", "action": "delete", "before": {"name": "c\u{1b}", "limit": 1}, "after": null},
            {"kind": "user_endpoint_limit", "id": "[\"a\",\"/x\"]", "action": "create", "before": null,
             "after": {"user_id": "a", "endpoint": "/x", "limit": 5}},
        ], "effect": {"requests": 120, "clients": 1, "window_seconds": 300, "newly_refused": 3, "newly_admitted": 0,
            "sample": 0.25, "examples": [{"client": "user:a", "endpoint": "/x", "before": "admitted", "after": "refused",
                                          "rule": "a", "requests": 3}]}});
        let expected = "\
+ rule a
    + priority = 5
    + when = { tiers = [\"free\"] }
~ rule b
    - priority = 5
    + priority = 6
    + per = [\"user\"]
    - layer = \"x\"
- tier c\\u{1b}
    - limit = 1
+ limit a /x
    + limit = 5
traffic of the last 5m: 120 requests from 1 client (25.0 % of all clients), 3 more refused, 0 more admitted
    user:a on /x: admitted -> refused by a, 3 times
";
        assert_eq!(render(&body, &Output::new(false, Color::Never)), expected);
        assert_eq!(Counts::of(&body), Counts { created: 2, updated: 1, deleted: 1 });
        assert_eq!(render(&json!({}), &Output::new(false, Color::Never)), "");
    }
}
