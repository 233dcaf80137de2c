//! Reads the rules of files that only `rules apply` accepts: with [[quotas]], [[blocks]] or [[limits]], with tier
//! descriptions, or in JSON.

use tollgate::config::{Document, Origin, Problem, Problems, Value, read_rule, read_tier};
use tollgate::{Rule, RuleSet};

use super::item_file::is_json;

/// Lists that only import files have.
const IMPORT_LISTS: [&str; 3] = ["quotas", "blocks", "limits"];
/// Keys that settings files and import files may both have.
const SHARED_KEYS: [&str; 4] = ["rules", "tiers", "version", "next"];

/// Whether only `rules apply` accepts the file.
pub(crate) fn is_import_file(text: &str, document: &Document) -> bool {
    is_json(text) || is_import(document)
}

/// The rules of an import.
///
/// # Errors
/// Only those that concern several items: [`item_file::check_items`] reports the others.
pub(crate) fn read_rules(document: &Document) -> Result<RuleSet, Problems> {
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
