//! A parsed document that keeps the origin of every value.
//!
//! Deserializing into structs would stop at the first error. Here all errors are collected, each with its line and key,
//! so that an operator can fix a file in one go.

use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use super::table_reader::TableReader;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of the file.
    Line(usize),
    /// The name of an environment variable or flag.
    Named(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(line) => write!(f, "line {line}"),
            Origin::Named(name) => f.write_str(name),
        }
    }
}

/// A value as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Boolean(bool),
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// A string.
    Text(String),
    /// A date or time.
    Datetime(String),
    /// A list.
    List(Vec<LocatedValue>),
    /// A table, in the order written.
    Table(Vec<(String, LocatedValue)>),
}

impl Value {
    /// The type, for error messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Value::Boolean(_) => "a boolean",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a fraction",
            Value::Text(_) => "a string",
            Value::Datetime(_) => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct LocatedValue {
    /// The value.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
}

/// One error in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the value comes from.
    pub origin: Origin,
    /// The key, such as `rules[2].limits[0].window`; empty for syntax errors.
    pub key: String,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.key {
            "" => write!(f, "{}: {}", self.origin, self.reason),
            key => write!(f, "{}: {key}: {}", self.origin, self.reason),
        }
    }
}

/// All errors of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl std::error::Error for Problems {}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl Problems {
    /// Returns the value if there are no problems.
    ///
    /// # Errors
    /// The problems, in the order of their lines.
    pub fn into_result<T>(mut self, value: Option<T>) -> Result<T, Problems> {
        self.0.sort_by_key(|problem| match problem.origin {
            Origin::Line(line) => line,
            Origin::Named(_) => usize::MAX,
        });
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(self),
        }
    }
}

/// A value that should be a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotATable {
    /// The key.
    pub key: String,
    /// The type of the value.
    pub kind: &'static str,
}

/// A parsed document.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    root: Vec<(String, LocatedValue)>,
    /// The origin reported for missing keys.
    origin: Origin,
}

impl Document {
    /// An empty document.
    pub fn empty() -> Self {
        Document { root: Vec::new(), origin: Origin::Line(1) }
    }

    /// A document from a table whose values all have the same origin. `None` if the value is not a table.
    pub fn from_value(mut table: Value, origin: Origin) -> Option<Self> {
        table.set_origin(&origin);
        match table {
            Value::Table(root) => Some(Document { root, origin }),
            _ => None,
        }
    }

    /// Parses TOML.
    ///
    /// # Errors
    /// All syntax errors.
    pub fn from_toml(text: &str) -> Result<Self, Problems> {
        let lines = Lines::new(text);
        let (table, errors) = DeTable::parse_recoverable(text);
        if errors.is_empty() {
            return Ok(Document { root: lines.table(table.get_ref()), origin: Origin::Line(1) });
        }
        let problem = |error: toml::de::Error| Problem {
            origin: Origin::Line(lines.of(error.span().map_or(0, |span| span.start))),
            key: String::new(),
            reason: error.message().trim().to_owned(),
        };
        Err(Problems(errors.into_iter().map(problem).collect()))
    }

    /// The top-level entries.
    pub fn entries(&self) -> &[(String, LocatedValue)] {
        &self.root
    }

    /// Sets the value at a path of keys, creating missing tables.
    ///
    /// # Errors
    /// When a parent is not a table. The document is unchanged.
    pub fn set(&mut self, path: &[&str], value: Value, origin: &Origin) -> Result<(), NotATable> {
        let Some((last, parents)) = path.split_last() else { return Ok(()) };
        let mut table = &mut self.root;
        for (depth, key) in parents.iter().enumerate() {
            let node = entry(table, key, || LocatedValue {
                value: Value::Table(Vec::new()),
                origin: origin.clone(),
            });
            let kind = node.value.kind();
            let Value::Table(next) = &mut node.value else {
                return Err(NotATable { key: parents[..=depth].join("."), kind });
            };
            table = next;
        }
        let placeholder = || LocatedValue { value: Value::Boolean(false), origin: origin.clone() };
        *entry(table, last, placeholder) = LocatedValue { value, origin: origin.clone() };
        Ok(())
    }

    /// Moves a top-level key to a path of keys. A value that is there already stays, and so does the key, which is then
    /// reported as unknown.
    pub fn move_key(&mut self, from: &str, to: &[&str]) {
        let Some(position) = self.root.iter().position(|(key, _)| key == from) else { return };
        if self.has(to) {
            return;
        }
        let (key, node) = self.root.remove(position);
        if self.set(to, node.value.clone(), &node.origin).is_err() {
            self.root.push((key, node));
        }
    }

    /// Moves keys of a top-level table to the top level. A key that is there already stays in the table.
    pub fn lift_keys(&mut self, table: &str, keys: &[&str]) {
        let is_free = |key: &str| !self.root.iter().any(|(known, _)| known == key);
        let movable: Vec<&str> = keys.iter().copied().filter(|key| is_free(key)).collect();
        let node = self.root.iter_mut().find(|(key, _)| key == table);
        let Some((_, LocatedValue { value: Value::Table(entries), .. })) = node else { return };
        let (lifted, kept): (Vec<_>, Vec<_>) =
            std::mem::take(entries).into_iter().partition(|(key, _)| movable.contains(&&**key));
        *entries = kept;
        self.root.extend(lifted);
    }

    /// Removes a top-level key.
    pub fn remove(&mut self, key: &str) -> Option<LocatedValue> {
        let position = self.root.iter().position(|(known, _)| known == key)?;
        Some(self.root.remove(position).1)
    }

    /// The value at a path of keys.
    pub fn get(&self, path: &[&str]) -> Option<&LocatedValue> {
        let (last, parents) = path.split_last()?;
        let mut table = &self.root;
        for key in parents {
            let Value::Table(next) = &find(table, key)?.value else { return None };
            table = next;
        }
        find(table, last)
    }

    /// Whether there is a value at a path of keys.
    pub fn has(&self, path: &[&str]) -> bool {
        self.get(path).is_some()
    }

    /// Returns a reader of the top-level table. Errors are added to `problems`.
    pub fn fields<'n, 'p>(&'n self, problems: &'p mut Problems) -> TableReader<'n, 'p> {
        TableReader::new(&self.root, String::new(), self.origin.clone(), problems)
    }
}

fn find<'t>(table: &'t [(String, LocatedValue)], key: &str) -> Option<&'t LocatedValue> {
    table.iter().find(|(known, _)| known == key).map(|(_, node)| node)
}

fn entry<'t>(
    table: &'t mut Vec<(String, LocatedValue)>,
    key: &str,
    new: impl FnOnce() -> LocatedValue,
) -> &'t mut LocatedValue {
    let position = table.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
        table.push((key.to_owned(), new()));
        table.len() - 1
    });
    &mut table[position].1
}

/// Maps byte offsets to lines.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Lines(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(offset, _)| offset).collect())
    }

    fn of(&self, offset: usize) -> usize {
        self.0.partition_point(|newline| *newline < offset) + 1
    }

    fn table(&self, table: &DeTable<'_>) -> Vec<(String, LocatedValue)> {
        let entries = table.iter();
        entries.map(|(key, value)| (key.get_ref().to_string(), self.node(value))).collect()
    }

    fn node(&self, spanned: &Spanned<DeValue<'_>>) -> LocatedValue {
        let value = match spanned.get_ref() {
            DeValue::Boolean(value) => Value::Boolean(*value),
            DeValue::String(text) => Value::Text(text.to_string()),
            // Out of range: rejected when it is read.
            DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
                .map_or_else(|_| Value::Float(f64::INFINITY), Value::Integer),
            DeValue::Float(digits) => Value::Float(digits.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Datetime(time) => Value::Datetime(time.to_string()),
            DeValue::Array(items) => Value::List(items.iter().map(|item| self.node(item)).collect()),
            DeValue::Table(table) => Value::Table(self.table(table)),
        };
        LocatedValue { value, origin: Origin::Line(self.of(spanned.span().start)) }
    }
}
