//! The configuration as it would be after changes that nobody has made yet.

use std::sync::Arc;

use tollgate::config::Problems;
use tollgate::{Rule, RuleSet, Timestamp};
use tollgate_stores::sql::{Item, ItemId, ItemWrite};

use super::{ConfigSync, items};
use crate::app::App;

impl ConfigSync {
    /// The rules of the file, without those that make way for one of the database.
    pub(crate) fn file_rules(&self) -> Vec<Rule> {
        let rules = self.rules.lock();
        rules.file.beside(rules.book.entries()).cloned().collect()
    }

    /// Where those are from: `file`, or `built-in` where nothing is configured and one rule is in force all the same.
    pub(crate) fn file_source(&self) -> &'static str {
        if self.rules.lock().file.is_built_in() { "built-in" } else { "file" }
    }

    /// The file that a rule of this name is written in, if it is one of the file alone and stays. A rule that the database has
    /// too can be removed from there: how else should the two part again?
    pub(crate) fn file_of(&self, rule: &str) -> Option<String> {
        let rules = self.rules.lock();
        (rules.file.holds(rule) && !rules.book.has(rule)).then(|| rules.file.place())
    }

    /// What is in force, and what would be after these changes: rules, numbers of single users and accounts.
    ///
    /// # Errors
    /// When the rules would not go together.
    pub(crate) fn preview(&self, app: &App, writes: &[ItemWrite]) -> Result<(RuleSet, RuleSet), Problems> {
        let in_force = app.limiter().rules();
        let today = in_force.with_overrides(Arc::clone(in_force.overrides()));
        let of_rules = |write: &ItemWrite| {
            matches!(
                write,
                ItemWrite::Put(Item::Rule(_) | Item::Tier(_))
                    | ItemWrite::Delete(ItemId::Rule(_) | ItemId::Tier(_))
            )
        };
        let rules = if writes.iter().any(of_rules) {
            self.compile_with(writes)?
        } else {
            in_force.with_overrides(Arc::clone(in_force.overrides()))
        };
        let (mut overrides, mut accounts) = (Arc::clone(in_force.overrides()), in_force.accounts().edit());
        for write in writes {
            match write {
                ItemWrite::Put(Item::Limit(limit)) => {
                    let new = items::override_of(limit, Timestamp::default());
                    overrides = new.map_or(overrides.clone(), |new| Arc::new(overrides.with(new)));
                }
                ItemWrite::Delete(ItemId::Limit { user, endpoint }) => {
                    overrides = overrides.without(user, endpoint).map_or(overrides, Arc::new);
                }
                ItemWrite::Put(item) => drop(items::put(&mut accounts, item)),
                ItemWrite::Delete(id) => drop(items::remove(&mut accounts, id)),
            }
        }
        let changed = rules.with_overrides(overrides).with_accounts(Arc::new(accounts.finish()));
        Ok((today, changed))
    }
}
