//! The items of several files, merged into one import for `rules diff` and `rules apply`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde_json::{Map, Value};
use tollgate::config::{Origin, Problem, Problems};

use super::item_file;
use super::rule_file::read_text;
use crate::error::CliError;
use crate::item_kind::ItemKind;

/// All items by kind. A kind without items was declared empty by a file (`rules = []`) or by `--kinds`.
#[derive(Debug, Default)]
pub(crate) struct ImportSet(BTreeMap<ItemKind, Vec<Value>>);

impl ImportSet {
    /// Reads the files, restricted to `kinds` unless that is empty. An item may occur only once.
    pub(crate) fn read(paths: &[PathBuf], kinds: &[ItemKind]) -> Result<Self, CliError> {
        let mut imports = ImportSet::default();
        let mut seen = HashMap::new();
        for path in paths {
            let text = read_text(path)?;
            let path = path.display().to_string();
            let problems = match item_file::parse(&text) {
                Ok(table) => imports.add(&path, table, &mut seen),
                Err(problems) => problems,
            };
            if !problems.0.is_empty() {
                return Err(CliError::Invalid { path, problems });
            }
        }
        if !kinds.is_empty() {
            imports.0.retain(|kind, _| kinds.contains(kind));
            // A kind that is named and occurs in no file is empty, so --prune deletes all of its items.
            for kind in kinds {
                imports.0.entry(*kind).or_default();
            }
        }
        // The server takes an empty list of kinds for all kinds, which --prune would then delete.
        if imports.0.is_empty() {
            let reason = "nothing to apply: the files have no [[rules]], [[tiers]], [[quotas]], [[blocks]] or [[limits]]";
            return Err(CliError::Arguments(reason.to_owned()));
        }
        Ok(imports)
    }

    /// The kinds as a query value.
    pub(crate) fn kinds(&self) -> String {
        self.0.keys().map(|kind| kind.plural()).collect::<Vec<_>>().join(",")
    }

    /// The request body.
    pub(crate) fn body(&self) -> Map<String, Value> {
        self.0.iter().map(|(kind, items)| (kind.plural().to_owned(), items.clone().into())).collect()
    }

    /// Adds the contents of a file and returns its errors.
    fn add(&mut self, path: &str, mut table: Map<String, Value>, seen: &mut Seen) -> Problems {
        // A file may be a server's export.
        table.remove("version");
        if table.get("next").is_some_and(Value::is_null) {
            table.remove("next");
        }
        let mut invalid = Vec::new();
        for (list, value) in table {
            let kind = ItemKind::IN_FILES.into_iter().find(|kind| kind.plural() == list);
            match (kind, value) {
                (Some(kind), Value::Array(items)) => {
                    let merged = self.0.entry(kind).or_default();
                    for (number, item) in items.into_iter().enumerate() {
                        match read_item(kind, item, path, seen) {
                            Ok(item) => merged.push(item),
                            Err(reason) => invalid.push((format!("{list}[{number}]"), reason)),
                        }
                    }
                }
                (Some(_), _) => {
                    invalid.push((list.clone(), format!("must be a list of tables ([[{list}]])")));
                }
                (None, _) => invalid.push((list.clone(), unsupported(&list).to_owned())),
            }
        }
        let origin = || Origin::Named("cannot be applied".to_owned());
        let problem = |(key, reason)| Problem { origin: origin(), key, reason };
        Problems(invalid.into_iter().map(problem).collect())
    }
}

/// The file in which each item was seen first.
type Seen = HashMap<(ItemKind, String), String>;

fn read_item(kind: ItemKind, item: Value, path: &str, seen: &mut Seen) -> Result<Value, String> {
    let Value::Object(item) = item else { return Err("must be a table".to_owned()) };
    let part = |key: &&str| match item.get(*key) {
        Some(Value::String(part)) => Ok(part.clone()),
        _ => Err(format!("{key} is missing or not a string")),
    };
    let id = kind.id_fields().iter().map(part).collect::<Result<Vec<String>, String>>()?.join(" ");
    match seen.insert((kind, id.clone()), path.to_owned()) {
        Some(other) => Err(format!("{id:?} is already defined in {other}")),
        None => Ok(item_file::without_server_fields(item).0.into()),
    }
}

fn unsupported(list: &str) -> &'static str {
    match list {
        "keys" => "keys cannot be applied, because files hold no secrets: use `tollgate keys create`",
        _ => "is a server setting: only rules, tiers, quotas, blocks and limits can be applied",
    }
}
