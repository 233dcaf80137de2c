//! What makes the rule set: the rules of the file, and the rules and tiers of the database.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value as Json};
use tollgate::config::{Document, Origin, Problem, Problems, TableReader, Value, read_rule, read_tier};
use tollgate::{Rule, RuleSet};
use tollgate_stores::sql::{Item, ItemId, ItemWrite, RuleItem, TierItem};

use crate::config::settings::Settings;

/// The rules of the settings file.
#[derive(Debug)]
pub(crate) struct FileRules {
    set: RuleSet,
    ipv6_prefix: u8,
    file: Option<PathBuf>,
    /// Whether there is no rule in the file, and so the built-in default.
    is_built_in: bool,
}

impl FileRules {
    pub(crate) fn of(settings: &Settings) -> Self {
        FileRules {
            set: settings.rules.clone(),
            ipv6_prefix: settings.ipv6_prefix,
            file: settings.config_file.clone(),
            is_built_in: settings.has_built_in_default,
        }
    }

    /// The rules that stand beside those of the database. The built-in default makes way for one of its name.
    pub(super) fn beside<'a>(&'a self, names: &'a BTreeMap<String, Entry>) -> impl Iterator<Item = &'a Rule> {
        let gives_way = |rule: &Rule| self.is_built_in && names.contains_key(&*rule.name);
        self.set.rules().iter().filter(move |rule| !gives_way(rule))
    }

    /// Whether a rule of this name is written here, and makes way for none of the database.
    pub(super) fn holds(&self, name: &str) -> bool {
        !self.is_built_in && self.set.rules().iter().any(|rule| *rule.name == *name)
    }

    pub(super) fn is_built_in(&self) -> bool {
        self.is_built_in
    }

    pub(super) fn place(&self) -> String {
        self.file.as_ref().map_or_else(|| "the built-in rules".to_owned(), |file| file.display().to_string())
    }
}

/// One rule of the database: as it is stored, and as it is used.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Nothing if the database holds what is no rule.
    rule: Result<Rule, Problems>,
    is_tier: bool,
}

/// The rules and tiers of the database, by the name that the rule has.
#[derive(Clone, Debug, Default)]
pub(crate) struct DatabaseRules {
    entries: BTreeMap<String, Entry>,
    items: BTreeMap<String, Item>,
}

impl DatabaseRules {
    /// Adds or replaces a rule or a tier; whether it is one.
    pub(crate) fn put(&mut self, item: &Item) -> bool {
        let (name, rule, is_tier) = match item {
            Item::Rule(rule) => (rule.name.clone(), rule_of(rule), false),
            Item::Tier(tier) => (tier_rule_name(&tier.name), tier_of(tier), true),
            _ => return false,
        };
        self.entries.insert(name.clone(), Entry { rule, is_tier });
        self.items.insert(name, item.clone());
        true
    }

    /// Removes a rule or a tier; whether the id is that of one.
    pub(crate) fn remove(&mut self, id: &ItemId) -> bool {
        let name = match id {
            ItemId::Rule(name) => name.clone(),
            ItemId::Tier(name) => tier_rule_name(name),
            _ => return false,
        };
        self.entries.remove(&name);
        self.items.remove(&name);
        true
    }

    /// The same with one more change.
    pub(crate) fn write(&mut self, write: &ItemWrite) {
        match write {
            ItemWrite::Put(item) => self.put(item),
            ItemWrite::Delete(id) => self.remove(id),
        };
    }

    /// Whether the rule of this name is from the database.
    pub(crate) fn has(&self, rule: &str) -> bool {
        self.entries.contains_key(rule)
    }

    /// All of them, by the names of their rules.
    pub(super) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// All of them, as they are stored.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        self.items.values()
    }

    /// The rule set of both.
    ///
    /// # Errors
    /// Everything that is wrong: rules that are none, and names that are in both.
    pub(crate) fn compile(&self, file: &FileRules) -> Result<RuleSet, Problems> {
        let problems = self.problems(file);
        if !problems.0.is_empty() {
            return Err(problems);
        }
        self.put_together(file).map_err(|reason| Problems(vec![in_database("rules", reason)]))
    }

    /// What of it goes together with the file, for a start that has nothing better. Nothing, if even that does not.
    pub(crate) fn what_fits(&self, file: &FileRules) -> Self {
        let taken: Vec<&str> = file.beside(&self.entries).map(|rule| &*rule.name).collect();
        let mut fitting = self.clone();
        fitting.entries.retain(|name, entry| entry.rule.is_ok() && !taken.contains(&&**name));
        fitting.items.retain(|name, _| fitting.entries.contains_key(name));
        if fitting.compile(file).is_ok() { fitting } else { DatabaseRules::default() }
    }

    fn put_together(&self, file: &FileRules) -> Result<RuleSet, String> {
        let stored = self.entries.values().filter_map(|entry| entry.rule.as_ref().ok().cloned());
        let rules: Vec<Rule> = file.beside(&self.entries).cloned().chain(stored).collect();
        let set = RuleSet::new(rules, file.set.penalties().cloned()).map_err(|error| error.to_string())?;
        let set = set.with_ipv6_prefix(file.ipv6_prefix).with_nat64(file.set.nat64());
        Ok(set.with_normalization(file.set.normalization().clone()))
    }

    fn problems(&self, file: &FileRules) -> Problems {
        let mut problems: Vec<Problem> = Vec::new();
        for entry in self.entries.values() {
            problems.extend(entry.rule.as_ref().err().into_iter().flat_map(|wrong| wrong.0.iter().cloned()));
        }
        for rule in file.beside(&self.entries) {
            if let Some(entry) = self.entries.get(&*rule.name) {
                let kind = if entry.is_tier { "tier" } else { "rule" };
                let reason = format!(
                    "the {kind} of the database and {} both have a rule named {:?}: rename or remove one of them",
                    file.place(),
                    &*rule.name
                );
                problems.push(in_database(&rule.name, reason));
            }
        }
        Problems(problems)
    }
}

/// The name of the rule that a tier stands for.
fn tier_rule_name(tier: &str) -> String {
    format!("tier:{tier}")
}

fn in_database(name: &str, reason: String) -> Problem {
    Problem { origin: Origin::Named("database".to_owned()), key: name.to_owned(), reason }
}

fn rule_of(item: &RuleItem) -> Result<Rule, Problems> {
    read(&item.name, &item.body, "rule", read_rule)
}

fn tier_of(item: &TierItem) -> Result<Rule, Problems> {
    read(&item.name, &item.body, "tier", read_tier)
}

/// Reads what is stored as if it stood in the file.
fn read(
    name: &str,
    body: &Map<String, Json>,
    kind: &str,
    read: impl FnOnce(&mut TableReader<'_, '_>) -> Option<Rule>,
) -> Result<Rule, Problems> {
    let origin = Origin::Named(format!("{kind} {name:?} of the database"));
    let mut table = body.clone();
    table.insert("name".to_owned(), Json::String(name.to_owned()));
    let malformed = |reason: &str| {
        Problems(vec![Problem { origin: origin.clone(), key: String::new(), reason: reason.to_owned() }])
    };
    let value: Value =
        serde_json::from_value(Json::Object(table)).map_err(|error| malformed(&error.to_string()))?;
    let document = Document::from_value(value, origin.clone()).ok_or_else(|| malformed("it is no table"))?;
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let rule = read(&mut fields);
    fields.finish();
    problems.into_result(rule)
}

#[cfg(test)]
mod tests;
