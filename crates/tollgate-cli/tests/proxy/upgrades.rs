//! Upgraded connections, such as WebSocket connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::enforcement::limit;
use crate::harness::{Answer, Service, read_answer, wait_for};
use crate::upstream::{Reaction, Upstream, connect, get, proxy_of};

const ASK: &[u8] =
    b"GET /socket HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                        sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Each would be refused or answered if the proxy read it as HTTP.
const LIKE_HTTP: [&[u8]; 4] = [
    b"GET / HTTP/1.1\n\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nX",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x81\x05hello\0\xff\r\n\r\n",
];

/// A WebSocket frame.
const EARLY: &[u8] = b"\x81\x05hello";

fn echo() -> Upstream {
    Upstream::reacting(|request| match request.headers("upgrade").as_slice() {
        ["websocket"] => Reaction::Echo(SWITCH.to_vec()),
        _ => Reaction::Reply(crate::upstream::ok("plain")),
    })
}

/// A connection that has been upgraded, and the response to its request.
fn upgraded(proxy: SocketAddr) -> (TcpStream, Answer) {
    let mut stream = connect(proxy);
    stream.write_all(ASK).unwrap();
    let answer = read_answer(&mut stream);
    (stream, answer)
}

fn assert_echoes(stream: &mut TcpStream, sent: &[u8]) {
    stream.write_all(sent).unwrap();
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(received, sent, "{}", String::from_utf8_lossy(sent));
}

#[test]
fn upgraded_connection_passes_bytes_as_they_are() {
    let upstream = echo();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &limit(3)));
    let (mut stream, answer) = upgraded(proxy_of(&service));
    assert_eq!((answer.status, answer.header("upgrade")), (101, Some("websocket")), "{answer:?}");
    assert_eq!(answer.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    for bytes in LIKE_HTTP {
        assert_echoes(&mut stream, bytes);
    }
    assert_echoes(&mut stream, &vec![b'x'; 100_000]);
    let request = &upstream.requests()[0];
    assert_eq!(request.headers("sec-websocket-key"), ["dGhlIHNhbXBsZSBub25jZQ=="]);
    assert_eq!(request.headers("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(upstream.count(), 1, "bytes of an upgraded connection are no requests");
}

#[test]
fn bytes_sent_before_the_upgrade_are_passed_on() {
    let upstream = echo();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let mut stream = connect(proxy_of(&service));
    stream.write_all(&[ASK, EARLY].concat()).unwrap();
    let mut received = Vec::new();
    let mut chunk = [0; 1024];
    while !received.ends_with(EARLY) {
        let read = stream.read(&mut chunk).unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&chunk[..read]);
    }
    assert!(received.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&received));
}

#[test]
fn upgrade_counts_as_one_request() {
    let upstream = echo();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &limit(2)));
    let proxy = proxy_of(&service);
    let (mut stream, answer) = upgraded(proxy);
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (101, Some("1")));
    (0..20).for_each(|_| assert_echoes(&mut stream, b"message"));
    assert_eq!(get(proxy, "/").header("x-ratelimit-remaining"), Some("0"));
    let (_, refused) = upgraded(proxy);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(upstream.count(), 2);
    assert_echoes(&mut stream, b"an open connection stays open");
}

#[test]
fn idle_upgraded_connection_is_closed() {
    let upstream = echo();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "idle_timeout = \"300ms\"", ""));
    let tunnels = || service.metric("tollgate_proxy_tunnels{route=\"/*\"}");
    let (mut stream, answer) = upgraded(proxy_of(&service));
    assert_eq!(answer.status, 101);
    assert_echoes(&mut stream, b"hello");
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "closed by the proxy");
    wait_for("no tunnel", || (tunnels() == Some(0.0)).then_some(()));
}

#[test]
fn close_of_the_client_ends_the_tunnel() {
    let upstream = echo();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let (stream, answer) = upgraded(proxy_of(&service));
    assert_eq!(answer.status, 101);
    let tunnels = || service.metric("tollgate_proxy_tunnels{route=\"/*\"}");
    wait_for("a tunnel", || (tunnels() == Some(1.0)).then_some(()));
    drop(stream);
    wait_for("no tunnel", || (tunnels() == Some(0.0)).then_some(()));
}

#[test]
fn switch_that_nobody_asked_for_is_502() {
    let upstream = Upstream::reacting(|_| Reaction::Echo(SWITCH.to_vec()));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let answer = get(proxy_of(&service), "/");
    assert_eq!((answer.status, answer.error().1.as_str()), (502, "UPSTREAM_FAILED"));
}
