//! What was written of a rule or a tier, as columns: each key has one, of its own type, and an absent key stays absent.
//!
//! Spans are kept as they were written: `1s` as text, whole seconds as digits. The keys that may stand in place of `limits`
//! share one column, an object.

use serde_json::{Map, Value as Json};

use super::row::Cells;
use super::table::Cell;
use crate::sql::error::{DatabaseError, ValueError};

/// In place of `limits` in a rule.
const RULE_SHORT_FORM: [&str; 5] =
    ["requests_per_second", "requests_per_minute", "requests_per_hour", "requests_per_day", "burst_size"];
/// In place of `limits` in a tier.
const TIER_SHORT_FORM: [&str; 8] = [
    "limit",
    "window",
    "burst",
    "requests_per_second",
    "requests_per_minute",
    "requests_per_hour",
    "requests_per_day",
    "burst_size",
];

/// The cells of a rule, in the order of its table.
pub(in crate::sql) fn rule_cells(name: &str, body: &Map<String, Json>) -> Result<Vec<Cell>, DatabaseError> {
    let mut keys = Keys::new("", body.clone());
    let mut response = Keys::new("response.", keys.object("response")?.unwrap_or_default());
    let cells = vec![
        name.into(),
        keys.int("priority")?,
        keys.json("when", Json::is_object, "an object")?,
        keys.list_or_one("per")?,
        keys.text("layer")?,
        keys.text("algorithm")?,
        keys.json("limits", Json::is_array, "a list")?,
        keys.several(&RULE_SHORT_FORM),
        keys.text("action")?,
        keys.span("max_delay")?,
        keys.text("on_store_failure")?,
        keys.flag("leases")?,
        response.int("status")?,
        response.text("message")?,
        response.span("retry_after_floor")?,
        keys.flag("enabled")?,
    ];
    keys.finish()?;
    response.finish()?;
    Ok(cells)
}

/// What they were made from. The name has been taken.
pub(in crate::sql) fn rule_body(row: &mut Cells) -> Result<Map<String, Json>, DatabaseError> {
    let (mut body, mut response) = (Map::new(), Map::new());
    put(&mut body, "priority", row.number::<i64>()?);
    put(&mut body, "when", json(row)?);
    put(&mut body, "per", json(row)?);
    put(&mut body, "layer", row.maybe_text()?);
    put(&mut body, "algorithm", row.maybe_text()?);
    put(&mut body, "limits", json(row)?);
    let short_form = json(row)?;
    put(&mut body, "action", row.maybe_text()?);
    put(&mut body, "max_delay", span(row)?);
    put(&mut body, "on_store_failure", row.maybe_text()?);
    put(&mut body, "leases", flag(row)?);
    put(&mut response, "status", row.number::<i64>()?);
    put(&mut response, "message", row.maybe_text()?);
    put(&mut response, "retry_after_floor", span(row)?);
    put(&mut body, "enabled", flag(row)?);
    put(&mut body, "response", Some(response).filter(|response| !response.is_empty()));
    add(&mut body, short_form, row)?;
    Ok(body)
}

/// The cells of a tier, in the order of its table.
pub(in crate::sql) fn tier_cells(
    name: &str,
    description: &str,
    body: &Map<String, Json>,
) -> Result<Vec<Cell>, DatabaseError> {
    let mut keys = Keys::new("", body.clone());
    let cells = vec![
        name.into(),
        description.into(),
        keys.text("algorithm")?,
        keys.json("limits", Json::is_array, "a list")?,
        keys.several(&TIER_SHORT_FORM),
        keys.span("max_delay")?,
    ];
    keys.finish()?;
    Ok(cells)
}

/// What they were made from. Name and description have been taken.
pub(in crate::sql) fn tier_body(row: &mut Cells) -> Result<Map<String, Json>, DatabaseError> {
    let mut body = Map::new();
    put(&mut body, "algorithm", row.maybe_text()?);
    put(&mut body, "limits", json(row)?);
    let short_form = json(row)?;
    put(&mut body, "max_delay", span(row)?);
    add(&mut body, short_form, row)?;
    Ok(body)
}

fn put(body: &mut Map<String, Json>, key: &str, value: Option<impl Into<Json>>) {
    if let Some(value) = value {
        body.insert(key.to_owned(), value.into());
    }
}

fn add(body: &mut Map<String, Json>, more: Option<Json>, row: &Cells) -> Result<(), DatabaseError> {
    match more {
        None => {}
        Some(Json::Object(more)) => body.extend(more),
        Some(_) => return Err(row.corrupt()),
    }
    Ok(())
}

fn json(row: &mut Cells) -> Result<Option<Json>, DatabaseError> {
    let text = row.maybe_text()?;
    text.map(|text| serde_json::from_str(&text).map_err(|_| row.corrupt())).transpose()
}

fn span(row: &mut Cells) -> Result<Option<Json>, DatabaseError> {
    Ok(row.maybe_text()?.map(|text| text.parse::<u64>().map_or(Json::from(text), Json::from)))
}

fn flag(row: &mut Cells) -> Result<Option<bool>, DatabaseError> {
    Ok(row.number::<u8>()?.map(|flag| flag != 0))
}

/// The keys of a table, each taken once.
struct Keys {
    path: &'static str,
    left: Map<String, Json>,
}

impl Keys {
    /// A `null` in JSON is an absent key.
    fn new(path: &'static str, mut left: Map<String, Json>) -> Self {
        left.retain(|_, value| !value.is_null());
        Keys { path, left }
    }

    fn wrong(&self, key: &str, problem: ValueError) -> DatabaseError {
        DatabaseError::value(format!("{}{key}", self.path), problem)
    }

    fn read<T>(
        &mut self,
        key: &str,
        needed: &'static str,
        read: impl FnOnce(Json) -> Option<T>,
    ) -> Result<Option<T>, DatabaseError> {
        let Some(value) = self.left.remove(key) else { return Ok(None) };
        read(value).ok_or_else(|| self.wrong(key, ValueError::WrongType { needed })).map(Some)
    }

    fn object(&mut self, key: &str) -> Result<Option<Map<String, Json>>, DatabaseError> {
        self.read(key, "an object", |value| match value {
            Json::Object(map) => Some(map),
            _ => None,
        })
    }

    fn int(&mut self, key: &str) -> Result<Cell, DatabaseError> {
        self.read(key, "an integer", |value| value.as_i64()).map(Cell::Int)
    }

    fn flag(&mut self, key: &str) -> Result<Cell, DatabaseError> {
        self.read(key, "true or false", |value| value.as_bool().map(i64::from)).map(Cell::Int)
    }

    fn text(&mut self, key: &str) -> Result<Cell, DatabaseError> {
        self.read(key, "a string", |value| value.as_str().map(str::to_owned)).map(Cell::Text)
    }

    /// A length of time. Digits alone are no text of one, so that they can stand for a number.
    fn span(&mut self, key: &str) -> Result<Cell, DatabaseError> {
        let read = |value: Json| match value {
            Json::String(text) if text.parse::<u64>().is_err() => Some(text),
            value => value.as_u64().map(|seconds| seconds.to_string()),
        };
        self.read(key, "a length of time such as \"90s\" or \"1h\"", read).map(Cell::Text)
    }

    fn json(
        &mut self,
        key: &str,
        fits: fn(&Json) -> bool,
        needed: &'static str,
    ) -> Result<Cell, DatabaseError> {
        self.read(key, needed, |value| fits(&value).then(|| value.to_string())).map(Cell::Text)
    }

    /// A list; one thing stands for a list of it.
    fn list_or_one(&mut self, key: &str) -> Result<Cell, DatabaseError> {
        let read = |value: Json| match value {
            Json::Array(_) => Some(value.to_string()),
            Json::String(_) => Some(Json::from(vec![value]).to_string()),
            _ => None,
        };
        self.read(key, "a list", read).map(Cell::Text)
    }

    /// Those of these keys that are there, in one object.
    fn several(&mut self, keys: &[&str]) -> Cell {
        let found = keys.iter().filter_map(|key| self.left.remove_entry(*key));
        let found: Map<String, Json> = found.collect();
        Cell::Text((!found.is_empty()).then(|| Json::Object(found).to_string()))
    }

    /// Complains of a key that nobody took.
    fn finish(self) -> Result<(), DatabaseError> {
        match self.left.keys().next() {
            Some(unknown) => Err(self.wrong(unknown, ValueError::Meaningless)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sql::items::{Item, ItemKind, RuleItem};

    fn kept(body: Json) -> Result<Json, DatabaseError> {
        let Json::Object(body) = body else { panic!("an object") };
        let cells = Item::Rule(RuleItem { name: "r".to_owned(), body }).cells()?;
        match Item::from_cells(ItemKind::Rule, cells)? {
            Item::Rule(rule) => Ok(rule.body.into()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_rule_is_kept_as_it_was_written() {
        let bodies = [
            json!({}),
            json!({"per": ["user"], "limits": [{"requests": 10, "window": "1m"}]}),
            json!({
                "priority": 5, "when": {"tiers": ["free"], "descriptors": {"plan": "eu"}}, "per": ["ip", "user"],
                "layer": "l", "algorithm": "gcra", "limits": [{"requests": 1, "window": 60, "burst": 3}],
                "action": "throttle", "max_delay": "1s500ms", "on_store_failure": "closed", "leases": false,
                "response": {"status": 503, "message": "", "retry_after_floor": 5}, "enabled": false
            }),
            json!({"per": ["user"], "requests_per_second": 5, "requests_per_day": 10, "burst_size": 7}),
            json!({"when": {}, "per": [], "limits": [], "max_delay": 3, "leases": true}),
        ];
        for body in bodies {
            assert_eq!(kept(body.clone()).unwrap(), body);
        }
    }

    #[test]
    fn two_spellings_of_one_rule_are_kept_as_one() {
        assert_eq!(kept(json!({"per": "user"})).unwrap(), json!({"per": ["user"]}));
        assert_eq!(kept(json!({"response": {}, "layer": null})).unwrap(), json!({}));
    }

    #[test]
    fn what_no_rule_has_is_refused_by_name() {
        let refusals = [
            (json!({"colour": 1}), "colour has no meaning here"),
            (json!({"name": "x"}), "name has no meaning here"),
            (json!({"response": {"colour": 1}}), "response.colour has no meaning here"),
            (json!({"response": 429}), "response must be an object"),
            (json!({"priority": "high"}), "priority must be an integer"),
            (json!({"enabled": 1}), "enabled must be true or false"),
            (json!({"limits": {}}), "limits must be a list"),
            (json!({"max_delay": -1}), "max_delay must be a length of time such as \"90s\" or \"1h\""),
            (json!({"layer": "a\0"}), "layer must not hold a NUL character"),
        ];
        for (body, reason) in refusals {
            assert_eq!(kept(body).unwrap_err().to_string(), reason);
        }
    }
}
