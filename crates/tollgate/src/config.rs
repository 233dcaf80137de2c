//! The door: text from outside becomes checked types here, or a list of everything that is wrong with it.

pub mod document;
mod json;
mod limits;
mod normalization;
mod rule;
mod short_forms;
mod suggest;
mod table_reader;
pub mod values;

use hashbrown::HashSet;

pub use self::document::{Document, LocatedValue, Origin, Problem, Problems, TableReader, Value};
pub use self::normalization::read_normalization;
pub use self::rule::read as read_rule;
pub use self::short_forms::{read_limit_and_window, read_tier};
use crate::penalties::{PenaltyPolicy, VIOLATIONS_MAX};
use crate::rules::{Rule, RuleSet, RuleSetError};
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
    /// Everything that is wrong with the text, each with its place.
    pub fn from_toml(text: &str) -> Result<RuleSet, Problems> {
        let document = Document::from_toml(text)?;
        let mut problems = Problems::default();
        let mut fields = document.fields(&mut problems);
        let set = read_rules(&mut fields);
        fields.finish();
        problems.into_result(set)
    }
}

/// Reads the keys of a file that make a rule set, and leaves the others.
///
/// With neither rules nor short forms, the default limit of 100 requests a minute per client applies.
pub fn read_rules(fields: &mut TableReader<'_, '_>) -> Option<RuleSet> {
    let mut names = Names::default();
    let own: Vec<Rule> =
        fields.list_of_tables("rules", |one| names.unique(one, ("name", rule::peek_name), read_rule));
    let mut rules = short_forms::read(fields, own.is_empty(), &mut names);
    rules.extend(own);
    let penalties = fields.table("progressive_penalties", read_penalties).flatten();
    // The rules that could be read are put together even if others could not: they may be too many by themselves.
    let wrong = fields.has_problems();
    match RuleSet::new(rules, penalties) {
        Ok(set) => (!wrong).then_some(set),
        // Told above, where it is written.
        Err(RuleSetError::DuplicateName(_)) if wrong => None,
        Err(error) => {
            fields.report("rules", error.to_string());
            None
        }
    }
}

/// The names of the rules read so far. Counters are kept by name, so each stands once, and a second is refused where it
/// is written.
#[derive(Default)]
struct Names(HashSet<Box<str>>);

impl Names {
    /// The rule that `read` reads. Its name is noted even if the rest of it is wrong, and told if it is taken; before `read`
    /// stands the key that it is written at, and how it is made of what is written.
    fn unique(
        &mut self,
        fields: &mut TableReader<'_, '_>,
        (key, name): (&str, fn(&TableReader<'_, '_>) -> Option<String>),
        read: impl FnOnce(&mut TableReader<'_, '_>) -> Option<Rule>,
    ) -> Option<Rule> {
        let rule = read(fields);
        if let Some(name) = name(fields)
            && !self.0.insert(name.clone().into())
        {
            fields.report(key, format!("an earlier rule is named {name:?} already"));
        }
        rule
    }
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
    // A cap alone is fine: what is shorter than the usual first cooldown is the first one.
    let base_cooldown = fields.read("base_cooldown", span(second));
    if base_cooldown.is_some_and(|base| base > cooldown_max) {
        let reason =
            format!("is longer than max_cooldown, {cooldown_max}: no cooldown would ever be so long");
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
        let reason = format!("needs 1 to {levels_max} multipliers, not {levels}");
        fields.report("penalty_multipliers", reason);
    }
    enabled.then_some(policy)
}
