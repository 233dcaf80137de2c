//! What all routes share: errors, headers and preconditions, added in one pass over the route table.
//!
//! `http.rs` checks keys, limits bodies and sets headers for every route, so handlers do not describe any of this.

use serde_json::{Map, Value, json};

use crate::auth::Access;
use crate::http::routes::Route;

const ENVELOPE: &str = "#/components/schemas/ErrorEnvelope";
const DRY_RUN: &str = "#/components/schemas/DryRunResponse";
/// The request body that names a client.
const CLIENT: &str = "#/components/schemas/CheckBody";
/// Response bodies that come with rate limit headers.
const DECISIONS: [&str; 2] = ["#/components/schemas/DecisionBody", "#/components/schemas/StatusBody"];

/// Response headers: name, type, description. Only the first is always present.
const HEADERS: [(&str, &str, &str); 18] = [
    ("X-Request-Id", "string", "Id of the request in the logs: from the request, or generated."),
    ("X-RateLimit-Limit", "string", "Requests per window of the deciding limit."),
    ("X-RateLimit-Remaining", "integer", "Requests that would be admitted now."),
    ("X-RateLimit-Reset", "integer", "Time at which the limit is fully restored, in Unix seconds."),
    ("X-RateLimit-Strategy", "string", "Algorithm of the deciding limit."),
    ("RateLimit-Limit", "string", "Requests per window; if `server.headers` has it."),
    ("RateLimit-Remaining", "integer", "Requests that would be admitted now; if `server.headers` has it."),
    ("RateLimit-Reset", "integer", "Seconds until the limit is fully restored; if `server.headers` has it."),
    ("RateLimit-Policy", "string", "Every applicable limit; if `server.headers` has it."),
    ("RateLimit", "string", "Remaining requests of each limit; if `server.headers` has it."),
    ("Retry-After", "integer", "Seconds until a retry can succeed; absent if it never can."),
    ("ETag", "string", "Version, for `If-Match` and `If-None-Match`."),
    ("Location", "string", "Path of the new item."),
    ("Content-Disposition", "string", "Name of the file, with CSV and NDJSON."),
    ("WWW-Authenticate", "string", "`Bearer`."),
    ("Deprecation", "string", "Since when the route is deprecated: `@` and Unix seconds (RFC 9745)."),
    ("Sunset", "string", "When the route will be removed: an HTTP date (RFC 8594)."),
    ("Link", "string", "What to use instead, with `rel=\"deprecation\"`."),
];

/// The header components that responses refer to.
pub(crate) fn headers() -> Value {
    let one = |(name, kind, about): &(&str, &str, &str)| {
        let mut header = json!({ "description": about, "schema": { "type": kind } });
        if *name == "X-Request-Id" {
            header["required"] = json!(true);
        }
        ((*name).to_owned(), header)
    };
    Value::Object(HEADERS.iter().map(one).collect())
}

/// Adds what the route table says to the description of one operation.
pub(crate) fn complete(operation: &mut Map<String, Value>, route: &Route, schemas: &Value) {
    remove_duplicate_parameters(operation);
    add_dry_run(operation, schemas);
    add_errors(operation, route);
    add_preconditions(operation, route);
    if route.deprecated.is_some() {
        operation.insert("deprecated".to_owned(), json!(true));
    }
    let has_version =
        has_status(operation, "304") || has_status(operation, "412") || has_status(operation, "201");
    let decides = responses(operation).any(|(_, response)| is_decision(response));
    for (status, response) in responses(operation) {
        add_headers(status, response, route, has_version, decides);
    }
}

/// Removes query parameters that the path already contains; sent twice, they are rejected.
fn remove_duplicate_parameters(operation: &mut Map<String, Value>) {
    let Some(Value::Array(parameters)) = operation.get_mut("parameters") else { return };
    let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
    let in_path: Vec<Value> = in_path.map(|parameter| parameter["name"].clone()).collect();
    parameters.retain(|parameter| parameter["in"] != "query" || !in_path.contains(&parameter["name"]));
}

/// Adds the response to a dry run.
fn add_dry_run(operation: &mut Map<String, Value>, schemas: &Value) {
    if !has_parameter(operation, "dry_run") {
        return;
    }
    for (status, response) in responses(operation) {
        if let ("200", Some(schema)) = (&**status, schema_of(response)) {
            let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
            // Some responses have a `dry_run` field themselves.
            let has_field = name.is_some_and(|name| schemas[name]["properties"]["dry_run"].is_object());
            if !has_field {
                allow_also(schema, DRY_RUN);
            }
        }
    }
}

/// Adds the errors that `http.rs` returns before a handler runs.
fn add_errors(operation: &mut Map<String, Value>, route: &Route) {
    let takes_any = operation.get("parameters").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    let has_body = operation.contains_key("requestBody");
    let mut errors = vec![("500", "Internal error; the log has the request id.")];
    let is_gateway = route.access == Access::TrustedProxy;
    if !route.is_probe() && !is_gateway {
        errors.push(("421", "`Host` or `Origin` is not a name of this server: see `server.hosts`."));
    }
    if takes_any || has_body {
        errors.push(("400", "A parameter or field is invalid; nothing was changed."));
    }
    if has_status(operation, "412") {
        errors.push(("409", "The change conflicts with the configuration."));
    }
    if has_body {
        errors.push(("408", "The body did not arrive in time."));
        errors.push(("413", "The body is too large."));
        errors.push(("415", "The content type is not supported."));
    }
    if is_gateway {
        errors.push(("401", "The bearer token is invalid."));
        errors.push(("403", "The peer is not one of `identity.trusted_proxies`."));
        errors.push(("503", "A required store is unreachable."));
    } else if route.access != Access::Anyone {
        errors.push(("401", "The key is invalid, or missing while `auth.open_checks` is off."));
        errors.push(("403", "The key lacks the scope of the route, or belongs to another tenant."));
        errors.push(("429", "Too many invalid keys from this address, or too many requests of this caller."));
        errors.push(("503", "A required store is unreachable."));
    }
    let names_a_client = names_a_client(operation);
    let Some(Value::Object(responses)) = operation.get_mut("responses") else { return };
    for (status, about) in errors {
        add_answer(responses, status, about, ENVELOPE);
    }
    if names_a_client {
        add_answer(responses, "403", "The client's key is invalid (decision).", DECISIONS[0]);
    }
}

/// Whether the request can name a client by its API key. An invalid key is a decision, not an error.
fn names_a_client(operation: &Map<String, Value>) -> bool {
    let body =
        operation.get("requestBody").and_then(|body| body.pointer("/content/application~1json/schema/$ref"));
    has_parameter(operation, "api_key") || body.and_then(Value::as_str).is_some_and(|body| body == CLIENT)
}

fn add_answer(responses: &mut Map<String, Value>, status: &str, about: &str, reference: &str) {
    let Some(response) = responses.get_mut(status) else {
        let content = json!({ "application/json": { "schema": { "$ref": reference } } });
        responses.insert(status.to_owned(), json!({ "description": about, "content": content }));
        return;
    };
    if schema_of(response).is_some_and(|schema| allow_also(schema, reference)) {
        let existing = response["description"].as_str().unwrap_or_default();
        response["description"] = json!(format!("{}. Or: {about}", existing.trim_end_matches('.')));
    }
}

/// Adds `If-Match` and `If-None-Match` to routes that answer 412 or 304.
fn add_preconditions(operation: &mut Map<String, Value>, route: &Route) {
    let mut conditions = Vec::new();
    if has_status(operation, "412") {
        conditions.push(("If-Match", "Required version, from `ETag`; `*` for any."));
    }
    if has_status(operation, "304") {
        conditions.push(("If-None-Match", "Known version; 304 if it is current."));
    } else if route.method == http::Method::PUT && has_status(operation, "201") {
        conditions.push(("If-None-Match", "`*`: the item must not exist."));
    }
    let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
    for (name, about) in conditions {
        let schema = json!({ "type": "string" });
        let header = json!({ "name": name, "in": "header", "description": about, "required": false, "schema": schema });
        parameters.as_array_mut().into_iter().for_each(|all| all.push(header.clone()));
    }
}

/// Whether the body of a response is, or may be, a decision.
fn is_decision(response: &mut Value) -> bool {
    schema_of(response).is_some_and(|schema| {
        let parts = schema["oneOf"].as_array().map_or(std::slice::from_ref(&*schema), Vec::as_slice);
        parts.iter().any(|part| part["$ref"].as_str().is_some_and(|name| DECISIONS.contains(&name)))
    })
}

fn add_headers(status: &str, response: &mut Value, route: &Route, has_version: bool, decides: bool) {
    // A rule that refuses during an outage is an error, but concerns the client.
    let has_limit = is_decision(response) || decides && status == "503";
    let has_retry_after = matches!(status, "429" | "503") && route.access != Access::Anyone;
    let is_stream = response["content"]["text/csv"].is_object();
    let is_present = |name: &str| match name {
        "X-Request-Id" => true,
        "Retry-After" => has_retry_after,
        "ETag" => has_version && matches!(status, "200" | "201" | "304"),
        "Location" => status == "201",
        "Content-Disposition" => status == "200" && is_stream,
        "WWW-Authenticate" => status == "401",
        "Deprecation" | "Sunset" | "Link" => route.deprecated.is_some(),
        _ => has_limit,
    };
    for (name, _, _) in HEADERS.iter().filter(|(name, _, _)| is_present(name)) {
        response["headers"][name] = json!({ "$ref": format!("#/components/headers/{name}") });
    }
}

/// Describes `u32`, which utoipa calls `int32`, as `int64` with a maximum.
pub(crate) fn widen_numbers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(widen_numbers),
        Value::Object(fields) => {
            let is_unsigned = fields.get("minimum").and_then(Value::as_u64).is_some();
            if is_unsigned && !fields.contains_key("maximum") && fields.get("format") == Some(&json!("int32"))
            {
                fields.insert("format".to_owned(), json!("int64"));
                fields.insert("maximum".to_owned(), json!(u32::MAX));
            }
            fields.values_mut().for_each(widen_numbers);
        }
        _ => {}
    }
}

/// Makes a schema allow another one, too. Returns whether it changed.
fn allow_also(schema: &mut Value, reference: &str) -> bool {
    let other = json!({ "$ref": reference });
    if *schema == other {
        return false;
    }
    match schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        Some(parts) if parts.contains(&other) => return false,
        Some(parts) => parts.push(other),
        None => *schema = json!({ "oneOf": [schema, other] }),
    }
    true
}

fn schema_of(response: &mut Value) -> Option<&mut Value> {
    response.pointer_mut("/content/application~1json/schema")
}

fn responses(operation: &mut Map<String, Value>) -> impl Iterator<Item = (&String, &mut Value)> {
    operation.get_mut("responses").and_then(Value::as_object_mut).into_iter().flatten()
}

fn has_status(operation: &Map<String, Value>, status: &str) -> bool {
    operation.get("responses").is_some_and(|responses| responses[status].is_object())
}

fn has_parameter(operation: &Map<String, Value>, name: &str) -> bool {
    let parameters = operation.get("parameters").and_then(Value::as_array);
    parameters.into_iter().flatten().any(|parameter| parameter["name"] == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::routes::ROUTES;

    #[test]
    fn deprecated_route_is_described_as_such() {
        let described = |path: &str| {
            let mut operation = json!({ "responses": { "200": { "description": "ok" } } });
            let route = ROUTES.iter().find(|route| route.path == path).unwrap();
            complete(operation.as_object_mut().unwrap(), route, &json!({}));
            operation
        };
        let deprecated = described("/deprecated-in-tests");
        assert_eq!(deprecated["deprecated"], true);
        for header in ["Deprecation", "Sunset", "Link"] {
            assert!(deprecated["responses"]["200"]["headers"][header].is_object(), "{header}");
        }
        let current = described("/healthz");
        assert!(
            current["deprecated"].is_null() && current["responses"]["200"]["headers"]["Sunset"].is_null()
        );
    }

    #[test]
    fn unsigned_numbers_have_a_maximum() {
        let mut schema = json!({ "a": { "type": "integer", "format": "int32", "minimum": 0 },
                                 "b": { "type": "integer", "format": "int32", "minimum": 400, "maximum": 599 } });
        widen_numbers(&mut schema);
        assert_eq!(
            schema["a"],
            json!({ "type": "integer", "format": "int64", "minimum": 0, "maximum": u32::MAX })
        );
        assert_eq!(schema["b"]["format"], "int32");
    }
}
