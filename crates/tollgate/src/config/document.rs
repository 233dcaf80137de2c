//! A document as it was written, with the place of every value.
//!
//! Deserialising into structs stops at the first mistake and forgets where the rest stood. Operators fix files in
//! one go, so reading goes on after a mistake and reports each with its line and its key.

use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use super::table_reader::TableReader;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the file, on this line.
    Line(usize),
    /// Elsewhere: the name of an environment variable or of a flag.
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

/// A value as it was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// A string.
    Text(String),
    /// A date or a time, which nothing here uses.
    Datetime,
    /// A list.
    List(Vec<LocatedValue>),
    /// A table, in the order written.
    Table(Vec<(String, LocatedValue)>),
}

impl Value {
    /// What it is, for messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Value::Boolean(_) => "a boolean",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a fraction",
            Value::Text(_) => "a string",
            Value::Datetime => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct LocatedValue {
    /// What was written.
    pub value: Value,
    /// Where.
    pub origin: Origin,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written.
    pub origin: Origin,
    /// The key, `rules[2].limits[0].window`; empty if the text itself is malformed.
    pub key: String,
    /// What is wrong with it.
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

/// All mistakes of a document.
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
    /// The value, if there is one and there are no problems.
    ///
    /// # Errors
    /// The problems.
    pub fn into_result<T>(mut self, value: Option<T>) -> Result<T, Problems> {
        // In the order of the file, whatever order the keys were read in.
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

/// Something that was to have keys, and is no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotATable {
    /// What.
    pub key: String,
    /// What it is.
    pub kind: &'static str,
}

/// A whole document.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    root: Vec<(String, LocatedValue)>,
    /// What is said of keys that are missing.
    origin: Origin,
}

impl Document {
    /// A document with nothing in it.
    pub fn empty() -> Self {
        Document { root: Vec::new(), origin: Origin::Line(1) }
    }

    /// A document that was no text: a table made of values, all of them from one place. Nothing if it is no table.
    pub fn from_value(mut table: Value, origin: Origin) -> Option<Self> {
        table.stamp(&origin);
        match table {
            Value::Table(root) => Some(Document { root, origin }),
            _ => None,
        }
    }

    /// Parses TOML.
    ///
    /// # Errors
    /// Every place where the text is not TOML.
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

    /// Sets the value at a path of keys, making the tables on the way.
    ///
    /// # Errors
    /// When something on the way is no table. It stays as it is, for its reader to complain of.
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
        let placeholder = || LocatedValue { value: Value::Datetime, origin: origin.clone() };
        *entry(table, last, placeholder) = LocatedValue { value, origin: origin.clone() };
        Ok(())
    }

    /// Reads the document; mistakes go to `problems`.
    pub fn fields<'n, 'p>(&'n self, problems: &'p mut Problems) -> TableReader<'n, 'p> {
        TableReader::new(&self.root, String::new(), self.origin.clone(), problems)
    }
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

/// Finds the line of an offset.
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
            // A number out of range is kept as the text it is, to be refused where it is read.
            DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
                .map_or_else(|_| Value::Float(f64::INFINITY), Value::Integer),
            DeValue::Float(digits) => Value::Float(digits.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Datetime(_) => Value::Datetime,
            DeValue::Array(items) => Value::List(items.iter().map(|item| self.node(item)).collect()),
            DeValue::Table(table) => Value::Table(self.table(table)),
        };
        LocatedValue { value, origin: Origin::Line(self.of(spanned.span().start)) }
    }
}
