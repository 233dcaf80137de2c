//! Reads rule files: rules only, import files, or the settings file of a service. Several files are read as one.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tollgate::RuleSet;
use tollgate::config::{
    Document, LocatedValue, Origin, Problem, Problems, TableReader, Value, flat_rule_warnings, values,
};
use tollgate_server::config::settings::{self, Settings, SettingsError};

use super::{import_file, item_file};
use crate::CliError;

/// Which sections of a settings file are checked.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Sections {
    /// Rules and `[identity]`. Certificates, for example, do not exist on the machine where rules are tested.
    Rules,
    /// Every section, as the service does.
    All,
}

/// One file without errors.
pub(crate) struct RuleFile {
    pub(crate) path: String,
    document: Document,
    set: RuleSet,
    is_import: bool,
    /// Settings in an import file, which `rules apply` does not apply.
    settings: Vec<String>,
    /// What is read otherwise than it is written, by the name of the rule.
    notes: Vec<(String, String)>,
    /// Warnings about settings that concern no single rule.
    warnings: Vec<String>,
}

impl RuleFile {
    /// Reads a file and reports all of its errors.
    pub(crate) fn read(path: &Path, sections: Sections) -> Result<Self, CliError> {
        let text = read_text(path)?;
        let path = path.display().to_string();
        let invalid = |problems| CliError::Invalid { path: path.clone(), problems };
        let document = item_file::document(&text).map_err(invalid)?;
        let is_import = import_file::is_import_file(&text, &document);
        let settings =
            if is_import { item_file::check_items(&text, &document).map_err(invalid)? } else { Vec::new() };
        let (set, mut warnings) = match sections {
            _ if is_import => (import_file::read_rules(&document).map_err(invalid)?, Vec::new()),
            Sections::Rules => (Settings::rules_from(document.clone()).map_err(invalid)?, Vec::new()),
            Sections::All => read_settings(&path, &text)?,
        };
        let notes = flat_rule_warnings(&document);
        // Those of rules are reported with the line of the rule.
        let of_rules: Vec<String> =
            notes.iter().map(|(rule, reason)| format!("rule {rule:?} {reason}")).collect();
        warnings.retain(|warning| !of_rules.contains(warning));
        Ok(RuleFile { path, document, set, is_import, settings, notes, warnings })
    }
}

fn read_settings(path: &str, text: &str) -> Result<(RuleSet, Vec<String>), CliError> {
    match Settings::from_toml(text) {
        Ok(settings) => Ok((settings.rule_set(), settings.warnings)),
        Err(SettingsError::Invalid { problems, .. }) => {
            Err(CliError::Invalid { path: path.to_owned(), problems })
        }
        Err(other) => Err(other.into()),
    }
}

/// The line of a file in which a rule is written.
struct Place {
    file: String,
    line: usize,
}

/// Files without errors, read together.
pub(crate) struct RuleFiles {
    pub(crate) paths: Vec<String>,
    pub(crate) set: RuleSet,
    /// Whether only `rules apply` accepts the files.
    pub(crate) is_import: bool,
    /// The place of each rule by name; rules from short forms and from JSON have none.
    places: HashMap<String, Place>,
    pub(crate) notes: Vec<(String, String)>,
    /// What `rules apply` does not apply, and warnings about settings, by file.
    pub(crate) file_warnings: Vec<(String, String)>,
}

impl RuleFiles {
    /// Reads files; the first one with errors is reported.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Self, CliError> {
        let files: Result<Vec<RuleFile>, CliError> =
            paths.iter().map(|path| RuleFile::read(path, Sections::Rules)).collect();
        Self::merge(files?)
    }

    /// The rules of all files as if they were one. A name or a setting may occur only once.
    pub(crate) fn merge(mut files: Vec<RuleFile>) -> Result<Self, CliError> {
        let places = rule_places(&files)?;
        let is_import = files.iter().any(|file| file.is_import);
        let paths: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
        let set = match &*files {
            [one] => one.set.clone(),
            files => {
                let invalid = |problems| CliError::Invalid { path: paths.join(", "), problems };
                let document = merge_documents(files).map_err(invalid)?;
                let read = if is_import {
                    import_file::read_rules(&document)
                } else {
                    Settings::rules_from(document)
                };
                read.map_err(invalid)?
            }
        };
        let notes = files.iter_mut().flat_map(|file| std::mem::take(&mut file.notes)).collect();
        let file_warnings = files.into_iter().flat_map(|RuleFile { path, settings, warnings, .. }| {
            let unapplied = (!settings.is_empty()).then(|| item_file::not_applied(&settings));
            unapplied.into_iter().chain(warnings).map(move |warning| (path.clone(), warning))
        });
        let file_warnings = file_warnings.collect();
        Ok(RuleFiles { paths, set, is_import, places, notes, file_warnings })
    }

    /// The file and line of a rule, for messages; only the files if the rule comes from a short form.
    pub(crate) fn describe_place(&self, rule: &str) -> String {
        self.places
            .get(rule)
            .map_or_else(|| self.paths.join(", "), |place| format!("{}:{}", place.file, place.line))
    }

    /// The file and line of a rule, unless it comes from a short form.
    pub(crate) fn place(&self, rule: &str) -> Option<(&str, usize)> {
        self.places.get(rule).map(|place| (&*place.file, place.line))
    }
}

/// One document with the lists of all files. The origin of each value names its file.
fn merge_documents(files: &[RuleFile]) -> Result<Document, Problems> {
    let mut entries: Vec<(String, LocatedValue)> = Vec::new();
    let mut problems = Problems::default();
    for RuleFile { path, document, .. } in files {
        let metadata = ["version", "next"];
        for (key, value) in document.entries().iter().filter(|(key, _)| !metadata.contains(&&**key)) {
            let value = in_file(value, path);
            let known = entries.iter_mut().find(|(other, _)| other == key).map(|(_, known)| known);
            match (known, value) {
                (None, value) => entries.push((key.clone(), value)),
                (
                    Some(LocatedValue { value: Value::List(all), .. }),
                    LocatedValue { value: Value::List(more), .. },
                ) => {
                    all.extend(more);
                }
                (Some(known), value) => problems.0.push(Problem {
                    reason: format!("is already set in {}", known.origin),
                    origin: value.origin,
                    key: key.clone(),
                }),
            }
        }
    }
    let mut merged = Document::empty();
    for (key, LocatedValue { value, origin }) in entries {
        // Setting a top-level key does not fail.
        let _ = merged.set(&[&key], value, &origin);
    }
    problems.into_result(Some(merged))
}

/// The value with origins such as `rules.toml:7`.
fn in_file(located: &LocatedValue, path: &str) -> LocatedValue {
    let value = match &located.value {
        Value::List(items) => Value::List(items.iter().map(|item| in_file(item, path)).collect()),
        Value::Table(entries) => {
            Value::Table(entries.iter().map(|(key, item)| (key.clone(), in_file(item, path))).collect())
        }
        other => other.clone(),
    };
    let origin = match &located.origin {
        Origin::Line(line) => Origin::Named(format!("{path}:{line}")),
        Origin::Named(_) => Origin::Named(path.to_owned()),
    };
    LocatedValue { value, origin }
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

/// The place of each rule. A rule may be written only once.
fn rule_places(files: &[RuleFile]) -> Result<HashMap<String, Place>, CliError> {
    let mut places: HashMap<String, Place> = HashMap::new();
    for RuleFile { path, document, .. } in files {
        for (name, line) in rule_lines(document) {
            let place = Place { file: path.clone(), line };
            if let Some(first) = places.insert(name.clone(), place) {
                let reason = format!(
                    "{path}:{line}: rule {name:?} is already defined in {}:{}",
                    first.file, first.line
                );
                return Err(CliError::Arguments(reason));
            }
        }
    }
    Ok(places)
}

/// The rules and their lines; none for JSON.
fn rule_lines(document: &Document) -> Vec<(String, usize)> {
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    fields.list_of_tables("rules", |rule| {
        let name = rule.peek("name", values::text).or_else(|| rule.peek("rule_name", values::text));
        Some((name?, line(rule))).filter(|(_, line)| *line > 0)
    })
}
