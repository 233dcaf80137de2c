//! What all routes have in common, added to the description in one pass over their table.
//!
//! The way in (`rest.rs`) asks for keys, bounds bodies and puts headers on answers for every route alike. So none of it is
//! written down where a handler is: what a route needs is in the table and in what its handler says of itself.

use serde_json::{Map, Value, json};

use crate::auth::Access;
use crate::http::routes::{Route, RouteMethod};

const ENVELOPE: &str = "#/components/schemas/ErrorEnvelope";
const DRY_RUN: &str = "#/components/schemas/DryRunResponse";
/// Bodies that say who a limited client is.
const CLIENTS: [&str; 2] = ["#/components/schemas/CheckBody", "#/components/schemas/ResetBody"];
/// The bodies of answers that carry what a limit says in their headers.
const DECISIONS: [&str; 2] = ["#/components/schemas/DecisionBody", "#/components/schemas/StatusBody"];

/// Headers of answers, each with what it says. Only the first is there always.
const HEADERS: [(&str, &str, &str); 16] = [
    ("X-Request-Id", "string", "To find the request in the logs: the caller's, or one that was made for it."),
    ("X-RateLimit-Limit", "string", "Requests per window of the limit that decided."),
    ("X-RateLimit-Remaining", "integer", "What would pass now."),
    ("X-RateLimit-Reset", "integer", "When the limit is as good as new, in Unix seconds."),
    ("X-RateLimit-Strategy", "string", "The algorithm of the limit that decided."),
    ("RateLimit-Limit", "string", "Requests per window, if `server.headers` asks for this family."),
    ("RateLimit-Remaining", "integer", "What would pass now, if `server.headers` asks for this family."),
    (
        "RateLimit-Reset",
        "integer",
        "Seconds until the limit is as good as new, if `server.headers` asks for it.",
    ),
    ("RateLimit-Policy", "string", "Every limit that applies, if `server.headers` asks for it."),
    ("RateLimit", "string", "What is left of each limit, if `server.headers` asks for it."),
    ("Retry-After", "integer", "Seconds until it is worth asking again; absent if it never is."),
    ("ETag", "string", "The version, for `If-Match` and `If-None-Match`."),
    ("Location", "string", "Where the new item is found."),
    ("WWW-Authenticate", "string", "`Bearer`."),
    ("Deprecation", "string", "Since when the route is on its way out."),
    ("Sunset", "string", "When it goes."),
];

/// The headers, for answers to refer to.
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

/// Adds what a route has in common with others to what is said of it.
pub(crate) fn complete(operation: &mut Map<String, Value>, route: &Route, schemas: &Value) {
    name(operation, route);
    drop_what_the_path_says(operation);
    add_dry_run(operation, schemas);
    add_errors(operation, route);
    add_conditions(operation, route);
    if route.deprecated.is_some() {
        operation.insert("deprecated".to_owned(), json!(true));
    }
    let has_version =
        has_status(operation, "304") || has_status(operation, "412") || has_status(operation, "201");
    for (status, response) in responses(operation) {
        add_headers(status, response, route, has_version);
    }
}

/// Names the operation, for those who make clients of the description: handlers of several kinds share theirs.
fn name(operation: &mut Map<String, Value>, route: &Route) {
    let (group, rest) = match route.path.strip_prefix("/v1/").and_then(|path| path.split_once('/')) {
        Some(("admin", rest)) => (rest.split('/').next().unwrap_or(rest), rest),
        Some((group, rest)) => (group, rest),
        None => ("service", ""),
    };
    operation.insert("tags".to_owned(), json!([group]));
    let kind = rest.split('/').next().unwrap_or(rest);
    let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
    let id = match id {
        "list" => format!("list_{kind}"),
        "create" | "read" | "write" | "put" | "delete" | "rotate" | "revoke" => {
            format!("{id}_{}", kind.strip_suffix('s').unwrap_or(kind))
        }
        id => id.to_owned(),
    };
    operation.insert("operationId".to_owned(), json!(id));
}

/// A parameter of the path is none of the query: given there, too, it is refused.
fn drop_what_the_path_says(operation: &mut Map<String, Value>) {
    let Some(Value::Array(parameters)) = operation.get_mut("parameters") else { return };
    let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
    let in_path: Vec<Value> = in_path.map(|parameter| parameter["name"].clone()).collect();
    parameters.retain(|parameter| parameter["in"] != "query" || !in_path.contains(&parameter["name"]));
}

/// A change that is only tried answers with what it would do.
fn add_dry_run(operation: &mut Map<String, Value>, schemas: &Value) {
    if !has_parameter(operation, "dry_run") {
        return;
    }
    for (status, response) in responses(operation) {
        if let ("200", Some(schema)) = (&**status, schema_of(response)) {
            let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
            // Some answers say themselves whether anything was done.
            let says_so = name.is_some_and(|name| schemas[name]["properties"]["dry_run"].is_object());
            if !says_so {
                or(schema, DRY_RUN);
            }
        }
    }
}

/// The refusals of the way in, where a handler does not say more of them.
fn add_errors(operation: &mut Map<String, Value>, route: &Route) {
    let takes_any = operation.get("parameters").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    let has_body = operation.contains_key("requestBody");
    let mut errors = vec![("500", "A defect of the server; the request id is in its log".to_owned())];
    if takes_any || has_body {
        errors.push(("400", "A parameter or a field is wrong; nothing was changed".to_owned()));
    }
    if has_status(operation, "412") {
        errors.push(("409", "It does not fit what is there".to_owned()));
    }
    if has_body {
        errors.push(("408", "The body did not arrive in time".to_owned()));
        errors.push(("413", "The body is too large".to_owned()));
        errors.push(("415", "The body is not of a type that is taken here".to_owned()));
    }
    let scope = match route.access {
        Access::Anyone => None,
        Access::OpenScope(scope) => {
            errors.push(("401", "The key is not good, or there is none and checks are not open".to_owned()));
            Some(scope)
        }
        Access::Keyed(scope) => {
            errors.push(("401", "There is no key, or one that is not good".to_owned()));
            Some(scope)
        }
    };
    if let Some(scope) = scope {
        let others = "or is bound to a tenant that this is not about";
        errors.push(("403", format!("The key lacks the scope {}, {others}", scope.as_str())));
        let too_much =
            "Too many wrong keys came from this address, or the caller asks too much; see Retry-After";
        errors.push(("429", too_much.to_owned()));
        errors.push(("503", "What is needed to answer cannot be reached; see Retry-After".to_owned()));
    }
    let names_a_client = names_a_client(operation);
    let Some(Value::Object(responses)) = operation.get_mut("responses") else { return };
    for (status, about) in errors {
        add_answer(responses, status, &about, ENVELOPE);
    }
    if names_a_client {
        add_answer(responses, "403", "The client's key is not good (decision)", DECISIONS[0]);
    }
}

/// Whether the request may name a client by its key. One that is not good is answered with a decision.
fn names_a_client(operation: &Map<String, Value>) -> bool {
    let body =
        operation.get("requestBody").and_then(|body| body.pointer("/content/application~1json/schema/$ref"));
    has_parameter(operation, "api_key")
        || body.and_then(Value::as_str).is_some_and(|body| CLIENTS.contains(&body))
}

fn add_answer(responses: &mut Map<String, Value>, status: &str, about: &str, reference: &str) {
    let Some(response) = responses.get_mut(status) else {
        let content = json!({ "application/json": { "schema": { "$ref": reference } } });
        responses.insert(status.to_owned(), json!({ "description": about, "content": content }));
        return;
    };
    if schema_of(response).is_some_and(|schema| or(schema, reference)) {
        let said = response["description"].as_str().unwrap_or_default();
        response["description"] = json!(format!("{said}. Or: {about}"));
    }
}

/// What must be so for the request to be served; the statuses tell whether a route looks at it.
fn add_conditions(operation: &mut Map<String, Value>, route: &Route) {
    let mut conditions = Vec::new();
    if has_status(operation, "412") {
        conditions.push(("If-Match", "The version that it must still be, as `ETag` tells it; `*` for any."));
    }
    if has_status(operation, "304") {
        conditions.push(("If-None-Match", "The version that is known: 304 if it is still that."));
    } else if route.method == RouteMethod::Put && has_status(operation, "201") {
        conditions.push(("If-None-Match", "`*`: it must not be there yet."));
    }
    let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
    for (name, about) in conditions {
        let schema = json!({ "type": "string" });
        let header = json!({ "name": name, "in": "header", "description": about, "required": false, "schema": schema });
        parameters.as_array_mut().into_iter().for_each(|all| all.push(header.clone()));
    }
}

fn add_headers(status: &str, response: &mut Value, route: &Route, has_version: bool) {
    let is_decision = schema_of(response).is_some_and(|schema| {
        let parts = schema["oneOf"].as_array().map_or(std::slice::from_ref(&*schema), Vec::as_slice);
        parts.iter().any(|part| part["$ref"].as_str().is_some_and(|name| DECISIONS.contains(&name)))
    });
    let asks_back = matches!(status, "429" | "503") && route.access != Access::Anyone;
    let is_there = |name: &str| match name {
        "X-Request-Id" => true,
        "Retry-After" => asks_back,
        "ETag" => has_version && matches!(status, "200" | "201" | "304"),
        "Location" => status == "201",
        "WWW-Authenticate" => status == "401",
        "Deprecation" | "Sunset" => route.deprecated.is_some(),
        _ => is_decision,
    };
    for (name, _, _) in HEADERS.iter().filter(|(name, _, _)| is_there(name)) {
        response["headers"][name] = json!({ "$ref": format!("#/components/headers/{name}") });
    }
}

/// Numbers of 32 bits without a sign do not fit into `int32`, which is how they come.
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

/// Has a schema allow another one, too; whether it did not before.
fn or(schema: &mut Value, reference: &str) -> bool {
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
    use crate::http::health;
    use crate::http::routes::{Deprecated, route};

    fn completed(route: &Route, mut operation: Value) -> Value {
        complete(operation.as_object_mut().unwrap(), route, &json!({}));
        operation
    }

    #[test]
    fn a_deprecated_route_is_described_as_one() {
        let old = Route {
            deprecated: Some(Deprecated { since: "@1795000000", sunset: "Tue, 16 Nov 2027 00:00:00 GMT" }),
            ..route!(Get "/old", Access::Anyone, health::healthz)
        };
        let said = json!({ "responses": { "200": { "description": "It serves" } } });
        let described = completed(&old, said.clone());
        assert_eq!(described["deprecated"], true);
        for header in ["Deprecation", "Sunset"] {
            assert!(described["responses"]["200"]["headers"][header].is_object(), "{header}");
        }
        let current = route!(Get "/current", Access::Anyone, health::healthz);
        let described = completed(&current, said);
        assert_eq!(described["deprecated"], Value::Null);
        assert_eq!(described["responses"]["200"]["headers"]["Sunset"], Value::Null);
    }

    #[test]
    fn numbers_without_a_sign_have_room_and_a_bound() {
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
