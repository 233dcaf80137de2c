//! Items as TOML for people: one key per line, nested values inline, keys in a readable order.
//!
//! The `toml` crate is not used, because it chooses literal and multi-line strings, in which characters that control a
//! terminal cannot be escaped.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::is_unprintable;

/// The order of keys; others follow alphabetically.
const KEY_ORDER: [&str; 16] = [
    "name",
    "user_id",
    "client",
    "description",
    "priority",
    "enabled",
    "when",
    "per",
    "across_tenants",
    "layer",
    "algorithm",
    "limit",
    "limits",
    "requests",
    "window",
    "action",
];

/// Values and sections of a settings file, each in this order: `[server]` for a table, `[[rules]]` for a list of tables.
pub(crate) fn document(sections: &Value, order: &[&str]) -> String {
    let is_value =
        |name: &&&str| !matches!(sections[**name], Value::Null | Value::Object(_) | Value::Array(_));
    let values: String =
        order.iter().filter(is_value).map(|name| line(name, &sections[*name]) + "\n").collect();
    let mut blocks: Vec<String> = Some(values).filter(|values| !values.is_empty()).into_iter().collect();
    for name in order {
        match &sections[*name] {
            Value::Object(section) => blocks.push(block(&format!("[{name}]"), section)),
            Value::Array(items) => {
                blocks.extend(items.iter().filter_map(Value::as_object).map(|item| entry(name, item)));
            }
            _ => {}
        }
    }
    blocks.join("\n")
}

/// An entry of a list of tables, such as `[[rules]]`. Null values are left out.
pub(crate) fn entry(list: &str, item: &Map<String, Value>) -> String {
    block(&format!("[[{list}]]"), item)
}

fn block(header: &str, item: &Map<String, Value>) -> String {
    let mut text = format!("{header}\n");
    for name in ordered_keys(item) {
        if !item[name].is_null() {
            text.push_str(&line(name, &item[name]));
            text.push('\n');
        }
    }
    text
}

/// The keys of an item in the order of `KEY_ORDER`.
pub(super) fn ordered_keys(item: &Map<String, Value>) -> Vec<&str> {
    let position = |name: &str| KEY_ORDER.iter().position(|known| *known == name).unwrap_or(KEY_ORDER.len());
    let mut keys: Vec<&str> = item.keys().map(String::as_str).collect();
    keys.sort_by_key(|name| (position(name), *name));
    keys
}

/// `key = value`.
pub(super) fn line(name: &str, value: &Value) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let key = if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { string(name) };
    format!("{key} = {}", inline(value))
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(table) => {
            let present = ordered_keys(table).into_iter().filter(|name| !table[*name].is_null());
            let pairs: Vec<String> = present.map(|name| line(name, &table[name])).collect();
            if pairs.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", pairs.join(", ")) }
        }
        // Null is not TOML; it only occurs in output for people.
        other => other.to_string(),
    }
}

/// A basic string. JSON strings are valid TOML once unprintable characters are escaped.
fn string(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 2);
    for c in Value::from(text).to_string().chars() {
        if is_unprintable(c) {
            let _ = write!(written, "\\u{:04X}", u32::from(c));
        } else {
            written.push(c);
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_items_read_back_unchanged() {
        let item = json!({"name": "a \"b\" \\ \u{1b}[2J \u{202e} \u{7f} ü\n", "when": {"tiers": ["free"], "descriptors": {"a.b c": "x", "": "y"}},
                          "limits": [{"requests": 10, "window": "1m", "burst": null}], "per": [], "enabled": false,
                          "response": {}, "ratio": 0.5, "zero": null});
        let Value::Object(item) = item else { unreachable!() };
        let text = entry("rules", &item);
        assert!(
            text.starts_with(
                "[[rules]]\nname = \"a \\\"b\\\" \\\\ \\u001b[2J \\u202E \\u007F ü\\n\"\nenabled = false\nwhen = { "
            ),
            "{text}"
        );
        let read: Value = toml::from_str(&text).unwrap();
        let mut expected = Value::Object(item);
        expected.as_object_mut().unwrap().remove("zero");
        expected["limits"][0].as_object_mut().unwrap().remove("burst");
        assert_eq!(read["rules"][0], expected);
    }
}
