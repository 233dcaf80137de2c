//! One rule or tier in a file: printed as TOML, edited, and put back.

use std::path::Path;

use serde_json::{Map, Value};
use tollgate::config::{Document, Origin, Problem, Problems, read_rule, read_tier};

use super::rules::file::read_text;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::items::{self, Kind};
use crate::moment;
use crate::output::{Output, escape};
use crate::plan::TOLD;
use crate::render::word;
use crate::toml_text;

/// Prints one item: as the server tells it with `--json`, else as the TOML that `put` and `apply` take.
pub(crate) fn print(client: &Client, kind: Kind, id: &str, output: &Output) -> Result<Exit, Failure> {
    let answer = items::get(client, kind, id)?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
        return Ok(Exit::Ok);
    }
    let item = answer.body.as_object().cloned().unwrap_or_default();
    output.text(&format!(
        "{}{}",
        remark(&answer.body),
        toml_text::entry(kind.plural(), &configured(item).0)
    ))?;
    Ok(Exit::Ok)
}

/// `# from the database, version 7, by admin at 2026-01-01T00:00:00Z`.
fn remark(body: &Value) -> String {
    let said = |key: &str| Some(word(&body[key])).filter(|text| !text.is_empty());
    let parts: Vec<String> = [
        said("source").map(|source| match &*source {
            "built-in" => "built-in: nothing is configured".to_owned(),
            source => format!("from the {source}"),
        }),
        said("version").map(|version| format!("version {version}")),
        said("created_by").map(|by| format!("made by {by}")),
        Some(moment::told(&body["updated_at"])).filter(|at| !at.is_empty()).map(|at| format!("changed {at}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { String::new() } else { format!("# {}\n", escape(&parts.join(", "))) }
}

/// What is configured of an item, and the version that was told with it.
pub(crate) fn configured(mut item: Map<String, Value>) -> (Map<String, Value>, Option<u64>) {
    let version = item.get("version").and_then(Value::as_u64);
    // Of a rule the server tells what it amounts to, and beside that what was written.
    if let Some(Value::Object(written)) = item.remove("definition") {
        item = written;
    }
    item.retain(|key, value| !TOLD.contains(&key.as_str()) && !value.is_null());
    (item, version)
}

/// The one item of a file.
pub(crate) struct ItemFile {
    /// What it is called.
    pub(crate) name: String,
    /// What is sent.
    pub(crate) body: Map<String, Value>,
    /// The version it was taken at, where the file tells.
    pub(crate) version: Option<u64>,
}

/// Reads the one item of a file. In JSON it may be as a server answered with it; in TOML it is the only entry of its list.
pub(crate) fn read(path: &Path, kind: Kind) -> Result<ItemFile, Failure> {
    let text = read_text(path)?;
    let path = path.display().to_string();
    let table = parse(&text).map_err(|problems| Failure::Mistakes { path: path.clone(), problems })?;
    let wrong = |reason: String| Failure::Arguments(format!("{path}: {reason}"));
    let list = kind.plural();
    let item = match table.get(list) {
        None if is_json(&text) => table,
        Some(Value::Array(items)) if items.len() == 1 && table.len() == 1 => {
            items[0].as_object().cloned().ok_or_else(|| wrong(format!("[[{list}]] must be a table")))?
        }
        _ => {
            let several = "for several, or for several kinds, there is `tollgate rules apply`";
            return Err(wrong(format!("must have one [[{list}]] and nothing else; {several}")));
        }
    };
    let (body, version) = configured(item);
    match body.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => Ok(ItemFile { name: name.to_owned(), body, version }),
        _ => Err(wrong(format!("the {} has no name", kind.noun()))),
    }
}

/// A file in either form.
pub(crate) fn parse(text: &str) -> Result<Map<String, Value>, Problems> {
    let problem = |line: usize, reason: String| {
        Problems(vec![Problem { origin: Origin::Line(line), key: String::new(), reason }])
    };
    if is_json(text) {
        return serde_json::from_str(text).map_err(|error| problem(error.line(), error.to_string()));
    }
    check(&Document::from_toml(text)?)?;
    let table: toml::Table = toml::from_str(text).map_err(|error| problem(1, error.message().to_owned()))?;
    Ok(table.into_iter().map(|(key, value)| (key, toml_text::to_json(value))).collect())
}

/// The mistakes of rules and tiers, each with its line: the server would tell them without. What else may be in the file is
/// not looked at.
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

/// No TOML document begins with a brace.
pub(crate) fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}
