//! Files that only `rules apply` takes, read offline: with [[quotas]], [[blocks]] or [[limits]], tiers with a description, or in JSON.

use serde_json::{Map, Value as Json};
use tollgate::config::{Document, Origin, Problem, Problems, Value, read_rule, read_tier};
use tollgate::{Rule, RuleSet};

use crate::commands::item_file::{self, is_json};

/// Lists that the file of a server does not have.
const OWN: [&str; 3] = ["quotas", "blocks", "limits"];
/// Keys that it may share with such files.
const SHARED: [&str; 4] = ["rules", "tiers", "version", "next"];

/// The rules of such a file, or all of its mistakes; nothing if it is another file.
pub(super) fn read(text: &str) -> Option<Result<RuleSet, Problems>> {
    let document = if is_json(text) {
        match from_json(text) {
            Ok(document) => document,
            Err(problems) => return Some(Err(problems)),
        }
    } else {
        // What is no TOML is told by whoever reads the other files.
        Document::from_toml(text).ok().filter(is_for_apply)?
    };
    Some(rules(&document))
}

fn rules(document: &Document) -> Result<RuleSet, Problems> {
    tollgate_server::check_import(document)?;
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    // Of what else they have it was told above what is wrong with it.
    let mut rules: Vec<Rule> = fields.list_of_tables("tiers", |tier| {
        let read = read_tier(tier);
        tier.skip_rest();
        read
    });
    rules.extend(fields.list_of_tables("rules", |rule| {
        let read = read_rule(rule);
        rule.skip_rest();
        read
    }));
    problems.into_result(Some(()))?;
    let origin = Origin::Named("together".to_owned());
    let wrong = |reason: String| Problems(vec![Problem { origin, key: "rules".to_owned(), reason }]);
    RuleSet::new(rules, None).map_err(|error| wrong(error.to_string()))
}

fn is_for_apply(document: &Document) -> bool {
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    if OWN.iter().any(|list| fields.has(list)) {
        return true;
    }
    let described = fields.peek("tiers", |tiers| Ok(has_description(tiers))) == Some(true);
    for key in SHARED {
        fields.skip(key);
    }
    fields.finish();
    described && problems.0.is_empty()
}

fn has_description(tiers: &Value) -> bool {
    let Value::List(tiers) = tiers else { return false };
    let described = |tier: &Value| matches!(tier, Value::Table(entries) if entries.iter().any(|(key, _)| key == "description"));
    tiers.iter().any(|tier| described(&tier.value))
}

/// A document of what `rules apply` would send.
fn from_json(text: &str) -> Result<Document, Problems> {
    let table: Map<String, Json> = item_file::parse(text)?;
    let configured = |item: Json| match item {
        Json::Object(item) => Json::Object(item_file::configured(item).0),
        other => other,
    };
    let list = |(name, value): (String, Json)| match value {
        Json::Array(items) => (name, items.into_iter().map(configured).collect()),
        other => (name, other),
    };
    let table: Map<String, Json> =
        table.into_iter().filter(|(_, value)| !value.is_null()).map(list).collect();
    let origin = Origin::Named("JSON".to_owned());
    let wrong =
        |reason: String| Problems(vec![Problem { origin: origin.clone(), key: String::new(), reason }]);
    let value: Value =
        serde_json::from_value(Json::Object(table)).map_err(|error| wrong(error.to_string()))?;
    Ok(Document::from_value(value, origin.clone()).unwrap_or_else(Document::empty))
}
