//! Reads rule files: rules alone, or the whole configuration of a service.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;

use tollgate::RuleSet;
use tollgate::rules::IPV6_PREFIX_DEFAULT;
use tollgate::wire::{Document, Origin, Problems, Value, read_rules};

use crate::failure::Failure;

/// Sections of a tollgate.toml that say nothing about rules: the service checks them.
const SERVICE_SECTIONS: [&str; 6] = ["server", "counters", "auth", "log", "database", "proxy"];

/// A rule file without mistakes.
pub(super) struct RuleFile {
    /// Its name.
    pub(super) path: String,
    /// The rules.
    pub(super) set: RuleSet,
    /// The line of each rule by name; rules of short forms have none.
    lines: HashMap<String, usize>,
}

impl RuleFile {
    /// Reads a file; the failure lists all of its mistakes.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = read_text(path)?;
        let path = path.display().to_string();
        match read_set(&text) {
            Ok((set, lines)) => Ok(RuleFile { path, set, lines }),
            Err(problems) => Err(Failure::Mistakes { path, problems }),
        }
    }

    /// Where the rule of that name was written, if it was written out.
    pub(super) fn line(&self, rule: &str) -> Option<usize> {
        self.lines.get(rule).copied()
    }
}

/// The text of a file; `-` is standard input.
pub(in crate::commands) fn read_text(path: &Path) -> Result<String, Failure> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|source| Failure::Read { path: path.display().to_string(), source })
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
    let ipv6_prefix = fields.read("identity", |identity| Ok(ipv6_prefix(identity))).flatten();
    let lines = fields.read("rules", |rules| Ok(lines_by_name(rules))).unwrap_or_default();
    let set = read_rules(&mut fields);
    fields.finish();
    let set = problems.or(set)?.with_ipv6_prefix(ipv6_prefix.unwrap_or(IPV6_PREFIX_DEFAULT));
    Ok((set, lines))
}

/// The one key of the service that changes what rules count. Whether it is valid is for the service to say.
fn ipv6_prefix(identity: &Value) -> Option<u8> {
    let Value::Table(entries) = identity else { return None };
    let (_, prefix) = entries.iter().find(|(key, _)| key == "ipv6_prefix")?;
    if let Value::Integer(bits) = prefix.value { u8::try_from(bits).ok() } else { None }
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
