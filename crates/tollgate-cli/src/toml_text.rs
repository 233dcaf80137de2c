//! JSON values as TOML, in the manner people write rules: one key to a line, everything inside inline.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::output::steers;

/// The order in which people write the keys; others follow by the alphabet.
const ORDER: [&str; 15] = [
    "name",
    "user_id",
    "client",
    "description",
    "priority",
    "enabled",
    "when",
    "per",
    "layer",
    "algorithm",
    "limit",
    "limits",
    "requests",
    "window",
    "action",
];

/// One entry of a list of tables: `[[rules]]` and its keys. What is null is absent.
pub(crate) fn entry(list: &str, item: &Map<String, Value>) -> String {
    let mut text = format!("[[{list}]]\n");
    for name in keys(item) {
        if !item[name].is_null() {
            text.push_str(&line(name, &item[name]));
            text.push('\n');
        }
    }
    text
}

/// The keys of an item in the order people write them.
pub(crate) fn keys(item: &Map<String, Value>) -> Vec<&str> {
    let mut keys: Vec<&str> = item.keys().map(String::as_str).collect();
    keys.sort_by_key(|name| (ORDER.iter().position(|known| known == name).unwrap_or(ORDER.len()), *name));
    keys
}

/// `key = value`.
pub(crate) fn line(name: &str, value: &Value) -> String {
    format!("{} = {}", key(name), inline(value))
}

/// A value on one line.
pub(crate) fn inline(value: &Value) -> String {
    match value {
        // TOML has no null; where one is shown it is for people.
        Value::Null => "null".to_owned(),
        Value::String(text) => string(text),
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(table) => {
            let present = keys(table).into_iter().filter(|name| !table[*name].is_null());
            let pairs: Vec<String> = present.map(|name| line(name, &table[name])).collect();
            if pairs.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", pairs.join(", ")) }
        }
        other => other.to_string(),
    }
}

fn key(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { string(name) }
}

/// A basic string. What steers a terminal is escaped, which TOML can say: the text is the same, and safe to look at.
fn string(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 2);
    written.push('"');
    for c in text.chars() {
        match c {
            '"' => written.push_str("\\\""),
            '\\' => written.push_str("\\\\"),
            '\n' => written.push_str("\\n"),
            '\t' => written.push_str("\\t"),
            '\r' => written.push_str("\\r"),
            c if steers(c) => {
                let _ = write!(written, "\\u{:04X}", u32::from(c));
            }
            c => written.push(c),
        }
    }
    written.push('"');
    written
}

/// A TOML value as JSON; a date becomes the text it is.
pub(crate) fn to_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(value) => Value::Bool(value),
        toml::Value::Datetime(instant) => Value::String(instant.to_string()),
        toml::Value::Array(items) => items.into_iter().map(to_json).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(key, value)| (key, to_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_reads_back_as_the_same() {
        let item = json!({"name": "a \"b\" \\ \u{1b}[2J \u{202e} ü\n", "when": {"tiers": ["free"], "descriptors": {"a.b c": "x", "": "y"}},
                          "limits": [{"requests": 10, "window": "1m", "burst": null}], "per": [], "enabled": false,
                          "response": {}, "ratio": 0.5, "zero": null});
        let Value::Object(item) = item else { unreachable!() };
        let text = entry("rules", &item);
        assert!(
            text.starts_with(
                "[[rules]]\nname = \"a \\\"b\\\" \\\\ \\u001B[2J \\u202E ü\\n\"\nenabled = false\nwhen = { "
            ),
            "{text}"
        );
        let read = to_json(toml::Value::Table(toml::from_str(&text).unwrap()));
        let mut expected = Value::Object(item);
        expected.as_object_mut().unwrap().remove("zero");
        expected["limits"][0].as_object_mut().unwrap().remove("burst");
        assert_eq!(read["rules"][0], expected);
    }

    #[test]
    fn dates_become_texts() {
        let read = to_json(toml::Value::Table(toml::from_str("until = 2027-01-31T12:00:00Z").unwrap()));
        assert_eq!(read, json!({"until": "2027-01-31T12:00:00Z"}));
    }
}
