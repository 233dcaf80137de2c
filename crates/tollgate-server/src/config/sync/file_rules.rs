//! The rules of the settings file.

use std::path::PathBuf;

use tollgate::identity::Normalization;
use tollgate::{Rule, RuleSet};

use crate::config::settings::Settings;

/// The rules of the settings file.
#[derive(Debug)]
pub(crate) struct FileRules {
    /// As written, not normalized.
    pub(super) set: RuleSet,
    pub(super) normalization: Normalization,
    file: Option<PathBuf>,
    /// Whether the file has no rules, so that the built-in default applies.
    is_built_in: bool,
}

impl FileRules {
    pub(crate) fn new(settings: &Settings) -> Self {
        FileRules {
            set: settings.rules.clone(),
            normalization: settings.normalization.clone(),
            file: settings.config_file.clone(),
            is_built_in: settings.has_built_in_default,
        }
    }

    /// The rules that apply beside those of the database. A database rule replaces a built-in default of the same name.
    pub(super) fn beside(&self, is_in_database: impl Fn(&str) -> bool) -> impl Iterator<Item = &Rule> {
        let is_replaced = move |rule: &Rule| self.is_built_in && is_in_database(&rule.name);
        self.set.rules().iter().filter(move |rule| !is_replaced(rule))
    }

    /// Whether the file defines a rule of this name.
    pub(super) fn defines(&self, name: &str) -> bool {
        !self.is_built_in && self.set.rules().iter().any(|rule| *rule.name == *name)
    }

    pub(super) fn is_built_in(&self) -> bool {
        self.is_built_in
    }

    /// The file for messages.
    pub(super) fn describe(&self) -> String {
        self.file.as_ref().map_or_else(|| "the built-in rules".to_owned(), |file| file.display().to_string())
    }
}
