//! What the log tells of single requests: whoever has a request id finds it there.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Answer, Service};

const RULE: &str = r#"{"name":"a","per":["user"],"limits":[{"requests":5,"window":"1m"}]}"#;

fn logging(level: &str) -> Service {
    Service::start(TempDir::new().unwrap(), None, &[("TOLLGATE_LOG__LEVEL", level)])
}

/// Sends a request under an id of its own.
fn ask(service: &Service, id: &str, method: &str, path: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {}", service.admin_key());
    let headers = [("content-type", "application/json"), ("authorization", &bearer), ("x-request-id", id)];
    service.send(method, path, &headers, body)
}

/// Every line of the log with this id.
fn lines(service: &Service, id: &str) -> Vec<Value> {
    let lines =
        service.log().lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    lines.into_iter().filter(|line| line["request_id"] == id).collect()
}

/// A line with this id is of this level and has these fields.
#[track_caller]
fn assert_told(service: &Service, id: &str, level: &str, fields: &Value) {
    let lines = lines(service, id);
    let has_all = |line: &Value| fields.as_object().unwrap().iter().all(|(name, value)| line[name] == *value);
    assert!(
        lines.iter().any(|line| line["level"] == level && has_all(line)),
        "{level} {fields} in {lines:#?}"
    );
}

#[test]
fn every_answer_is_found_by_its_id_where_debug_is_logged() {
    let service = logging("debug");
    let check = "/v1/rate-limit/check";
    assert_eq!(ask(&service, "fine", "POST", check, r#"{"user_id":"u","endpoint":"/x"}"#).status, 200);
    assert_told(&service, "fine", "DEBUG", &json!({"method": "POST", "route": check, "status": 200}));
    assert_eq!(ask(&service, "wrong", "POST", check, r#"{"user_id":7}"#).status, 400);
    let told = json!({"route": check, "status": 400, "code": "INVALID_INPUT"});
    assert_told(&service, "wrong", "DEBUG", &told);
    assert_eq!(ask(&service, "nowhere", "GET", "/nowhere/secret-in-a-path", "").status, 404);
    assert_told(&service, "nowhere", "DEBUG", &json!({"route": "other", "status": 404, "code": "NOT_FOUND"}));
    let own = service.check("u", "/x").header("x-request-id").unwrap().to_owned();
    assert_told(&service, &own, "DEBUG", &json!({"status": 200}));
    assert!(!service.log().contains("secret-in-a-path"), "a path may hold a key");
}

#[test]
fn changes_are_told_with_their_id_and_checks_are_not() {
    let service = logging("info");
    let (rules, reload, reset) = ("/v1/admin/rules", "/v1/admin/reload", "/v1/rate-limit/reset");
    let whose = r#"{"user_id":"u","endpoint":"/x"}"#;
    ask(&service, "check", "POST", "/v1/rate-limit/check", whose);
    ask(&service, "read", "GET", rules, "");
    assert_eq!(ask(&service, "trial", "POST", &format!("{rules}?dry_run=true"), RULE).status, 200);
    // Not by the harness, which holds values against the description as they are written.
    let (key, length) = (service.admin_key(), RULE.len());
    let head = format!("POST {rules}?dry_run=%74rue HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n");
    let fields = "x-request-id: escaped\r\ncontent-type: application/json\r\n";
    let sent = format!("{head}{fields}content-length: {length}\r\n\r\n{RULE}");
    let escaped = service.raw(sent.as_bytes());
    assert_eq!((escaped.status, &escaped.json()["dry_run"]), (200, &json!(true)));
    assert_eq!(ask(&service, "create", "POST", rules, RULE).status, 201);
    assert_eq!(ask(&service, "again", "POST", rules, RULE).status, 409);
    assert_eq!(ask(&service, "reload", "POST", reload, "").status, 200);
    assert_eq!(ask(&service, "reset", "POST", reset, whose).status, 200);
    for quiet in ["check", "read", "trial", "escaped", "again"] {
        assert_eq!(lines(&service, quiet), Vec::<Value>::new());
    }
    let made = |route: &str, status: u16| json!({"message": "change applied", "method": "POST", "route": route, "status": status, "by": "admin"});
    assert_told(&service, "create", "INFO", &made(rules, 201));
    assert_told(
        &service,
        "create",
        "INFO",
        &json!({"message": "configuration changed", "kind": "rule", "id": "a"}),
    );
    assert_told(&service, "reload", "INFO", &made(reload, 200));
    assert_told(&service, "reset", "INFO", &made(reset, 200));
}

#[test]
fn t56_no_key_is_in_a_line_at_any_level() {
    let service = logging("trace");
    let made = ask(&service, "key", "POST", "/v1/admin/keys", r#"{"name":"k","scopes":["read"]}"#);
    assert_eq!(made.status, 201, "{}", made.text);
    let key = made.json()["key"].as_str().unwrap().to_owned();
    assert_eq!(service.with_key(&key, "GET", "/v1/admin/rules", "").status, 200);
    let wrong = "tg_wrong-key-of-somebody-who-guesses";
    assert_eq!(service.with_key(wrong, "GET", "/v1/admin/rules", "").status, 401);
    let log = service.log();
    for secret in [&*service.admin_key(), &*key, wrong] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}
