//! A mock server that returns given responses in order and records the requests.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::{CommandOutput, finished, tollgate};

/// A response: status, optional headers and body.
#[derive(Clone)]
pub struct MockResponse {
    head: String,
    body: String,
}

pub fn respond(status: &str, body: &str) -> MockResponse {
    MockResponse { head: format!("HTTP/1.1 {status}\r\n"), body: body.to_owned() }
}

impl MockResponse {
    pub fn version(mut self, version: u64) -> Self {
        let _ = write!(self.head, "etag: \"{version}\"\r\n");
        self
    }
}

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct SentRequest(String);

impl SentRequest {
    /// The request as received.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// `GET /v1/admin/rules`.
    pub fn line(&self) -> &str {
        self.0.split(" HTTP/1.1").next().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let head = self.0.split("\r\n\r\n").next().unwrap();
        head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn body(&self) -> Value {
        serde_json::from_str(self.0.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

/// The server and the requests it received.
pub struct MockServer {
    pub url: String,
    sent: Arc<Mutex<Vec<SentRequest>>>,
}

impl MockServer {
    pub fn new(responses: &[MockResponse]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let sent = Arc::new(Mutex::new(Vec::new()));
        let (seen, responses) = (sent.clone(), responses.to_vec());
        std::thread::spawn(move || {
            for MockResponse { head, body } in responses {
                let (mut stream, _) = listener.accept().unwrap();
                seen.lock().unwrap().push(SentRequest(read(&mut stream)));
                let length = body.len();
                let text = format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
                let _ = stream.write_all(text.as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        MockServer { url, sent }
    }

    /// The requests received so far.
    pub fn sent(&self) -> Vec<SentRequest> {
        self.sent.lock().unwrap().clone()
    }

    /// Runs a command against this server.
    pub fn run(&self, args: &[&str]) -> CommandOutput {
        finished(tollgate().args(args).args(["--url", &self.url]).output().unwrap())
    }
}

/// Runs a command against responses; returns its output and the requests it sent.
pub fn run_against(responses: &[MockResponse], args: &[&str]) -> (CommandOutput, Vec<SentRequest>) {
    let server = MockServer::new(responses);
    let ran = server.run(args);
    (ran, server.sent())
}

/// An error envelope.
pub fn error_response(status: &str, code: &str, message: &str, details: &str) -> MockResponse {
    respond(
        status,
        &format!(
            r#"{{"error":{{"code":"{code}","message":"{message}","details":{details},"request_id":"r"}}}}"#
        ),
    )
}

/// Asserts that a command reports a server error with field and reason, and exits with 2.
pub fn assert_error_is_reported(args: &[&str]) {
    let no = error_response(
        "400 Bad Request",
        "INVALID_INPUT",
        "it is wrong",
        r#"{"field":"tier","reason":"no such tier"}"#,
    );
    let (ran, _) = run_against(std::slice::from_ref(&no), args);
    assert_eq!((ran.code, &*ran.stdout), (2, ""), "{args:?}");
    assert_eq!(ran.stderr, "error: it is wrong (INVALID_INPUT, tier: no such tier)\n", "{args:?}");
    let (ran, _) = run_against(&[no], &[args, &["--json"]].concat());
    assert_eq!(ran.code, 2);
    assert_eq!(ran.json()["error"]["details"]["field"], "tier", "{args:?}");
}

fn read(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let count = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if count == 0 || body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            return text;
        }
    }
}
