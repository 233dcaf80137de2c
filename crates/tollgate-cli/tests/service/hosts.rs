//! Names of the server: requests under foreign names and of foreign pages (DNS rebinding).

use std::fs;

use serde_json::{Value, json};

use crate::browser::{Browser, REBOUND};
use crate::harness::{Answer, Service};
use crate::http2;

const ROUTES: [&str; 9] = [
    "POST /v1/rate-limit/check",
    "POST /v1/rate-limit/explain",
    "GET /v1/rate-limit/status",
    "GET /api/v1/admin/rules",
    "GET /metrics",
    "GET /docs",
    "GET /openapi.json",
    "GET /",
    "GET /nowhere",
];

/// Sends a request with these header fields on HTTP/1.1.
fn send(service: &Service, route: &str, fields: &str) -> Answer {
    let body = r#"{"user_id":"a","endpoint":"/x"}"#;
    let head =
        format!("{route} HTTP/1.1\r\n{fields}\r\ncontent-type: application/json\r\nconnection: close\r\n");
    service.raw(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

fn misdirected(field: &str) -> (u16, String, String) {
    (421, "MISDIRECTED_REQUEST".to_owned(), field.to_owned())
}

/// What one more check leaves of the 100 requests of the default.
fn remaining(service: &Service) -> Value {
    service.check("a", "/x").json()["remaining"].clone()
}

#[test]
fn foreign_hosts_and_origins_get_421() {
    // Nothing is restored during the test.
    let service = Service::with_config("default_limit = 100\ndefault_window = \"100d\"");
    let port = service.address.port();
    for route in ROUTES {
        for host in ["evil.example", "localhost.evil.example", "0.0.0.0", "10.0.0.5", "[::2]"] {
            let refused = send(&service, route, &format!("host: {host}:{port}"));
            assert_eq!(refused.error(), misdirected("host"), "{route} {host}");
            let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains("server.hosts") && message.contains(host), "{message}");
            assert!(refused.header("x-request-id").is_some());
        }
        for origin in ["http://evil.example", "https://localhost.evil.example:8080", "null", "file://"] {
            let refused = send(&service, route, &format!("host: localhost\r\norigin: {origin}"));
            assert_eq!(refused.error(), misdirected("origin"), "{route} {origin}");
        }
        for own in ["localhost", "127.0.0.1", "127.9.9.9", "gate.localhost", "[::1]"] {
            for fields in [format!("host: {own}:{port}"), format!("host: {own}\r\norigin: http://{own}:3000")]
            {
                assert_ne!(send(&service, route, &fields).status, 421, "{route} {fields}");
            }
        }
    }
    assert_eq!(remaining(&service), 89, "refused checks charge nothing");
    assert_eq!(service.raw(b"GET /metrics HTTP/1.0\r\n\r\n").status, 200);
    let absolute = b"GET http://evil.example/metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(service.raw(absolute).error(), misdirected("host"));
}

#[test]
fn foreign_hosts_and_origins_get_421_on_http2() {
    let service = Service::unconfigured();
    let status = |authority: &str, fields: &[(&str, &str)]| {
        http2::status_of(&service, "GET", "/metrics", authority, fields)
    };
    for own in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"] {
        assert_eq!(status(own, &[]), 200, "{own}");
        assert_eq!(status(own, &[("origin", "http://localhost:3000")]), 200, "{own}");
    }
    for foreign in ["evil.example", "evil.example:8080", "u@localhost", "0.0.0.0:8080"] {
        assert_eq!(status(foreign, &[]), 421, "{foreign}");
        assert_eq!(status("localhost", &[("origin", &format!("http://{foreign}"))]), 421, "{foreign}");
    }
    assert_eq!(status("localhost", &[("origin", "null")]), 421);
}

#[test]
fn http2_host_must_equal_authority() {
    let service = Service::unconfigured();
    let status =
        |host: &str| http2::status_of(&service, "GET", "/healthz", "localhost:8080", &[("host", host)]);
    assert_eq!((status("localhost:8080"), status("LocalHost:8080")), (200, 200));
    for other in ["localhost", "localhost:8081", "127.0.0.1:8080", "evil.example", "", "a b"] {
        assert_eq!(status(other), 400, "{other:?}");
    }
}

#[test]
fn listed_hosts_are_accepted_after_a_reload() {
    let service = Service::with_config("default_limit = 100");
    let status = |fields: &str| send(&service, "GET /metrics", fields).status;
    let by_name = ["host: gate.internal:8080", "host: localhost\r\norigin: https://gate.internal"];
    assert_eq!(by_name.map(status), [421, 421]);
    fs::write(service.config_file(), "default_limit = 100\n[server]\nhosts = [\"gate.internal\"]").unwrap();
    let reloaded = service.admin("POST", "/v1/admin/reload", "");
    assert_eq!((reloaded.status, &reloaded.json()["needs_restart"]), (200, &json!([])));
    assert_eq!(by_name.map(status), [200, 200]);
    assert_eq!(status("host: other.internal"), 421);
}

#[test]
fn other_listeners_check_hosts_only_if_listed() {
    let service = Service::on_every_address("");
    assert_eq!(send(&service, "GET /metrics", "host: gate.example\r\norigin: http://a.example").status, 200);
    let service = Service::on_every_address("[server]\nhosts = [\"gate.example\"]");
    let status = |fields: &str| send(&service, "GET /metrics", fields).status;
    assert_eq!((status("host: gate.example"), status("host: 127.0.0.1")), (200, 200));
    assert_eq!(
        (status("host: a.example"), status("host: gate.example\r\norigin: http://a.example")),
        (421, 421)
    );
}

#[test]
fn probes_pass_under_any_name_without_causes() {
    let service = Service::with_config("default_limit = 100");
    fs::write(service.config_file(), "default_limit = -1").unwrap();
    assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 400);
    let probe = |route: &str, host: &str| send(&service, route, &format!("host: {host}"));
    assert_eq!(probe("GET /healthz", "tollgate_cluster").status, 200);
    let foreign = probe("GET /readyz", "tollgate_cluster");
    assert_eq!((foreign.status, foreign.json()), (200, json!({"status": "degraded"})));
    let own = probe("GET /readyz", "localhost").json();
    assert!(own["config_error"].as_str().unwrap().contains("default_limit"), "{own}");
}

#[test]
fn misdirected_requests_use_up_no_limit() {
    let service = Service::with_config("[callers]\nlimit = 2\nwindow = \"1h\"");
    for _ in 0..5 {
        assert_eq!(send(&service, "POST /v1/rate-limit/check", "host: evil.example").status, 421);
        assert_eq!(send(&service, "GET /nowhere", "host: evil.example").status, 421);
    }
    assert_eq!(service.check("a", "/x").status, 200);
}

/// The statuses of requests of a page; 0 if the page cannot see the response.
const REQUESTS: &str = r#"(async () => {
    const json = { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{"user_id":"a","endpoint":"/x"}' };
    const plain = { method: 'POST', mode: 'no-cors', body: '{}' };
    const ask = async (url, options) => {
        const answer = await fetch(url, options).catch(() => null);
        return answer ? answer.status : 0;
    };
    return [
        await ask('/metrics'),
        await ask('/v1/rate-limit/check', json),
        await ask('/v1/rate-limit/explain', json),
        await ask('http://127.0.0.1:PORT/v1/rate-limit/check', plain),
        await ask('http://127.0.0.1:PORT/v1/rate-limit/check', json),
    ];
})()"#;

#[test]
fn rebound_page_reads_and_charges_nothing() {
    let service = Service::unconfigured();
    let port = service.address.port();
    let mut browser = Browser::start();
    // The name resolves to this machine, as after DNS rebinding; only probes answer there.
    browser.open(&format!("http://{REBOUND}:{port}/healthz"));
    browser.wait_for("document.readyState === 'complete'");
    let seen = browser.evaluate(&REQUESTS.replace("PORT", &port.to_string()));
    assert_eq!(seen, json!([421, 421, 421, 0, 0]));
    assert_eq!(remaining(&service), 99);
    let refused = r#"tollgate_http_responses_total{route="/v1/rate-limit/check",status="421"}"#;
    // A browser repeats requests that get 421.
    assert!(service.metric(refused) >= Some(2.0), "the page's own name, and its Origin");
}
