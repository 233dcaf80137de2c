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

const LIMIT: &str =
    "[[rules]]\nname = \"by-user\"\nper = [\"user\"]\nlimits = [{ requests = 1, window = \"30d\" }]\n";

/// A service that admits one request per user, with more settings in `[log]`.
fn limiting(level: &str, more: &str) -> Service {
    Service::with_config(&format!("[log]\nformat = \"json\"\nlevel = \"{level}\"\n{more}\n{LIMIT}"))
}

/// All lines with this message.
fn messages(service: &Service, message: &str) -> Vec<Value> {
    let log = service.log();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["message"] == message).collect()
}

#[test]
fn refusal_is_logged_with_client_and_rule() {
    let service = limiting("info", "");
    let check = r#"{"user_id":"alice","tenant":"acme","endpoint":"/search?q=secret","method":"POST"}"#;
    assert_eq!(service.post("/v1/rate-limit/check", check).status, 200);
    assert_eq!(
        messages(&service, "request refused"),
        Vec::<Value>::new(),
        "an admitted request is not logged"
    );
    let answer = service.post("/v1/rate-limit/check", check);
    assert_eq!(answer.status, 429);
    let lines = messages(&service, "request refused");
    let expected = json!({"client": "user:alice", "tenant": "acme", "method": "POST", "endpoint": "/search",
        "reason": "over_limit", "rule": "by-user", "limit": 1, "window": "30d", "suppressed": 0});
    let line = &lines[0];
    assert!(
        lines.len() == 1 && expected.as_object().unwrap().iter().all(|(name, value)| line[name] == *value),
        "{lines:#?}"
    );
    let wait = answer.header("retry-after").unwrap().parse::<u64>().unwrap() * 1_000;
    assert!(line["wait_ms"].as_u64().unwrap().abs_diff(wait) <= 1_000, "{line}");
}

#[test]
fn refusals_are_sampled_and_counted() {
    let service = limiting("info", "");
    let checks = vec![r#"{"user_id":"alice","endpoint":"/x"}"#; 501].join(",");
    let body = format!(r#"{{"checks":[{checks}]}}"#);
    assert_eq!(service.post("/v1/rate-limit/batch-check", &body).status, 200);
    // One batch is decided at one instant.
    assert_eq!(messages(&service, "request refused").len(), 10);
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    assert_eq!(service.check("alice", "/x").status, 429);
    let lines = messages(&service, "request refused");
    assert_eq!((lines.len(), &lines[10]["suppressed"]), (11, &json!(490)));
}

#[test]
fn refusals_are_not_logged_if_switched_off() {
    for (level, more) in [("info", "refusals = \"off\""), ("warn", "")] {
        let service = limiting(level, more);
        assert_eq!([200, 429, 429].map(|_| service.check("alice", "/x").status), [200, 429, 429]);
        assert_eq!(messages(&service, "request refused"), Vec::<Value>::new(), "{level} {more}");
    }
}

#[test]
fn clients_cannot_forge_lines_of_requests() {
    let service = limiting("debug", "");
    let user = "eve\n{\"message\":\"forged\"}\u{1b}[2J\u{9b}\u{202e}";
    let check = json!({"user_id": user, "endpoint": "/a\u{202e}b"}).to_string();
    let statuses = [(); 2].map(|()| service.post("/v1/rate-limit/check", &check).status);
    assert_eq!(statuses, [200, 429]);
    let lines = messages(&service, "request refused");
    assert_eq!(lines.len(), 1);
    let client = lines[0]["client"].as_str().unwrap();
    assert!(client.starts_with("user:eve\\n{") && !client.contains(char::is_control), "{client}");
    assert_eq!(messages(&service, "forged"), Vec::<Value>::new());
    let unescaped = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
    assert!(!service.log().contains(unescaped));
    let served = messages(&service, "request served");
    assert!(served.iter().any(|line| line["client"] == client), "{served:#?}");
}

#[test]
fn access_log_has_client_rule_caller_and_duration() {
    let service = limiting("info,tollgate_server::access=debug", "");
    let check = "/v1/rate-limit/check";
    send(&service, "one", "POST", check, r#"{"user_id":"alice","endpoint":"/x"}"#);
    let fields =
        json!({"route": check, "status": 200, "caller": "admin", "client": "user:alice", "rule": "by-user"});
    assert_logged(&service, "one", "DEBUG", &fields);
    assert!(lines(&service, "one")[0]["duration_us"].as_u64().unwrap() > 0);
    let anonymous = service.check("bob", "/x").header("x-request-id").unwrap().to_owned();
    let line = &lines(&service, &anonymous)[0];
    assert_eq!((&line["client"], line.get("caller")), (&json!("user:bob"), None));
    let others = messages(&service, "request served").len();
    assert!(others >= 2, "{}", service.log());
}

#[test]
fn opaque_client_keys_are_logged_as_a_hash() {
    let service = limiting("trace", "");
    let rule = r#"{"name":"by-key","per":["api_key"],"limits":[{"requests":1,"window":"30d"}]}"#;
    assert_eq!(service.admin("POST", "/v1/admin/rules", rule).status, 201);
    let secret = "canary-4f2c-opaque";
    let check = format!(r#"{{"api_key":"{secret}","endpoint":"/x"}}"#);
    let statuses = [(); 2].map(|()| service.post("/v1/rate-limit/check", &check).status);
    assert_eq!(statuses, [200, 429]);
    let key = service.admin_key();
    // A key of the service in the place of something else.
    service.post("/v1/rate-limit/check", &format!(r#"{{"user_id":"u","endpoint":"/reset/{key}"}}"#));
    service.post("/v1/rate-limit/check", &format!(r#"{{"user_id":"u","endpoint":"/reset/{key}"}}"#));
    let lines = messages(&service, "request refused");
    assert!(lines[0]["client"].as_str().unwrap().starts_with("api_key:#"), "{lines:#?}");
    assert_eq!(lines[1]["endpoint"], "***", "{lines:#?}");
    let log = service.log();
    assert!(!log.contains("canary") && !log.contains(&key));
}
