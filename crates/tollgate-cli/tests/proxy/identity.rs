//! Clients that the proxy identifies by API key or login name.

use std::net::SocketAddr;

use crate::harness::{Answer, Service};
use crate::upstream::{Upstream, proxy_of, send};

fn settings(upstream: &Upstream, limit: u32, more: &str) -> String {
    let top = format!(
        "default_limit = {limit}\ndefault_window = \"1d\"\n[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n{more}"
    );
    Upstream::proxied(&[upstream], "", &top)
}

fn log_in(proxy: SocketAddr, address: &str, body: &str) -> Answer {
    let request = format!(
        "POST /login HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    send(proxy, request.as_bytes())
}

#[test]
fn login_is_counted_and_its_body_forwarded_intact() {
    let upstream = Upstream::start();
    let login = "[[identity.login_endpoints]]\nendpoint = \"/login\"\nbody_bytes_max = 1000";
    let service = Service::with_config(&settings(&upstream, 2, login));
    let proxy = proxy_of(&service);
    let body = "{ \"password\" : \"p\\u00e4ss\",\n  \"username\":\"ann\" }";
    let statuses: Vec<u16> = (1..=4).map(|n| log_in(proxy, &format!("203.0.113.{n}"), body).status).collect();
    assert_eq!(statuses, [200, 200, 429, 429], "one name from many addresses");
    assert_eq!(upstream.count(), 2);
    for request in upstream.requests() {
        assert_eq!(String::from_utf8_lossy(&request.body), body);
        assert_eq!(request.headers("content-type"), ["application/json"]);
    }
    let too_large = format!("{{\"username\":\"bob\",\"x\":\"{}\"}}", "x".repeat(1_000));
    assert_eq!(log_in(proxy, "203.0.113.9", &too_large).status, 413);
    assert_eq!(log_in(proxy, "203.0.113.9", "{}").status, 400);
    assert_eq!(upstream.count(), 2, "a login without a name is not forwarded");
}

#[test]
fn api_key_is_counted_wherever_it_comes_from() {
    let upstream = Upstream::start();
    let service = Service::with_config(&settings(&upstream, 2, ""));
    let proxy = proxy_of(&service);
    let ask = |key: &str, address: &str| {
        let head =
            format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {address}\r\nx-api-key: {key}\r\n\r\n");
        send(proxy, head.as_bytes()).status
    };
    let one: Vec<u16> = (1..=4).map(|n| ask("partner-1", &format!("203.0.113.{n}"))).collect();
    assert_eq!(one, [200, 200, 429, 429], "one key from many addresses");
    assert_eq!(ask("partner-2", "203.0.113.77"), 200, "another key");
    assert_eq!(upstream.requests()[0].headers("x-api-key"), ["partner-1"]);
}

#[test]
fn guessed_tokens_get_429_and_reach_no_upstream() {
    let upstream = Upstream::start();
    let issuer = "[[identity.jwt]]\nissuer = \"idp\"\naudience = \"api\"\nalgorithm = \"HS256\"\n\
                  secret = \"shared secret of the issuer and tollgate\"";
    let service = Service::with_config(&settings(&upstream, 1_000, issuer));
    let proxy = proxy_of(&service);
    let ask = |address: &str, headers: &str| {
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {address}\r\n{headers}\r\n");
        send(proxy, head.as_bytes())
    };
    let guess = |number: u32| format!("authorization: Bearer guess-{number}\r\n");
    let answers: Vec<Answer> = (0..100).map(|number| ask("203.0.113.1", &guess(number))).collect();
    assert_eq!(answers[0].status, 401);
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.error().1, "TOO_MANY_ATTEMPTS", "{}", refused.text);
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    assert_eq!(upstream.count(), 0);
    assert_eq!(ask("203.0.113.1", "").status, 200, "without a token");
    assert_eq!(ask("203.0.113.2", &guess(0)).status, 401, "another address");
}
