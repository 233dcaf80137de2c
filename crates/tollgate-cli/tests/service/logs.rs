//! Log lines of single requests, found by request id.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Answer, Service};

const RULE: &str = r#"{"name":"a","per":["user"],"limits":[{"requests":5,"window":"1m"}]}"#;

fn logging(level: &str) -> Service {
    Service::start(TempDir::new().unwrap(), None, &[("TOLLGATE_LOG__LEVEL", level)])
}

/// Sends a request with its own request id.
fn send(service: &Service, id: &str, method: &str, path: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {}", service.admin_key());
    let headers = [("content-type", "application/json"), ("authorization", &bearer), ("x-request-id", id)];
    service.send(method, path, &headers, body)
}

/// All log lines with this request id.
fn lines(service: &Service, id: &str) -> Vec<Value> {
    let lines =
        service.log().lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    lines.into_iter().filter(|line| line["request_id"] == id).collect()
}

/// Asserts that a line with this id has this level and these fields.
#[track_caller]
fn assert_logged(service: &Service, id: &str, level: &str, fields: &Value) {
    let lines = lines(service, id);
    let has_all = |line: &Value| fields.as_object().unwrap().iter().all(|(name, value)| line[name] == *value);
    assert!(
        lines.iter().any(|line| line["level"] == level && has_all(line)),
        "{level} {fields} in {lines:#?}"
    );
}

#[test]
fn debug_log_has_the_id_of_every_response() {
    let service = logging("debug");
    let check = "/v1/rate-limit/check";
    assert_eq!(send(&service, "fine", "POST", check, r#"{"user_id":"u","endpoint":"/x"}"#).status, 200);
    assert_logged(&service, "fine", "DEBUG", &json!({"method": "POST", "route": check, "status": 200}));
    assert_eq!(send(&service, "wrong", "POST", check, r#"{"user_id":7}"#).status, 400);
    let fields = json!({"route": check, "status": 400, "code": "INVALID_INPUT"});
    assert_logged(&service, "wrong", "DEBUG", &fields);
    assert_eq!(send(&service, "nowhere", "GET", "/nowhere/secret-in-a-path", "").status, 404);
    assert_logged(
        &service,
        "nowhere",
        "DEBUG",
        &json!({"route": "other", "status": 404, "code": "NOT_FOUND"}),
    );
    let own = service.check("u", "/x").header("x-request-id").unwrap().to_owned();
    assert_logged(&service, &own, "DEBUG", &json!({"status": 200}));
    assert!(!service.log().contains("secret-in-a-path"), "a path may hold a key");
}

#[test]
fn writes_are_logged_with_request_id() {
    let service = logging("info");
    let (rules, reload, reset) = ("/v1/admin/rules", "/v1/admin/reload", "/v1/rate-limit/reset");
    let whose = r#"{"user_id":"u","endpoint":"/x"}"#;
    send(&service, "check", "POST", "/v1/rate-limit/check", whose);
    send(&service, "read", "GET", rules, "");
    assert_eq!(send(&service, "trial", "POST", &format!("{rules}?dry_run=true"), RULE).status, 200);
    // Not sent by the harness, which would validate the values.
    let (key, length) = (service.admin_key(), RULE.len());
    let head =
        format!("POST {rules}?dry_run=%74rue HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n");
    let fields = "x-request-id: escaped\r\ncontent-type: application/json\r\n";
    let sent = format!("{head}{fields}content-length: {length}\r\n\r\n{RULE}");
    let escaped = service.raw(sent.as_bytes());
    assert_eq!((escaped.status, &escaped.json()["dry_run"]), (200, &json!(true)));
    assert_eq!(send(&service, "create", "POST", rules, RULE).status, 201);
    assert_eq!(send(&service, "again", "POST", rules, RULE).status, 409);
    assert_eq!(send(&service, "reload", "POST", reload, "").status, 200);
    assert_eq!(send(&service, "reset", "POST", reset, whose).status, 200);
    for quiet in ["check", "read", "trial", "escaped", "again"] {
        assert_eq!(lines(&service, quiet), Vec::<Value>::new());
    }
    let made = |route: &str, status: u16| json!({"message": "change applied", "method": "POST", "route": route, "status": status, "by": "admin"});
    assert_logged(&service, "create", "INFO", &made(rules, 201));
    assert_logged(
        &service,
        "create",
        "INFO",
        &json!({"message": "configuration changed", "kind": "rule", "id": "a"}),
    );
    assert_logged(&service, "reload", "INFO", &made(reload, 200));
    assert_logged(&service, "reset", "INFO", &made(reset, 200));
}

#[test]
fn keys_are_logged_at_no_level() {
    let service = logging("trace");
    let made = send(&service, "key", "POST", "/v1/admin/keys", r#"{"name":"k","scopes":["read"]}"#);
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
