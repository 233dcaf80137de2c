//! The two sources of the rule set: the settings file and the database.

use tollgate::config::Problems;
use tollgate::identity::Normalization;
use tollgate::{Rule, RuleSet};
use tollgate_stores::sql::ItemWrite;

use super::database_rules::DatabaseRules;
use super::file_rules::FileRules;

/// The rules of the file and of the database.
pub(crate) struct RuleSources {
    file: FileRules,
    /// The current rules of the database, valid or not.
    pub(super) database: DatabaseRules,
    /// The last rules of the database that were valid together with the file. These are in force.
    pub(super) last_valid: DatabaseRules,
    /// The normalization that the accounts and overrides in force were loaded with; `None` before they are. Requests are
    /// normalized with it until they are loaded again: with another one, stored blocks would not match.
    pub(super) normalization: Option<Normalization>,
}

impl RuleSources {
    pub(super) fn new(file: FileRules) -> Self {
        RuleSources {
            file,
            database: DatabaseRules::default(),
            last_valid: DatabaseRules::default(),
            normalization: None,
        }
    }

    /// The normalization of the settings file, with which items must be loaded.
    pub(super) fn file_normalization(&self) -> &Normalization {
        &self.file.normalization
    }

    /// Whether the items in force were loaded with another normalization than that of the settings file.
    pub(super) fn normalization_changed(&self) -> bool {
        self.normalization.as_ref().is_some_and(|loaded| *loaded != self.file.normalization)
    }

    /// Compiles the rule set of both sources.
    ///
    /// # Errors
    /// Everything that is wrong with it. The last valid rules stay.
    pub(super) fn compile(&mut self) -> Result<RuleSet, Problems> {
        let set = self.normalized(&self.file, &self.database)?;
        self.last_valid = self.database.clone();
        Ok(set)
    }

    /// Compiles the last valid rules again; `is_initial` uses those database rules that are valid beside the file.
    pub(super) fn compile_last_valid(&mut self, is_initial: bool) -> Option<RuleSet> {
        if is_initial {
            self.last_valid = self.database.valid_part(&self.file);
        }
        self.normalized(&self.file, &self.last_valid).ok()
    }

    fn normalized(&self, file: &FileRules, database: &DatabaseRules) -> Result<RuleSet, Problems> {
        let normalization = self.normalization.as_ref().unwrap_or(&file.normalization);
        Ok(database.compile(file)?.with_normalization(normalization.clone()))
    }

    /// The rule set after these changes. If the rules conflict already, deletions are allowed: the result is then the set that
    /// stays in force.
    ///
    /// # Errors
    /// Everything that is wrong: invalid fields of rules and tiers, and names that the file defines too.
    pub(crate) fn compile_with<'w>(
        &self,
        changes: impl IntoIterator<Item = &'w ItemWrite>,
    ) -> Result<RuleSet, Problems> {
        let (mut database, mut only_deletes) = (self.database.clone(), true);
        for change in changes {
            only_deletes &= matches!(change, ItemWrite::Delete(_));
            database.write(change);
        }
        match self.normalized(&self.file, &database) {
            Err(_) if only_deletes && self.database.compile(&self.file).is_err() => {
                self.normalized(&self.file, &self.last_valid)
            }
            compiled => compiled,
        }
    }

    /// Replaces the file. Returns the new rule set, and whether the current rules of the database are in it. `had_error` says
    /// that they were rejected before; then the last valid ones are used.
    ///
    /// # Errors
    /// When the file conflicts with the database. Nothing changes then.
    pub(super) fn replace_file(
        &mut self,
        file: FileRules,
        had_error: bool,
    ) -> Result<(RuleSet, bool), Problems> {
        let (set, is_valid) = match self.normalized(&file, &self.database) {
            Ok(set) => (set, true),
            Err(problems) if !had_error => return Err(problems),
            Err(_) => (self.normalized(&file, &self.last_valid)?, false),
        };
        if is_valid {
            self.last_valid = self.database.clone();
        }
        self.file = file;
        Ok((set, is_valid))
    }

    /// The rules of the file that apply beside those of the database, each with its source: `file` or `built-in`.
    pub(crate) fn file_rules(&self) -> Vec<(Rule, &'static str)> {
        let source = |rule: &Rule| if self.file.is_built_in(&rule.name) { "built-in" } else { "file" };
        self.database.file_rules(&self.file).map(|rule| (rule.clone(), source(rule))).collect()
    }

    /// Whether these changes end the built-in default, and no rule limits every client afterwards.
    pub(crate) fn leaves_clients_unlimited<'w>(
        &self,
        changes: impl IntoIterator<Item = &'w ItemWrite>,
    ) -> bool {
        let had_default = self.database.file_rules(&self.file).any(|rule| self.file.is_built_in(&rule.name));
        if !had_default {
            return false;
        }
        let mut database = self.database.clone();
        changes.into_iter().for_each(|change| database.write(change));
        database.enforces() && !database.limits_every_client()
    }

    /// The file that defines a rule of this name, if the database does not define it as well. A rule that both define can be
    /// deleted from the database.
    pub(crate) fn file_of(&self, rule: &str) -> Option<String> {
        (self.file.defines(rule) && !self.database.contains(rule)).then(|| self.file.describe())
    }
}
