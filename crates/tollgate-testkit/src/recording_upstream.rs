//! An application behind a gateway that records what reaches it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::port::listen;

/// One request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The method.
    pub method: String,
    /// The target of the request line.
    pub target: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
}

/// An HTTP/1.1 server that answers every request with 200, `hello` and forged rate limit headers.
pub struct RecordingUpstream {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl RecordingUpstream {
    /// Starts it on a free loopback port. It serves until the test process ends.
    pub fn start() -> Self {
        let listener = listen();
        let address = listener.local_addr().expect("a listener has an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let recorded = Arc::clone(&recorded);
                thread::spawn(move || serve(stream, &recorded));
            }
        });
        RecordingUpstream { address, requests }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().expect("no thread has panicked").clone()
    }
}

fn serve(stream: TcpStream, recorded: &Mutex<Vec<RecordedRequest>>) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = read_request(&mut reader)?;
        recorded.lock().ok()?.push(request);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-ratelimit-limit: forged\r\n\r\nhello";
        writer.write_all(answer).ok()?;
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<RecordedRequest> {
    let mut lines = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let first = lines.next()?;
    let mut parts = first.split(' ');
    let (method, target) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| {
            line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        })
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, length)| length.parse().ok()).unwrap_or(0);
    reader.take(length).read_to_end(&mut Vec::new()).ok()?;
    Some(RecordedRequest { method, target, headers })
}
