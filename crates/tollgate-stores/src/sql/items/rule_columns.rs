//! Rules and tiers as columns: each key of `[[rules]]` or `[[tiers]]` has one, and an absent key is NULL.
//!
//! Durations are stored as written: `1s` as text, whole seconds as digits. The short forms of `limits`, and keys without a
//! column of their own, share one column, a JSON object.

use serde_json::{Map, Value as Json};

use super::row_reader::RowReader;
use crate::sql::error::{DatabaseError, ValueError};
use crate::sql::query::Value;

/// Keys of a rule that have no column of their own.
const OTHER_RULE_KEYS: [&str; 4] = ["cost", "sample_allowed", "count", "refund_statuses"];
/// Keys of a rule or tier that replace `limits`.
const SHORT_FORM: [&str; 5] =
    ["requests_per_second", "requests_per_minute", "requests_per_hour", "requests_per_day", "burst_size"];
/// Keys that only a tier has in addition.
const TIER_SHORT_FORM: [&str; 4] = ["limit", "window", "burst", "on_store_failure"];

/// The columns of a rule, in the order of its table.
pub(super) fn of_rule<'a>(name: &'a str, body: &Map<String, Json>) -> Result<Vec<Value<'a>>, DatabaseError> {
    let mut keys = BodyKeys::new("", body.clone());
    let mut response = BodyKeys::new("response.", keys.object("response")?.unwrap_or_default());
    let columns = vec![
        name.into(),
        keys.int("priority")?,
        keys.json("when", Json::is_object, "an object")?,
        keys.list_or_one("per")?,
        keys.text("layer")?,
        keys.text("algorithm")?,
        keys.json("limits", Json::is_array, "a list")?,
        keys.collect(SHORT_FORM.iter().chain(&OTHER_RULE_KEYS)),
        keys.text("action")?,
        keys.duration("max_delay")?,
        keys.text("on_store_failure")?,
        keys.flag("leases")?,
        response.int("status")?,
        response.text("message")?,
        response.duration("retry_after_floor")?,
        keys.flag("enabled")?,
        keys.flag("across_tenants")?,
    ];
    keys.finish()?;
    response.finish()?;
    Ok(columns)
}

/// The body of a rule, from the columns after the name.
pub(super) fn rule_body(row: &mut RowReader<'_>) -> Result<Map<String, Json>, DatabaseError> {
    let (mut body, mut response) = (Map::new(), Map::new());
    put(&mut body, "priority", row.maybe_number::<i64>()?);
    put(&mut body, "when", json(row)?);
    put(&mut body, "per", json(row)?);
    put(&mut body, "layer", row.maybe_text()?);
    put(&mut body, "algorithm", row.maybe_text()?);
    put(&mut body, "limits", json(row)?);
    let short_form = json(row)?;
    put(&mut body, "action", row.maybe_text()?);
    put(&mut body, "max_delay", duration(row)?);
    put(&mut body, "on_store_failure", row.maybe_text()?);
    put(&mut body, "leases", flag(row)?);
    put(&mut response, "status", row.maybe_number::<i64>()?);
    put(&mut response, "message", row.maybe_text()?);
    put(&mut response, "retry_after_floor", duration(row)?);
    put(&mut body, "enabled", flag(row)?);
    put(&mut body, "across_tenants", flag(row)?);
    put(&mut body, "response", Some(response).filter(|response| !response.is_empty()));
    extend(&mut body, short_form, row)?;
    Ok(body)
}

/// The columns of a tier, in the order of its table.
pub(super) fn of_tier<'a>(
    name: &'a str,
    description: &'a str,
    body: &Map<String, Json>,
) -> Result<Vec<Value<'a>>, DatabaseError> {
    let mut keys = BodyKeys::new("", body.clone());
    let columns = vec![
        name.into(),
        description.into(),
        keys.text("algorithm")?,
        keys.json("limits", Json::is_array, "a list")?,
        keys.collect(TIER_SHORT_FORM.iter().chain(&SHORT_FORM)),
        keys.duration("max_delay")?,
    ];
    keys.finish()?;
    Ok(columns)
}

/// The body of a tier, from the columns after name and description.
pub(super) fn tier_body(row: &mut RowReader<'_>) -> Result<Map<String, Json>, DatabaseError> {
    let mut body = Map::new();
    put(&mut body, "algorithm", row.maybe_text()?);
    put(&mut body, "limits", json(row)?);
    let short_form = json(row)?;
    put(&mut body, "max_delay", duration(row)?);
    extend(&mut body, short_form, row)?;
    Ok(body)
}

fn put(body: &mut Map<String, Json>, key: &str, value: Option<impl Into<Json>>) {
    if let Some(value) = value {
        body.insert(key.to_owned(), value.into());
    }
}

fn extend(
    body: &mut Map<String, Json>,
    more: Option<Json>,
    row: &RowReader<'_>,
) -> Result<(), DatabaseError> {
    match more {
        None => {}
        Some(Json::Object(more)) => body.extend(more),
        Some(_) => return Err(row.corrupt()),
    }
    Ok(())
}

fn json(row: &mut RowReader<'_>) -> Result<Option<Json>, DatabaseError> {
    let text = row.maybe_text()?;
    text.map(|text| serde_json::from_str(&text).map_err(|_| row.corrupt())).transpose()
}

fn duration(row: &mut RowReader<'_>) -> Result<Option<Json>, DatabaseError> {
    Ok(row.maybe_text()?.map(|text| text.parse::<u64>().map_or(Json::from(text), Json::from)))
}

fn flag(row: &mut RowReader<'_>) -> Result<Option<bool>, DatabaseError> {
    Ok(row.maybe_number::<u8>()?.map(|flag| flag != 0))
}

/// The keys of a rule or tier, each taken once.
struct BodyKeys {
    path: &'static str,
    left: Map<String, Json>,
}

impl BodyKeys {
    /// A JSON `null` is an absent key.
    fn new(path: &'static str, mut left: Map<String, Json>) -> Self {
        left.retain(|_, value| !value.is_null());
        BodyKeys { path, left }
    }

    fn error(&self, key: &str, reason: ValueError) -> DatabaseError {
        DatabaseError::value(format!("{}{key}", self.path), reason)
    }

    fn read<T>(
        &mut self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(Json) -> Option<T>,
    ) -> Result<Option<T>, DatabaseError> {
        let Some(value) = self.left.remove(key) else { return Ok(None) };
        read(value).ok_or_else(|| self.error(key, ValueError::WrongType { expected })).map(Some)
    }

    fn object(&mut self, key: &str) -> Result<Option<Map<String, Json>>, DatabaseError> {
        self.read(key, "an object", |value| match value {
            Json::Object(map) => Some(map),
            _ => None,
        })
    }

    fn int(&mut self, key: &str) -> Result<Value<'static>, DatabaseError> {
        self.read(key, "an integer", |value| value.as_i64()).map(Value::Int)
    }

    fn flag(&mut self, key: &str) -> Result<Value<'static>, DatabaseError> {
        self.read(key, "true or false", |value| value.as_bool().map(i64::from)).map(Value::Int)
    }

    fn text(&mut self, key: &str) -> Result<Value<'static>, DatabaseError> {
        self.read(key, "a string", |value| value.as_str().map(str::to_owned)).map(Value::from)
    }

    /// A duration. A string of digits is rejected, because digits represent a number in the column.
    fn duration(&mut self, key: &str) -> Result<Value<'static>, DatabaseError> {
        let read = |value: Json| match value {
            Json::String(text) if text.parse::<u64>().is_err() => Some(text),
            value => value.as_u64().map(|seconds| seconds.to_string()),
        };
        self.read(key, "a duration such as \"90s\" or \"1h\"", read).map(Value::from)
    }

    fn json(
        &mut self,
        key: &str,
        fits: fn(&Json) -> bool,
        expected: &'static str,
    ) -> Result<Value<'static>, DatabaseError> {
        self.read(key, expected, |value| fits(&value).then(|| value.to_string())).map(Value::from)
    }

    /// A list. A single string becomes a list of one.
    fn list_or_one(&mut self, key: &str) -> Result<Value<'static>, DatabaseError> {
        let read = |value: Json| match value {
            Json::Array(_) => Some(value.to_string()),
            Json::String(_) => Some(Json::from(vec![value]).to_string()),
            _ => None,
        };
        self.read(key, "a list", read).map(Value::from)
    }

    /// Those of these keys that are present, as one object.
    fn collect<'a>(&mut self, keys: impl Iterator<Item = &'a &'static str>) -> Value<'static> {
        let found = keys.filter_map(|key| self.left.remove_entry(*key));
        let found: Map<String, Json> = found.collect();
        (!found.is_empty()).then(|| Json::Object(found).to_string()).into()
    }

    /// Rejects keys that were not taken.
    fn finish(self) -> Result<(), DatabaseError> {
        match self.left.keys().next() {
            Some(unknown) => Err(self.error(unknown, ValueError::NotAllowed)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sql::items::{Item, ItemKind, RuleItem, row};

    fn round_trip(body: Json) -> Result<Json, DatabaseError> {
        let Json::Object(body) = body else { panic!("an object") };
        let rule = Item::Rule(RuleItem { name: "r".to_owned(), body });
        match row::item(ItemKind::Rule, row::columns(&rule)?)? {
            Item::Rule(rule) => Ok(rule.body.into()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rule_body_survives_a_round_trip() {
        let bodies = [
            json!({}),
            json!({"per": ["user"], "limits": [{"requests": 10, "window": "1m"}]}),
            json!({
                "priority": 5, "when": {"tiers": ["free"], "descriptors": {"plan": "eu"}}, "per": ["ip", "user"],
                "layer": "l", "algorithm": "gcra", "limits": [{"requests": 1, "window": 60, "burst": 3}],
                "action": "throttle", "max_delay": "1s500ms", "on_store_failure": "closed", "leases": false, "across_tenants": true,
                "response": {"status": 503, "message": "", "retry_after_floor": 5}, "enabled": false
            }),
            json!({"per": ["user"], "limits": [], "cost": "descriptor:tokens"}),
            json!({"per": ["user"], "limits": [], "count": "on_failure"}),
            json!({"per": ["user"], "limits": [], "refund_statuses": ["5xx", 404]}),
            json!({"per": ["user"], "cost": 3, "requests_per_second": 5, "requests_per_day": 10, "burst_size": 7}),
            json!({"when": {}, "per": [], "limits": [], "max_delay": 3, "leases": true}),
        ];
        for body in bodies {
            assert_eq!(round_trip(body.clone()).unwrap(), body);
        }
    }

    #[test]
    fn equivalent_rule_bodies_are_stored_alike() {
        assert_eq!(round_trip(json!({"per": "user"})).unwrap(), json!({"per": ["user"]}));
        assert_eq!(round_trip(json!({"response": {}, "layer": null})).unwrap(), json!({}));
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_rejected() {
        let rejected = [
            (json!({"colour": 1}), "colour is not allowed here"),
            (json!({"name": "x"}), "name is not allowed here"),
            (json!({"response": {"colour": 1}}), "response.colour is not allowed here"),
            (json!({"response": 429}), "response must be an object"),
            (json!({"priority": "high"}), "priority must be an integer"),
            (json!({"enabled": 1}), "enabled must be true or false"),
            (json!({"limits": {}}), "limits must be a list"),
            (json!({"max_delay": -1}), "max_delay must be a duration such as \"90s\" or \"1h\""),
            (json!({"layer": "a\0"}), "layer must not contain a NUL character"),
        ];
        for (body, reason) in rejected {
            assert_eq!(round_trip(body).unwrap_err().to_string(), reason);
        }
    }
}
