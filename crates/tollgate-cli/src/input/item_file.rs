//! A file with one rule or tier, for `put`; and the parser for files in TOML or JSON.

use std::path::Path;

use serde_json::{Map, Value};
use tollgate::config::{Document, Origin, Problem, Problems, read_rule, read_tier};

use super::rule_file::read_text;
use crate::error::CliError;
use crate::item_kind::ItemKind;
use crate::output::changes::SERVER_FIELDS;

/// The item of a file.
pub(crate) struct ItemFile {
    pub(crate) name: String,
    /// The request body.
    pub(crate) body: Map<String, Value>,
    /// The version at which the item was exported, if the file has it.
    pub(crate) version: Option<u64>,
}

/// Reads a file with one item. In TOML it is the only entry of its list; in JSON it may also be a server's response.
pub(crate) fn read(path: &Path, kind: ItemKind) -> Result<ItemFile, CliError> {
    let text = read_text(path)?;
    let path = path.display().to_string();
    let table = parse(&text).map_err(|problems| CliError::Invalid { path: path.clone(), problems })?;
    let invalid = |reason: String| CliError::Arguments(format!("{path}: {reason}"));
    let list = kind.plural();
    let item = match table.get(list) {
        None if is_json(&text) => table,
        Some(Value::Array(items)) if items.len() == 1 && table.len() == 1 => {
            items[0].as_object().cloned().ok_or_else(|| invalid(format!("[[{list}]] must be a table")))?
        }
        _ => {
            return Err(invalid(format!(
                "must contain exactly one [[{list}]]; for several items use `tollgate rules apply`"
            )));
        }
    };
    let (body, version) = without_server_fields(item);
    match body.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => Ok(ItemFile { name: name.to_owned(), body, version }),
        _ => Err(invalid(format!("the {} has no name", kind.noun()))),
    }
}

/// The fields of an item that a user configures, and its version.
pub(crate) fn without_server_fields(mut item: Map<String, Value>) -> (Map<String, Value>, Option<u64>) {
    let version = item.get("version").and_then(Value::as_u64);
    // A rule in a response holds its normalized form and, as `definition`, what was written.
    if let Some(Value::Object(written)) = item.remove("definition") {
        item = written;
    }
    item.retain(|key, value| !SERVER_FIELDS.contains(&key.as_str()) && !value.is_null());
    (item, version)
}

/// Parses a file in TOML or JSON.
pub(crate) fn parse(text: &str) -> Result<Map<String, Value>, Problems> {
    let problem = |line: usize, reason: String| {
        Problems(vec![Problem { origin: Origin::Line(line), key: String::new(), reason }])
    };
    if is_json(text) {
        return serde_json::from_str(text).map_err(|error| problem(error.line(), error.to_string()));
    }
    check(&Document::from_toml(text)?)?;
    let table: toml::Table = toml::from_str(text).map_err(|error| problem(1, error.message().to_owned()))?;
    Ok(table.into_iter().map(|(key, value)| (key, to_json(value))).collect())
}

/// Checks rules and tiers here, because the server's errors have no line numbers. Other lists are left to the server.
fn check(document: &Document) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    fields.list_of_tables("rules", read_rule);
    fields.list_of_tables("tiers", |tier| {
        tier.skip("description");
        read_tier(tier)
    });
    problems.into_result(Some(()))
}

/// No TOML document starts with a brace.
pub(crate) fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// A TOML value as JSON; a date becomes a string.
fn to_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(value) => Value::Bool(value),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => items.into_iter().map(to_json).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(key, value)| (key, to_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_become_strings() {
        let read = to_json(toml::Value::Table(toml::from_str("until = 2027-01-31T12:00:00Z").unwrap()));
        assert_eq!(read, serde_json::json!({"until": "2027-01-31T12:00:00Z"}));
    }
}
