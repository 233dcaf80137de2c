//! Configuration parsing: TOML or JSON to validated rules. All errors are reported at once, with line and key.

pub mod document;
mod flat_names;
mod json;
mod limits;
mod normalization;
mod rule;
mod short_forms;
mod table_reader;
pub mod values;

use hashbrown::HashSet;

pub use self::document::{Document, LocatedValue, Origin, Problem, Problems, TableReader, Value};
pub use self::flat_names::{flat_name_warnings, flat_rule_warnings, has_flat_names};
pub use self::normalization::read_normalization;
pub use self::rule::{id, method, network, pattern, read as read_rule};
pub use self::short_forms::{read_limit_and_window, read_tier};
use crate::penalties::{PenaltyPolicy, VIOLATIONS_MAX};
use crate::rules::{Rule, RuleSet, RuleSetError, RuleSettings};
use crate::time::Span;

impl RuleSet {
    /// A rule set from TOML: `[[rules]]`, the short forms and `[progressive_penalties]`.
    ///
    /// ```
    /// use tollgate::RuleSet;
    /// let text = "[[rules]]\nname = \"a\"\nper = [\"planet\"]\nrequests_per_hour = 9";
    /// let problems = RuleSet::from_toml(text).unwrap_err();
    /// assert!(problems.to_string().starts_with("line 3: rules[0].per[0]:"));
    /// ```
    ///
    /// # Errors
    /// All problems of the text, with line and key.
    pub fn from_toml(text: &str) -> Result<RuleSet, Problems> {
        let document = Document::from_toml(text)?;
        let mut problems = Problems::default();
        let mut fields = document.fields(&mut problems);
        let set = read_rules(&mut fields);
        fields.finish();
        problems.into_result(set)
    }
}

/// Reads the keys that define the rule set; other keys are left to the caller.
///
/// Without `default_limit`, each client is limited to 100 requests per minute until there is an enabled rule that limits
/// requests: [`RuleSet::has_built_in_default`].
pub fn read_rules(fields: &mut TableReader<'_, '_>) -> Option<RuleSet> {
    let mut names = HashSet::new();
    let own: Vec<Rule> =
        fields.list_of_tables("rules", |one| read_unique(&mut names, one, "name", read_rule));
    let mut rules = short_forms::read(fields, &mut names);
    rules.extend(own);
    let default = short_forms::read_default(fields, rules.iter().any(Rule::enforces));
    let settings = RuleSettings {
        enabled: fields.read("enabled", values::boolean).unwrap_or(true),
        on_store_failure: rule::read_on_store_failure(fields, ["on_store_failure", "failure_mode"])
            .unwrap_or_default(),
        default_tier: None,
    };
    let is_built_in = default.is_some() && !fields.has("default_limit");
    rules.extend(default);
    let penalties = fields.table("progressive_penalties", read_penalties).flatten();
    // Compiled even if some rules are invalid, to report problems of the whole set too.
    let has_problems = fields.has_problems();
    match RuleSet::new(rules, penalties) {
        Ok(set) => (!has_problems).then(|| set.with_built_in_default(is_built_in).with_settings(settings)),
        // Already reported at its line.
        Err(RuleSetError::DuplicateName(_)) if has_problems => None,
        Err(error) => {
            fields.report("rules", error.to_string());
            None
        }
    }
}

/// Reads a rule. Reports at `key` if an earlier rule has the same name.
fn read_unique(
    names: &mut HashSet<Box<str>>,
    fields: &mut TableReader<'_, '_>,
    key: &str,
    read: impl FnOnce(&mut TableReader<'_, '_>) -> Option<Rule>,
) -> Option<Rule> {
    let rule = read(fields)?;
    if !names.insert(rule.name.clone()) {
        fields.report(key, format!("the name {:?} is already used by an earlier rule", rule.name));
    }
    Some(rule)
}

fn read_penalties(fields: &mut TableReader<'_, '_>) -> Option<PenaltyPolicy> {
    let default = PenaltyPolicy::default();
    let enabled = fields.read("enabled", values::boolean).unwrap_or(false);
    let span = |least: Span| {
        move |value: &Value| {
            let span = values::span(value)?;
            if span < least { Err(format!("must be at least {least}")) } else { Ok(span) }
        }
    };
    let second = Span::from_secs(1);
    let cooldown_max = fields.read("max_cooldown", span(second)).unwrap_or(default.cooldown_max);
    // A max_cooldown below the default base_cooldown lowers the base.
    let base_cooldown = fields.read("base_cooldown", span(second));
    if base_cooldown.is_some_and(|base| base > cooldown_max) {
        let reason = format!("must not exceed max_cooldown ({cooldown_max})");
        fields.report("base_cooldown", reason);
    }
    let policy = PenaltyPolicy {
        detection_window: fields.read("detection_window", span(second)).unwrap_or(default.detection_window),
        violation_threshold: (fields.read("violation_threshold", values::integer(1..=16)))
            .unwrap_or(default.violation_threshold),
        base_cooldown: base_cooldown.unwrap_or(default.base_cooldown.min(cooldown_max)),
        multipliers: (fields.read("penalty_multipliers", values::list(values::integer(1..=1_000_000))))
            .unwrap_or(default.multipliers),
        cooldown_max,
    };
    let levels = policy.multipliers.len();
    let levels_max = VIOLATIONS_MAX.saturating_sub(policy.violation_threshold as usize);
    if !(1..=levels_max).contains(&levels) {
        let reason = format!("must have 1 to {levels_max} multipliers, not {levels}");
        fields.report("penalty_multipliers", reason);
    }
    enabled.then_some(policy)
}
