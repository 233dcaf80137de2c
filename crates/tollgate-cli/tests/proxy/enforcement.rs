//! Limits, refusals and their headers.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::Service;
use crate::upstream::{Reaction, Upstream, get, ok, proxy_of, send};

/// Settings with one limit per address that restores nothing during a test.
pub(crate) fn limit(requests: u32) -> String {
    format!(
        "[[rules]]\nname = \"per-address\"\nper = [\"ip\"]\nlimits = [{{ requests = {requests}, window = \"1h\" }}]\n"
    )
}

#[test]
fn exactly_the_limit_reaches_the_upstream() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &limit(100)));
    let (proxy, admitted) = (proxy_of(&service), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..10 {
            let admitted = &admitted;
            scope.spawn(move || {
                for number in 0..100 {
                    let answer = get(proxy, &format!("/items/{thread}-{number}"));
                    assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                    assert!(answer.header("x-ratelimit-limit") == Some("100"), "{answer:?}");
                    admitted.fetch_add(usize::from(answer.status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 100);
    let mut targets: Vec<String> = upstream.requests().iter().map(|one| one.target().to_owned()).collect();
    targets.sort();
    targets.dedup();
    assert_eq!((targets.len(), upstream.count()), (100, 100), "each request once");
}

#[test]
fn refusal_has_headers_and_the_form_that_the_client_accepts() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &limit(0)));
    let proxy = proxy_of(&service);
    let ask = |accept: &str| send(proxy, format!("GET /a HTTP/1.1\r\nhost: a\r\n{accept}\r\n").as_bytes());
    let json = ask("");
    assert_eq!((json.status, json.header("content-type")), (429, Some("application/json")));
    assert_eq!(json.json()["error"]["code"], "RATE_LIMITED");
    assert_eq!(json.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(json.header("x-request-id"), json.json()["error"]["request_id"].as_str());
    let problem = ask("accept: application/problem+json\r\n");
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));
    assert_eq!(problem.json()["status"], 429);
    let page = ask("accept: text/html\r\n");
    assert!(page.text.starts_with("<!doctype html>"), "{}", page.text);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn rule_chooses_status_and_message() {
    let upstream = Upstream::start();
    let rule = limit(0)
        .replace("per = ", "response = { status = 503, message = \"Slow down, <b>please</b>.\" }\nper = ");
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &rule));
    let answer = get(proxy_of(&service), "/a");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["message"], "Slow down, <b>please</b>.");
}

#[test]
fn every_response_has_the_rate_limit_headers() {
    let upstream = Upstream::reacting(|request| {
        let status = if request.target() == "/broken" { "500 Oops" } else { "404 Not Found" };
        Reaction::Reply(
            format!("HTTP/1.1 {status}\r\nx-ratelimit-limit: 7\r\ncontent-length: 0\r\n\r\n").into(),
        )
    });
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &limit(10)));
    let proxy = proxy_of(&service);
    for (target, status) in [("/broken", 500), ("/missing", 404)] {
        let answer = get(proxy, target);
        assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (status, Some("10")), "{answer:?}");
    }
    drop(upstream);
    let answer = get(proxy, "/");
    assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (502, Some("10")), "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "UPSTREAM_FAILED");
}

#[test]
fn throttle_holds_requests() {
    let upstream = Upstream::start();
    let rule = "[[rules]]\nname = \"slow\"\nper = [\"ip\"]\nalgorithm = \"leaky_bucket\"\naction = \"throttle\"\n\
                max_delay = \"10s\"\nlimits = [{ requests = 20, window = \"1s\" }]\n";
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", rule));
    let (proxy, started) = (proxy_of(&service), std::time::Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(move || assert_eq!(get(proxy, "/").status, 200));
        }
    });
    assert!(started.elapsed() >= std::time::Duration::from_millis(900), "{:?}", started.elapsed());
    assert_eq!(upstream.count(), 20);
}

#[test]
fn waiting_requests_are_bounded() {
    let upstream = Upstream::start();
    let rule = "[[rules]]\nname = \"slow\"\nper = [\"ip\"]\nalgorithm = \"leaky_bucket\"\naction = \"throttle\"\n\
                max_delay = \"1m\"\nlimits = [{ requests = 2, window = \"30s\" }]\n";
    let config = Upstream::proxied(&[&upstream], "", rule).replace("[proxy]", "[proxy]\ndelayed_max = 0");
    let service = Service::with_config(&config);
    let proxy = proxy_of(&service);
    assert_eq!(get(proxy, "/").status, 200);
    let refused = get(proxy, "/");
    assert_eq!(refused.status, 429);
    assert!(refused.text.contains("delayed_max"), "{}", refused.text);
}

#[test]
fn decisions_of_the_proxy_are_explained_and_counted() {
    let upstream = Upstream::reacting(|_| Reaction::Reply(ok("")));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &limit(5)));
    assert_eq!(get(proxy_of(&service), "/a").status, 200);
    let status = service.get("/v1/rate-limit/status?ip=127.0.0.1&endpoint=/a");
    assert_eq!(status.json()["remaining"], 4, "the same counters as checks");
    assert_eq!(service.metric("tollgate_proxy_responses_total{route=\"/*\",class=\"2xx\"}"), Some(1.0));
}
