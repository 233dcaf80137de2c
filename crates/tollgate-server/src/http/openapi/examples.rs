//! Examples of requests. `/docs` fills its forms with them, so each must be valid on a node with any configuration.

use serde_json::{Map, Value, json};

use crate::http::routes::Route;

const USER: &str = "user_123";
const ENDPOINT: &str = "/api/v1/users";
const CLIENT: &str = "ip:203.0.113.7";
const IDENTIFIER: &str = "user:user_123";
const RULE: &str = "uploads";
const TIER: &str = "pro";

/// Adds the examples of one operation, and marks path parameters that may contain `/`.
pub(super) fn complete(operation: &mut Map<String, Value>, route: &Route) {
    let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default().to_owned();
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        if route.path.contains(&format!("{{*{name}}}")) {
            parameter["x-multi-segment"] = json!(true);
        }
        if let Some(example) = parameter_example(&id, parameter["in"] == "path", &name) {
            parameter["example"] = example;
        }
    }
    let content = operation.get_mut("requestBody").and_then(|body| body["content"].as_object_mut());
    for (media_type, content) in content.into_iter().flatten() {
        if let Some(example) = body_example(&id, media_type) {
            content["example"] = example;
        }
    }
}

fn parameter_example(operation: &str, is_in_path: bool, name: &str) -> Option<Value> {
    let example = match (operation, is_in_path, name) {
        // Sending a form as it is changes nothing.
        (_, false, "dry_run") => return Some(json!(true)),
        ("status_by_path", true, "endpoint") => ENDPOINT.trim_start_matches('/'),
        ("counters", _, "user")
        | ("status" | "read_config" | "delete_config", _, "user_id")
        | (_, true, "user_id") => USER,
        ("status" | "read_config" | "delete_config", _, "endpoint") => ENDPOINT,
        (_, true, "client") => CLIENT,
        (_, true, "identifier") => IDENTIFIER,
        (_, true, "name") if operation.ends_with("_tier") => TIER,
        (_, true, "name") => RULE,
        _ => return None,
    };
    Some(json!(example))
}

fn body_example(operation: &str, media_type: &str) -> Option<Value> {
    let example = match operation {
        "import" if media_type == "application/toml" => json!(IMPORT_TOML),
        "check" | "explain" | "reset" => json!({ "user_id": USER, "endpoint": ENDPOINT }),
        "batch_check" => json!({ "checks": [
            { "user_id": USER, "endpoint": ENDPOINT }, { "user_id": "user_456", "endpoint": "/api/v1/orders", "cost": 2 },
        ] }),
        "write_config" => {
            let limit = json!({ "limit": 2000, "window_seconds": 60, "strategy": "token_bucket" });
            named("user_id", USER, &named("endpoint", ENDPOINT, &limit))
        }
        "create_rule" => named("name", RULE, &rule()),
        "put_rule" => rule(),
        "create_tier" => named("name", TIER, &tier()),
        "put_tier" => tier(),
        "create_quota" => named("user_id", USER, &quota()),
        "put_quota" => quota(),
        "create_key" | "put_key" => json!({ "name": "checkout", "scopes": ["check"], "expires_in": "90d" }),
        "rotate_key" => json!({ "overlap": "1h" }),
        "create_block" => named("client", CLIENT, &block()),
        "put_block" => block(),
        "import" => {
            json!({ "rules": [named("name", "exports", &rule())], "tiers": [named("name", "team", &tier())] })
        }
        _ => return None,
    };
    Some(example)
}

const IMPORT_TOML: &str = "[[rules]]\nname = \"exports\"\nwhen = { endpoints = \"/api/exports/*\" }\n\
                           per = [\"user\"]\nlimits = [{ requests = 10, window = \"1m\", burst = 20 }]\n";

fn rule() -> Value {
    json!({
        "when": { "endpoints": "/api/uploads/*" }, "per": ["user"],
        "limits": [{ "requests": 10, "window": "1m", "burst": 20 }],
    })
}

fn tier() -> Value {
    json!({ "description": "Paying customers", "requests_per_minute": 600, "burst_size": 100 })
}

fn quota() -> Value {
    json!({ "requests_per_hour": 1000, "requests_per_day": 10_000 })
}

fn block() -> Value {
    json!({ "reason": "scraping", "for": "1h" })
}

/// The item with its id.
fn named(field: &str, id: &str, item: &Value) -> Value {
    let mut item = item.clone();
    item[field] = json!(id);
    item
}
