//! The rules and tiers of the database, compiled one by one.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};
use tollgate::config::{Document, Origin, Problem, Problems, TableReader, Value, read_rule, read_tier};
use tollgate::rules::DEFAULT_RULE;
use tollgate::{Rule, RuleSet};
use tollgate_stores::sql::{Item, ItemId, ItemWrite};

use super::file_rules::FileRules;

/// A rule or tier of the database.
#[derive(Clone, Debug)]
struct DatabaseRule {
    item: Item,
    /// The compiled rule, or what is wrong with it.
    rule: Result<Rule, Problems>,
}

/// The rules and tiers of the database, by the name of the rule. The rule of the tier `paid` is named `tier:paid`.
#[derive(Clone, Debug, Default)]
pub(super) struct DatabaseRules(BTreeMap<String, DatabaseRule>);

impl DatabaseRules {
    /// Adds or replaces a rule or tier. Returns false for other items.
    pub(super) fn put(&mut self, item: &Item) -> bool {
        let (name, rule) = match item {
            Item::Rule(rule) => (rule.name.clone(), parse(&rule.name, &rule.body, "rule", read_rule)),
            Item::Tier(tier) => {
                (tier_rule_name(&tier.name), parse(&tier.name, &tier.body, "tier", read_tier))
            }
            _ => return false,
        };
        self.0.insert(name, DatabaseRule { item: item.clone(), rule });
        true
    }

    /// Removes a rule or tier. Returns false for ids of other items.
    pub(super) fn remove(&mut self, id: &ItemId) -> bool {
        match id {
            ItemId::Rule(name) => self.0.remove(name),
            ItemId::Tier(name) => self.0.remove(&tier_rule_name(name)),
            _ => return false,
        };
        true
    }

    pub(super) fn write(&mut self, write: &ItemWrite) {
        match write {
            ItemWrite::Put(item) => self.put(item),
            ItemWrite::Delete(id) => self.remove(id),
        };
    }

    /// Whether a rule limits requests, which ends the built-in default.
    pub(super) fn enforces(&self) -> bool {
        self.0.values().any(|stored| stored.rule.as_ref().is_ok_and(Rule::enforces))
    }

    /// Whether a rule limits every client.
    pub(super) fn limits_every_client(&self) -> bool {
        self.0.values().any(|stored| stored.rule.as_ref().is_ok_and(Rule::limits_every_client))
    }

    /// The rules of the file that apply beside these. A rule of the same name replaces the built-in default, too.
    pub(super) fn file_rules<'f>(&self, file: &'f FileRules) -> impl Iterator<Item = &'f Rule> + use<'f> {
        file.rules(!self.enforces() && !self.contains(DEFAULT_RULE))
    }

    /// Whether there is a rule of this name.
    pub(super) fn contains(&self, rule: &str) -> bool {
        self.0.contains_key(rule)
    }

    /// All rules and tiers as stored.
    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.0.values().map(|rule| &rule.item)
    }

    /// Compiles these rules and those of the file into one set, not normalized.
    ///
    /// # Errors
    /// Everything that is wrong: invalid rules, and names that both define.
    pub(super) fn compile(&self, file: &FileRules) -> Result<RuleSet, Problems> {
        let problems = self.problems(file);
        if !problems.0.is_empty() {
            return Err(problems);
        }
        let stored = self.0.values().filter_map(|rule| rule.rule.as_ref().ok().cloned());
        let rules: Vec<Rule> = self.file_rules(file).cloned().chain(stored).collect();
        let set = RuleSet::new(rules, file.set.penalties().cloned())
            .map_err(|error| Problems(vec![problem("rules", error.to_string())]))?;
        let set = set.with_ip_prefixes(file.set.ip_prefixes()).with_nat64(file.set.nat64());
        Ok(set.with_settings(file.set.settings().clone()))
    }

    /// The rules that are valid and do not conflict with the file; none if even those do not compile.
    pub(super) fn valid_part(&self, file: &FileRules) -> Self {
        let taken: Vec<&str> = self.file_rules(file).map(|rule| &*rule.name).collect();
        let mut valid = self.clone();
        valid.0.retain(|name, rule| rule.rule.is_ok() && !taken.contains(&&**name));
        if valid.compile(file).is_ok() { valid } else { DatabaseRules::default() }
    }

    fn problems(&self, file: &FileRules) -> Problems {
        let invalid = self.0.values().filter_map(|rule| rule.rule.as_ref().err());
        let mut problems: Vec<Problem> = invalid.flat_map(|problems| problems.0.iter().cloned()).collect();
        for rule in self.file_rules(file) {
            if let Some(stored) = self.0.get(&*rule.name) {
                let kind = if matches!(stored.item, Item::Tier(_)) { "tier" } else { "rule" };
                let reason = format!(
                    "both the {kind} of the database and {} define the rule {:?}; rename or remove one of them",
                    file.describe(),
                    &*rule.name
                );
                problems.push(problem(&rule.name, reason));
            }
        }
        Problems(problems)
    }
}

fn tier_rule_name(tier: &str) -> String {
    format!("tier:{tier}")
}

fn problem(name: &str, reason: String) -> Problem {
    Problem { origin: Origin::Named("database".to_owned()), key: name.to_owned(), reason }
}

/// Parses a stored body like a table of the settings file.
fn parse(
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
    let document = Document::from_value(value, origin.clone()).ok_or_else(|| malformed("must be a table"))?;
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let rule = read(&mut fields);
    fields.finish();
    problems.into_result(rule)
}

#[cfg(test)]
mod tests;
