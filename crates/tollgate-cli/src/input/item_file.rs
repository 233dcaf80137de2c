//! A file with one rule or tier, for `put`; and the parser for files in TOML or JSON.

use std::path::Path;

use serde_json::{Map, Value};
use tollgate::config::{Document, Origin, Problem, Problems};
use tollgate_server::config::settings::{Settings, SettingsError};
use tollgate_server::{check_import, document_values};

use super::rule_file::read_text;
use crate::CliError;
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
    // JSON may be a response of the server, which is not an import.
    let table = if is_json(&text) { parse(&text) } else { check(&text) };
    let table = table.map_err(|problems| CliError::Invalid { path: path.clone(), problems })?;
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
    match body.get("name").or_else(|| body.get("rule_name")).and_then(Value::as_str) {
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
    if is_json(text) {
        return serde_json::from_str(text)
            .map_err(|error| problem(Origin::Line(error.line()), error.to_string()));
    }
    Ok(document_values(&Document::from_toml(text)?))
}

/// Checks a file as an import would, because the server's errors have no line numbers. Reports all errors.
pub(crate) fn check(text: &str) -> Result<Map<String, Value>, Problems> {
    check_import(&document(text)?)?;
    parse(text)
}

/// Checks the items of a file that may be a settings file too, and returns its keys that are settings, not items.
pub(crate) fn check_items(text: &str, document: &Document) -> Result<Vec<String>, Problems> {
    let Err(mut problems) = check_import(document) else { return Ok(Vec::new()) };
    let unknown_to_settings = match Settings::from_toml(text) {
        _ if is_json(text) => return Err(problems),
        Err(SettingsError::Invalid { problems, .. }) => problems.0,
        _ => Vec::new(),
    };
    let is_settings_key = |problem: &Problem| {
        is_unknown_key(problem)
            && !unknown_to_settings.iter().any(|other| is_unknown_key(other) && other.key == problem.key)
    };
    let settings: Vec<String> =
        problems.0.iter().filter(|one| is_settings_key(one)).map(|one| one.key.clone()).collect();
    problems.0.retain(|problem| !is_settings_key(problem));
    problems.into_result(Some(settings))
}

/// Whether the problem is a top-level key that does not exist.
fn is_unknown_key(problem: &Problem) -> bool {
    problem.reason.starts_with("unknown key") && !problem.key.contains(['.', '['])
}

/// What to do about settings in a file for `rules apply`.
pub(crate) fn not_applied(keys: &[String]) -> String {
    format!(
        "not applied: {}; settings are read only from the settings file that the server was started with: edit that file, then \
         run `tollgate reload`",
        keys.join(", ")
    )
}

/// The document that `rules apply` would send.
pub(crate) fn document(text: &str) -> Result<Document, Problems> {
    if !is_json(text) {
        return Document::from_toml(text);
    }
    let stripped = |item: Value| match item {
        Value::Object(item) => Value::Object(without_server_fields(item).0),
        other => other,
    };
    let list = |(name, value): (String, Value)| match value {
        Value::Array(items) => (name, items.into_iter().map(stripped).collect()),
        other => (name, other),
    };
    let lists: Map<String, Value> =
        parse(text)?.into_iter().filter(|(_, value)| !value.is_null()).map(list).collect();
    let origin = Origin::Named("JSON".to_owned());
    let value = serde_json::from_value(Value::Object(lists))
        .map_err(|error| problem(origin.clone(), error.to_string()))?;
    Ok(Document::from_value(value, origin).unwrap_or_else(Document::empty))
}

fn problem(origin: Origin, reason: String) -> Problems {
    Problems(vec![Problem { origin, key: String::new(), reason }])
}

/// No TOML document starts with a brace.
pub(crate) fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}
