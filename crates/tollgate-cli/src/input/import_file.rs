//! Reads the rules of files that only `rules apply` accepts: with [[quotas]], [[blocks]] or [[limits]], with tier
//! descriptions, or in JSON.

use serde_json::{Map, Value as Json};
use tollgate::config::{Document, Origin, Problem, Problems, Value, read_rule, read_tier};
use tollgate::{Rule, RuleSet};

use super::item_file::{self, is_json};

/// Lists that only import files have.
const IMPORT_LISTS: [&str; 3] = ["quotas", "blocks", "limits"];
/// Keys that settings files and import files may both have.
const SHARED_KEYS: [&str; 4] = ["rules", "tiers", "version", "next"];

/// The rules of an import file, or all of its errors; `None` if it is a rule file or settings file.
pub(crate) fn read(text: &str) -> Option<Result<RuleSet, Problems>> {
    let document = if is_json(text) {
        match from_json(text) {
            Ok(document) => document,
            Err(problems) => return Some(Err(problems)),
        }
    } else {
        // The reader of rule files reports TOML syntax errors.
        Document::from_toml(text).ok().filter(is_import)?
    };
    Some(read_rules(&document))
}

fn read_rules(document: &Document) -> Result<RuleSet, Problems> {
    tollgate_server::check_import(document)?;
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    // The check above has reported errors in all other fields.
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
    let problem = |reason: String| Problems(vec![Problem { origin, key: "rules".to_owned(), reason }]);
    RuleSet::new(rules, None).map_err(|error| problem(error.to_string()))
}

fn is_import(document: &Document) -> bool {
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    if IMPORT_LISTS.iter().any(|list| fields.has(list)) {
        return true;
    }
    let described = fields.peek("tiers", |tiers| Ok(has_description(tiers))) == Some(true);
    for key in SHARED_KEYS {
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

/// The document that `rules apply` would send.
fn from_json(text: &str) -> Result<Document, Problems> {
    let table: Map<String, Json> = item_file::parse(text)?;
    let stripped = |item: Json| match item {
        Json::Object(item) => Json::Object(item_file::without_server_fields(item).0),
        other => other,
    };
    let list = |(name, value): (String, Json)| match value {
        Json::Array(items) => (name, items.into_iter().map(stripped).collect()),
        other => (name, other),
    };
    let table: Map<String, Json> =
        table.into_iter().filter(|(_, value)| !value.is_null()).map(list).collect();
    let origin = Origin::Named("JSON".to_owned());
    let problem =
        |reason: String| Problems(vec![Problem { origin: origin.clone(), key: String::new(), reason }]);
    let value: Value =
        serde_json::from_value(Json::Object(table)).map_err(|error| problem(error.to_string()))?;
    Ok(Document::from_value(value, origin.clone()).unwrap_or_else(Document::empty))
}
