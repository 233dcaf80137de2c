//! A table reader that collects all errors.

use hashbrown::HashMap;

use super::document::{LocatedValue, Origin, Problem, Problems, Value};
use super::suggest::closest;

/// Reads the keys of one table. [`TableReader::finish`] reports keys that were not read as unknown.
pub struct TableReader<'n, 'p> {
    entries: HashMap<&'n str, &'n LocatedValue>,
    read_keys: Vec<&'static str>,
    path: String,
    origin: Origin,
    problems: &'p mut Problems,
    problems_before: usize,
}

impl<'n, 'p> TableReader<'n, 'p> {
    pub(super) fn new(
        table: &'n [(String, LocatedValue)],
        path: String,
        origin: Origin,
        problems: &'p mut Problems,
    ) -> Self {
        let entries = table.iter().map(|(key, node)| (&**key, node)).collect();
        let problems_before = problems.0.len();
        TableReader { entries, read_keys: Vec::new(), path, origin, problems, problems_before }
    }

    /// Parses the value of `key`. `None` if it is missing or invalid; an invalid value is reported.
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

    /// Parses the value of `key` without marking it as read. Errors are not reported.
    pub fn peek<T>(&self, key: &str, parse: impl FnOnce(&Value) -> Result<T, String>) -> Option<T> {
        parse(&self.entries.get(key)?.value).ok()
    }

    /// Like [`TableReader::read`], but also reports a missing key.
    pub fn require<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        if !self.entries.contains_key(key) {
            self.read_keys.push(key);
            self.report(key, "is missing".to_owned());
            return None;
        }
        self.read(key, parse)
    }

    /// Parses the items of a list, and reports each invalid one. A single value is a list of one.
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

    /// Reads a nested table.
    pub fn table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut TableReader<'_, '_>) -> T,
    ) -> Option<T> {
        let node = self.take(key)?;
        let path = self.key(key);
        self.sub_table(node, path, read)
    }

    /// Reads a list of nested tables; invalid ones are omitted.
    pub fn list_of_tables<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut TableReader<'_, '_>) -> Option<T>,
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

    /// The entries of a nested table with arbitrary keys.
    pub fn pairs(&mut self, key: &'static str) -> Option<Vec<(&'n str, &'n Value)>> {
        let node = self.take(key)?;
        if let Value::Table(entries) = &node.value {
            return Some(entries.iter().map(|(name, node)| (&**name, &node.value)).collect());
        }
        self.push(node.origin.clone(), self.key(key), format!("must be a table, not {}", node.value.kind()));
        None
    }

    /// Parses the entries of a nested table with arbitrary keys, and reports each invalid one.
    pub fn entries<T>(
        &mut self,
        key: &'static str,
        mut parse: impl FnMut(&Value) -> Result<T, String>,
    ) -> Option<Vec<(&'n str, T)>> {
        let node = self.take(key)?;
        let Value::Table(entries) = &node.value else {
            let reason = format!("must be a table, not {}", node.value.kind());
            self.push(node.origin.clone(), self.key(key), reason);
            return None;
        };
        let mut parsed = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            match parse(&entry.value) {
                Ok(value) => parsed.push((&**name, value)),
                Err(reason) => {
                    let key = format!("{}.{name}", self.key(key));
                    self.push(entry.origin.clone(), key, reason);
                }
            }
        }
        Some(parsed)
    }

    fn sub_table<T>(
        &mut self,
        node: &LocatedValue,
        path: String,
        read: impl FnOnce(&mut TableReader<'_, '_>) -> T,
    ) -> Option<T> {
        let Value::Table(table) = &node.value else {
            self.push(node.origin.clone(), path, format!("must be a table, not {}", node.value.kind()));
            return None;
        };
        let mut fields = TableReader::new(table, path, node.origin.clone(), self.problems);
        let value = read(&mut fields);
        fields.finish();
        Some(value)
    }

    /// Marks a key as read: another reader handles it.
    pub fn skip(&mut self, key: &'static str) {
        self.read_keys.push(key);
    }

    /// Marks all remaining keys as read.
    pub fn skip_rest(&mut self) {
        self.entries.retain(|key, _| self.read_keys.contains(key));
    }

    /// Reports a problem of a key.
    pub fn report(&mut self, key: &str, reason: String) {
        let origin = self.entries.get(key).map_or(&self.origin, |node| &node.origin).clone();
        self.push(origin, self.key(key), reason);
    }

    /// Where the table starts.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether the table has this key.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether the value of this key is an empty list.
    pub fn has_empty_list(&self, key: &str) -> bool {
        self.entries
            .get(key)
            .is_some_and(|node| matches!(&node.value, Value::List(items) if items.is_empty()))
    }

    /// Whether a problem of this table was reported.
    pub fn has_problems(&self) -> bool {
        self.problems.0.len() > self.problems_before
    }

    /// Reports all keys that were not read as unknown.
    pub fn finish(&mut self) {
        let mut unknown: Vec<(&str, &LocatedValue)> = self
            .entries
            .iter()
            .filter(|(key, _)| !self.read_keys.contains(key))
            .map(|(k, n)| (*k, *n))
            .collect();
        unknown.sort_unstable_by_key(|(key, _)| *key);
        for (key, node) in unknown {
            let reason = match closest(key, &self.read_keys) {
                Some(near) => format!("unknown key (did you mean {near}?)"),
                None => "unknown key".to_owned(),
            };
            self.push(node.origin.clone(), self.key(key), reason);
        }
    }

    fn take(&mut self, key: &'static str) -> Option<&'n LocatedValue> {
        self.read_keys.push(key);
        self.entries.get(key).copied()
    }

    fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn push(&mut self, origin: Origin, key: String, reason: String) {
        self.problems.0.push(Problem { origin, key, reason });
    }
}
