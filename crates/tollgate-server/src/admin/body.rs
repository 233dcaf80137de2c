//! Request bodies, as JSON or TOML.
//!
//! Both formats become the values as written, which are stored, and a document with the position of each key, which the
//! parsers of the settings file read. A rule means the same in the settings file and in the API.

use bytes::Bytes;
use hyper::body::Incoming;
use serde_json::{Map, Value as Json};
use tollgate::config::{Document, LocatedValue, Origin, Problem, Problems, TableReader, Value};

use crate::auth::api_keys::{KEY_INSTEAD_OF_ID, contains_key};
use crate::http::Call;
use crate::http::error::{ApiError, Code};
use crate::http::json;

/// The largest body with one item.
const ITEM_BYTES_MAX: usize = 64 << 10;

/// The most problems that one error lists.
const PROBLEMS_MAX: usize = 50;

/// A request body that was parsed as an object.
#[derive(Debug)]
pub(crate) struct RequestBody {
    values: Map<String, Json>,
    document: Document,
    /// Whether errors name lines; JSON has none.
    has_lines: bool,
}

impl RequestBody {
    /// Reads a JSON object with one item.
    pub(crate) async fn read(call: &Call, body: Incoming) -> Result<Self, ApiError> {
        RequestBody::from_json(&call.json_body(body, ITEM_BYTES_MAX).await?)
    }

    /// Reads a JSON object; an absent body is an empty object.
    pub(crate) async fn read_optional(call: &Call, body: Incoming) -> Result<Self, ApiError> {
        let body: Bytes = call.json_body_or_nothing(body, ITEM_BYTES_MAX).await?;
        if body.is_empty() { Ok(RequestBody::new(Map::new())) } else { RequestBody::from_json(&body) }
    }

    pub(crate) fn from_json(body: &[u8]) -> Result<Self, ApiError> {
        Ok(RequestBody::from_table(json::parse(body)?))
    }

    pub(crate) fn from_toml(body: &[u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body)
            .map_err(|error| ApiError::field(Code::InvalidInput, "", format!("not TOML: {error}")))?;
        let document = Document::from_toml(text).map_err(|problems| invalid(&problems, true))?;
        Ok(RequestBody { values: document_values(&document), document, has_lines: true })
    }

    pub(crate) fn new(values: Map<String, Json>) -> Self {
        // Every JSON value is a document value.
        RequestBody::from_table(
            serde_json::from_value(Json::Object(values)).unwrap_or(Value::Table(Vec::new())),
        )
    }

    fn from_table(table: Value) -> Self {
        let document = Document::from_value(table, Origin::Named("the body".to_owned()));
        let document = document.unwrap_or_else(Document::empty);
        RequestBody { values: document_values(&document), document, has_lines: false }
    }

    /// The values as written.
    pub(crate) fn values(&self) -> &Map<String, Json> {
        &self.values
    }

    /// The values with the position of each key.
    pub(crate) fn document(&self) -> &Document {
        &self.document
    }

    /// Adds a field from the path if the body does not have it.
    pub(crate) fn with_default(mut self, key: &'static str, value: &str) -> Self {
        if !self.values.contains_key(key) {
            let origin = Origin::Named("the path".to_owned());
            // A key at the top level cannot collide with a table.
            let _ = self.document.set(&[key], Value::Text(value.to_owned()), &origin);
            self.values.insert(key.to_owned(), value.into());
        }
        self
    }

    /// Parses the body with `parse`. Keys that it does not read are rejected.
    pub(crate) fn parse<T>(
        &self,
        parse: impl FnOnce(&mut TableReader<'_, '_>, &Map<String, Json>) -> Option<T>,
    ) -> Result<T, ApiError> {
        // First, because other errors repeat what is wrong.
        if let Some(field) = field_with_key(&self.values) {
            return Err(ApiError::field(Code::InvalidInput, field.to_owned(), KEY_INSTEAD_OF_ID));
        }
        let mut problems = Problems::default();
        let mut fields = self.document.fields(&mut problems);
        let value = parse(&mut fields, &self.values);
        fields.finish();
        problems.into_result(value).map_err(|problems| invalid(&problems, self.has_lines))
    }
}

/// A field that contains an API key. No body takes one: values are stored, logged and shown.
fn field_with_key(values: &Map<String, Json>) -> Option<&str> {
    let is_name = |name: &str| contains_key(name);
    let found = values.iter().find(|(name, value)| is_name(name) || value_contains_key(value));
    found.map(|(name, _)| if is_name(name) { "" } else { &**name })
}

fn value_contains_key(value: &Json) -> bool {
    match value {
        Json::String(text) => contains_key(text),
        Json::Array(items) => items.iter().any(value_contains_key),
        Json::Object(fields) => {
            fields.iter().any(|(name, value)| contains_key(name) || value_contains_key(value))
        }
        _ => false,
    }
}

/// The error for invalid fields: `details` names the first, the message all.
fn invalid(problems: &Problems, has_lines: bool) -> ApiError {
    let Some(first) = problems.0.first() else {
        return ApiError::new(Code::InternalError, "the body cannot be parsed");
    };
    let error = ApiError::invalid(first.key.clone(), first.reason.clone());
    if problems.0.len() == 1 && !has_lines {
        return error;
    }
    let describe = |problem: &Problem| {
        if has_lines { problem.to_string() } else { format!("{}: {}", problem.key, problem.reason) }
    };
    let mut all: Vec<String> = problems.0.iter().take(PROBLEMS_MAX).map(describe).collect();
    if problems.0.len() > PROBLEMS_MAX {
        all.push(format!("and {} more", problems.0.len() - PROBLEMS_MAX));
    }
    error.with_message(all.join("; "))
}

/// The values of a document as JSON; a date becomes a string, and a number that JSON cannot express becomes null.
pub fn document_values(document: &Document) -> Map<String, Json> {
    to_map(document.entries())
}

fn to_map(entries: &[(String, LocatedValue)]) -> Map<String, Json> {
    entries.iter().map(|(key, node)| (key.clone(), to_json(&node.value))).collect()
}

fn to_json(value: &Value) -> Json {
    match value {
        Value::Boolean(value) => Json::Bool(*value),
        Value::Integer(number) => Json::from(*number),
        Value::Float(number) => Json::from(*number),
        Value::Text(text) | Value::Datetime(text) => Json::from(&**text),
        Value::List(items) => items.iter().map(|item| to_json(&item.value)).collect(),
        Value::Table(entries) => Json::Object(to_map(entries)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_object_is_strict_and_drops_nulls() {
        let body = RequestBody::from_json(br#"{"a":null,"b":{"c":[1,-2,"x",true,{"d":null}]},"e":1.5}"#);
        let values = body.unwrap().values;
        assert_eq!(Json::Object(values), serde_json::json!({"b":{"c":[1,-2,"x",true,{}]},"e":1.5}));
        for (body, expected) in [
            (r#"{"a":{"b":1,"b":2}}"#, "a.b: is given twice"),
            (r#"{"a":1,"a":null}"#, "a: is given twice"),
            (r#"{"a":null,"a":null}"#, "a: is given twice"),
            (r#"{"a":[1,null]}"#, "a[1]: invalid type: null"),
            ("[]", "must be a JSON object"),
        ] {
            let error = RequestBody::from_json(body.as_bytes()).unwrap_err();
            assert!(error.message().starts_with(expected), "{body}: {}", error.message());
        }
    }
}
