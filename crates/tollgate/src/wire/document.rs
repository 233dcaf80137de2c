//! A document as it was written, with the place of every value, and a reader that collects all mistakes.
//!
//! Deserialising into structs stops at the first mistake and forgets where the rest stood. Operators fix files in
//! one go, so reading goes on after a mistake and reports each with its line and its key.

use std::fmt;

use hashbrown::HashMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::slips::closest;

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
    List(Vec<Node>),
    /// A table, in the order written.
    Table(Vec<(String, Node)>),
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
pub struct Node {
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
    pub fn or<T>(mut self, value: Option<T>) -> Result<T, Problems> {
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

/// A whole document.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    root: Vec<(String, Node)>,
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
    pub fn set(&mut self, path: &[&str], value: Value, origin: &Origin) {
        let Some((last, parents)) = path.split_last() else { return };
        let mut table = &mut self.root;
        for key in parents {
            let node = entry(table, key, || Node { value: Value::Table(Vec::new()), origin: origin.clone() });
            if !matches!(node.value, Value::Table(_)) {
                *node = Node { value: Value::Table(Vec::new()), origin: origin.clone() };
            }
            let Value::Table(next) = &mut node.value else { return };
            table = next;
        }
        let placeholder = || Node { value: Value::Datetime, origin: origin.clone() };
        *entry(table, last, placeholder) = Node { value, origin: origin.clone() };
    }

    /// Reads the document; mistakes go to `problems`.
    pub fn fields<'n, 'p>(&'n self, problems: &'p mut Problems) -> Fields<'n, 'p> {
        Fields::new(&self.root, String::new(), self.origin.clone(), problems)
    }
}

fn entry<'t>(table: &'t mut Vec<(String, Node)>, key: &str, new: impl FnOnce() -> Node) -> &'t mut Node {
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

    fn table(&self, table: &DeTable<'_>) -> Vec<(String, Node)> {
        let entries = table.iter();
        entries.map(|(key, value)| (key.get_ref().to_string(), self.node(value))).collect()
    }

    fn node(&self, spanned: &Spanned<DeValue<'_>>) -> Node {
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
        Node { value, origin: Origin::Line(self.of(spanned.span().start)) }
    }
}

/// A table being read. Each key is asked for once; [`Fields::finish`] complains of those nobody asked for.
pub struct Fields<'n, 'p> {
    entries: HashMap<&'n str, &'n Node>,
    asked: Vec<&'static str>,
    path: String,
    origin: Origin,
    problems: &'p mut Problems,
    problems_before: usize,
}

impl<'n, 'p> Fields<'n, 'p> {
    fn new(table: &'n [(String, Node)], path: String, origin: Origin, problems: &'p mut Problems) -> Self {
        let entries = table.iter().map(|(key, node)| (&**key, node)).collect();
        let problems_before = problems.0.len();
        Fields { entries, asked: Vec::new(), path, origin, problems, problems_before }
    }

    /// The value of `key`, if it is there and `parse` takes it.
    pub fn read<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        let node = self.take(key)?;
        match parse(&node.value) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.push(node.origin.clone(), self.key(key), reason);
                None
            }
        }
    }

    /// The value of `key`, if it is there and `parse` takes it. Complaints about it are left to whoever reads it.
    pub fn peek<T>(&self, key: &str, parse: impl FnOnce(&Value) -> Result<T, String>) -> Option<T> {
        parse(&self.entries.get(key)?.value).ok()
    }

    /// The value of `key`; a complaint if it is not there.
    pub fn require<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        if !self.entries.contains_key(key) {
            self.asked.push(key);
            self.complain(key, "is missing".to_owned());
            return None;
        }
        self.read(key, parse)
    }

    /// The items of a list, each parsed on its own, so that each mistake has its own place. A single item may stand
    /// for a list of one.
    pub fn items<T>(
        &mut self,
        key: &'static str,
        mut parse: impl FnMut(&Value) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let node = self.take(key)?;
        let items = match &node.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let mut parsed = Vec::with_capacity(items.len());
        for (number, item) in items.iter().enumerate() {
            match parse(&item.value) {
                Ok(value) => parsed.push(value),
                Err(reason) => {
                    let key = format!("{}[{number}]", self.key(key));
                    self.push(item.origin.clone(), key, reason);
                }
            }
        }
        Some(parsed)
    }

    /// A table inside this one.
    pub fn table<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Fields<'_, '_>) -> T) -> Option<T> {
        let node = self.take(key)?;
        let path = self.key(key);
        self.sub_table(node, path, read)
    }

    /// A list of tables inside this one; those with mistakes are left out.
    pub fn list_of_tables<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut Fields<'_, '_>) -> Option<T>,
    ) -> Vec<T> {
        let Some(node) = self.take(key) else { return Vec::new() };
        let Value::List(items) = &node.value else {
            let reason = format!("must be a list of tables ([[{key}]]), not {}", node.value.kind());
            self.push(node.origin.clone(), self.key(key), reason);
            return Vec::new();
        };
        let mut found = Vec::with_capacity(items.len());
        for (number, item) in items.iter().enumerate() {
            let path = format!("{}[{number}]", self.key(key));
            found.extend(self.sub_table(item, path, &mut read).flatten());
        }
        found
    }

    /// The pairs of a table whose keys are free.
    pub fn pairs(&mut self, key: &'static str) -> Option<Vec<(&'n str, &'n Value)>> {
        let node = self.take(key)?;
        if let Value::Table(entries) = &node.value {
            return Some(entries.iter().map(|(name, node)| (&**name, &node.value)).collect());
        }
        self.push(node.origin.clone(), self.key(key), format!("must be a table, not {}", node.value.kind()));
        None
    }

    fn sub_table<T>(
        &mut self,
        node: &Node,
        path: String,
        read: impl FnOnce(&mut Fields<'_, '_>) -> T,
    ) -> Option<T> {
        let Value::Table(table) = &node.value else {
            self.push(node.origin.clone(), path, format!("must be a table, not {}", node.value.kind()));
            return None;
        };
        let mut fields = Fields::new(table, path, node.origin.clone(), self.problems);
        let value = read(&mut fields);
        fields.finish();
        Some(value)
    }

    /// Leaves a key to another reader: it is neither read nor complained of.
    pub fn skip(&mut self, key: &'static str) {
        self.asked.push(key);
    }

    /// Complains about a key, at its place if it is there.
    pub fn complain(&mut self, key: &str, reason: String) {
        let origin = self.entries.get(key).map_or(&self.origin, |node| &node.origin).clone();
        self.push(origin, self.key(key), reason);
    }

    /// Whether this key was given.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether this key was given a list of nothing.
    pub fn has_empty_list(&self, key: &str) -> bool {
        self.entries
            .get(key)
            .is_some_and(|node| matches!(&node.value, Value::List(items) if items.is_empty()))
    }

    /// Whether anything in this table was wrong so far.
    pub fn has_problems(&self) -> bool {
        self.problems.0.len() > self.problems_before
    }

    /// Complains of every key that nobody asked for.
    pub fn finish(&mut self) {
        let mut unknown: Vec<(&str, &Node)> =
            self.entries.iter().filter(|(key, _)| !self.asked.contains(key)).map(|(k, n)| (*k, *n)).collect();
        unknown.sort_unstable_by_key(|(key, _)| *key);
        for (key, node) in unknown {
            let reason = match closest(key, &self.asked) {
                Some(near) => format!("unknown key (did you mean {near}?)"),
                None => "unknown key".to_owned(),
            };
            self.push(node.origin.clone(), self.key(key), reason);
        }
    }

    fn take(&mut self, key: &'static str) -> Option<&'n Node> {
        self.asked.push(key);
        self.entries.get(key).copied()
    }

    fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn push(&mut self, origin: Origin, key: String, reason: String) {
        self.problems.0.push(Problem { origin, key, reason });
    }
}
