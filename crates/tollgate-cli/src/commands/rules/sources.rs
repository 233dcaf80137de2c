//! Several files as one: what `diff` and `apply` send.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Map, Value};
use tollgate::config::{Origin, Problem, Problems};

use super::file::read_text;
use crate::commands::item_file;
use crate::failure::Failure;

/// A kind that files may hold. Its variants have no comments of their own: clap would print them, one to a line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub(super) enum FileKind {
    Rules,
    Tiers,
    Quotas,
    Blocks,
    Limits,
}

impl FileKind {
    const ALL: [FileKind; 5] =
        [FileKind::Rules, FileKind::Tiers, FileKind::Quotas, FileKind::Blocks, FileKind::Limits];

    /// What its list is called, in files and on the server.
    pub(super) fn list(self) -> &'static str {
        match self {
            FileKind::Rules => "rules",
            FileKind::Tiers => "tiers",
            FileKind::Quotas => "quotas",
            FileKind::Blocks => "blocks",
            FileKind::Limits => "limits",
        }
    }

    /// The keys that tell one of them from the others.
    fn id(self) -> &'static [&'static str] {
        match self {
            FileKind::Rules | FileKind::Tiers => &["name"],
            FileKind::Quotas => &["user_id"],
            FileKind::Blocks => &["client"],
            FileKind::Limits => &["user_id", "endpoint"],
        }
    }
}

/// All that the files hold, by kind. A kind that is there without items is one that a file says is empty.
#[derive(Debug, Default)]
pub(super) struct Sources(BTreeMap<FileKind, Vec<Value>>);

impl Sources {
    /// Reads the files; of `kinds`, if any are named. Nothing may stand in two places.
    pub(super) fn read(paths: &[PathBuf], kinds: &[FileKind]) -> Result<Self, Failure> {
        let mut sources = Sources::default();
        let mut seen = HashMap::new();
        for path in paths {
            let text = read_text(path)?;
            let path = path.display().to_string();
            let problems = match item_file::parse(&text) {
                Ok(table) => sources.add(&path, table, &mut seen),
                Err(problems) => problems,
            };
            if !problems.0.is_empty() {
                return Err(Failure::Mistakes { path, problems });
            }
        }
        if !kinds.is_empty() {
            sources.0.retain(|kind, _| kinds.contains(kind));
            // Named and in no file: there is to be none of them.
            for kind in kinds {
                sources.0.entry(*kind).or_default();
            }
        }
        // Asked to prune within no kind at all, a server might take it for every kind.
        if sources.0.is_empty() {
            let reason = "nothing to apply: the files have no [[rules]], [[tiers]], [[quotas]], [[blocks]] or [[limits]]";
            return Err(Failure::Arguments(reason.to_owned()));
        }
        Ok(sources)
    }

    /// The kinds it is about, for a query.
    pub(super) fn kinds(&self) -> String {
        self.0.keys().map(|kind| kind.list()).collect::<Vec<_>>().join(",")
    }

    /// What is sent.
    pub(super) fn body(&self) -> Map<String, Value> {
        self.0.iter().map(|(kind, items)| (kind.list().to_owned(), items.clone().into())).collect()
    }

    /// Adds what a file holds; what is wrong with it.
    fn add(&mut self, path: &str, mut table: Map<String, Value>, seen: &mut Seen) -> Problems {
        // As a server exports it.
        table.remove("version");
        if table.get("next").is_some_and(Value::is_null) {
            table.remove("next");
        }
        let mut wrong = Vec::new();
        for (list, value) in table {
            match (FileKind::ALL.into_iter().find(|kind| kind.list() == list), value) {
                (Some(kind), Value::Array(items)) => {
                    let own = self.0.entry(kind).or_default();
                    for (number, item) in items.into_iter().enumerate() {
                        match entry(kind, item, path, seen) {
                            Ok(item) => own.push(item),
                            Err(reason) => wrong.push((format!("{list}[{number}]"), reason)),
                        }
                    }
                }
                (Some(_), _) => wrong.push((list.clone(), format!("must be a list of tables ([[{list}]])"))),
                (None, _) => wrong.push((list.clone(), not_ours(&list).to_owned())),
            }
        }
        let origin = || Origin::Named("cannot be applied".to_owned());
        let problem = |(key, reason)| Problem { origin: origin(), key, reason };
        Problems(wrong.into_iter().map(problem).collect())
    }
}

/// Which file has what.
type Seen = HashMap<(FileKind, String), String>;

/// One item as it is sent.
fn entry(kind: FileKind, item: Value, path: &str, seen: &mut Seen) -> Result<Value, String> {
    let Value::Object(item) = item else { return Err("must be a table".to_owned()) };
    let part = |key: &&str| match item.get(*key) {
        Some(Value::String(part)) => Ok(part.clone()),
        _ => Err(format!("{key} is missing, or no text")),
    };
    let id = kind.id().iter().map(part).collect::<Result<Vec<String>, String>>()?.join(" ");
    match seen.insert((kind, id.clone()), path.to_owned()) {
        Some(other) => Err(format!("{id:?} stands in {other} already")),
        None => Ok(item_file::configured(item).0.into()),
    }
}

fn not_ours(list: &str) -> &'static str {
    match list {
        "keys" => "keys cannot be applied, for they have no secrets here: see `tollgate keys create`",
        _ => "belongs into the server's own file: rules, tiers, quotas, blocks and limits can be applied",
    }
}
