//! Runs the binary, and mocks a server for tests of the client.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test file uses a part of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

/// The binary in an environment without settings for it.
pub fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for name in ["TOLLGATE_URL", "TOLLGATE_KEY", "NO_COLOR", "XDG_CONFIG_HOME", "HOME"] {
        command.env_remove(name);
    }
    for name in
        ["TOLLGATE_CA_FILE", "TOLLGATE_CERT_FILE", "TOLLGATE_CERT_KEY_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// The output and exit code of a command.
pub struct CommandOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

pub fn finished(output: Output) -> CommandOutput {
    CommandOutput {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn run(args: &[&str]) -> CommandOutput {
    finished(tollgate().args(args).output().unwrap())
}

/// A temporary directory with files.
pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Files(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// A server that answers one request with a fixed response and records the request.
pub struct MockServer {
    pub url: String,
    server: JoinHandle<String>,
}

impl MockServer {
    pub fn new(status: &str, body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let request = read_request(&mut stream);
            stream.write_all(answer.as_bytes()).unwrap();
            let _ = stream.shutdown(Shutdown::Write);
            request
        });
        MockServer { url, server }
    }

    pub fn request(self) -> String {
        self.server.join().unwrap()
    }
}

fn read_request(stream: &mut impl Read) -> String {
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
