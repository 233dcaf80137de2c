//! A table reader that collects all errors.

use hashbrown::HashMap;

use super::document::{LocatedValue, Origin, Problem, Problems, Value};

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
        self.parse(node, self.key(key), parse)
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
        let parsed = items.iter().enumerate().filter_map(|(number, item)| {
            self.parse(item, format!("{}[{number}]", self.key(key)), &mut parse)
        });
        Some(parsed.collect())
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

    /// Parses the entries of a nested table with arbitrary keys, and reports each invalid one.
    pub fn entries<T>(
        &mut self,
        key: &'static str,
        mut parse: impl FnMut(&Value) -> Result<T, String>,
    ) -> Option<Vec<(&'n str, T)>> {
        let node = self.take(key)?;
        let entries = self.expect_table(node, self.key(key))?;
        let parsed = entries.iter().filter_map(|(name, entry)| {
            let value = self.parse(entry, format!("{}.{name}", self.key(key)), &mut parse)?;
            Some((&**name, value))
        });
        Some(parsed.collect())
    }

    fn parse<T>(
        &mut self,
        node: &LocatedValue,
        key: String,
        parse: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        parse(&node.value).map_err(|reason| self.push(node.origin.clone(), key, reason)).ok()
    }

    fn expect_table<'v>(
        &mut self,
        node: &'v LocatedValue,
        key: String,
    ) -> Option<&'v [(String, LocatedValue)]> {
        let Value::Table(entries) = &node.value else {
            self.push(node.origin.clone(), key, format!("must be a table, not {}", node.value.kind()));
            return None;
        };
        Some(entries)
    }

    fn sub_table<T>(
        &mut self,
        node: &LocatedValue,
        path: String,
        read: impl FnOnce(&mut TableReader<'_, '_>) -> T,
    ) -> Option<T> {
        let table = self.expect_table(node, path.clone())?;
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
            let reason = match (hint(key), suggest(key, &self.read_keys)) {
                _ if let Some(name) = synonym(key, &self.read_keys) => format!("unknown key: write {name}"),
                (Some(hint), _) => format!("unknown key: {hint}"),
                (None, Some(near)) => format!("unknown key (did you mean {near}?)"),
                (None, None) => "unknown key".to_owned(),
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

/// Names of the same thing. Each table has one of them.
const SYNONYMS: [&[&str]; 3] =
    [&["user", "user_id"], &["algorithm", "strategy"], &["burst", "burst_size", "burst_capacity"]];

/// The name that this table has for the same thing.
fn synonym<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let names = SYNONYMS.iter().find(|names| names.contains(&key))?;
    known.iter().find(|known| names.contains(known)).copied()
}

/// What to write instead of a key of another system.
fn hint(key: &str) -> Option<&'static str> {
    Some(match key {
        "key_pattern" => "say what to count by with per, such as [\"tenant\"], and what to match with when",
        "rule_id" => "a rule is identified by its name",
        "id" | "api_key_id" => "ids are not written; leave it out",
        "created_at" | "updated_at" | "created_by" => "the database records it; leave it out",
        "total_requests"
        | "total_requests_today"
        | "total_requests_month"
        | "quota_exceeded_count"
        | "quota_reset_at" => "usage is recorded, not written; leave it out",
        "custom_limit_per_hour" => "write requests_per_hour",
        "custom_limit_per_day" => "write requests_per_day",
        "custom_burst_size" | "burst_size" | "burst_capacity" | "max_tokens" => "write burst",
        "limit_value" => "write limit",
        "strategy" => "write algorithm",
        "refill_rate" => "a bucket refills its limit in each window; leave it out",
        "is_blocked" | "block_reason" | "blocked_until" => "block a user with `tollgate users block`",
        "key_name" => "write name",
        "api_key_hash" => "write key_sha256, the SHA-256 of the key, or key",
        "is_active" => "revoke the key to end it, or block api_key:<id> to suspend it",
        "trusted_proxy_depth" | "trusted_proxies" | "client_address" => "write it in [identity]",
        "redis_pool_size" => "connections to Redis are shared; set counters.connections if one is not enough",
        "redis_socket_timeout" => "write counters.timeout",
        _ => return None,
    })
}

/// The known key most similar to `key`, if it is likely that it was meant.
fn suggest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let (edits, near) = known.iter().map(|known| (strsim::osa_distance(key, known), *known)).min()?;
    // Short keys allow fewer edits: `foo` is not a misspelled `log`.
    let edits_max = match key.len().min(near.len()) {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    };
    (edits <= edits_max).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_likely_typos_are_suggested() {
        let known = ["log", "per", "name", "rules", "server", "window", "connections_max"];
        for (key, near) in [
            ("foo", None),
            ("lag", Some("log")),
            ("lg", None),
            ("pre", Some("per")),
            ("mane", None),
            ("nam", Some("name")),
            ("rule", Some("rules")),
            ("roles", Some("rules")),
            ("rulse", Some("rules")),
            ("bulls", None),
            ("sever", Some("server")),
            ("severs", Some("server")),
            ("conections_mx", Some("connections_max")),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(suggest(key, &known), near, "{key}");
        }
    }
}
