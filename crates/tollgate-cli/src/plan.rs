//! What would change, or has changed, printed like a diff: `+` created, `~` updated key by key, `-` deleted.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::failure::counted;
use crate::output::{Output, Style, escape};
use crate::render;
use crate::toml_text;

/// What a server says beside the item itself: nobody configured it.
pub(crate) const TOLD: [&str; 18] = [
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
    "last_used_at",
    "requests_total",
    "definition",
    "problem",
    "active",
];

/// How many changes there are of each sort.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) created: usize,
    pub(crate) updated: usize,
    pub(crate) deleted: usize,
}

impl Counts {
    /// Counts the changes of an answer.
    pub(crate) fn of(body: &Value) -> Self {
        let mut counts = Counts::default();
        for change in changes(body) {
            match sort(change) {
                Sort::Create => counts.created += 1,
                Sort::Update => counts.updated += 1,
                Sort::Delete => counts.deleted += 1,
            }
        }
        counts
    }

    pub(crate) fn total(self) -> usize {
        self.created + self.updated + self.deleted
    }
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Sort {
    Create,
    Update,
    Delete,
}

/// The changes of an answer; none if it has none.
pub(crate) fn changes(body: &Value) -> &[Value] {
    body["changes"].as_array().map_or(&[], Vec::as_slice)
}

/// Every change, and what it would mean for recent traffic if the server knows.
pub(crate) fn rendered(body: &Value, output: &Output) -> String {
    let mut text = String::new();
    for each in changes(body) {
        change(each, output, &mut text);
    }
    // Where nothing changes, or nobody asked lately, there is nothing to tell.
    if !text.is_empty()
        && let Some(effect) = effect(&body["effect"], output)
    {
        text.push_str(&effect);
    }
    text
}

fn sort(change: &Value) -> Sort {
    match (change["before"].is_null(), change["after"].is_null()) {
        (true, _) => Sort::Create,
        (false, true) => Sort::Delete,
        (false, false) => Sort::Update,
    }
}

fn change(change: &Value, output: &Output, text: &mut String) {
    let none = Map::new();
    let side = |key: &str| change[key].as_object().unwrap_or(&none);
    let (before, after) = (side("before"), side("after"));
    let id = id(change);
    let title = format!("{} {}", kind(&change["kind"]), id.join(" "));
    let (style, mark) = match sort(change) {
        Sort::Create => (Style::Good, '+'),
        Sort::Update => (Style::Warning, '~'),
        Sort::Delete => (Style::Bad, '-'),
    };
    let _ = writeln!(text, "{}", output.paint(style, &format!("{mark} {title}")));
    let mut all = before.clone();
    all.extend(after.clone());
    for key in toml_text::keys(&all) {
        let (old, new) = (before.get(key), after.get(key));
        if TOLD.contains(&key) || old == new || is_name(key, change, &id) {
            continue;
        }
        line(key, old, Style::Bad, '-', output, text);
        line(key, new, Style::Good, '+', output, text);
    }
}

/// The name stands in the title already.
fn is_name(key: &str, change: &Value, id: &[String]) -> bool {
    let in_title = |side: &&Value| side[key].is_null() || id.contains(&word(&side[key]));
    ["name", "user_id", "client", "id", "endpoint"].contains(&key)
        && [&change["before"], &change["after"]].iter().all(in_title)
}

/// A kind by the word that files have for it, where the server has another.
fn kind(value: &Value) -> String {
    match value.as_str() {
        Some("user_endpoint_limit") => "limit".to_owned(),
        _ => word(value),
    }
}

/// The parts of an id. Of an id with several the server tells the list as a text.
fn id(change: &Value) -> Vec<String> {
    let written = change["id"].as_str().filter(|_| change["kind"] == "user_endpoint_limit");
    let parts: Option<Vec<Value>> = written.and_then(|text| serde_json::from_str(text).ok());
    parts.map_or_else(|| vec![word(&change["id"])], |parts| parts.iter().map(word).collect())
}

fn line(key: &str, value: Option<&Value>, style: Style, mark: char, output: &Output, text: &mut String) {
    if let Some(value) = value.filter(|value| !value.is_null()) {
        let shown = format!("{mark} {}", toml_text::line(key, value));
        let _ = writeln!(text, "    {}", output.paint(style, &shown));
    }
}

/// As many clients as are named for which something changes.
const EXAMPLES: usize = 5;

/// What the change would have done to the traffic of the last minutes.
fn effect(effect: &Value, output: &Output) -> Option<String> {
    let number = |key: &str| effect[key].as_u64();
    let count = |key: &str| usize::try_from(number(key).unwrap_or(0)).unwrap_or(usize::MAX);
    let requests = Some(count("requests")).filter(|requests| *requests > 0)?;
    let window = number("window_seconds").map(render::lasting).unwrap_or_default();
    let sample = effect["sample"].as_f64().filter(|part| *part < 1.0);
    let sample = sample.map(|part| format!(" ({:.1} % of all clients)", part * 100.0)).unwrap_or_default();
    let refused = count("newly_refused");
    let style = if refused > 0 { Style::Warning } else { Style::Plain };
    let refused = output.paint(style, &format!("{refused} more refused"));
    let mut text = format!(
        "of the last {window}: {} of {}{sample}, {refused}, {} more admitted\n",
        counted(requests, "request"),
        counted(count("clients"), "client"),
        count("newly_admitted"),
    );
    let examples = effect["examples"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    for example in examples.iter().take(EXAMPLES) {
        let told = |key: &str| escape(&render::word(&example[key]));
        let rule = Some(told("rule")).filter(|rule| !rule.is_empty());
        let by = rule.map(|rule| format!(" by {rule}")).unwrap_or_default();
        let (client, endpoint, before, after) =
            (told("client"), told("endpoint"), told("before"), told("after"));
        let _ =
            writeln!(text, "    {client} on {endpoint}: {before} -> {after}{by}, {} times", told("requests"));
    }
    Some(text)
}

/// A kind or an id; an id may be a list of parts.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => escape(text),
        Value::Array(parts) => parts.iter().map(word).collect::<Vec<_>>().join(" "),
        other => escape(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::args::Color;

    #[test]
    fn a_plan_reads_like_a_diff() {
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
of the last 5m: 120 requests of 1 client (25.0 % of all clients), 3 more refused, 0 more admitted
    user:a on /x: admitted -> refused by a, 3 times
";
        assert_eq!(rendered(&body, &Output::new(false, Color::Never)), expected);
        assert_eq!(Counts::of(&body), Counts { created: 2, updated: 1, deleted: 1 });
        assert_eq!(rendered(&json!({}), &Output::new(false, Color::Never)), "");
    }
}
