//! Validates every exchange with the service against `/openapi.json`.
//!
//! The harness calls it for each request, so every end-to-end test also checks the description. Responses are validated
//! strictly: an undescribed status, header or field is an error. Requests are validated only if they were accepted,
//! because tests send invalid ones on purpose.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Answer;

#[path = "json_schema.rs"]
pub(crate) mod json_schema;

use json_schema::Schemas;

/// Transport and security headers, which are not described per route.
const TRANSPORT_HEADERS: [&str; 9] = [
    "cache-control",
    "connection",
    "content-length",
    "content-security-policy",
    "content-type",
    "date",
    "referrer-policy",
    "transfer-encoding",
    "x-content-type-options",
];
/// HTML pages, which are not described.
const PAGES: [&str; 3] = ["/", "/docs", "/docs/"];
/// The files of the documentation page.
pub(crate) const DOCS_FILES: [&str; 6] = [
    "/docs/docs.css",
    "/docs/docs.js",
    "/docs/dom.js",
    "/docs/operation.js",
    "/docs/request.js",
    "/docs/schema.js",
];
/// Responses to bytes that are not a request; they have no request id.
const PRE_REQUEST_STATUSES: [u16; 4] = [0, 400, 414, 431];

/// A request and its response.
pub(crate) struct Exchange<'a> {
    pub(crate) method: &'a str,
    pub(crate) target: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a str,
    pub(crate) answer: &'a Answer,
}

/// Checks one exchange and returns the first mismatch.
pub(crate) fn check(api: &Value, exchange: &Exchange<'_>) -> Result<(), String> {
    let (path, _) = exchange.path_and_query();
    let answer = exchange.answer;
    let unknown = PRE_REQUEST_STATUSES.contains(&answer.status) && answer.header("x-request-id").is_none();
    if unknown || PAGES.contains(&path) || DOCS_FILES.contains(&path) {
        return Ok(());
    }
    let verb = if exchange.method == "HEAD" { "get".to_owned() } else { exchange.method.to_lowercase() };
    let operation = template(api, path).map(|template| &api["paths"][template][verb]);
    let Some(operation) = operation.filter(|operation| operation.is_object()) else {
        return match answer.status {
            // 429 for a limited caller.
            404 | 405 | 429 => {
                let envelope = serde_json::json!({ "$ref": "#/components/schemas/ErrorEnvelope" });
                exchange.holds_to(&Schemas::closed(api), &envelope)
            }
            status => Err(format!("{status} where nothing is described")),
        };
    };
    exchange.answer_is_described(api, operation)?;
    if (200..300).contains(&answer.status) {
        exchange.body_is_described(api, operation)?;
        exchange.query_is_described(api, operation)?;
    }
    Ok(())
}

/// The described path that a request path belongs to. A variable at the end matches the rest.
pub(crate) fn template<'a>(api: &'a Value, path: &str) -> Option<&'a str> {
    let path = path.strip_prefix("/api").filter(|rest| rest.starts_with("/v1/")).unwrap_or(path);
    let templates = api["paths"].as_object().unwrap().keys().map(String::as_str);
    let fitting = templates.filter(|template| fits(template, path));
    // The path with the most literal characters wins.
    fitting.max_by_key(|template| template.split('/').filter(|part| !part.starts_with('{')).count())
}

fn fits(template: &str, path: &str) -> bool {
    let mut rest = Some(path);
    let mut parts = template.split('/').peekable();
    while let Some(part) = parts.next() {
        let Some(left) = rest else { return false };
        let is_variable = part.starts_with('{');
        let (piece, behind) = match left.split_once('/') {
            Some((piece, behind)) if !is_variable || parts.peek().is_some() => (piece, Some(behind)),
            _ => (left, None),
        };
        if (is_variable && piece.is_empty()) || (!is_variable && piece != part) {
            return false;
        }
        rest = behind;
    }
    rest.is_none()
}

impl Exchange<'_> {
    fn path_and_query(&self) -> (&str, &str) {
        self.target.split_once('?').unwrap_or((self.target, ""))
    }

    fn answer_is_described(&self, api: &Value, operation: &Value) -> Result<(), String> {
        let status = self.answer.status;
        let response = &operation["responses"][status.to_string()];
        if !response.is_object() {
            let known: Vec<&String> = operation["responses"].as_object().unwrap().keys().collect();
            return Err(format!("{status} is not described, only {known:?}"));
        }
        self.headers_are_described(api, response)?;
        let Some(content) = response["content"].as_object() else {
            return if self.answer.text.is_empty() { Ok(()) } else { Err(format!("{status} has a body")) };
        };
        let kind =
            self.answer.header("content-type").ok_or_else(|| format!("{status} has no content type"))?;
        let described =
            content.get(kind).ok_or_else(|| format!("{status} is {kind}, not {:?}", content.keys()))?;
        if kind != "application/json" {
            return Ok(());
        }
        self.holds_to(&Schemas::closed(api), &described["schema"])
    }

    fn holds_to(&self, schemas: &Schemas<'_>, schema: &Value) -> Result<(), String> {
        if self.method == "HEAD" {
            return Ok(());
        }
        let body: Value = serde_json::from_str(&self.answer.text).map_err(|error| error.to_string())?;
        schemas.check(schema, &body)
    }

    fn headers_are_described(&self, api: &Value, response: &Value) -> Result<(), String> {
        let mut described = BTreeSet::new();
        for (name, header) in response["headers"].as_object().into_iter().flatten() {
            let header = Schemas::closed(api).resolved(header);
            let name = name.to_lowercase();
            match self.answer.header(&name) {
                None if header["required"] == true => return Err(format!("{name} is missing")),
                Some(text) => {
                    let checked =
                        Schemas::closed(api).check(&header["schema"], &read(text, &header["schema"]));
                    checked.map_err(|error| format!("{name}: {error}"))?;
                }
                None => {}
            }
            described.insert(name);
        }
        let mut sent = self.answer.headers.iter().map(|(name, _)| &**name);
        let undescribed = sent.find(|name| !described.contains(*name) && !TRANSPORT_HEADERS.contains(name));
        undescribed.map_or(Ok(()), |name| Err(format!("the header {name} is not described")))
    }

    fn body_is_described(&self, api: &Value, operation: &Value) -> Result<(), String> {
        let described = &operation["requestBody"];
        if self.body.is_empty() {
            let needed = described["required"] == true;
            return if needed { Err("it was served without its body".to_owned()) } else { Ok(()) };
        }
        let mut kinds = self.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let kind = kinds.next().map_or("", |(_, kind)| kind.split(';').next().unwrap().trim()).to_lowercase();
        // A route without a body ignores one.
        let Some(content) = described["content"].as_object() else { return Ok(()) };
        let described = content.get(&kind).ok_or_else(|| format!("a body of {kind:?} was taken"))?;
        if kind != "application/json" {
            return Ok(());
        }
        // A batch is accepted whatever its items are; each item has its own result.
        if self.answer.text.contains("\"error\":") {
            return Ok(());
        }
        let body: Value = serde_json::from_str(self.body).map_err(|error| error.to_string())?;
        let checked = Schemas::open(api).check(&described["schema"], &body);
        checked.map_err(|error| format!("a body was taken that is not as described: {error}"))
    }

    fn query_is_described(&self, api: &Value, operation: &Value) -> Result<(), String> {
        let (_, query) = self.path_and_query();
        let parameters: Vec<&Value> = operation["parameters"].as_array().into_iter().flatten().collect();
        let of_query = || parameters.iter().filter(|parameter| parameter["in"] == "query");
        let pairs: Vec<(&str, &str)> = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .filter_map(|pair| pair.split_once('='))
            .collect();
        for (name, value) in &pairs {
            let mut described = of_query().filter(|parameter| is_named(parameter, name));
            // A route without parameters ignores them.
            let Some(parameter) = described.next() else {
                return if of_query().count() == 0 { Ok(()) } else { Err(format!("{name} was taken")) };
            };
            let schema = &parameter["schema"];
            let decoded = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
            let checked = Schemas::open(api).check(schema, &read(&decoded, schema));
            checked.map_err(|error| format!("{name}={value} was taken: {error}"))?;
        }
        let mut missing = of_query().filter(|parameter| parameter["required"] == true);
        let missing = missing.find(|parameter| !pairs.iter().any(|(name, _)| parameter["name"] == **name));
        missing.map_or(Ok(()), |parameter| Err(format!("it was served without {}", parameter["name"])))
    }
}

/// Whether this parameter describes a name; it may end in a variable (`descriptor.{name}`).
fn is_named(parameter: &Value, name: &str) -> bool {
    let described = parameter["name"].as_str().unwrap();
    match described.split_once('{') {
        Some((beginning, _)) => name.starts_with(beginning),
        None => described == name,
    }
}

/// A text as the type that its schema asks for, if it parses.
fn read(text: &str, schema: &Value) -> Value {
    let kinds = schema["type"].to_string();
    let read = serde_json::from_str(text).unwrap_or(Value::Null);
    match read {
        Value::Number(_) if kinds.contains("integer") || kinds.contains("number") => read,
        Value::Bool(_) if kinds.contains("boolean") => read,
        _ => Value::String(text.to_owned()),
    }
}
