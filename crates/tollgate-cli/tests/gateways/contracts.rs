//! Gateways that are not run here, by the requests that they send.

use std::fmt::Write as _;

use crate::harness::{Answer, Service, wait_for};
use crate::setup::settings;

const PATH: &str = "/v1/forward-auth";

fn ask(service: &Service, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: api.example\r\nconnection: close\r\n");
    for (name, value) in headers {
        let _ = write!(request, "{name}: {value}\r\n");
    }
    service.raw(format!("{request}\r\n").as_bytes())
}

/// Two requests of one client; the second one is refused.
fn admits_one_of_two(path: &str, method: &str, headers: &[(&str, &str)], refusal: u16) {
    let service = Service::with_config(&settings(1, ""));
    let admitted = ask(&service, method, path, headers);
    assert_eq!((admitted.status, &*admitted.text), (200, ""), "{headers:?}");
    assert_eq!(admitted.header("x-ratelimit-remaining"), Some("0"));
    let refused = ask(&service, method, path, headers);
    assert_eq!(refused.status, refusal, "{}", refused.text);
    assert!(refused.header("retry-after").is_some());
    let other: Vec<_> = headers.iter().filter(|(name, _)| *name != "X-Forwarded-For").copied().collect();
    let other = ask(&service, method, path, &[&other[..], &[("X-Forwarded-For", "203.0.113.9")]].concat());
    assert_eq!(other.status, 200, "another client");
}

#[test]
fn traefik_contract() {
    let headers = [
        ("User-Agent", "curl/8.0"),
        ("Cookie", "a=b"),
        ("Origin", "https://shop.example"),
        ("X-Forwarded-Method", "DELETE"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "api.example"),
        ("X-Forwarded-Uri", "/orders/7?force=1"),
        ("X-Forwarded-For", "203.0.113.7"),
    ];
    admits_one_of_two(PATH, "GET", &headers, 429);
    // preserveRequestMethod
    admits_one_of_two(PATH, "DELETE", &headers, 429);
    admits_one_of_two("/api/v1/forward-auth", "GET", &headers, 429);
}

#[test]
fn apisix_contract() {
    let headers = [
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Method", "POST"),
        ("X-Forwarded-Host", "api.example"),
        ("X-Forwarded-Uri", "/orders"),
        ("X-Forwarded-For", "203.0.113.7"),
    ];
    admits_one_of_two(PATH, "GET", &headers, 429);
}

#[test]
fn ingress_nginx_contract() {
    let headers = [
        ("X-Original-URL", "https://api.example/orders?x=1"),
        ("X-Original-Method", "POST"),
        ("X-Real-Ip", "203.0.113.7"),
        ("X-Forwarded-For", "203.0.113.7"),
        ("X-Sent-From", "nginx-ingress-controller"),
        ("X-Auth-Request-Redirect", "/orders?x=1"),
    ];
    admits_one_of_two("/v1/forward-auth?mode=nginx", "GET", &headers, 403);
}

#[test]
fn untrusted_peer_is_refused_by_name() {
    let service = Service::with_config("default_limit = 5");
    let uri = ("X-Forwarded-Uri", "/a");
    let answer = ask(&service, "GET", PATH, &[uri]);
    assert_eq!(answer.error().0, 403);
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("add 127.0.0.1 to identity.trusted_proxies"), "{message}");
    let bearer = format!("Bearer {}", service.admin_key());
    assert_eq!(
        ask(&service, "GET", PATH, &[uri, ("Authorization", &bearer)]).status,
        403,
        "a key does not help"
    );
    let lines = service.log().matches("the peer is not one of identity.trusted_proxies").count();
    assert_eq!(lines, 1, "{}", service.log());
}

#[test]
fn decision_is_counted_and_explained_as_a_check() {
    let service = Service::with_config(&settings(3, ""));
    let headers =
        [("X-Forwarded-Uri", "/a"), ("X-Forwarded-Method", "GET"), ("X-Forwarded-For", "203.0.113.7")];
    assert_eq!(ask(&service, "GET", PATH, &headers).header("x-ratelimit-remaining"), Some("2"));
    let explained = service.post("/v1/rate-limit/explain", r#"{"ip":"203.0.113.7","endpoint":"/a"}"#).json();
    assert_eq!((&explained["client"], &explained["remaining"]), (&"ip:203.0.113.7".into(), &2.into()));
    let is_listed = || service.admin("GET", "/v1/admin/top", "").text.contains("ip:203.0.113.7");
    wait_for("the client in /v1/admin/top", || is_listed().then_some(()));
}

#[test]
fn status_of_the_rule_reaches_the_client() {
    let rule = "[[rules]]\nname = \"busy\"\nper = [\"ip\"]\nlimits = [{ requests = 0, window = \"1d\" }]\n\
                response = { status = 503, message = \"später\" }";
    let service = Service::with_config(&settings(3, rule));
    let headers = [("X-Forwarded-Uri", "/a")];
    assert_eq!(ask(&service, "GET", PATH, &headers).status, 503);
    let nginx = ask(&service, "GET", "/v1/forward-auth?mode=nginx", &headers);
    assert_eq!((nginx.status, nginx.header("x-ratelimit-status")), (403, Some("503")));
    assert!(nginx.header("x-ratelimit-body").unwrap().contains("sp\\u00e4ter"), "{nginx:?}");
    assert_eq!(ask(&service, "GET", "/v1/forward-auth?mode=apache", &headers).status, 400);
}
