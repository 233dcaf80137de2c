//! `TOLLGATE_SECTION__KEY=value` over the file.

use tollgate::config::document::{LocatedValue, Problem};
use tollgate::config::{Document, Origin, Problems, Value};

const PREFIX: &str = "TOLLGATE_";
/// Read by the command line, not here.
const OF_THE_CLI: [&str; 6] = [
    "TOLLGATE_URL",
    "TOLLGATE_KEY",
    "TOLLGATE_CA_FILE",
    "TOLLGATE_CERT_FILE",
    "TOLLGATE_CERT_KEY_FILE",
    "TOLLGATE_CONFIG",
];
/// Where data goes by default.
const PLACES: [&str; 2] = ["HOME", "XDG_DATA_HOME"];

/// Keys whose values are texts whatever they look like.
const TEXTS: [&str; 6] =
    ["user", "password", "sentinel_user", "sentinel_password", "sentinel_master", "key_secret"];

/// The environment of this process. Variables that are not Unicode are none of ours and are left out.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Whether a variable has a meaning for settings.
pub(super) fn concerns_us((name, _): &(String, String)) -> bool {
    PLACES.contains(&name.as_str()) || is_setting(name)
}

/// Kubernetes gives every pod variables like `TOLLGATE_SERVICE_HOST` and `TOLLGATE_PORT_8080_TCP` if a service is
/// called tollgate. They are no settings, and a pod must not fail to start over them.
fn is_setting(name: &str) -> bool {
    let of_kubernetes = |key: &str| {
        !key.contains("__")
            && (key.ends_with("_PORT") || key.contains("PORT_") || key.contains("SERVICE_") || key == "PORT")
    };
    name.strip_prefix(PREFIX).is_some_and(|key| !of_kubernetes(key)) && !OF_THE_CLI.contains(&name)
}

/// Puts each variable over what the file says. Mistakes are told with the name of the variable; those that lead nowhere, because
/// what they are to be a key of is no table, here.
pub(super) fn apply(document: &mut Document, environment: &[(String, String)]) -> Problems {
    let mut problems = Problems::default();
    let mut variables: Vec<_> = environment.iter().filter(|(name, _)| is_setting(name)).collect();
    // A section as a whole before its keys, in whatever order they are told.
    variables.sort_by_key(|(name, _)| name.matches("__").count());
    for (name, value) in variables {
        let key = name.trim_start_matches(PREFIX).to_ascii_lowercase();
        let path: Vec<&str> = key.split("__").collect();
        let origin = Origin::Named(name.clone());
        let parsed = match parse(value, &origin) {
            // A password of digits is still a text.
            parsed if path.last().is_some_and(|key| TEXTS.contains(key)) => as_text(parsed, value),
            parsed => parsed,
        };
        if let Err(other) = document.set(&path, parsed, &origin) {
            let reason = format!("leads nowhere: {} is {}, not a table", other.key, other.kind);
            problems.0.push(Problem { origin, key: path.join("."), reason });
        }
    }
    problems
}

fn as_text(parsed: Value, written: &str) -> Value {
    if matches!(parsed, Value::Text(_)) { parsed } else { Value::Text(written.to_owned()) }
}

/// A TOML value if it is one; else the text itself, so that nobody has to quote `info` twice in a shell.
fn parse(text: &str, origin: &Origin) -> Value {
    let as_text = || Value::Text(text.to_owned());
    let Ok(document) = Document::from_toml(&format!("value = {text}")) else { return as_text() };
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let value = fields.read("value", |value| Ok(value.clone()));
    fields.finish();
    match value {
        // A second line in the value would be a second key.
        Some(value) if problems.0.is_empty() && value != Value::Datetime => relocated(value, origin),
        _ => as_text(),
    }
}

fn relocated(value: Value, origin: &Origin) -> Value {
    let node =
        |node: LocatedValue| LocatedValue { value: relocated(node.value, origin), origin: origin.clone() };
    match value {
        Value::List(items) => Value::List(items.into_iter().map(node).collect()),
        Value::Table(entries) => {
            Value::Table(entries.into_iter().map(|(key, value)| (key, node(value))).collect())
        }
        plain => plain,
    }
}
