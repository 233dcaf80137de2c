//! Bodies in both directions.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use crate::harness::{Service, read_answer, wait_for};
use crate::upstream::{Reaction, Upstream, connect, ok, proxy_of, send};

#[test]
fn bodies_arrive_as_sent() {
    let upstream = Upstream::reacting(|request| Reaction::Reply(ok(&String::from_utf8_lossy(&request.body))));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let proxy = proxy_of(&service);
    let sized = send(proxy, b"PUT /a HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\nhello world");
    assert_eq!((sized.status, sized.text.as_str()), (200, "hello world"));
    let chunked = b"PUT /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    assert_eq!(send(proxy, chunked).text, "hello world");
    assert_eq!(upstream.requests()[0].headers("content-length"), ["11"]);
}

#[test]
fn chunked_response_is_streamed() {
    let upstream = Upstream::reacting(|_| {
        Reaction::Reply(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n".to_vec(),
        )
    });
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    assert_eq!(send(proxy_of(&service), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").text, "abcde");
}

#[test]
fn http_1_0_upstream_does_not_end_the_connection() {
    // The end of the connection is the end of this body.
    let upstream = Upstream::reacting(|_| Reaction::ReplyAndClose(b"HTTP/1.0 200 OK\r\n\r\nhello".to_vec()));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let mut stream = connect(proxy_of(&service));
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let answer = read_answer(&mut stream);
        assert_eq!((answer.status, answer.text.as_str()), (200, "hello"));
    }
}

#[test]
fn truncated_response_is_not_taken_for_complete() {
    let upstream = Upstream::reacting(|_| {
        Reaction::ReplyAndClose(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n".to_vec())
    });
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let mut stream = connect(proxy_of(&service));
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert!(!bytes.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&bytes));
}

#[test]
fn head_response_keeps_its_length() {
    let upstream =
        Upstream::reacting(|_| Reaction::Reply(b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n".to_vec()));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let mut stream = connect(proxy_of(&service));
    stream.write_all(b"HEAD / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("content-length: 1234") && text.ends_with("\r\n\r\n"), "{text}");
}

#[test]
fn slow_request_body_is_cut_off() {
    let upstream = Upstream::start();
    let route = "idle_timeout = \"200ms\"";
    let service = Service::with_config(&Upstream::proxied(&[&upstream], route, ""));
    let mut stream = connect(proxy_of(&service));
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nonly this").unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    assert_eq!(upstream.count(), 0, "the upstream never had a whole request");
}

#[test]
fn client_that_leaves_ends_the_upstream_request() {
    let upstream = Upstream::reacting(|_| Reaction::Late(Duration::from_secs(2), ok("")));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let mut stream = connect(proxy_of(&service));
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let in_flight = || {
        let listed = service.admin("GET", "/v1/admin/upstreams", "").json();
        listed["upstreams"][0]["in_flight"].as_u64().unwrap()
    };
    wait_for("the request to be forwarded", || (in_flight() == 1).then_some(()));
    let _ = stream.shutdown(Shutdown::Both);
    drop(stream);
    wait_for("the request to end", || (in_flight() == 0).then_some(()));
}

/// Passes a body of 256 MB in both directions (1 GB with `LONG_TESTS`).
#[test]
fn large_bodies_take_little_memory() {
    let megabytes: usize = if std::env::var_os("LONG_TESTS").is_some() { 1024 } else { 256 };
    let listener = tollgate_testkit::listen();
    let address = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            reader.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let length = megabytes << 20;
        let taken = std::io::copy(&mut reader.take(length as u64), &mut std::io::sink()).unwrap();
        let mut stream = stream;
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").unwrap();
        let block = vec![7; 1 << 20];
        (0..megabytes).for_each(|_| stream.write_all(&block).unwrap());
        taken
    });
    let config =
        format!("[proxy]\nlisten = \"127.0.0.1:0\"\n[[proxy.routes]]\nupstreams = [\"http://{address}\"]\n");
    let service = Service::with_config(&config);
    let mut stream = connect(proxy_of(&service));
    let before = service.heap_kib();
    write!(stream, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", megabytes << 20).unwrap();
    let block = vec![1; 1 << 20];
    (0..megabytes).for_each(|_| stream.write_all(&block).unwrap());
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    while received < megabytes << 20 {
        received += stream.read(&mut buffer).unwrap();
    }
    assert_eq!(echo.join().unwrap(), (megabytes as u64) << 20);
    let grown = service.heap_kib().saturating_sub(before);
    assert!(grown < 20 << 10, "{grown} KiB more");
}
