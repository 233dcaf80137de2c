//! Keys and scopes.

use crate::harness::Service;

/// The keys are `checker-key`, `reader-key`, `writer-key` and `override-key`.
const CALLERS: &str = r#"
[auth]
open_checks = false
[[auth.callers]]
name = "checker"
key_sha256 = "df939c9023364b1468dd2ecb77f1ee54d0e36c867b310e251a5c4fc15735e421"
scopes = ["check"]
[[auth.callers]]
name = "reader"
key_sha256 = "ec4408df15da46b328f6f3246fa723d0aa6cb0f0a0dd9c4626080ab1b02aa3b2"
scopes = ["read"]
[[auth.callers]]
name = "writer"
key_sha256 = "3aec1946afb01344ae0065f3b123820a2144e455c13e5816dbd439e6634f7f26"
scopes = ["config", "reset"]
[[auth.callers]]
name = "override"
key_sha256 = "d850ae32f361affb01c567f6aee0319356d5de0f10c05ca432cc833548ee081d"
scopes = ["check", "override"]
"#;

fn service() -> Service {
    Service::with_config(CALLERS)
}

const CHECK: &str = r#"{"user_id":"a","endpoint":"/x"}"#;
const USER_LIMIT: &str = r#"{"user_id":"a","endpoint":"/x","limit":1,"window_seconds":1,"strategy":"gcra"}"#;

/// Every route that requires a scope, and the scope.
const ROUTES: [(&str, &str, &str, &str); 14] = [
    ("POST", "/v1/rate-limit/check", CHECK, "check"),
    ("POST", "/v1/rate-limit/batch-check", r#"{"checks":[]}"#, "check"),
    ("GET", "/v1/rate-limit/status?user_id=a&endpoint=/x", "", "read"),
    ("GET", "/v1/rate-limit/status/a/x", "", "read"),
    ("POST", "/v1/rate-limit/explain", CHECK, "read"),
    ("GET", "/v1/rate-limit/config?user_id=a&endpoint=/x", "", "read"),
    ("PUT", "/v1/rate-limit/config", USER_LIMIT, "config"),
    ("DELETE", "/v1/rate-limit/config?user_id=a&endpoint=/x", "", "config"),
    ("POST", "/v1/rate-limit/reset", CHECK, "reset"),
    ("POST", "/v1/admin/reload", "", "admin"),
    ("GET", "/v1/admin/rules", "", "read"),
    ("GET", "/v1/admin/limits", "", "read"),
    ("GET", "/v1/admin/penalties", "", "admin"),
    ("DELETE", "/v1/admin/penalties/user:a", "", "admin"),
];

#[test]
fn writes_need_a_key_even_if_checks_do_not() {
    let service = Service::unconfigured();
    let json = [("content-type", "application/json")];
    for (method, path, body, scope) in ROUTES {
        let open = matches!(scope, "check")
            || (scope == "read" && !path.contains("config") && !path.contains("admin"));
        let status = service.send(method, path, &json, body).status;
        assert_eq!(status != 401, open, "{method} {path} answered {status}");
    }
    assert_eq!(
        service.with_key("wrong", "POST", ROUTES[0].1, CHECK).status,
        401,
        "a wrong key must be refused"
    );
}

#[test]
fn override_needs_its_scope() {
    let service = service();
    let body = r#"{"user_id":"a","endpoint":"/x","limit":1000000}"#;
    let refused = service.with_key("checker-key", "POST", "/v1/rate-limit/check", body);
    assert_eq!((refused.status, refused.error().1), (403, "FORBIDDEN".to_owned()));
    let allowed = service.with_key("override-key", "POST", "/v1/rate-limit/check", body);
    assert_eq!((allowed.status, &allowed.json()["limit"]), (200, &serde_json::json!(1_000_000)));
}

#[test]
fn override_is_bounded_for_every_caller() {
    let service = Service::with_config("default_limit = 500\n[auth]\noverride_max = 100\n");
    let check = |limit_override: &str| {
        let body = format!(r#"{{"user_id":"a","endpoint":"/x",{limit_override}}}"#);
        service.admin("POST", "/v1/rate-limit/check", &body)
    };
    assert_eq!(check(r#""limit":100"#).json()["limit"], 100);
    // With a shorter window, the rule's own limit of 500 would exceed 100 as well.
    for limit_override in
        [r#""limit":101"#, r#""window_seconds":1"#, r#""limit":4294967295,"window_seconds":3600"#]
    {
        let answer = check(limit_override);
        assert_eq!(answer.error(), (400, "INVALID_LIMIT".to_owned(), "limit".to_owned()), "{limit_override}");
        let reason = answer.json()["error"]["details"]["reason"].as_str().unwrap().to_owned();
        assert!(reason.starts_with("must be at most 100 (auth.override_max)"), "{reason}");
    }
    let batch = r#"{"checks":[{"user_id":"a","endpoint":"/x","limit":101}]}"#;
    let answer = service.admin("POST", "/v1/rate-limit/batch-check", batch);
    assert_eq!(answer.json()["results"][0]["error"]["code"], "INVALID_LIMIT");
}

#[test]
fn override_without_key_is_unauthorized() {
    let service = Service::on_every_address("");
    let answer = service.post("/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x","limit":1000000}"#);
    assert_eq!((answer.status, answer.error().1), (401, "UNAUTHORIZED".to_owned()));
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("require a key with scope override"), "{message}");
}

#[test]
fn admin_key_is_created_and_printed_once() {
    use std::os::unix::fs::PermissionsExt;
    let service = Service::unconfigured();
    let key = service.admin_key();
    let file = service.data_dir().join("admin.key");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(key.len() > 40);
    service.signal("-TERM");
    let (status, folder) = service.ended();
    assert!(status.success());
    let again = Service::start(folder, None, &[]);
    assert_eq!(again.admin_key(), key);
    assert!(!again.banner.contains(&key));
}

#[test]
fn keys_appear_in_no_log_metric_or_error() {
    let service = Service::unconfigured();
    let canary = "canary-3f9c";
    service.with_key(canary, "POST", "/v1/rate-limit/check", CHECK);
    service.post("/v1/rate-limit/check", &format!(r#"{{"api_key":"{canary}","endpoint":"/x"}}"#));
    let explained =
        service.post("/v1/rate-limit/explain", &format!(r#"{{"api_key":"{canary}","endpoint":"/x"}}"#));
    let wrong =
        service.post("/v1/rate-limit/check", &format!(r#"{{"api_key":"{canary}","endpoint":"/%zz"}}"#));
    let everything = [service.log(), service.get("/metrics").text, explained.text, wrong.text].concat();
    assert!(!everything.contains(canary), "{everything}");
    assert!(!service.log().contains(&service.admin_key()));
}
