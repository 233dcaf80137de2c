//! Environment variables `TOLLGATE_SECTION__KEY=value`, which override the settings file.

use tollgate::config::document::{LocatedValue, Problem};
use tollgate::config::{Document, Origin, Problems, Value};

const PREFIX: &str = "TOLLGATE_";
/// Variables of the command line.
const CLI_VARIABLES: [&str; 6] = [
    "TOLLGATE_URL",
    "TOLLGATE_KEY",
    "TOLLGATE_CA_FILE",
    "TOLLGATE_CERT_FILE",
    "TOLLGATE_CERT_KEY_FILE",
    "TOLLGATE_CONFIG",
];
/// Variables that determine the default data directory.
const DIRECTORY_VARIABLES: [&str; 2] = ["HOME", "XDG_DATA_HOME"];

/// Keys whose values are always strings.
const STRING_KEYS: [&str; 6] =
    ["user", "password", "sentinel_user", "sentinel_password", "sentinel_master", "key_secret"];

/// The environment of this process, without variables that are not Unicode.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Whether a variable affects settings.
pub(super) fn is_relevant((name, _): &(String, String)) -> bool {
    DIRECTORY_VARIABLES.contains(&name.as_str()) || is_setting(name)
}

/// For a service named tollgate, Kubernetes sets variables such as `TOLLGATE_SERVICE_HOST` and `TOLLGATE_PORT_8080_TCP` in every
/// pod. They are not settings and must not prevent a start.
fn is_setting(name: &str) -> bool {
    let is_kubernetes = |key: &str| {
        !key.contains("__")
            && (key.ends_with("_PORT") || key.contains("PORT_") || key.contains("SERVICE_") || key == "PORT")
    };
    name.strip_prefix(PREFIX).is_some_and(|key| !is_kubernetes(key)) && !CLI_VARIABLES.contains(&name)
}

/// Sets each variable in the document. Returns those whose parent key is not a table; other errors are found when the document
/// is read, and name the variable.
pub(super) fn apply(document: &mut Document, environment: &[(String, String)]) -> Problems {
    let mut problems = Problems::default();
    let mut variables: Vec<_> = environment.iter().filter(|(name, _)| is_setting(name)).collect();
    // Sections before their keys, whatever the order of the variables.
    variables.sort_by_key(|(name, _)| name.matches("__").count());
    for (name, value) in variables {
        let key = name.trim_start_matches(PREFIX).to_ascii_lowercase();
        let path: Vec<&str> = key.split("__").collect();
        let origin = Origin::Named(name.clone());
        let parsed = match parse(value, &origin) {
            // A password of digits is a string.
            parsed if path.last().is_some_and(|key| STRING_KEYS.contains(key)) => as_text(parsed, value),
            parsed => parsed,
        };
        if let Err(other) = document.set(&path, parsed, &origin) {
            let reason = format!("cannot be set: {} is {}, not a table", other.key, other.kind);
            problems.0.push(Problem { origin, key: path.join("."), reason });
        }
    }
    problems
}

fn as_text(parsed: Value, text: &str) -> Value {
    if matches!(parsed, Value::Text(_)) { parsed } else { Value::Text(text.to_owned()) }
}

/// Parses a TOML value; anything else is a string, so that `info` needs no quotes.
fn parse(text: &str, origin: &Origin) -> Value {
    let as_text = || Value::Text(text.to_owned());
    let Ok(document) = Document::from_toml(&format!("value = {text}")) else { return as_text() };
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let value = fields.read("value", |value| Ok(value.clone()));
    fields.finish();
    match value {
        // A second line in the value would be another key.
        Some(value) if problems.0.is_empty() && !matches!(value, Value::Datetime(_)) => {
            with_origin(value, origin)
        }
        _ => as_text(),
    }
}

fn with_origin(value: Value, origin: &Origin) -> Value {
    let node =
        |node: LocatedValue| LocatedValue { value: with_origin(node.value, origin), origin: origin.clone() };
    match value {
        Value::List(items) => Value::List(items.into_iter().map(node).collect()),
        Value::Table(entries) => {
            Value::Table(entries.into_iter().map(|(key, value)| (key, node(value))).collect())
        }
        plain => plain,
    }
}
