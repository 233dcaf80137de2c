//! A minimal HTTP client: one request per connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// An HTTP response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends a request, with a caller key if given, and a JSON body if not empty.
pub fn ask(address: SocketAddr, method: &str, path: &str, key: &str, body: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    if !key.is_empty() {
        request += &format!("Authorization: Bearer {key}\r\n");
    }
    if !body.is_empty() {
        request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    // In one write: a second one would wait for the acknowledgement of the first.
    stream.write_all(format!("{request}\r\n{body}").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("the answer has no body")?;
    let status = head.split(' ').nth(1).context("the answer has no status")?.parse()?;
    Ok(Answer { status, head: head.into(), body: body.into() })
}

impl Answer {
    /// The body as JSON, if the status is a success.
    pub fn json(&self) -> Result<serde_json::Value> {
        ensure!((200..300).contains(&self.status), "{} {}", self.status, self.body);
        Ok(serde_json::from_str(&self.body)?)
    }

    /// The names of its headers, in lower case.
    pub fn header_names(&self) -> impl Iterator<Item = String> {
        self.head.lines().skip(1).filter_map(|line| Some(line.split_once(':')?.0.to_ascii_lowercase()))
    }
}
