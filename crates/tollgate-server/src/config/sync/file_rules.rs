//! The rules of the settings file.

use std::path::PathBuf;

use tollgate::identity::Normalization;
use tollgate::rules::DEFAULT_RULE;
use tollgate::{Rule, RuleSet};

use crate::config::settings::Settings;

/// The rules of the settings file.
#[derive(Debug)]
pub(crate) struct FileRules {
    /// As written, not normalized.
    pub(super) set: RuleSet,
    pub(super) normalization: Normalization,
    file: Option<PathBuf>,
}

impl FileRules {
    pub(crate) fn new(settings: &Settings) -> Self {
        FileRules {
            set: settings.rules.clone(),
            normalization: settings.normalization.clone(),
            file: settings.config_file.clone(),
        }
    }

    /// The rules that apply beside those of the database, with the built-in default or without it.
    pub(super) fn rules(&self, with_built_in: bool) -> impl Iterator<Item = &Rule> {
        self.set.rules().iter().filter(move |rule| with_built_in || !self.is_built_in(&rule.name))
    }

    /// Whether the file defines a rule of this name.
    pub(super) fn defines(&self, name: &str) -> bool {
        self.rules(false).any(|rule| *rule.name == *name)
    }

    /// Whether the rule of this name is the built-in default.
    pub(super) fn is_built_in(&self, rule: &str) -> bool {
        self.set.has_built_in_default() && rule == DEFAULT_RULE
    }

    /// The file for messages.
    pub(super) fn describe(&self) -> String {
        self.file.as_ref().map_or_else(|| "the built-in rules".to_owned(), |file| file.display().to_string())
    }
}
