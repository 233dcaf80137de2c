//! Reads rule files: rules only, or the settings file of a service.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use tollgate::RuleSet;
use tollgate::config::{Document, Origin, Problems, TableReader, flat_rule_warnings, values};
use tollgate_server::config::settings::{self, Settings, SettingsError};

use super::{import_file, item_file};
use crate::CliError;

/// A rule file without errors.
pub(crate) struct RuleFile {
    pub(crate) path: String,
    pub(crate) set: RuleSet,
    /// Whether only `rules apply` accepts the file.
    pub(crate) is_import: bool,
    /// The line of each rule by name; rules from short forms have none.
    lines: HashMap<String, usize>,
    /// What is read otherwise than it is written, by the name of the rule.
    pub(crate) notes: Vec<(String, String)>,
}

impl RuleFile {
    /// Reads the rules of a file and reports all of their errors. The other sections are ignored: certificates, for
    /// example, do not exist on the machine where rules are tested.
    pub(crate) fn read(path: &Path) -> Result<Self, CliError> {
        Self::read_with(path, |path, text| {
            Settings::rules_from_toml(text)
                .map_err(|problems| CliError::Invalid { path: path.to_owned(), problems })
        })
    }

    /// Reads every section of a file as the service does and reports all errors.
    pub(crate) fn read_all_sections(path: &Path) -> Result<Self, CliError> {
        Self::read_with(path, |path, text| match Settings::from_toml(text) {
            Ok(settings) => Ok(settings.rule_set()),
            Err(SettingsError::Invalid { problems, .. }) => {
                Err(CliError::Invalid { path: path.to_owned(), problems })
            }
            Err(other) => Err(other.into()),
        })
    }

    fn read_with(
        path: &Path,
        read: impl Fn(&str, &str) -> Result<RuleSet, CliError>,
    ) -> Result<Self, CliError> {
        let text = read_text(path)?;
        let path = path.display().to_string();
        let imported = import_file::read(&text);
        let is_import = imported.is_some();
        let set = match imported {
            Some(result) => result.map_err(|problems| CliError::Invalid { path: path.clone(), problems })?,
            None => read(&path, &text)?,
        };
        let notes =
            item_file::document(&text).map(|document| flat_rule_warnings(&document)).unwrap_or_default();
        Ok(RuleFile { path, set, is_import, lines: rule_lines(&text), notes })
    }

    /// The line of a rule, unless it comes from a short form.
    pub(crate) fn line(&self, rule: &str) -> Option<usize> {
        self.lines.get(rule).copied()
    }
}

/// The text of a file, up to the size that the service accepts; `-` is standard input.
pub(crate) fn read_text(path: &Path) -> Result<String, CliError> {
    if path == Path::new("-") {
        return Ok(settings::read_text(path, io::stdin().lock())?);
    }
    match File::open(path) {
        Ok(file) => Ok(settings::read_text(path, file)?),
        Err(source) => Err(CliError::Read { path: path.display().to_string(), source }),
    }
}

/// The line of a table; 0 if it has none.
pub(crate) fn line(fields: &TableReader<'_, '_>) -> usize {
    if let Origin::Line(line) = fields.origin() { *line } else { 0 }
}

/// The line of each rule; empty for JSON.
fn rule_lines(text: &str) -> HashMap<String, usize> {
    let Ok(document) = Document::from_toml(text) else { return HashMap::new() };
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let rules = fields.list_of_tables("rules", |rule| {
        let name = rule.peek("name", values::text).or_else(|| rule.peek("rule_name", values::text));
        Some((name?, line(rule)))
    });
    rules.into_iter().collect()
}
