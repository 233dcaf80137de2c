//! Login endpoints behind a gateway that forwards bodies, as Traefik does with `forwardBody` (threat 67).

use crate::harness::{Answer, Service};
use crate::setup::settings;

const LOGIN: &str = "[[identity.login_endpoints]]\nendpoint = \"/login\"\nbody_bytes_max = 1000";

fn log_in(service: &Service, address: &str, content_type: &str, body: &str) -> Answer {
    let request = format!(
        "POST /v1/forward-auth HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-forwarded-method: POST\r\n\
         x-forwarded-uri: /login\r\nx-forwarded-for: {address}\r\ncontent-type: {content_type}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    service.raw(request.as_bytes())
}

fn attempt(service: &Service, name: &str, address: &str) -> u16 {
    log_in(service, address, "application/json", &format!(r#"{{"username":"{name}","password":"x"}}"#)).status
}

#[test]
fn spraying_and_guessing_are_limited_by_the_default_rule() {
    let service = Service::with_config(&settings(3, LOGIN));
    let spray: Vec<u16> = (0..5).map(|n| attempt(&service, &format!("user-{n}"), "203.0.113.1")).collect();
    assert_eq!(spray, [200, 200, 200, 429, 429], "many names from one address");
    let guess: Vec<u16> = (10..15).map(|n| attempt(&service, "ann", &format!("203.0.113.{n}"))).collect();
    assert_eq!(guess, [200, 200, 200, 429, 429], "one name from many addresses");
    let explained = r#"{"login":"ann","ip":"203.0.113.10","endpoint":"/login"}"#;
    let explained = service.post("/v1/rate-limit/explain", explained).json();
    assert_eq!(explained["client"], "login:ann");
    let limits = explained["rules"][0]["limits"].as_array().unwrap();
    assert_eq!((&limits[0]["remaining"], &limits[1]["remaining"]), (&0.into(), &2.into()));
    assert_eq!(limits[1]["address"], "ip:203.0.113.10");
}

#[test]
fn login_names_are_normalized() {
    let normalize = format!("normalize = {{ login = \"nfc+casefold\" }}\n{LOGIN}");
    let service = Service::with_config(&settings(1, &normalize));
    assert_eq!(attempt(&service, "Ann", "203.0.113.1"), 200);
    assert_eq!(attempt(&service, "aNN", "203.0.113.2"), 429);
}

#[test]
fn unreadable_login_is_never_an_anonymous_request() {
    let service = Service::with_config(&settings(100, LOGIN));
    let status = |kind: &str, body: &str| log_in(&service, "203.0.113.1", kind, body).status;
    assert_eq!(status("application/x-www-form-urlencoded", "username=ann"), 200);
    for (kind, body, expected) in [
        ("application/json", "{}", 400),
        ("application/json", "", 400),
        ("application/json", r#"{"username":"a","username":"b"}"#, 400),
        ("application/json", "{", 400),
        ("application/x-www-form-urlencoded", "username=a&username=b", 400),
        ("text/plain", "username=a", 415),
        ("application/json\r\ncontent-encoding: gzip", r#"{"username":"a"}"#, 415),
        ("application/json", &format!(r#"{{"username":"{}"}}"#, "a".repeat(300)), 400),
        ("application/json", &format!(r#"{{"x":"{}"}}"#, "a".repeat(1_000)), 413),
    ] {
        assert_eq!(status(kind, body), expected, "{kind}: {body}");
    }
}
