//! HTTP/1.1 requests at and beyond the size limits.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::harness::{Service, read_answer, read_some, wait_for};
use crate::http2::answer_of;
use crate::http2_floods::{PREFACE, SETTINGS, frame, get};

/// A request head of exactly this many bytes.
fn head_of(bytes: usize) -> Vec<u8> {
    let (before, after) = ("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ", "\r\n\r\n");
    format!("{before}{}{after}", "x".repeat(bytes - before.len() - after.len())).into_bytes()
}

#[test]
fn request_head_above_64_kib_gets_431() {
    let service = Service::unconfigured();
    assert_eq!(service.raw(&head_of(64 * 1024)).status, 200);
    // Buffers are rounded up, so the exact limit between these two sizes is not specified.
    for bytes in [160 * 1024, 200 * 1024, 900 * 1024] {
        for _ in 0..20 {
            let answer = service.raw(&head_of(bytes));
            assert_eq!((answer.status, &*answer.text), (431, ""), "{bytes} bytes");
            assert_eq!(answer.header("connection"), Some("close"));
        }
    }
}

#[test]
fn more_than_a_hundred_header_fields_get_431() {
    let service = Service::unconfigured();
    let with = |fields: usize| {
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x: y\r\n".repeat(fields - 1))
    };
    assert_eq!(service.raw(with(100).as_bytes()).status, 200);
    assert_eq!(service.raw(with(101).as_bytes()).status, 431);
}

#[test]
fn invalid_request_line_gets_400() {
    let service = Service::unconfigured();
    for bytes in ["GET\r\n\r\n", "GET /a b c HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n"] {
        assert_eq!(service.raw(bytes.as_bytes()).status, 400, "{bytes:?}");
    }
}

/// Sends bytes one by one, each in a packet of its own.
fn send_slowly(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_nodelay(true).unwrap();
    for byte in bytes {
        stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// `PR…` begins a method of HTTP/1 as well as the preface of HTTP/2.
#[test]
fn protocol_is_recognized_byte_by_byte() {
    let service = Service::unconfigured();
    for (method, status) in [("GET", 200), ("POST", 405), ("PROPFIND", 405), ("PRI", 405)] {
        let mut stream = service.connect();
        send_slowly(&mut stream, format!("{method} /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
        assert_eq!(read_answer(&mut stream).status, status, "{method}");
    }
    let mut stream = service.connect();
    send_slowly(&mut stream, PREFACE);
    stream.write_all(&[frame(SETTINGS, 0, 0, &[]), get(1)].concat()).unwrap();
    assert_eq!(answer_of(&mut stream).1[0], 0x88, "200");
}

#[test]
fn half_a_preface_is_not_served() {
    let service = Service::unconfigured();
    let mut stream = service.connect();
    stream.write_all(&PREFACE[..20]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&rest));
    assert_eq!(service.check("alice", "/x").status, 200);
}

#[test]
fn response_does_not_wait_for_the_next_request() {
    let service = Service::unconfigured();
    let mut stream = service.connect();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET /readyz HT").unwrap();
    assert_eq!(read_answer(&mut stream).status, 200);
    stream.write_all(b"TP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut stream).status, 200);
}

#[test]
fn oversized_body_gets_413_while_sending() {
    let service = Service::unconfigured();
    let body = "x".repeat(700 * 1024);
    for _ in 0..20 {
        assert_eq!(service.post("/v1/rate-limit/check", &body).status, 413);
    }
}

#[test]
fn oversized_content_length_gets_no_100_continue() {
    let service = Service::unconfigured();
    for expect in ["expect: 100-continue\r\n", ""] {
        let mut stream = service.connect();
        let head =
            "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        write!(stream, "{head}{expect}content-length: 5000000\r\n\r\n").unwrap();
        // The first response must not be "100 Continue", and must not wait for the body.
        let answer = read_answer(&mut stream);
        assert_eq!(answer.error(), (413, "PAYLOAD_TOO_LARGE".to_owned(), String::new()));
    }
}

#[test]
fn early_response_is_not_lost_to_a_reset() {
    let service = Service::unconfigured();
    let body = format!(
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
        700 * 1024,
        "x".repeat(700 * 1024)
    );
    for (bytes, status) in [(head_of(900 * 1024), "431"), (body.into_bytes(), "413")] {
        for _ in 0..20 {
            let mut stream = service.connect();
            stream.write_all(&bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }
}

#[test]
fn endless_sender_is_disconnected() {
    let service = Service::unconfigured();
    let mut endless = service.connect();
    let chunk = vec![b'x'; 64 * 1024];
    let mut sent = 0;
    while endless.write_all(&chunk).is_ok() {
        sent += chunk.len();
        assert!(sent < 64 * 1024 * 1024, "{sent} bytes were taken");
    }
    // A client that got its response and neither sends nor closes is disconnected too.
    let mut silent = service.connect();
    silent.write_all(&head_of(200 * 1024)).unwrap();
    assert_eq!(read_answer(&mut silent).status, 431);
    wait_for("both connections to close", || {
        (service.metric("tollgate_connections").unwrap() <= 1.0).then_some(())
    });
    assert_eq!(read_some(&mut silent, &mut [0; 16]).unwrap_or(0), 0);
    let _ = silent.shutdown(Shutdown::Both);
}

#[test]
fn request_needs_exactly_one_host() {
    let service = Service::unconfigured();
    let status = |head: &str| {
        let answer = service.raw(format!("GET /healthz {head}\r\n\r\n").as_bytes());
        if answer.status == 400 {
            assert_eq!(
                answer.error(),
                (400, "INVALID_INPUT".to_owned(), "host".to_owned()),
                "{}",
                answer.text
            );
        }
        answer.status
    };
    assert_eq!(status("HTTP/1.1\r\nhost: a"), 200);
    assert_eq!(status("HTTP/1.1"), 400);
    assert_eq!(status("HTTP/1.1\r\nhost: localhost\r\nhost: a"), 400);
    assert_eq!(status("HTTP/1.1\r\nhost: localhost\r\nHost: b"), 400);
    assert_eq!(status("HTTP/1.0"), 200);
    assert_eq!(status("HTTP/1.0\r\nhost: localhost\r\nhost: b"), 400);
    assert_eq!(status("HTTP/1.1\r\nhost: [::1]:8080"), 200);
    for invalid in ["", "a b", "a/b", "u@a", "a:b:c", "http://a"] {
        assert_eq!(status(&format!("HTTP/1.1\r\nhost: {invalid}")), 400, "{invalid:?}");
    }
}

#[test]
fn ambiguous_heads_get_400() {
    let service = Service::unconfigured();
    let body = r#"{"user_id":"a","endpoint":"/x"}"#;
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let post = |fields: &str, body: &str| {
        let head =
            "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        service.raw(format!("{head}{fields}\r\n{body}").as_bytes()).status
    };
    assert_eq!(post("transfer-encoding: chunked\r\n", &chunked), 200);
    let length = format!("content-length: {}\r\n", body.len());
    assert_eq!(post(&length, body), 200);
    assert_eq!(post(&format!("{length}transfer-encoding: chunked\r\n"), &chunked), 400);
    assert_eq!(post(&format!("transfer-encoding: chunked\r\n{length}"), &chunked), 400);
    assert_eq!(post("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", &chunked), 400);
    for head in ["GET /healthz HTTP/1.1\nhost: a\n\n", "GET /healthz HTTP/1.1\r\nhost: a\nx: y\r\n\r\n"] {
        assert_eq!(service.raw(head.as_bytes()).status, 400, "{head:?}");
    }
    let remaining = service.check("a", "/x").json()["remaining"].clone();
    assert_eq!(remaining, 97, "refused requests charge nothing");
}

#[test]
fn five_megabytes_get_413() {
    let service = Service::unconfigured();
    let body = vec![b'x'; 5 << 20];
    for _ in 0..10 {
        let mut stream = service.connect();
        let head =
            "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        write!(stream, "{head}content-length: {}\r\n\r\n", body.len()).unwrap();
        // An ordinary client writes everything before it reads.
        stream.write_all(&body).unwrap();
        assert_eq!(read_answer(&mut stream).status, 413);
    }
}

#[test]
fn openapi_document_leaves_little_memory() {
    // Records grow into their memory after the start.
    let service = Service::with_config("[records]\nenabled = false");
    assert_eq!(service.get("/healthz").status, 200);
    let before = service.resident_kib();
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(service.raw(request).status, 200);
    wait_for("memory to be returned", || (service.resident_kib() < before + 4 * 1024).then_some(()));
}

#[test]
fn compressed_bodies_are_rejected() {
    let service = Service::unconfigured();
    let body = r#"{"user_id":"a","endpoint":"/x"}"#;
    let check = |coding: &str| {
        let headers = [("content-type", "application/json"), ("content-encoding", coding)];
        service.send("POST", "/v1/rate-limit/check", &headers, body)
    };
    for coding in ["gzip", "br", "identity, gzip", "GZIP"] {
        let refused = check(coding);
        assert_eq!((refused.status, refused.error().1), (415, "UNSUPPORTED_MEDIA_TYPE".to_owned()));
        assert!(refused.text.contains("Content-Encoding"), "{}", refused.text);
    }
    assert_eq!(check("identity").status, 200);
}

#[test]
fn unsupported_fields_and_parameters_are_rejected() {
    let service = Service::with_config("default_limit = 5");
    let reload = |query: &str, body: &str| service.admin("POST", &format!("/v1/admin/reload{query}"), body);
    assert_eq!(reload("", "").status, 200);
    assert_eq!(reload("", "{}").status, 200);
    assert_eq!(
        reload("", r#"{"file":"other.toml"}"#).error(),
        (400, "INVALID_INPUT".to_owned(), "file".to_owned())
    );
    assert_eq!(reload("", "garbage").status, 400);
    assert_eq!(reload("", &"x".repeat(10_000)).status, 413);
    assert_eq!(reload("?file=other.toml", "").error().0, 400);
    assert_eq!(reload("?dry_run=true", "").error().0, 400);
    let penalties = |query: &str| service.admin("GET", &format!("/v1/admin/penalties{query}"), "").status;
    assert_eq!((penalties(""), penalties("?limit=1")), (200, 400));
    assert_eq!(service.admin("DELETE", "/v1/admin/penalties/user:a?all=true", "").status, 400);
}

#[test]
fn docs_page_accepts_a_trailing_slash() {
    let service = Service::unconfigured();
    let moved = service.get("/docs/");
    assert_eq!((moved.status, moved.header("location")), (303, Some("/docs")));
}
