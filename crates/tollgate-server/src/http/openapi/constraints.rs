//! What parsers accept beyond a type: lengths, patterns, names and ranges of request bodies and parameters. Fields of one name share
//! their parser, and so their constraints.
//!
//! JSON Schema counts characters where tollgate counts bytes: a text that is not ASCII may be too long below `maxLength`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollgate::rules::Action;
use tollgate::{Algorithm, Method};
use tollgate_stores::sql::BlockKind;
use tollgate_stores::sql::records::{DecisionKind, Granularity};

use crate::auth::scope::Scope;

const SCHEMAS: &str = "#/components/schemas/";
/// A text such as `90s` or `1h30m`.
const SPAN: &str = "([0-9]+(us|ms|s|m|h|d|w))+";
const KIND: &str = "(rules|tiers|quotas|blocks|limits)";
/// Fields that name a client; a check has at least one.
const CLIENT_FIELDS: [&str; 5] = ["user_id", "api_key", "ip", "tenant", "login"];
/// Bodies whose unknown fields are ignored.
const OPEN_BODIES: [&str; 2] = ["CheckBody", "BatchBody"];

/// Adds the constraints to a whole description.
pub(super) fn describe(api: &mut Value) {
    let requests = request_schemas(api);
    for (name, schema) in api["components"]["schemas"].as_object_mut().into_iter().flatten() {
        constrain_fields(name, schema, requests.contains(name));
    }
    describe_checks(api);
    close_items(&mut api["components"]["schemas"]["ItemSections"]);
    for (path, operations) in api["paths"].as_object_mut().into_iter().flatten() {
        for (verb, operation) in operations.as_object_mut().into_iter().flatten() {
            for parameter in
                operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten()
            {
                let name = parameter["name"].as_str().unwrap_or_default();
                if let Some(constraint) = of_parameter(verb, path, name) {
                    merge(&mut parameter["schema"], constraint);
                }
            }
            if let Some(body) = operation.pointer_mut("/requestBody/content/application~1json/schema") {
                close_body(body, verb == "post");
            }
        }
    }
}

/// The schemas that request bodies refer to, directly or not.
fn request_schemas(api: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let operations = api["paths"].as_object().into_iter().flat_map(|paths| paths.values());
    for operation in operations.filter_map(Value::as_object).flat_map(|verbs| verbs.values()) {
        add_references(api, &operation["requestBody"], &mut found);
    }
    found
}

fn add_references(api: &Value, part: &Value, found: &mut BTreeSet<String>) {
    match part {
        Value::Array(parts) => parts.iter().for_each(|part| add_references(api, part, found)),
        Value::Object(fields) => {
            let name = part["$ref"].as_str().and_then(|reference| reference.strip_prefix(SCHEMAS));
            if let Some(name) = name.filter(|name| found.insert((*name).to_owned())) {
                add_references(api, &api["components"]["schemas"][name], found);
            }
            fields.values().for_each(|part| add_references(api, part, found));
        }
        _ => {}
    }
}

fn constrain_fields(name: &str, schema: &mut Value, is_request: bool) {
    for part in schema.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten() {
        constrain_fields(name, part, is_request);
    }
    for (field, described) in
        schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
    {
        let constraint = if is_request { of_field(name, field) } else { None };
        let is_time = field == "at" || field.ends_with("_at") || field.ends_with("until");
        let time = (is_time && described["type"].to_string().contains("string"))
            .then(|| json!({ "format": "date-time" }));
        if let Some(constraint) = constraint.or(time) {
            merge(described, constraint);
        }
    }
    if matches!(name, "ConditionsInput" | "LimitInput" | "RefusalInput" | "RotateBody") {
        schema["additionalProperties"] = json!(false);
    }
}

/// Adds keywords to a schema. Null stays allowed beside an enumeration.
fn merge(schema: &mut Value, constraint: Value) {
    let is_nullable = schema["type"].to_string().contains("null");
    let Value::Object(keywords) = constraint else { return };
    for (keyword, mut value) in keywords {
        if let ("enum", true, Some(names)) = (&*keyword, is_nullable, value.as_array_mut()) {
            names.push(Value::Null);
        }
        schema[keyword] = value;
    }
}

/// A check has a client; `user` is read as `user_id`, with a warning. A reset has the fields of a check except `cost`, and no others.
fn describe_checks(api: &mut Value) {
    let schemas = &mut api["components"]["schemas"];
    schemas["CheckBody"]["allOf"] = at_least_one(&CLIENT_FIELDS);
    let mut reset = schemas["CheckBody"].clone();
    if let Some(clients) = schemas["CheckBody"]["allOf"][0]["anyOf"].as_array_mut() {
        let user = json!({ "type": "string", "minLength": 1, "maxLength": 256 });
        clients.push(json!({ "required": ["user"], "properties": { "user": user } }));
    }
    reset["additionalProperties"] = json!(false);
    reset["description"] = json!("The client and endpoint of the counters to clear, as in checks.");
    if let Some(fields) = reset["properties"].as_object_mut() {
        fields.remove("cost");
    }
    schemas["ResetBody"] = reset;
    let path = "/paths/~1v1~1rate-limit~1reset/post/requestBody/content/application~1json/schema";
    if let Some(body) = api.pointer_mut(path) {
        *body = json!({ "$ref": format!("{SCHEMAS}ResetBody") });
    }
}

/// Of these fields one must be present, and not null.
fn at_least_one(fields: &[&str]) -> Value {
    let one = |field: &&str| json!({ "required": [field], "properties": { *field: { "type": "string" } } });
    any_of(&fields.iter().map(one).collect::<Vec<Value>>())
}

/// Alternatives as a part of a schema: at its top they would be the forms of the value.
fn any_of(parts: &[Value]) -> Value {
    json!([{ "anyOf": parts }])
}

/// The items of an import are complete.
fn close_items(sections: &mut Value) {
    for (_, section) in sections["properties"].as_object_mut().into_iter().flatten() {
        close_body(&mut section["items"], true);
    }
}

/// Unknown fields of a body are rejected. A body without a path that names the item must name it.
fn close_body(body: &mut Value, names_itself: bool) {
    if let Some(optional) =
        body["oneOf"].as_array().and_then(|parts| parts.iter().find(|part| part["type"] != "null"))
    {
        *body = optional.clone();
    }
    let name =
        body["$ref"].as_str().and_then(|reference| reference.strip_prefix(SCHEMAS)).unwrap_or_default();
    let required: &[&str] = match name {
        "RuleInput" => &["name", "rule_name"],
        "TierInput" => &["name"],
        "QuotaInput" => &["user_id"],
        "BlockInput" | "BlockProperties" => &["client"],
        _ => &[],
    };
    if !OPEN_BODIES.contains(&name) {
        body["unevaluatedProperties"] = json!(false);
    }
    if names_itself && !required.is_empty() {
        body["allOf"] = at_least_one(required);
    }
}

/// The constraints of a field of a request body.
fn of_field(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        ("RuleInput", "name" | "layer") | (_, "rule_name") => name(),
        ("TierInput" | "KeyProperties", "name") | (_, "idempotency_key") => id(),
        ("RuleInput", "action") => json!({ "enum": Action::ALL.map(Action::as_str) }),
        ("RuleInput", "per") => one_or_more(
            &json!({ "pattern": "^(global|client|ip|tenant|user|api_key|login|endpoint|method|descriptor:.+)$" }),
        ),
        (_, "scope") => json!({ "enum": ["global", "tenant", "user", "ip", "endpoint"] }),
        ("RuleInput", "sample_allowed") => json!({ "pattern": "^all$", "minimum": 0, "maximum": 1 }),
        ("RuleInput", "count") => json!({ "enum": ["always", "on_failure"] }),
        ("RuleInput", "refund_statuses") => json!({
            "minItems": 1,
            "items": { "type": ["integer", "string"], "pattern": "^[2-5]xx$", "minimum": 200, "maximum": 599 },
        }),
        ("RuleInput", "cost") => {
            json!({ "pattern": "^descriptor:.{1,256}$", "minimum": 1, "maximum": 1_000_000 })
        }
        (_, "on_store_failure" | "failure_mode") => {
            json!({ "enum": ["local", "open", "closed", "fail_open", "fail_closed"] })
        }
        ("ConditionsInput", "tiers" | "users" | "tenants") | (_, "user_tier" | "plan_tiers") => {
            one_or_more(&id())
        }
        (_, "methods" | "http_method") => one_or_more(&known_method()),
        (_, "ips" | "ip_range") => one_or_more(&json!({ "format": "network" })),
        (_, "endpoints" | "endpoint_pattern") => {
            one_or_more(&json!({ "format": "endpoint-pattern", "minLength": 1, "maxLength": 2048 }))
        }
        ("ConditionsInput", "descriptors") => {
            let mut values = one_or_more(&id());
            values["$ref"] = json!(format!("{SCHEMAS}OneOrMore"));
            json!({ "additionalProperties": values })
        }
        ("CheckBody", "descriptors") => {
            let text = json!({ "type": "string", "minLength": 1, "maxLength": 256 });
            json!({ "maxProperties": 32, "propertyNames": text, "additionalProperties": text })
        }
        ("LimitInput", "window") => {
            let pattern = format!("^(day|week|month|{SPAN})$");
            json!({ "format": "window", "pattern": pattern, "minimum": 1, "maximum": u32::MAX })
        }
        ("TierLimits", "window") => {
            json!({ "format": "time-span", "pattern": format!("^{SPAN}$"), "minimum": 1, "maximum": u32::MAX })
        }
        ("LimitInput", "time_zone") => json!({ "format": "time-zone" }),
        (_, "max_delay" | "retry_after_floor" | "for" | "expires_in" | "overlap") => {
            json!({ "format": "time-span", "pattern": format!("^{SPAN}$") })
        }
        (_, "description" | "reason" | "response_message") => json!({ "maxLength": 1024 }),
        (_, "refill_rate") => json!({ "pattern": "^[0-9]+([.][0-9]+)?$", "minimum": 0 }),
        (_, "scopes") => json!({ "items": { "type": "string", "enum": Scope::ALL.map(Scope::as_str) } }),
        (_, shared) => return of_fact(shared),
    })
}

/// The constraints of a parameter.
fn of_parameter(verb: &str, path: &str, parameter: &str) -> Option<Value> {
    let is_list = matches!(path, "/v1/admin/audit" | "/v1/admin/actions")
        || path
            .strip_prefix("/v1/admin/")
            .is_some_and(|kind| ["rules", "tiers", "quotas", "keys", "blocks", "limits"].contains(&kind));
    Some(match parameter {
        "kind" if path == "/v1/admin/blocks" => json!({ "enum": BlockKind::ALL.map(BlockKind::as_str) }),
        "prefix" | "by" | "subject" | "kind" | "user_id" | "tier" if is_list => {
            json!({ "minLength": 1, "maxLength": 2304 })
        }
        "action" => json!({ "enum": Action::ALL.map(Action::as_str) }),
        "source" => json!({ "enum": ["file", "database", "built-in"] }),
        "format" if path == "/v1/admin/export" => json!({ "enum": ["json", "toml"] }),
        "format" => json!({ "enum": ["json", "csv", "ndjson"] }),
        "per" => json!({ "enum": Granularity::ALL.map(Granularity::as_str) }),
        "of" => json!({ "enum": ["clients", "routes", "rules"] }),
        "by" if path == "/v1/admin/records/top" => json!({ "enum": ["requests", "refused"] }),
        "decision" => json!({ "enum": DecisionKind::ALL.map(DecisionKind::as_str) }),
        "identifier" | "route" | "rule" => json!({ "minLength": 1, "maxLength": 2304 }),
        "endpoint" | "user_id" if is_record_list(path) => json!({ "minLength": 1, "maxLength": 2304 }),
        "kinds" => json!({ "pattern": format!("^{KIND}(,{KIND})*$") }),
        "after" if path == "/v1/rate-limit/explain" => json!({ "pattern": "^[0-9]{1,9}$" }),
        "after" if path.ends_with("/audit") || path.ends_with("/actions") => {
            json!({ "pattern": "^[0-9]{1,18}$" })
        }
        "after" => json!({ "pattern": "^[A-Za-z0-9_-]{1,4096}$" }),
        "If-Match" => json!({ "pattern": "^([*]|(W/)?\"[!#-+.-~-]*\")$" }),
        "If-None-Match" if verb == "put" => json!({ "enum": ["*"] }),
        "name" if path.starts_with("/v1/admin/rules") => name(),
        "name" | "user" => id(),
        "window_seconds" => json!({ "minimum": 1 }),
        "since" | "until" | "expires_before" | "last_request_after" | "last_request_before" => {
            let span = json!({ "format": "time-span", "pattern": format!("^{SPAN}$") });
            json!({ "allOf": any_of(&[json!({ "format": "date-time" }), span]) })
        }
        descriptor if descriptor.starts_with("descriptor.") => id(),
        shared => return of_fact(shared),
    })
}

/// Whether a path lists records.
fn is_record_list(path: &str) -> bool {
    ["/v1/admin/decisions", "/v1/admin/windows", "/v1/admin/rollups"].contains(&path)
}

/// The constraints of a fact about a request, which bodies and parameters share.
fn of_fact(name: &str) -> Option<Value> {
    let strategies = || Algorithm::ALL.map(Algorithm::as_str).into_iter().chain(["sliding_window"]);
    Some(match name {
        "user_id" | "tenant" | "tier" | "login" | "api_key" => id(),
        "endpoint" => {
            let pattern = r"^([^%\\\u0000-\u001f\u007f]|%[0-9A-Fa-f]{2})+$";
            json!({ "format": "endpoint", "minLength": 1, "maxLength": 2048, "pattern": pattern })
        }
        "method" => method(),
        "ip" => json!({ "allOf": any_of(&[json!({ "format": "ipv4" }), json!({ "format": "ipv6" })]) }),
        "strategy" | "algorithm" => json!({ "enum": strategies().collect::<Vec<_>>() }),
        "client" => {
            let pattern = r"^((user|tenant|login):[^\u0000]+|api_key:[a-z2-7]{16}|ip:[0-9A-Fa-f.:/]+)$";
            json!({ "format": "client", "pattern": pattern })
        }
        _ => return None,
    })
}

fn id() -> Value {
    json!({ "minLength": 1, "maxLength": 256 })
}

/// The name of a rule or layer.
fn name() -> Value {
    let pattern = r"^[^@\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*$";
    json!({ "minLength": 1, "maxLength": 128, "pattern": pattern })
}

fn method() -> Value {
    json!({ "minLength": 1, "maxLength": 32, "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" })
}

/// A method that rules know, in any case.
fn known_method() -> Value {
    let any_case = |letter: char| format!("[{letter}{}]", letter.to_ascii_lowercase());
    let names = Method::ALL.map(|method| method.as_str().chars().map(any_case).collect::<String>());
    json!({ "pattern": format!("^({})$", names.join("|")) })
}

/// A text with these constraints, or a list of such texts.
fn one_or_more(text: &Value) -> Value {
    let mut both = text.clone();
    both["items"] = text.clone();
    both["minItems"] = json!(1);
    both
}
