//! Hostile requests.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::harness::{Service, read_answer, read_some};

#[test]
fn slow_sockets_are_closed_without_delaying_others() {
    let service = Service::with_config("[server]\nheader_timeout = \"500ms\"\nidle_timeout = \"500ms\"");
    let mut slow: Vec<TcpStream> = (0..300).map(|_| service.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"POST /v1/rate-limit/check HTTP/1.1\r\nhost:").unwrap();
    }
    assert_eq!(service.check("a", "/x").status, 200);
    for stream in &mut slow {
        let end = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert_ne!(end, Err(ErrorKind::WouldBlock), "must be closed, with or without a response");
    }
    let mut idle = service.connect();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut idle).status, 200);
    assert_eq!(read_some(&mut idle, &mut [0; 16]).unwrap(), 0, "an idle connection is closed");
}

#[test]
fn one_address_cannot_take_every_connection() {
    let service = Service::with_config("[server]\nconnections_per_ip_max = 5");
    let held: Vec<TcpStream> = (0..5).map(|_| service.connect()).collect();
    let mut sixth = service.connect();
    let _ = sixth.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(read_answer(&mut sixth).status, 0);
    drop(held);
    crate::harness::wait_for("a free connection slot", || {
        (service.get("/healthz").status == 200).then_some(())
    });
    assert!(service.metric("tollgate_connections_refused_total").unwrap() >= 1.0);
}

#[test]
fn service_survives_malformed_requests() {
    let service = Service::unconfigured();
    let long = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(200_000));
    let many = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x: y\r\n".repeat(1_000));
    let corpus: [&[u8]; 8] = [
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        long.as_bytes(),
        many.as_bytes(),
    ];
    for bytes in corpus {
        let answer = service.raw(bytes);
        assert!(answer.status == 0 || (400..500).contains(&answer.status), "{}", answer.status);
    }
    assert_eq!(service.check("a", "/x").status, 200);
}

#[test]
fn clients_cannot_forge_log_lines() {
    let service = Service::unconfigured();
    let body = r#"{"user_id":"a\r\nFORGED \u001b[31m","endpoint":"/x"}"#;
    assert_eq!(service.admin("POST", "/v1/rate-limit/reset", body).status, 200);
    let log = service.log();
    assert!(log.contains("counters reset"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("FORGED")) && !log.contains('\u{1b}'), "{log}");
}

#[test]
fn equivalent_paths_share_one_counter() {
    let service = Service::with_config(
        "[[rules]]\nname = \"e\"\nper = [\"user\", \"endpoint\"]\nlimits = [{ requests = 6, window = \"1h\" }]",
    );
    for (spent, path) in
        ["/api/v1", "/%61pi/v1", "//api/./v1/", "/api/x/../v1", "/api;v=1/v1?q"].iter().enumerate()
    {
        let body = service.check("a", path).json();
        assert_eq!(body["remaining"].as_u64(), Some(5 - spent as u64), "{path}");
    }
}
