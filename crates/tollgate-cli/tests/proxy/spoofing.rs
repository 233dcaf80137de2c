//! Headers that a client or an upstream sends to be taken for those of the proxy.

use crate::enforcement::limit;
use crate::harness::Service;
use crate::upstream::{Reaction, Upstream, proxy_of, send};

/// Header lines of an untrusted client that name another client, host, protocol or request, or its own allowance.
const OF_CLIENTS: [&str; 20] = [
    "x-forwarded-for: 203.0.113.9",
    "X-FORWARDED-FOR: 203.0.113.9, 127.0.0.1",
    "x-forwarded-for: 203.0.113.9\r\nx-forwarded-for: 203.0.113.8",
    "x-forwarded-for:",
    "x-forwarded-for: 127.0.0.1\r\nX-Forwarded-For: \u{e9}",
    "x_forwarded_for: 203.0.113.9",
    "x-forwarded_for: 203.0.113.9\r\nX_Real_IP: 203.0.113.9",
    "x-real-ip: 203.0.113.9",
    "x-real-ip: 203.0.113.9\r\nx-real-ip: 203.0.113.8",
    "forwarded: for=203.0.113.9;proto=https;host=evil.example",
    "forwarded: for=\"[2001:db8::1]:47011\"\r\nForwarded: for=unknown",
    "x-forwarded-host: evil.example",
    "x_forwarded_host: evil.example\r\nx-forwarded-host: evil.example",
    "x-forwarded-proto: https\r\nx-forwarded-proto: wss",
    "x_forwarded_proto: https",
    "x-ratelimit-limit: 999999\r\nx-ratelimit-remaining: 999999",
    "x-ratelimit-remaining: 0\r\nretry-after: 99999",
    "ratelimit: \"default\";r=999999\r\nratelimit-policy: \"default\";q=999999",
    "x-user-id: root\r\nx-tenant: acme\r\nx-tier: unlimited",
    "x-original-url: /free\r\nx-rewrite-url: /free\r\nx-http-method-override: OPTIONS",
];

#[test]
fn headers_of_a_client_name_nobody_else() {
    let upstream = Upstream::start();
    let count = OF_CLIENTS.len();
    let service =
        Service::with_config(&Upstream::proxied(&[&upstream], "", &limit(u32::try_from(count).unwrap())));
    let proxy = proxy_of(&service);
    for (number, lines) in OF_CLIENTS.into_iter().enumerate() {
        let request = format!("GET /a HTTP/1.1\r\nhost: api.example\r\n{lines}\r\n\r\n");
        let answer = send(proxy, request.as_bytes());
        assert_eq!(answer.status, 200, "{lines}: {answer:?}");
        let left = (count - 1 - number).to_string();
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(&*left), "{lines}: counted by the address");
        let seen = upstream.requests().remove(number);
        assert_eq!(seen.request_line(), "GET /a HTTP/1.1", "{lines}");
        for (name, expected) in [
            ("x-forwarded-for", "127.0.0.1"),
            ("x-real-ip", "127.0.0.1"),
            ("x-forwarded-host", "api.example"),
            ("x-forwarded-proto", "http"),
        ] {
            assert_eq!(seen.headers(name), [expected], "{lines}: {}", seen.head);
            let aliases = [name.replace('-', "_"), name.replacen('-', "_", 1), name.replace("d-", "d_")];
            for alias in aliases.iter().filter(|alias| *alias != name) {
                assert!(seen.headers(alias).is_empty(), "{lines}: {}", seen.head);
            }
        }
        assert!(seen.headers("forwarded").is_empty(), "{lines}: {}", seen.head);
    }
    let refused = send(proxy, b"GET /a HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 203.0.113.77\r\n\r\n");
    assert_eq!(refused.status, 429);
}

/// Rate-limit headers of an application that limits on its own.
const OF_UPSTREAMS: [&str; 4] = [
    "x-ratelimit-limit: 999999\r\nx-ratelimit-remaining: 999999\r\nx-ratelimit-reset: 1",
    "X-RateLimit-Remaining: 5\r\nx-ratelimit-remaining: 6",
    "x-request-id: forged\r\nx-ratelimit-limit: 1",
    "ratelimit: \"other\";r=5;t=1\r\nratelimit-policy: \"other\";q=5;w=1",
];

#[test]
fn rate_limit_headers_of_an_upstream_are_replaced() {
    let upstream = Upstream::reacting(|request| {
        let number: usize = request.target().trim_start_matches('/').parse().unwrap();
        let lines = OF_UPSTREAMS[number];
        Reaction::Reply(format!("HTTP/1.1 200 OK\r\n{lines}\r\ncontent-length: 0\r\n\r\n").into())
    });
    let families = "[server]\nheaders = [\"x-ratelimit\", \"draft-10\"]\n";
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &(limit(100) + families)));
    for number in 0..OF_UPSTREAMS.len() {
        let request = format!("GET /{number} HTTP/1.1\r\nhost: a\r\nx-request-id: req-{number}\r\n\r\n");
        let answer = send(proxy_of(&service), request.as_bytes());
        let values = |wanted: &str| -> Vec<String> {
            let found = answer.headers.iter().filter(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone()).collect()
        };
        assert_eq!(values("x-ratelimit-limit"), ["100"], "{answer:?}");
        assert_eq!(values("x-ratelimit-remaining"), [(99 - number).to_string()], "{answer:?}");
        assert_eq!((values("ratelimit").len(), values("ratelimit-policy").len()), (1, 1), "{answer:?}");
        assert!(!values("ratelimit")[0].contains("other"), "{answer:?}");
        assert_eq!(values("x-request-id"), [format!("req-{number}")], "{answer:?}");
    }
}
