//! The items of several files, merged into one import for `rules diff` and `rules apply`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::item_file;
use super::rule_file::read_text;
use crate::CliError;
use crate::item_kind::ItemKind;
use crate::output::format::text_of;

/// The items of files.
#[derive(Debug, Default)]
pub(crate) struct ImportSet {
    /// All items by kind. A kind without items was declared empty by a file (`rules = []`) or by `--kinds`.
    items: BTreeMap<ItemKind, Vec<Value>>,
    /// What the files contain that an import does not apply.
    pub(crate) warnings: Vec<String>,
}

impl ImportSet {
    /// Rules that come from no file.
    pub(crate) fn of_rules(rules: Vec<Value>) -> Self {
        ImportSet { items: BTreeMap::from([(ItemKind::Rule, rules)]), warnings: Vec::new() }
    }

    /// Reads the files, restricted to `kinds` unless that is empty. An item may occur only once.
    pub(crate) fn read(paths: &[PathBuf], kinds: &[ItemKind]) -> Result<Self, CliError> {
        let mut imports = ImportSet::default();
        let mut seen = HashMap::new();
        for path in paths {
            let text = read_text(path)?;
            let path = path.display().to_string();
            let invalid = |problems| CliError::Invalid { path: path.clone(), problems };
            let document = item_file::document(&text).map_err(invalid)?;
            let settings = item_file::check_items(&text, &document).map_err(invalid)?;
            if !settings.is_empty() {
                imports.warnings.push(format!("{path}: {}", item_file::not_applied(&settings)));
            }
            imports.add(&path, item_file::parse(&text).map_err(invalid)?, &mut seen)?;
        }
        if !kinds.is_empty() {
            imports.items.retain(|kind, _| kinds.contains(kind));
            // A kind that is named and occurs in no file is empty, so --prune deletes all of its items.
            for kind in kinds {
                imports.items.entry(*kind).or_default();
            }
        }
        imports.require_items()?;
        Ok(imports)
    }

    /// The server takes an empty list of kinds for all kinds, which --prune would then delete.
    fn require_items(&self) -> Result<(), CliError> {
        if !self.items.is_empty() {
            return Ok(());
        }
        let reason =
            "nothing to apply: the files have no [[rules]], [[tiers]], [[quotas]], [[blocks]] or [[limits]]";
        let lines: Vec<&str> =
            std::iter::once(reason).chain(self.warnings.iter().map(|text| &**text)).collect();
        Err(CliError::Arguments(lines.join("\n")))
    }

    /// The kinds as a query value.
    pub(crate) fn kinds(&self) -> String {
        self.items.keys().map(|kind| kind.plural()).collect::<Vec<_>>().join(",")
    }

    /// The request body.
    pub(crate) fn body(&self) -> Map<String, Value> {
        self.items.iter().map(|(kind, items)| (kind.plural().to_owned(), items.clone().into())).collect()
    }

    /// Adds the items of a checked file.
    fn add(&mut self, path: &str, table: Map<String, Value>, seen: &mut Seen) -> Result<(), CliError> {
        for (list, items) in table {
            let kind = ItemKind::IN_FILES.into_iter().find(|kind| kind.plural() == list);
            let (Some(kind), Value::Array(items)) = (kind, items) else { continue };
            let merged = self.items.entry(kind).or_default();
            for item in items {
                let id: Vec<String> = kind.id_fields().iter().map(|key| text_of(&item[*key])).collect();
                if let Some(other) = seen.insert((kind, id.clone()), path.to_owned()) {
                    let (noun, id) = (kind.noun(), id.join(" "));
                    let id = id.trim_end();
                    let reason = format!("{path}: {noun} {id:?} is already defined in {other}");
                    return Err(CliError::Arguments(reason));
                }
                let item = item.as_object().cloned().unwrap_or_default();
                merged.push(item_file::without_server_fields(item).0.into());
            }
        }
        Ok(())
    }
}

/// The file in which each item was seen first.
type Seen = HashMap<(ItemKind, Vec<String>), String>;
