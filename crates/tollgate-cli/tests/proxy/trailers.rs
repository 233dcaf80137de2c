//! Trailers of HTTP/1.1 messages.

use std::io::{Read, Write};

use crate::harness::Service;
use crate::upstream::{Reaction, Upstream, connect, ok, proxy_of, send};

const WITH_TRAILERS: &str = "transfer-encoding: chunked\r\ntrailer: x-checksum, x-forwarded-for\r\n\r\n\
                             5\r\nhello\r\n0\r\nx-checksum: abc\r\nx-forwarded-for: 203.0.113.9\r\nx-other: 1\r\n\r\n";

#[test]
fn announced_trailers_of_a_request_are_forwarded() {
    let upstream = Upstream::reacting(|request| Reaction::Reply(ok(&request.trailers)));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let request = format!("POST / HTTP/1.1\r\nhost: a\r\n{WITH_TRAILERS}");
    let answer = send(proxy_of(&service), request.as_bytes());
    assert_eq!((answer.status, answer.text.as_str()), (200, "x-checksum: abc\r\n"));
    assert_eq!(upstream.requests()[0].body, b"hello");
}

/// All bytes of a response with trailers to a client that sends this header.
fn response_to(header: &str) -> String {
    let reply = format!("HTTP/1.1 200 OK\r\n{WITH_TRAILERS}");
    let upstream = Upstream::reacting(move |_| Reaction::Reply(reply.clone().into()));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let mut stream = connect(proxy_of(&service));
    stream.write_all(format!("GET / HTTP/1.1\r\nhost: a\r\n{header}\r\n").as_bytes()).unwrap();
    let mut received = String::new();
    while !received.contains("\r\n0\r\n") || !received.ends_with("\r\n\r\n") {
        let mut chunk = [0; 1024];
        let read = stream.read(&mut chunk).unwrap();
        assert_ne!(read, 0, "{received}");
        received.push_str(&String::from_utf8_lossy(&chunk[..read]));
    }
    received
}

#[test]
fn trailers_of_a_response_are_for_clients_that_accept_them() {
    let with = response_to("te: trailers\r\n");
    assert!(with.contains("5\r\nhello\r\n0\r\nx-checksum: abc\r\n"), "{with}");
    let without = response_to("");
    assert!(without.ends_with("5\r\nhello\r\n0\r\n\r\n"), "{without}");
}
