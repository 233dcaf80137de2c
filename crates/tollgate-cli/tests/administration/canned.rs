//! A server that answers what it was told to answer, in that order, and remembers what it was asked.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::common::{Ran, ran, tollgate};

/// One answer: a status, perhaps headers, and a body.
#[derive(Clone)]
pub(crate) struct Answer {
    head: String,
    body: String,
}

pub(crate) fn answer(status: &str, body: &str) -> Answer {
    Answer { head: format!("HTTP/1.1 {status}\r\n"), body: body.to_owned() }
}

impl Answer {
    pub(crate) fn version(mut self, version: u64) -> Self {
        let _ = write!(self.head, "etag: \"{version}\"\r\n");
        self
    }
}

/// What a client asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked(String);

impl Asked {
    /// `GET /v1/admin/rules`.
    pub(crate) fn line(&self) -> &str {
        self.0.split(" HTTP/1.1").next().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let head = self.0.split("\r\n\r\n").next().unwrap();
        head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn body(&self) -> Value {
        serde_json::from_str(self.0.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

/// The server.
pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(crate) fn new(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, answers) = (asked.clone(), answers.to_vec());
        std::thread::spawn(move || {
            for Answer { head, body } in answers {
                let (mut stream, _) = listener.accept().unwrap();
                seen.lock().unwrap().push(Asked(read(&mut stream)));
                let length = body.len();
                let text = format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
                let _ = stream.write_all(text.as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        Server { url, asked }
    }

    /// Everything that was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Runs a command against this server.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        ran(tollgate().args(args).args(["--url", &self.url]).output().unwrap())
    }
}

/// Runs a command against answers: what it printed, and what it had asked.
pub(crate) fn ask(answers: &[Answer], args: &[&str]) -> (Ran, Vec<Asked>) {
    let server = Server::new(answers);
    let ran = server.run(args);
    (ran, server.asked())
}

/// The envelope of an error.
pub(crate) fn refusal(status: &str, code: &str, message: &str, details: &str) -> Answer {
    answer(
        status,
        &format!(
            r#"{{"error":{{"code":"{code}","message":"{message}","details":{details},"request_id":"r"}}}}"#
        ),
    )
}

/// A refusal that every command must pass on in the same way: exit code 2, field and reason told.
pub(crate) fn refused_with_field_and_reason(args: &[&str]) {
    let no = refusal(
        "400 Bad Request",
        "INVALID_INPUT",
        "it is wrong",
        r#"{"field":"tier","reason":"no such tier"}"#,
    );
    let (ran, _) = ask(std::slice::from_ref(&no), args);
    assert_eq!((ran.code, &*ran.stdout), (2, ""), "{args:?}");
    assert_eq!(ran.stderr, "error: it is wrong (INVALID_INPUT, tier: no such tier)\n", "{args:?}");
    let (ran, _) = ask(&[no], &[args, &["--json"]].concat());
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
