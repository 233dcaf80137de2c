//! Tables of docs/ that repeat what the sources say.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Described in docs/rules.md.
const RULE_KEYS: [&str; 4] = ["rules", "tiers", "endpoints", "exemptions"];

/// Lists whose items are described key by key.
const LISTS_OF_TABLES: [&str; 4] =
    ["auth.callers", "identity.jwt", "identity.login_endpoints", "proxy.routes"];

/// Settings with their defaults, as in a table.
type Settings = BTreeMap<String, String>;

fn schema() -> Json {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["config", "schema"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Adds the keys of a table of the schema, and those of tables in it.
fn collect(schema: &Json, table: &Json, prefix: &str, settings: &mut Settings) {
    for (key, described) in table["properties"].as_object().unwrap() {
        let path = format!("{prefix}{key}");
        if RULE_KEYS.contains(&&*path) {
            continue;
        }
        let is_section = described["properties"].is_object();
        if is_section || LISTS_OF_TABLES.contains(&&*path) {
            let inner = if is_section { described } else { &described["items"] };
            collect(schema, inner, &format!("{path}."), settings);
        }
        if !is_section || path.contains('.') {
            settings.insert(path, default_of(schema, described));
        }
    }
}

/// The default as it is written in a table; `—` for none.
fn default_of(schema: &Json, described: &Json) -> String {
    let definition =
        described["$ref"].as_str().map(|name| &schema["$defs"][name.rsplit('/').next().unwrap()]);
    let default = described.get("default").or_else(|| definition?.get("default"));
    match default {
        None => "—".to_owned(),
        Some(Json::String(text)) => format!("`{text}`"),
        Some(Json::Array(items)) => {
            format!("`[{}]`", items.iter().map(Json::to_string).collect::<Vec<_>>().join(", "))
        }
        Some(other) => format!("`{other}`"),
    }
}

/// The settings in the tables of docs/configuration.md, with the section of the heading above.
fn documented() -> Settings {
    let mut settings = Settings::new();
    let mut section = None;
    let mut in_table = false;
    for line in read("docs/configuration.md").lines() {
        if let Some(title) = line.strip_prefix("## ") {
            let name = title.strip_prefix("`[").and_then(|rest| rest.strip_suffix("]`"));
            // `[[section]]` has the keys of one item.
            let name = name.map(|name| name.trim_matches(['[', ']']));
            section = (title == "Top level").then(String::new).or_else(|| Some(format!("{}.", name?)));
        }
        in_table = line.starts_with("| key | type | default |") || in_table && line.starts_with('|');
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if !in_table || !cells[0].starts_with('`') {
            continue;
        }
        let prefix = section.as_ref().unwrap_or_else(|| panic!("{line}: a table without a section"));
        assert_eq!(cells.len(), 4, "{line}");
        let key = format!("{prefix}{}", cells[0].trim_matches('`'));
        assert!(settings.insert(key, cells[2].to_owned()).is_none(), "{line}: the key is listed twice");
    }
    settings
}

#[test]
fn configuration_page_lists_every_setting_and_default() {
    let schema = schema();
    let mut expected = Settings::new();
    collect(&schema, &schema, "", &mut expected);
    assert_eq!(documented(), expected);
}

/// The names of all functions in Rust sources.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
            let starts = text.split("fn ").skip(1);
            names.extend(starts.map(|rest| rest.chars().take_while(|letter| is_part(*letter)).collect()));
        }
    }
}

#[test]
fn security_page_names_existing_tests() {
    let mut names = BTreeSet::new();
    functions(&root().join("crates"), &mut names);
    let page = read("docs/security.md");
    let tables = page.split("| # | threat | defence | tests |\n").skip(1);
    let rows: Vec<&str> =
        tables.flat_map(|table| table.lines().take_while(|line| line.starts_with('|'))).collect();
    assert!(rows.len() > 60, "the tables of threats");
    let mut missing = Vec::new();
    for row in rows {
        let tests = row.trim_matches('|').split(" | ").last().unwrap();
        missing.extend(tests.split('`').skip(1).step_by(2).filter(|name| !names.contains(*name)));
    }
    assert!(missing.is_empty(), "docs/security.md names tests that do not exist: {missing:#?}");
}
