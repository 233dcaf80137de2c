//! Tests of `/openapi.json`. The harness validates the responses of all tests against it; here are the routes that no
//! other test calls, and the examples of the documentation.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::openapi_validator::{json_schema::Schemas, template};
use crate::harness::{Service, description, wait_for};

const FORWARD_AUTH: &str = "/v1/forward-auth";

/// Every described operation.
fn operations() -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for (path, operations) in description()["paths"].as_object().unwrap() {
        all.extend(operations.as_object().unwrap().keys().map(|verb| (verb.to_uppercase(), path.clone())));
    }
    all
}

const CHECK_BODY: &str = r#"{"user_id":"a","endpoint":"/x","method":"GET","ip":"192.0.2.1","tier":"gold","cost":4294967295,
    "descriptors":{"region":"eu"}}"#;
const USER_LIMIT: &str = r#"{"user_id":"a","endpoint":"/x","limit":4294967295,"window_seconds":60,"strategy":"gcra","burst_capacity":5}"#;
const RULE: &str = r#"{"name":"r","priority":7,"per":["user","descriptor:region"],"action":"throttle","algorithm":"gcra",
    "limits":[{"requests":5,"window":60,"burst":9},{"requests":50,"window":"1h"}],"max_delay":2,"leases":false,
    "when":{"endpoints":"/a/*","methods":["GET","PUT"],"ips":["10.0.0.0/8"],"descriptors":{"region":["eu","us"],"kind":"x"}},
    "response":{"status":503,"message":"later","retry_after_floor":"5s"},"on_store_failure":"closed","enabled":true}"#;
const CALENDAR: &str = r#"{"per":"tenant","algorithm":"fixed_window",
    "limits":[{"requests":5,"window":"month","anchor":15,"time_zone":"Europe/Berlin"}]}"#;
const SHORT: &str =
    r#"{"name":"s","per":["user"],"requests_per_second":5,"requests_per_day":100,"burst_size":10}"#;
const TIER: &str = r#"{"name":"t","description":"d","limit":5,"window":60,"burst":9}"#;
const LIMITS_TIER: &str = r#"{"limits":[{"requests":5,"window":"1m"}],"algorithm":"sliding_window_log"}"#;
const SHORT_TIER: &str = r#"{"requests_per_minute":5,"requests_per_day":50,"burst_size":7,"algorithm":"leaky_bucket","max_delay":"1s"}"#;
const EVERYTHING: &str = r#"{"rules":[{"name":"i","per":["user"],"limits":[{"requests":5,"window":"1m"}]}],
    "tiers":[{"name":"j","limit":1,"window":"1s"}],"quotas":[{"user_id":"k","tier":"gold"}],
    "blocks":[{"client":"ip:192.0.2.0/24"}],
    "limits":[{"user_id":"l","endpoint":"/x","limit":1,"window_seconds":1,"strategy":"gcra"}]}"#;

/// One request for every operation, in an order in which each succeeds.
const REQUESTS: [(&str, &str, &str, u16); 83] = [
    ("GET", "/v1/admin/upstreams", "", 404),
    ("POST", "/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x"}"#, 200),
    ("POST", "/v1/rate-limit/check", CHECK_BODY, 429),
    (
        "POST",
        "/v1/rate-limit/batch-check",
        r#"{"checks":[{"user_id":"a","endpoint":"/x"},{"user_id":"b"}]}"#,
        200,
    ),
    ("GET", "/v1/rate-limit/status?user_id=a&endpoint=/x&strategy=gcra", "", 200),
    ("GET", "/v1/rate-limit/status/a/x/y?tier=gold&method=GET", "", 200),
    ("GET", "/v1/rate-limit/status/a/x?user_id=a", "", 400),
    ("POST", "/v1/rate-limit/explain", CHECK_BODY, 200),
    ("PUT", "/v1/rate-limit/config?dry_run=true", USER_LIMIT, 200),
    ("PUT", "/v1/rate-limit/config", USER_LIMIT, 200),
    ("PUT", "/v1/rate-limit/config", r#"{"user_id":"a"}"#, 400),
    ("GET", "/v1/rate-limit/config?user_id=a&endpoint=/x", "", 200),
    ("GET", "/v1/rate-limit/config?user_id=a", "", 400),
    ("DELETE", "/v1/rate-limit/config?user_id=a&endpoint=/x&dry_run=true", "", 200),
    ("DELETE", "/v1/rate-limit/config?user_id=a&endpoint=/x", "", 204),
    ("DELETE", "/v1/rate-limit/config?user_id=a", "", 400),
    ("POST", "/v1/rate-limit/reset", r#"{"user_id":"a","endpoint":"/x"}"#, 200),
    ("POST", "/v1/admin/rules?dry_run=true", RULE, 200),
    ("POST", "/v1/admin/rules", RULE, 201),
    ("POST", "/v1/admin/rules", RULE, 409),
    ("POST", "/v1/admin/rules", SHORT, 201),
    ("GET", "/v1/forward-auth?mode=nginx", "", 403),
    ("GET", "/v1/admin/rules?limit=1000&enabled=true", "", 200),
    ("GET", "/v1/admin/rules?limit=1001", "", 400),
    ("GET", "/v1/admin/rules/r", "", 200),
    ("GET", "/v1/admin/rules/default", "", 200),
    ("PUT", "/v1/admin/rules/r?dry_run=true", CALENDAR, 200),
    ("PUT", "/v1/admin/rules/r", CALENDAR, 200),
    ("PUT", "/v1/admin/rules/r2", r#"{"action":"block","when":{"users":["z"]},"per":null}"#, 201),
    ("DELETE", "/v1/admin/rules/r?dry_run=true", "", 200),
    ("DELETE", "/v1/admin/rules/r", "", 204),
    ("POST", "/v1/admin/tiers", TIER, 201),
    ("GET", "/v1/admin/tiers", "", 200),
    ("GET", "/v1/admin/tiers/t", "", 200),
    ("GET", "/v1/admin/tiers/silver", "", 200),
    ("PUT", "/v1/admin/tiers/t?dry_run=true", LIMITS_TIER, 200),
    ("PUT", "/v1/admin/tiers/t", LIMITS_TIER, 200),
    ("PUT", "/v1/admin/tiers/t", SHORT_TIER, 200),
    ("DELETE", "/v1/admin/tiers/t", "", 204),
    ("POST", "/v1/admin/quotas", r#"{"user_id":"a","tier":"gold","requests_per_hour":4294967295}"#, 201),
    ("GET", "/v1/admin/quotas?tier=gold", "", 200),
    ("GET", "/v1/admin/quotas/a", "", 200),
    ("PUT", "/v1/admin/quotas/a", r#"{"requests_per_day":5,"burst":2}"#, 200),
    ("DELETE", "/v1/admin/quotas/a", "", 204),
    ("POST", "/v1/admin/blocks", r#"{"client":"user:z","reason":"why","for":"1h"}"#, 201),
    ("POST", "/v1/rate-limit/check", r#"{"user_id":"z","endpoint":"/x"}"#, 403),
    ("POST", "/v1/rate-limit/explain", r#"{"user_id":"z","endpoint":"/x"}"#, 200),
    ("GET", "/v1/admin/blocks?kind=user&active=true", "", 200),
    ("GET", "/v1/admin/blocks/user:z", "", 200),
    ("GET", "/v1/admin/blocks/nobody", "", 400),
    ("PUT", "/v1/admin/blocks/ip:192.0.2.0/24", "{}", 201),
    ("DELETE", "/v1/admin/blocks/user:z", "", 204),
    ("GET", "/v1/admin/keys", "", 200),
    ("GET", "/v1/admin/limits?user_id=a&limit=5", "", 200),
    ("GET", "/v1/admin/limits?limit=0", "", 400),
    ("GET", "/v1/admin/counters?user=a", "", 200),
    ("GET", "/v1/admin/top?identifier=user:a", "", 200),
    ("GET", "/v1/admin/top?limit=101", "", 400),
    ("GET", "/v1/admin/decisions?since=1h&newest=true", "", 200),
    ("GET", "/v1/admin/decisions?format=csv", "", 200),
    ("GET", "/v1/admin/windows?identifier=user:a&format=ndjson", "", 200),
    ("GET", "/v1/admin/rollups?per=hour", "", 200),
    ("GET", "/v1/admin/rollups?per=year", "", 400),
    ("GET", "/v1/admin/usage/user:a?since=24h&per=hour", "", 200),
    ("GET", "/v1/admin/records/top?of=rules&by=refused", "", 200),
    ("GET", "/v1/admin/records/trend?since=7d", "", 200),
    ("GET", "/v1/admin/records/violations?limit=5", "", 200),
    ("GET", "/v1/admin/penalties", "", 200),
    ("DELETE", "/v1/admin/penalties/user:nobody", "", 404),
    ("GET", "/v1/admin/export", "", 200),
    ("GET", "/v1/admin/export?format=toml&kinds=rules,limits&limit=10000", "", 200),
    ("POST", "/v1/admin/import?dry_run=true", EVERYTHING, 200),
    ("POST", "/v1/admin/import", EVERYTHING, 200),
    ("GET", "/v1/admin/export?kinds=limits,blocks", "", 200),
    ("GET", "/v1/admin/audit?newest=true&since=2h", "", 200),
    ("GET", "/v1/admin/actions?limit=2", "", 200),
    ("POST", "/v1/admin/reload", "", 200),
    ("POST", "/v1/admin/reload?dry_run=true", "", 400),
    ("GET", "/healthz", "", 200),
    ("GET", "/readyz", "", 200),
    ("GET", "/metrics", "", 200),
    ("GET", "/openapi.json", "", 200),
    ("GET", "/v1/admin/nothing", "", 404),
];

/// A tier in the settings file, and all header profiles that can be combined.
const CONFIG: &str = "default_limit = 100\n[server]\nheaders = [\"x-ratelimit\", \"draft-10\"]\n\
                      [[tiers]]\nname = \"silver\"\nlimit = 4294967295\nwindow = 60\n";

#[test]
fn every_route_responds_as_described() {
    let service = Service::with_config(CONFIG);
    let mut requested = BTreeSet::new();
    for (method, target, body, status) in REQUESTS {
        let answer = service.admin(method, target, body);
        assert_eq!(answer.status, status, "{method} {target}: {}", answer.text);
        let path = template(description(), target.split('?').next().unwrap());
        requested.extend(path.map(|path| (method.to_owned(), path.to_owned())));
    }
    requested.extend(key_life_cycle(&service));
    let described = operations();
    let missing: Vec<_> = described.difference(&requested).collect();
    assert!(missing.is_empty(), "no request for {missing:?}");
}

/// The life cycle of a key: its id is only known after creation.
fn key_life_cycle(service: &Service) -> Vec<(String, String)> {
    let body = r#"{"name":"n","scopes":["check"],"requests_per_second":5,"expires_in":"1d"}"#;
    let made = service.admin("POST", "/v1/admin/keys", body);
    assert_eq!(made.status, 201, "{}", made.text);
    let key = made.json();
    let path = format!("/v1/admin/keys/{}", key["id"].as_str().unwrap());
    let (right, last) = key["key"].as_str().unwrap().split_at(key["key"].as_str().unwrap().len() - 1);
    let wrong = format!("{right}{}", if last == "A" { "B" } else { "A" });
    let refused =
        service.post("/v1/rate-limit/check", &json!({"api_key": wrong, "endpoint": "/"}).to_string());
    assert_eq!((refused.status, &refused.json()["decision"]), (403, &json!("blocked")));
    for target in ["/v1/rate-limit/status?endpoint=/&api_key=", "/v1/admin/counters?api_key="] {
        assert_eq!(service.admin("GET", &format!("{target}{wrong}"), "").status, 403, "{target}");
    }
    let mut requested = vec![("POST".to_owned(), "/v1/admin/keys".to_owned())];
    for (method, end, body, status) in [
        ("GET", "", "", 200),
        ("PUT", "?dry_run=true", r#"{"name":"o"}"#, 200),
        ("PUT", "", r#"{"name":"o"}"#, 200),
        ("POST", "/rotate?dry_run=true", "", 200),
        ("POST", "/rotate", r#"{"overlap":"1h"}"#, 200),
        ("POST", "/rotate", "", 200),
        ("POST", "/revoke?dry_run=true", "", 200),
        ("POST", "/revoke", "", 200),
        ("POST", "/rotate", "", 409),
        ("DELETE", "", "", 204),
        ("GET", "", "", 404),
    ] {
        let answer = service.admin(method, &format!("{path}{end}"), body);
        assert_eq!(answer.status, status, "{method} {end}: {}", answer.text);
        let end = end.split('?').next().unwrap();
        requested.push((method.to_owned(), format!("/v1/admin/keys/{{id}}{end}")));
    }
    requested
}

#[test]
fn existing_item_responds_as_described() {
    let service = Service::unconfigured();
    let key = service.admin("POST", "/v1/admin/keys", r#"{"name":"n"}"#).json();
    let key = format!("/v1/admin/keys/{}", key["id"].as_str().unwrap());
    let bearer = format!("Bearer {}", service.admin_key());
    for (path, body) in [
        ("/v1/admin/rules/r", SHORT.replace("\"s\"", "\"r\"")),
        ("/v1/admin/tiers/t", TIER.to_owned()),
        ("/v1/admin/quotas/a", "{}".to_owned()),
        ("/v1/admin/blocks/user:a", "{}".to_owned()),
        (&*key, r#"{"name":"n"}"#.to_owned()),
    ] {
        let put = service.admin("PUT", path, &body);
        assert!([200, 201].contains(&put.status), "{path}: {}", put.text);
        let known = put.header("etag").unwrap();
        let send = |method: &str, header: &str, value: &str| {
            let headers = [("content-type", "application/json"), ("authorization", &bearer), (header, value)];
            service.send(method, path, &headers, if method == "PUT" { &body } else { "" }).status
        };
        assert_eq!(send("GET", "if-none-match", known), 304, "{path}");
        assert_eq!(send("PUT", "if-match", "\"4711\""), 412, "{path}");
        assert_eq!(send("DELETE", "if-match", "\"4711\""), 412, "{path}");
    }
}

#[test]
fn every_error_is_described() {
    let service = Service::unconfigured();
    let bearer = format!("Bearer {}", service.admin_key());
    let large = format!("\"{}\"", "x".repeat(9 << 20));
    let mut refused = BTreeSet::new();
    for (method, path) in operations() {
        let operation = &description()["paths"][&path][method.to_lowercase()];
        let path = path.replace("{client}", "user:nobody").replace(['{', '}'], "");
        let mut ask = |target: &str, kind: &str, key: &str, body: &str| {
            let answer =
                service.send(&method, target, &[("content-type", kind), ("authorization", key)], body);
            refused.insert(answer.status);
        };
        ask(&format!("{path}?nobody=1&nobody=%ff"), "application/json", &bearer, "");
        if operation["requestBody"].is_object() {
            ask(&path, "text/plain", &bearer, "{}");
            ask(&path, "application/json", &bearer, "{\"a\":");
            ask(&path, "application/json", &bearer, "[]");
            ask(&path, "application/json", &bearer, &large);
        }
    }
    // Forward-auth takes every method.
    for (method, path) in operations().into_iter().filter(|(_, path)| path != FORWARD_AUTH) {
        let path = path.replace("{client}", "user:nobody").replace(['{', '}'], "");
        // Sequentially, until the auth throttle refuses to look at keys.
        for attempt in 0..2 {
            let key = format!("Bearer {method}{path}{attempt}");
            refused.insert(service.send(&method, &path, &[("authorization", &key)], "").status);
        }
        refused.insert(service.send("PATCH", &path, &[], "").status);
    }
    let all: Vec<u16> = [400, 401, 405, 413, 415, 429].into();
    assert!(all.iter().all(|status| refused.contains(status)), "{refused:?}");
}

#[test]
fn description_leaves_no_memory_resident() {
    // Records grow into their memory after the start.
    let service = Service::with_config("[records]\nenabled = false");
    (0..50).for_each(|_| assert_eq!(service.get("/healthz").status, 200));
    let before = service.heap_kib();
    (0..50).for_each(|_| assert_eq!(service.get("/openapi.json").status, 200));
    // The allocator returns memory while it is in use.
    wait_for("memory to be returned", || {
        service.get("/healthz");
        (service.heap_kib() < before + 2 * 1024).then_some(())
    });
    println!("{before} KiB before, {} KiB after 50 requests", service.heap_kib());
}

/// The text of a file in the repository.
fn text_of(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The code blocks of the documentation: language and text.
fn blocks_of_code() -> Vec<(String, String)> {
    let docs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")).unwrap();
    let names = docs.map(|file| format!("docs/{}", file.unwrap().file_name().to_str().unwrap()));
    let names = names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"));
    let mut blocks = Vec::new();
    for name in names.chain(["README.md".to_owned()]) {
        let text = text_of(&name);
        for block in text.split("\n```").skip(1).step_by(2) {
            let (language, code) = block.split_once('\n').unwrap();
            blocks.push((language.to_owned(), code.to_owned()));
        }
    }
    blocks
}

fn is_a_request(path: &str, verb: &str, body: &Value) {
    let content = &description()["paths"][path][verb]["requestBody"]["content"]["application/json"];
    let checked = Schemas::open(description()).check(&content["schema"], body);
    assert_eq!(checked, Ok(()), "{verb} {path} {body}");
}

#[test]
fn documented_requests_match_the_description() {
    let mut shown = 0;
    for (_, code) in blocks_of_code() {
        for command in code.replace("\\\n", " ").lines().filter(|line| line.contains("curl ")) {
            let Some((_, body)) = command.split_once("-d '") else { continue };
            let path = command.split_once(":8080").unwrap().1.split_whitespace().next().unwrap();
            let body = serde_json::from_str(body.split('\'').next().unwrap()).unwrap();
            is_a_request(path, if command.contains("-X PUT") { "put" } else { "post" }, &body);
            shown += 1;
        }
    }
    assert!(shown >= 2, "README.md and docs/api.md must contain curl examples");
}

#[test]
fn documented_responses_match_the_description() {
    let schemas = description()["components"]["schemas"].as_object().unwrap();
    let mut shown = 0;
    let blocks = blocks_of_code().into_iter().filter(|(language, _)| language == "json");
    // Abbreviated examples cannot be parsed and are skipped.
    for answer in blocks.filter_map(|(_, code)| serde_json::from_str::<Value>(&code).ok()) {
        let fits = |schema: &Value| Schemas::closed(description()).check(schema, &answer).is_ok();
        assert!(schemas.values().any(fits), "no route responds like this: {answer}");
        shown += 1;
    }
    assert!(shown >= 3, "a decision, counters and an error");
}

#[test]
fn documented_rules_match_the_description() {
    let mut shown = 0;
    let tables = blocks_of_code().into_iter().filter(|(language, _)| language == "toml");
    for table in tables.filter_map(|(_, code)| code.parse::<toml::Table>().ok()) {
        let table = serde_json::to_value(table).unwrap();
        for (kind, path) in [("rules", "/v1/admin/rules"), ("tiers", "/v1/admin/tiers")] {
            for item in table[kind].as_array().into_iter().flatten() {
                is_a_request(path, "post", item);
                shown += 1;
            }
        }
    }
    assert!(shown >= 4, "{shown}");
}

/// The target of an operation as `/docs` prefills it, with or without `dry_run`.
fn prefilled(path: &str, operation: &Value, key_id: &str, is_dry_run: bool) -> String {
    let mut target = path.replace("{id}", key_id);
    let mut query = Vec::new();
    for parameter in operation["parameters"].as_array().unwrap() {
        let name = parameter["name"].as_str().unwrap();
        let value =
            parameter["example"].as_str().map_or_else(|| parameter["example"].to_string(), str::to_owned);
        match parameter["in"].as_str() {
            Some("path") => target = target.replace(&format!("{{{name}}}"), &value),
            Some("query") if value != "null" && (is_dry_run || name != "dry_run") => {
                query.push(format!("{name}={value}"));
            }
            _ => {}
        }
    }
    if query.is_empty() { target } else { format!("{target}?{}", query.join("&")) }
}

#[test]
fn every_example_request_is_accepted() {
    let service = Service::unconfigured();
    let key_id = service.admin("POST", "/v1/admin/keys", r#"{"name":"n"}"#).json()["id"].clone();
    let bearer = format!("Bearer {}", service.admin_key());
    let mut with_body = 0;
    // Forward-auth is for gateways only.
    for (verb, path) in operations().into_iter().filter(|(_, path)| path != FORWARD_AUTH) {
        let operation = &description()["paths"][&path][verb.to_lowercase()];
        let send = |kind: &str, is_dry_run: bool, body: &str| {
            let target = prefilled(&path, operation, key_id.as_str().unwrap(), is_dry_run);
            let headers = [("content-type", kind), ("authorization", &*bearer)];
            (service.send(&verb, &target, &headers, body), format!("{verb} {target} {body}"))
        };
        let Some(content) = operation["requestBody"]["content"].as_object() else {
            let (answer, label) = send("application/json", true, "");
            assert!([200, 404].contains(&answer.status), "{label}: {}", answer.text);
            continue;
        };
        for (kind, content) in content {
            let example = &content["example"];
            let body = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
            for is_dry_run in [true, false] {
                let (answer, label) = send(kind, is_dry_run, &body);
                assert!([200, 201].contains(&answer.status), "{label}: {}", answer.text);
            }
            with_body += 1;
        }
    }
    assert!(with_body > 15, "{with_body}");
}

#[test]
fn mismatches_are_detected() {
    let api = json!({ "components": { "schemas": {
        "Text": { "type": "string", "maxLength": 2 },
        "Open": { "type": "object", "properties": { "a": { "$ref": "#/components/schemas/Text" } }, "required": ["a"] },
        "Map": { "type": "object", "additionalProperties": { "type": "integer", "minimum": 1 } },
        "Either": { "oneOf": [{ "$ref": "#/components/schemas/Open" }, { "type": ["array", "null"], "items": { "type": "boolean" } }] },
        "Odd": { "type": "string", "contentEncoding": "base64" },
    } } });
    let check = |schemas: Schemas<'_>, name: &str, value: Value| {
        schemas.check(&json!({ "$ref": format!("#/components/schemas/{name}") }), &value).is_ok()
    };
    let closed = |name: &str, value: Value| check(Schemas::closed(&api), name, value);
    assert!(closed("Open", json!({ "a": "é" })));
    assert!(!closed("Open", json!({ "a": "long" })));
    assert!(!closed("Open", json!({ "a": 1 })));
    assert!(!closed("Open", json!({})));
    assert!(!closed("Open", json!({ "a": "x", "b": 1 })), "b is not described");
    assert!(check(Schemas::open(&api), "Open", json!({ "a": "x", "b": 1 })));
    assert!(closed("Map", json!({ "a": 1, "b": 2 })));
    assert!(!closed("Map", json!({ "a": 0 })));
    assert!(closed("Either", json!(null)));
    assert!(closed("Either", json!([true])));
    assert!(!closed("Either", json!([1])));
    assert!(!closed("Either", json!({ "a": "x", "b": 1 })));
    assert!(!closed("Odd", json!("x")), "an unknown keyword");
}
