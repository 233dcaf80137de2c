//! What upstreams see of the client's headers, and clients of the upstream's.

use crate::harness::Service;
use crate::upstream::{Reaction, Recorded, Upstream, proxy_of, send};

fn seen(settings: &str, headers: &str) -> Recorded {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", settings));
    let request = format!("GET /a?b=1 HTTP/1.1\r\nhost: api.example\r\n{headers}\r\n");
    let answer = send(proxy_of(&service), request.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    upstream.requests().remove(0)
}

#[test]
fn forwarding_headers_of_clients_are_replaced() {
    let request = seen(
        "",
        "x-forwarded-for: 203.0.113.9\r\nx-forwarded-for: 203.0.113.8\r\nx-forwarded-host: evil\r\nx-forwarded-proto: https\r\n\
         forwarded: for=203.0.113.9\r\nx-real-ip: 203.0.113.9\r\n",
    );
    assert_eq!(request.headers("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(request.headers("x-forwarded-host"), ["api.example"]);
    assert_eq!(request.headers("x-forwarded-proto"), ["http"]);
    assert_eq!(request.headers("x-real-ip"), ["127.0.0.1"]);
    assert!(request.headers("forwarded").is_empty());
    assert_eq!(request.headers("host"), ["api.example"]);
    assert_eq!(request.request_line(), "GET /a?b=1 HTTP/1.1");
}

#[test]
fn headers_of_the_connection_end_here() {
    let request = seen(
        "",
        "connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authorization: Basic eA==\r\n\
         te: gzip, trailers\r\nupgrade-insecure-requests: 1\r\n",
    );
    for name in ["x-hop", "keep-alive", "proxy-authorization", "connection"] {
        assert!(request.headers(name).is_empty(), "{name}: {request:?}");
    }
    assert_eq!(request.headers("te"), ["trailers"]);
    assert_eq!(request.headers("upgrade-insecure-requests"), ["1"]);
}

#[test]
fn connection_cannot_remove_end_to_end_headers() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    for named in ["authorization", "cookie", "x-forwarded-for", "X-API-Key", "host"] {
        let request =
            format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: {named}\r\nauthorization: Basic eA==\r\n\r\n");
        let answer = send(proxy_of(&service), request.as_bytes());
        assert_eq!(answer.status, 400, "{named}: {answer:?}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn response_headers_of_the_upstream_reach_the_client_but_hop_by_hop() {
    let upstream = Upstream::reacting(|_| {
        let head = "HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\netag: \"a\"\r\n\
                    x-ratelimit-remaining: 999999\r\nset-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 0\r\n\r\n";
        Reaction::Reply(head.into())
    });
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", "default_limit = 10"));
    let answer = send(proxy_of(&service), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!((answer.header("x-hop"), answer.header("keep-alive")), (None, None), "{answer:?}");
    assert_eq!(answer.header("etag"), Some("\"a\""));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("9"));
    assert_eq!(answer.headers.iter().filter(|(name, _)| name == "set-cookie").count(), 2);
}

#[test]
fn upstream_may_get_its_own_host() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "host = \"upstream\"", ""));
    send(proxy_of(&service), b"GET / HTTP/1.1\r\nhost: api.example\r\n\r\n");
    let request = upstream.requests().remove(0);
    assert_eq!(request.headers("host"), [upstream.address.to_string()]);
    assert_eq!(request.headers("x-forwarded-host"), ["api.example"]);
}
