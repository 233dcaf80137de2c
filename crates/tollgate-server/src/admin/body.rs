//! Request bodies, as JSON or TOML.
//!
//! Both formats become the values as written, which are stored, and a document with the position of each key, which the
//! parsers of the settings file read. A rule means the same in the settings file and in the API.

use bytes::Bytes;
use hyper::body::Incoming;
use serde_json::{Map, Value as Json};
use tollgate::config::{Document, Origin, Problem, Problems, TableReader, Value};

use crate::http::Call;
use crate::http::error::{ApiError, Code};
use crate::http::json::{self, Object};

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
        let Object(values) = json::parse(body)?;
        Ok(RequestBody::new(values))
    }

    pub(crate) fn from_toml(body: &[u8]) -> Result<Self, ApiError> {
        let not_toml =
            |reason: String| ApiError::field(Code::InvalidInput, "", format!("not TOML: {reason}"));
        let text = std::str::from_utf8(body).map_err(|error| not_toml(error.to_string()))?;
        let document = Document::from_toml(text).map_err(|problems| invalid(&problems, true))?;
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| not_toml(error.to_string()))?;
        let values = table.into_iter().map(|(key, value)| (key, toml_to_json(value))).collect();
        Ok(RequestBody { values, document, has_lines: true })
    }

    pub(crate) fn new(values: Map<String, Json>) -> Self {
        // Every JSON value is a document value.
        let table = serde_json::from_value(Json::Object(values.clone())).unwrap_or(Value::Table(Vec::new()));
        let document = Document::from_value(table, Origin::Named("the body".to_owned()));
        RequestBody { values, document: document.unwrap_or_else(Document::empty), has_lines: false }
    }

    /// The values as written.
    pub(crate) fn values(&self) -> &Map<String, Json> {
        &self.values
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
        let mut problems = Problems::default();
        let mut fields = self.document.fields(&mut problems);
        let value = parse(&mut fields, &self.values);
        fields.finish();
        problems.into_result(value).map_err(|problems| invalid(&problems, self.has_lines))
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

/// A TOML value as JSON; a date becomes a string, and a number that JSON cannot express becomes null.
pub fn toml_to_json(value: toml::Value) -> Json {
    match value {
        toml::Value::String(text) => Json::String(text),
        toml::Value::Integer(number) => Json::from(number),
        toml::Value::Float(number) => Json::from(number),
        toml::Value::Boolean(value) => Json::Bool(value),
        toml::Value::Datetime(instant) => Json::String(instant.to_string()),
        toml::Value::Array(items) => Json::Array(items.into_iter().map(toml_to_json).collect()),
        toml::Value::Table(table) => {
            Json::Object(table.into_iter().map(|(key, value)| (key, toml_to_json(value))).collect())
        }
    }
}
