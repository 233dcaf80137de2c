//! A reader of tables that collects all mistakes.

use hashbrown::HashMap;

use super::document::{LocatedValue, Origin, Problem, Problems, Value};
use super::suggest::closest;

/// A table being read. Each key is asked for once; [`TableReader::finish`] complains of those nobody asked for.
pub struct TableReader<'n, 'p> {
    entries: HashMap<&'n str, &'n LocatedValue>,
    asked: Vec<&'static str>,
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
        TableReader { entries, asked: Vec::new(), path, origin, problems, problems_before }
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
            self.report(key, "is missing".to_owned());
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
    pub fn table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut TableReader<'_, '_>) -> T,
    ) -> Option<T> {
        let node = self.take(key)?;
        let path = self.key(key);
        self.sub_table(node, path, read)
    }

    /// A list of tables inside this one; those with mistakes are left out.
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

    /// The pairs of a table whose keys are free.
    pub fn pairs(&mut self, key: &'static str) -> Option<Vec<(&'n str, &'n Value)>> {
        let node = self.take(key)?;
        if let Value::Table(entries) = &node.value {
            return Some(entries.iter().map(|(name, node)| (&**name, &node.value)).collect());
        }
        self.push(node.origin.clone(), self.key(key), format!("must be a table, not {}", node.value.kind()));
        None
    }

    /// The entries of a table whose keys are free, each parsed on its own, so that each mistake has its own place.
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

    /// Leaves a key to another reader: it is neither read nor complained of.
    pub fn skip(&mut self, key: &'static str) {
        self.asked.push(key);
    }

    /// Leaves every key that was not asked for to another reader.
    pub fn skip_rest(&mut self) {
        self.entries.retain(|key, _| self.asked.contains(key));
    }

    /// Complains about a key, at its place if it is there.
    pub fn report(&mut self, key: &str, reason: String) {
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
        let mut unknown: Vec<(&str, &LocatedValue)> =
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

    fn take(&mut self, key: &'static str) -> Option<&'n LocatedValue> {
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
