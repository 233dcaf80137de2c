//! Exports of many rows: cut off by an outage, several at once, and to clients that do not read.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tollgate_testkit::PostgresServer;

use crate::harness::{Answer, Service, wait_for};

const ROWS: usize = 40_000;
const PATH_BYTES: usize = 490;

/// A service whose log has far more rows than fit into the buffers of a connection.
fn with_many_rows(server: &PostgresServer) -> Service {
    let url = server.create_database();
    let config = format!(
        "[server]\nwrite_timeout = \"2s\"\n[records]\nlog_retention = \"3650d\"\nsample_allowed = 0\nurl = \"{url}\""
    );
    let service = Service::with_config(&config);
    wait_for("the tables", || (service.admin("GET", "/v1/admin/decisions", "").status == 200).then_some(()));
    let insert = format!(
        "INSERT INTO rate_limit_audit_logs (log_id, timestamp, identifier, endpoint, decision, cost, response_status, \
         region, server_id, latency_us, degraded, truncated) SELECT n, '2023-11-14'::timestamptz + n * interval '1 ms', \
         'user:u' || n, '/' || repeat('x', {PATH_BYTES}), 'allowed', 1, 200, 'eu', 'node', 1, false, false \
         FROM generate_series(1, {ROWS}) AS n"
    );
    server.execute("test_0", &insert);
    service
}

/// Starts an export and reads the first bytes only.
fn start_export(service: &Service) -> TcpStream {
    let mut stream = service.connect();
    let request = format!(
        "GET /v1/admin/decisions?format=ndjson HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
        service.admin_key()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut start = [0; 15];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    stream
}

/// Reads the rest. An incomplete response is reset, or closed without the last chunk: the client knows either way.
fn is_complete(stream: &mut TcpStream) -> bool {
    let mut body = Vec::new();
    let _ = stream.read_to_end(&mut body);
    let is_complete = body.ends_with(b"\r\n0\r\n\r\n");
    assert_eq!(is_complete, body.len() > ROWS * PATH_BYTES, "{} bytes", body.len());
    is_complete
}

fn small_export(service: &Service) -> Answer {
    service.admin("GET", "/v1/admin/decisions?format=csv&limit=1", "")
}

#[test]
fn export_cut_by_an_outage_has_no_end() {
    let server = PostgresServer::start();
    let service = with_many_rows(&server);
    let mut cut = start_export(&service);
    server.kill9();
    assert!(!is_complete(&mut cut));
    wait_for("the log line", || service.log().contains("an export of records was aborted").then_some(()));
    assert_eq!(service.check("alice", "/a").status, 200);
}

#[test]
fn third_export_is_refused() {
    let server = PostgresServer::start();
    let service = with_many_rows(&server);
    let (first, second) = (start_export(&service), start_export(&service));
    let third = small_export(&service);
    assert_eq!(third.status, 503, "{}", third.text);
    assert!(third.text.contains("two exports of records are running"), "{}", third.text);
    let page = service.admin("GET", "/v1/admin/decisions", "");
    assert_eq!(page.status, 200, "pages are no exports: {}", page.text);
    drop(first);
    wait_for("a closed export to end", || (small_export(&service).status == 200).then_some(()));
    drop(second);
}

#[test]
fn export_to_a_client_that_does_not_read_ends() {
    let server = PostgresServer::start();
    let service = with_many_rows(&server);
    let mut unread = [start_export(&service), start_export(&service)];
    assert_eq!(small_export(&service).status, 503);
    wait_for("the write timeout", || (small_export(&service).status == 200).then_some(()));
    assert!(unread.iter_mut().any(|stream| !is_complete(stream)));
}
