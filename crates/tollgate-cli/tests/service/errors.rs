//! Invalid input: the error names field and reason, and nothing changes.

use std::io::Write;
use std::time::Duration;

use crate::harness::{Service, read_answer};

const CHECK: &str = "/v1/rate-limit/check";

fn refused(service: &Service, body: &str) -> (u16, String, String) {
    service.post(CHECK, body).error()
}

fn error(status: u16, code: &str, field: &str) -> (u16, String, String) {
    (status, code.to_owned(), field.to_owned())
}

#[test]
fn invalid_field_is_named_and_nothing_charged() {
    let service = Service::with_config("default_limit = 3");
    let long = "x".repeat(257);
    let cases = [
        (r#"{"user_id":"a"}"#.to_owned(), "INVALID_INPUT", "endpoint"),
        (r#"{"endpoint":"/x"}"#.to_owned(), "INVALID_INPUT", "user_id"),
        (r#"{"user_id":"","endpoint":"/x"}"#.to_owned(), "INVALID_INPUT", "user_id"),
        (r#"{"user_id":7,"endpoint":"/x"}"#.to_owned(), "INVALID_INPUT", "user_id"),
        (format!(r#"{{"user_id":"{long}","endpoint":"/x"}}"#), "INVALID_INPUT", "user_id"),
        (r#"{"user_id":"a","endpoint":""}"#.to_owned(), "INVALID_INPUT", "endpoint"),
        (r#"{"user_id":"a","endpoint":"/%zz"}"#.to_owned(), "INVALID_INPUT", "endpoint"),
        (r#"{"user_id":"a","endpoint":"/a\\b"}"#.to_owned(), "INVALID_INPUT", "endpoint"),
        (r#"{"user_id":"a","endpoint":"/x","ip":"fe80::1%eth0"}"#.to_owned(), "INVALID_INPUT", "ip"),
        (r#"{"user_id":"a","endpoint":"/x","ip":"010.0.0.1"}"#.to_owned(), "INVALID_INPUT", "ip"),
        (r#"{"user_id":"a","endpoint":"/x","method":"G T"}"#.to_owned(), "INVALID_INPUT", "method"),
        (r#"{"user_id":"a","endpoint":"/x","cost":-1}"#.to_owned(), "INVALID_INPUT", "cost"),
        (r#"{"user_id":"a","endpoint":"/x","cost":1.5}"#.to_owned(), "INVALID_INPUT", "cost"),
        (
            r#"{"user_id":"a","endpoint":"/x","descriptors":{"a":1}}"#.to_owned(),
            "INVALID_INPUT",
            "descriptors.a",
        ),
        (r#"{"user_id":"a","endpoint":"/x","limit":-5}"#.to_owned(), "INVALID_LIMIT", "limit"),
        (
            r#"{"user_id":"a","endpoint":"/x","window_seconds":0}"#.to_owned(),
            "INVALID_LIMIT",
            "window_seconds",
        ),
        (r#"{"user_id":"a","endpoint":"/x","strategy":"magic"}"#.to_owned(), "INVALID_STRATEGY", "strategy"),
        (r#"{"user_id":"a","user_id":"b","endpoint":"/x"}"#.to_owned(), "INVALID_INPUT", "user_id"),
        (r#"{"user_id":"a","endpoint":"/x"} trailing"#.to_owned(), "INVALID_INPUT", ""),
        ("not json".to_owned(), "INVALID_INPUT", ""),
        ("[]".to_owned(), "INVALID_INPUT", ""),
        (String::new(), "INVALID_INPUT", ""),
    ];
    for (body, code, field) in cases {
        assert_eq!(refused(&service, &body), error(400, code, field), "{body}");
    }
    assert_eq!(service.check("a", "/x").json()["remaining"], 2);
}

#[test]
fn window_must_be_a_positive_integer() {
    let service = Service::unconfigured();
    for window in ["0", "-1", "4294967296", "\"5\""] {
        let body = format!(r#"{{"user_id":"a","endpoint":"/x","window_seconds":{window}}}"#);
        let answer = service.post(CHECK, &body);
        let reason = answer.json()["error"]["details"]["reason"].as_str().unwrap().to_owned();
        assert!(reason.ends_with("an integer from 1 to 4294967295"), "{window}: {reason}");
    }
}

#[test]
fn unknown_parameters_are_rejected() {
    let service = Service::unconfigured();
    let answer = service.admin("GET", "/v1/rate-limit/config?user_id=a&endpoint=/x&limit=1", "");
    assert_eq!(answer.error(), error(400, "INVALID_INPUT", "limit"));
}

#[test]
fn error_envelope_repeats_the_request_id() {
    let service = Service::unconfigured();
    let headers = [("content-type", "application/json"), ("x-request-id", "my-id-7")];
    let answer = service.send("POST", CHECK, &headers, r#"{"user_id":"a","endpoint":"/x","cost":"1"}"#);
    let body = answer.json();
    assert_eq!(body["error"]["request_id"], "my-id-7");
    assert_eq!(answer.header("x-request-id"), Some("my-id-7"));
    let reason = body["error"]["details"]["reason"].as_str().unwrap();
    assert!(reason.contains("string") && reason.contains("integer"), "{reason}");
    assert_eq!(body["error"]["message"].as_str().unwrap(), format!("cost: {reason}"));
    assert_eq!(answer.header("x-ratelimit-limit"), None);
}

#[test]
fn missing_request_id_is_generated() {
    let service = Service::unconfigured();
    let id = |headers: &[(&str, &str)]| {
        service.send("GET", "/healthz", headers, "").header("x-request-id").unwrap().to_owned()
    };
    let (first, second) = (id(&[]), id(&[]));
    assert!(first.starts_with("req_") && second.starts_with("req_") && first != second);
    for unusable in ["with space", &"x".repeat(200), "caf\u{e9}"] {
        assert!(id(&[("x-request-id", unusable)]).starts_with("req_"));
    }
}

#[test]
fn unknown_path_method_and_type_have_own_codes() {
    let service = Service::unconfigured();
    assert_eq!(service.get("/v1/nothing").error(), error(404, "NOT_FOUND", ""));
    assert_eq!(service.get("/v2/rate-limit/check").error(), error(404, "NOT_FOUND", ""));
    let wrong = service.get(CHECK);
    assert_eq!(wrong.error(), error(405, "METHOD_NOT_ALLOWED", ""));
    assert_eq!(wrong.header("allow"), Some("POST"));
    let config = service.send("PATCH", "/v1/rate-limit/config", &[], "");
    assert_eq!(config.header("allow"), Some("GET, HEAD, PUT, DELETE"));
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let answer = service.send("POST", CHECK, &[("content-type", kind)], "{}");
        assert_eq!(answer.error(), error(415, "UNSUPPORTED_MEDIA_TYPE", ""));
    }
    let charset = [("content-type", "Application/JSON; charset=utf-8")];
    assert_eq!(service.send("POST", CHECK, &charset, r#"{"user_id":"a","endpoint":"/x"}"#).status, 200);
}

#[test]
fn large_and_slow_bodies_are_rejected() {
    let service = Service::with_config("[server]\nbody_timeout = \"300ms\"");
    let large = format!(r#"{{"user_id":"a","endpoint":"/x","more":"{}"}}"#, "x".repeat(70 << 10));
    assert_eq!(service.post(CHECK, &large).error(), error(413, "PAYLOAD_TOO_LARGE", ""));
    let mut slow = service.connect();
    let head = "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{";
    slow.write_all(head.as_bytes()).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(read_answer(&mut slow).error(), error(408, "REQUEST_TIMEOUT", ""));
}

#[test]
fn deeply_nested_json_is_rejected() {
    let service = Service::unconfigured();
    let deep = format!(r#"{{"user_id":"a","endpoint":"/x","x":{}}}"#, "[".repeat(60_000));
    assert_eq!(service.post(CHECK, &deep).error(), error(400, "INVALID_INPUT", ""));
    assert_eq!(service.check("a", "/x").status, 200);
}

#[test]
fn invalid_numbers_are_rejected_in_every_field() {
    let service = Service::unconfigured();
    let key = service.admin_key();
    let wrong = [
        "-1",
        "-0",
        "1.5",
        "1e3",
        "4294967296",
        "9007199254740993",
        "9223372036854775808",
        "\"5\"",
        "[]",
        "{}",
    ];
    for number in wrong {
        for field in ["cost", "limit", "window_seconds"] {
            let body = format!(r#"{{"user_id":"a","endpoint":"/x","{field}":{number}}}"#);
            let (status, _, named) = refused(&service, &body);
            assert_eq!((status, &*named), (400, field), "{body}");
        }
        for field in ["limit", "window_seconds", "burst_capacity"] {
            let mut fields = [("limit", "5"), ("window_seconds", "60"), ("burst_capacity", "5")];
            fields.iter_mut().find(|(name, _)| *name == field).unwrap().1 = number;
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!(r#""{name}":{value}"#)).collect();
            let body = format!(r#"{{"user_id":"a","endpoint":"/x","strategy":"gcra",{}}}"#, fields.join(","));
            let (status, _, named) = service.with_key(&key, "PUT", "/v1/rate-limit/config", &body).error();
            assert_eq!((status, &*named), (400, field), "{body}");
        }
    }
    for literal in ["NaN", "Infinity", "1e400", "+1", "01", "0x10"] {
        let (status, code, _) =
            refused(&service, &format!(r#"{{"user_id":"a","endpoint":"/x","cost":{literal}}}"#));
        assert_eq!((status, &*code), (400, "INVALID_INPUT"), "{literal}");
    }
}

#[test]
fn checks_ignore_unknown_fields_and_writes_reject_them() {
    let service = Service::unconfigured();
    assert_eq!(service.post(CHECK, r#"{"user_id":"a","endpoint":"/x","tomorrow":1}"#).status, 200);
    let config =
        r#"{"user_id":"a","endpoint":"/x","limit":1,"window_seconds":1,"strategy":"gcra","brust":1}"#;
    let answer = service.admin("PUT", "/v1/rate-limit/config", config);
    assert_eq!(answer.error(), error(400, "INVALID_INPUT", "brust"));
    let query = service.get("/v1/rate-limit/status?user_id=a&endpoint=/x&planet=mars");
    assert_eq!(query.status, 400);
    assert!(query.text.contains("planet"), "{}", query.text);
}

#[test]
fn non_object_bodies_and_huge_numbers_are_rejected() {
    let service = Service::unconfigured();
    let list = r#"["a","/x",null,null,null,null,null,null,null,null,null,null,null]"#;
    assert_eq!(refused(&service, list), error(400, "INVALID_INPUT", ""));
    let huge = r#"{"user_id":"a","endpoint":"/x","cost":1e400}"#;
    assert_eq!(refused(&service, huge), error(400, "INVALID_INPUT", "cost"));
}

#[test]
fn invalid_query_values_are_named() {
    let service = Service::unconfigured();
    assert_eq!(service.get("/v1/rate-limit/status?user_id=%ff&endpoint=/x").status, 400);
    let get = |query: &str| service.get(&format!("/v1/rate-limit/status?{query}")).error();
    assert_eq!(get("user_id=a&endpoint=/x&planet=mars"), error(400, "INVALID_INPUT", "planet"));
    assert_eq!(get("user_id=a&user_id=b&endpoint=/x"), error(400, "INVALID_INPUT", "user_id"));
    assert_eq!(get("user_id=a"), error(400, "INVALID_INPUT", "endpoint"));
}

#[test]
fn probes_ignore_foreign_credentials() {
    let service = Service::unconfigured();
    assert_eq!(service.send("GET", "/healthz", &[("authorization", "Basic abc")], "").status, 200);
}

#[test]
fn every_error_has_details() {
    let service = Service::unconfigured();
    for answer in [
        service.get("/nowhere"),
        service.get("/v1/rate-limit/check"),
        service.get("/v1/admin/keys"),
        service.admin("GET", "/v1/admin/rules/nosuch", ""),
        service.admin("GET", "/v1/rate-limit/config?user_id=a&endpoint=/x", ""),
        service.send("POST", CHECK, &[("content-type", "text/plain")], "x"),
        service.post(CHECK, "{}"),
    ] {
        let error = &answer.json()["error"];
        assert!(error["details"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{error}");
    }
}

#[test]
fn refusals_without_a_counter_have_rate_limit_headers() {
    let limits = |answer: &crate::harness::Answer| {
        ["limit", "remaining", "reset", "strategy"]
            .map(|field| answer.header(&format!("x-ratelimit-{field}")).map(str::to_owned))
    };
    let some = |text: &str| Some(text.to_owned());
    let service = Service::with_config(
        "[[rules]]\nname = \"no-bob\"\naction = \"block\"\nwhen = { users = [\"bob\"] }\n",
    );
    let blocked = service.check("bob", "/x");
    assert_eq!((blocked.status, limits(&blocked)), (403, [some("0"), some("0"), None, None]));
    let block = r#"{"client":"user:eve","until":"2040-01-31T12:00:00Z"}"#;
    assert_eq!(service.admin("POST", "/v1/admin/blocks", block).status, 201);
    let blocked = service.check("eve", "/x");
    assert_eq!((blocked.status, limits(&blocked)), (403, [some("0"), some("0"), some("2211624000"), None]));
    let unknown = format!(r#"{{"endpoint":"/x","api_key":"tg_aaaaaaaaaaaaaaaa_{}"}}"#, "a".repeat(43));
    let refused = service.post(CHECK, &unknown);
    assert_eq!((refused.status, limits(&refused)), (403, [some("0"), some("0"), None, None]));

    let unreachable = Service::with_config(
        "[counters]\nstore = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n\
         [[rules]]\nname = \"r\"\nper = [\"user\"]\non_store_failure = \"closed\"\n\
         limits = [{ requests = 7, window = \"1m\" }]",
    );
    for answer in
        [unreachable.check("a", "/x"), unreachable.get("/v1/rate-limit/status?user_id=a&endpoint=/x")]
    {
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
        let [limit, remaining, reset, strategy] = limits(&answer);
        assert_eq!((limit, remaining, strategy), (some("7"), some("0"), some("token_bucket")));
        assert!(reset.is_some_and(|reset| reset.parse::<u64>().is_ok()));
    }
}
