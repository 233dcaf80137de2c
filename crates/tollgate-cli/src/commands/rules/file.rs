//! Reads rule files: rules alone, or the whole configuration of a service.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use tollgate::RuleSet;
use tollgate::config::values::{boolean, integer};
use tollgate::config::{Document, Origin, Problems, TableReader, Value, read_normalization, read_rules};
use tollgate::identity::Normalization;
use tollgate::rules::IPV6_PREFIX_DEFAULT;
use tollgate_server::config::settings::{self, Settings, SettingsError};

use super::apply_file;
use crate::failure::Failure;

/// Sections of a tollgate.toml that say nothing about rules: the service checks them.
const SERVICE_SECTIONS: [&str; 5] = ["server", "counters", "auth", "log", "database"];

/// A rule file without mistakes.
pub(super) struct RuleFile {
    /// Its name.
    pub(super) path: String,
    /// The rules.
    pub(super) set: RuleSet,
    /// Whether only `rules apply` takes it.
    pub(super) is_for_apply: bool,
    /// The line of each rule by name; rules of short forms have none.
    lines: HashMap<String, usize>,
}

impl RuleFile {
    /// Reads the rules of a file; the failure lists all of their mistakes. What else a service needs is left alone: its
    /// certificates, say, are not there where rules are tried.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = read_text(path)?;
        let path = path.display().to_string();
        if let Some(read) = apply_file::read(&text) {
            return RuleFile::for_apply(path, read, &text);
        }
        match read_set(&text) {
            Ok((set, lines)) => Ok(RuleFile { path, set, is_for_apply: false, lines }),
            Err(problems) => Err(Failure::Mistakes { path, problems }),
        }
    }

    /// Reads a file as the service does, every section of it; the failure lists all of its mistakes.
    pub(super) fn read_whole(path: &Path) -> Result<Self, Failure> {
        let text = read_text(path)?;
        let path = path.display().to_string();
        if let Some(read) = apply_file::read(&text) {
            return RuleFile::for_apply(path, read, &text);
        }
        let lines = rule_lines(&text);
        match Settings::from_toml(&text) {
            Ok(settings) => Ok(RuleFile { path, set: settings.rules, is_for_apply: false, lines }),
            Err(SettingsError::Invalid { problems, .. }) => Err(Failure::Mistakes { path, problems }),
            Err(other) => Err(other.into()),
        }
    }

    fn for_apply(path: String, read: Result<RuleSet, Problems>, text: &str) -> Result<Self, Failure> {
        match read {
            Ok(set) => Ok(RuleFile { path, set, is_for_apply: true, lines: rule_lines(text) }),
            Err(problems) => Err(Failure::Mistakes { path, problems }),
        }
    }

    /// Where the rule of that name was written, if it was written out.
    pub(super) fn line(&self, rule: &str) -> Option<usize> {
        self.lines.get(rule).copied()
    }
}

/// The text of a file, no larger than the service would read it; `-` is standard input.
pub(in crate::commands) fn read_text(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        return Ok(settings::read_text(path, io::stdin().lock())?);
    }
    match File::open(path) {
        Ok(file) => Ok(settings::read_text(path, file)?),
        Err(source) => Err(Failure::Read { path: path.display().to_string(), source }),
    }
}

/// The lines of the items of a list.
pub(super) fn lines(value: &Value) -> Vec<usize> {
    let Value::List(items) = value else { return Vec::new() };
    let line = |origin: &Origin| if let Origin::Line(line) = origin { *line } else { 0 };
    items.iter().map(|item| line(&item.origin)).collect()
}

fn read_set(text: &str) -> Result<(RuleSet, HashMap<String, usize>), Problems> {
    let document = Document::from_toml(text)?;
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    for section in SERVICE_SECTIONS {
        fields.skip(section);
    }
    let identity = fields.table("identity", identity).unwrap_or_default();
    let lines = fields.read("rules", |rules| Ok(lines_by_name(rules))).unwrap_or_default();
    let set = read_rules(&mut fields);
    fields.finish();
    let set =
        problems.into_result(set)?.with_ipv6_prefix(identity.ipv6_prefix.unwrap_or(IPV6_PREFIX_DEFAULT));
    Ok((set.with_nat64(identity.nat64).with_normalization(identity.normalization), lines))
}

/// The keys of the service that change what rules match and count.
#[derive(Default)]
struct Identity {
    ipv6_prefix: Option<u8>,
    nat64: bool,
    normalization: Normalization,
}

/// Whether the other keys are valid is for the service to say. Spellings are read as it reads them: a test of rules that takes
/// two clients for one, or one for two, is worth nothing.
fn identity(fields: &mut TableReader<'_, '_>) -> Identity {
    let identity = Identity {
        ipv6_prefix: fields.peek("ipv6_prefix", integer(0..=128)),
        nat64: fields.peek("nat64", boolean).unwrap_or(false),
        normalization: read_normalization(fields),
    };
    fields.skip_rest();
    identity
}

/// The line of each rule of a file without mistakes.
fn rule_lines(text: &str) -> HashMap<String, usize> {
    let Ok(document) = Document::from_toml(text) else { return HashMap::new() };
    let mut problems = Problems::default();
    let rules = document.fields(&mut problems).read("rules", |rules| Ok(lines_by_name(rules)));
    rules.unwrap_or_default()
}

fn lines_by_name(rules: &Value) -> HashMap<String, usize> {
    let Value::List(items) = rules else { return HashMap::new() };
    let name = |value: &Value| {
        let Value::Table(entries) = value else { return None };
        let (_, name) = entries.iter().find(|(key, _)| key == "name")?;
        if let Value::Text(name) = &name.value { Some(name.clone()) } else { None }
    };
    let named = items.iter().zip(lines(rules)).filter_map(|(item, line)| Some((name(&item.value)?, line)));
    named.collect()
}
