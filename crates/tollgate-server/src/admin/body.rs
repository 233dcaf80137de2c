//! A body as it was sent, as JSON or as TOML, and a reader that names everything wrong with it.
//!
//! Both become the same two things: the values, to be stored as they were written, and a document with the place of each, which
//! the readers of the configuration file take. What is a rule there is a rule here.

use serde_json::{Map, Value as Json};
use tollgate::config::{Document, Origin, Problems, TableReader, Value};

use crate::http::error::{ApiError, Code};
use crate::http::json::{self, Object};

/// As many mistakes as are told at once.
const TOLD_MAX: usize = 50;

/// A body as it was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    values: Map<String, Json>,
    document: Document,
    /// Whether its lines can be told.
    has_lines: bool,
}

impl Sent {
    /// A JSON object.
    pub(crate) fn json(body: &[u8]) -> Result<Self, ApiError> {
        let Object(values) = json::parse(body)?;
        Ok(Sent::of(values))
    }

    /// Nothing, or a JSON object: for bodies that may be left out.
    pub(crate) fn json_or_nothing(body: &[u8]) -> Result<Self, ApiError> {
        if body.is_empty() { Ok(Sent::of(Map::new())) } else { Sent::json(body) }
    }

    /// A TOML document.
    pub(crate) fn toml(body: &[u8]) -> Result<Self, ApiError> {
        let not_toml =
            |reason: String| ApiError::field(Code::InvalidInput, "", format!("not TOML: {reason}"));
        let text = std::str::from_utf8(body).map_err(|error| not_toml(error.to_string()))?;
        let document = Document::from_toml(text).map_err(|problems| wrong(&problems, true))?;
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| not_toml(error.to_string()))?;
        let values = table.into_iter().map(|(key, value)| (key, json_of(value))).collect();
        Ok(Sent { values, document, has_lines: true })
    }

    /// Values that were checked to be an object already.
    pub(crate) fn of(values: Map<String, Json>) -> Self {
        // Every value of JSON is one of a document.
        let table = serde_json::from_value(Json::Object(values.clone())).unwrap_or(Value::Table(Vec::new()));
        let document = Document::from_value(table, Origin::Named("the body".to_owned()));
        Sent { values, document: document.unwrap_or_else(Document::empty), has_lines: false }
    }

    /// The values as they were written.
    pub(crate) fn values(&self) -> &Map<String, Json> {
        &self.values
    }

    /// The same, named as its path names it. A body that names it otherwise is refused.
    pub(crate) fn named(self, key: &'static str, name: &str) -> Result<Self, ApiError> {
        match self.values.get(key) {
            Some(Json::String(written)) if written != name => {
                Err(ApiError::field(Code::InvalidInput, key, "is not what the path says"))
            }
            _ => Ok(self.named_if_absent(key, name)),
        }
    }

    /// The same, with this name if it has none.
    pub(crate) fn named_if_absent(mut self, key: &'static str, name: &str) -> Self {
        if !self.values.contains_key(key) {
            let origin = Origin::Named("the path".to_owned());
            // There is nothing on the way to it.
            let _ = self.document.set(&[key], Value::Text(name.to_owned()), &origin);
            self.values.insert(key.to_owned(), name.into());
        }
        self
    }

    /// What `read` makes of it; keys that it does not ask for are refused.
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&mut TableReader<'_, '_>, &Map<String, Json>) -> Option<T>,
    ) -> Result<T, ApiError> {
        let mut problems = Problems::default();
        let mut fields = self.document.fields(&mut problems);
        let value = read(&mut fields, &self.values);
        fields.finish();
        problems.into_result(value).map_err(|problems| wrong(&problems, self.has_lines))
    }
}

/// All that is wrong for people, the first of it for programs.
fn wrong(problems: &Problems, has_lines: bool) -> ApiError {
    let Some(first) = problems.0.first() else {
        return ApiError::new(Code::InternalError, "the body cannot be read");
    };
    let error = ApiError::invalid(first.key.clone(), first.reason.clone());
    if problems.0.len() == 1 && !has_lines {
        return error;
    }
    let one = |problem: &tollgate::config::Problem| {
        if has_lines { problem.to_string() } else { format!("{}: {}", problem.key, problem.reason) }
    };
    let mut all: Vec<String> = problems.0.iter().take(TOLD_MAX).map(one).collect();
    if problems.0.len() > TOLD_MAX {
        all.push(format!("and {} more", problems.0.len() - TOLD_MAX));
    }
    error.with_message(all.join("; "))
}

/// A value of TOML as one of JSON. A number that JSON does not have is none of ours either: its reader has refused it.
fn json_of(value: toml::Value) -> Json {
    match value {
        toml::Value::String(text) => Json::String(text),
        toml::Value::Integer(number) => Json::from(number),
        toml::Value::Float(number) => Json::from(number),
        toml::Value::Boolean(value) => Json::Bool(value),
        toml::Value::Datetime(instant) => Json::String(instant.to_string()),
        toml::Value::Array(items) => Json::Array(items.into_iter().map(json_of).collect()),
        toml::Value::Table(table) => {
            Json::Object(table.into_iter().map(|(key, value)| (key, json_of(value))).collect())
        }
    }
}
