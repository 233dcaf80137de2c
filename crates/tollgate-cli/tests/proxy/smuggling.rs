//! Requests whose framing servers read differently are refused; what is forwarded is one request.

use crate::harness::Service;
use crate::upstream::{Upstream, connect, proxy_of, send};
use std::io::{Read, Write};

/// Each would hide a second request from one of two servers.
const AMBIGUOUS: [&str; 15] = [
    "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nX",
    "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n0\r\n\r\nX",
    "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 6\r\n\r\nhello!",
    "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: a\r\nx: y\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET / HTTP/1.1\nhost: a\n\nGET /hidden HTTP/1.1\nhost: a\n\n",
    "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
    "GET  / HTTP/1.1\r\nhost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: a\r\nx\0: 1\r\n\r\n",
];

#[test]
fn ambiguous_framing_never_reaches_the_upstream() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    for request in AMBIGUOUS {
        let answer = send(proxy_of(&service), request.as_bytes());
        assert_eq!(answer.status, 400, "{request:?}: {answer:?}");
    }
    assert_eq!(upstream.count(), 0, "{:?}", upstream.requests());
}

#[test]
fn connection_closes_after_an_ambiguous_request() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    // Two hosts and none do not affect where the next request begins.
    for request in AMBIGUOUS.iter().filter(|request| request.matches("host").count() == 1) {
        let mut stream = connect(proxy_of(&service));
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.write_all(b"GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut answers = String::new();
        let _ = stream.read_to_string(&mut answers);
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{request:?}: {answers}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn chunk_extensions_and_trailers_are_not_forwarded_as_sent() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let request = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;ext=\"\r\n\"\r\nhello\r\n0\r\n\r\n";
    let answer = send(proxy_of(&service), request.as_bytes());
    if answer.status == 200 {
        assert_eq!(upstream.requests()[0].body, b"hello");
    } else {
        assert_eq!((answer.status, upstream.count()), (400, 0), "{answer:?}");
    }
}

#[test]
fn pipelined_requests_are_forwarded_one_by_one() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let mut stream = connect(proxy_of(&service));
    let two = "POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nabGET /2 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    stream.write_all(two.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    let targets: Vec<String> = upstream.requests().iter().map(|one| one.target().to_owned()).collect();
    assert_eq!(targets, ["/1", "/2"]);
    assert_eq!(upstream.requests()[0].body, b"ab");
}
