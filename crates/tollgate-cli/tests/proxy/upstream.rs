//! An HTTP/1.1 server that records the requests it gets, byte by byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::harness::{Answer, Service, read_answer};

/// One request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// The request line and the header lines.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The lines after a chunked body.
    pub(crate) trailers: String,
}

/// What the server does with a request.
pub(crate) enum Reaction {
    /// Sends these bytes and keeps the connection.
    Reply(Vec<u8>),
    /// Sends these bytes and closes the connection.
    ReplyAndClose(Vec<u8>),
    /// Waits, then replies.
    Late(Duration, Vec<u8>),
    /// Sends these bytes, then returns every byte that it gets.
    Echo(Vec<u8>),
}

type React = dyn Fn(&Recorded) -> Reaction + Send + Sync;

/// The server; it ends on drop, with all of its connections.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    requests: Mutex<Vec<Recorded>>,
    connections: Mutex<Vec<TcpStream>>,
    is_stopped: AtomicBool,
    react: Box<React>,
}

impl Recorded {
    pub(crate) fn request_line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The path and query.
    pub(crate) fn target(&self) -> &str {
        self.request_line().split(' ').nth(1).unwrap_or_default()
    }

    /// All values of a header, in order.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }
}

/// A response with status 200.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

impl Upstream {
    /// Answers every request with 200.
    pub(crate) fn start() -> Self {
        Self::reacting(|_| Reaction::Reply(ok("hello")))
    }

    pub(crate) fn reacting(react: impl Fn(&Recorded) -> Reaction + Send + Sync + 'static) -> Self {
        Self::on(tollgate_testkit::listen(), react)
    }

    /// On a port that another server may have used before.
    pub(crate) fn on(
        listener: TcpListener,
        react: impl Fn(&Recorded) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            requests: Mutex::default(),
            connections: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            react: Box::new(react),
        });
        let accepting = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Upstream { address, shared, accepting: Some(accepting) }
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<Recorded> {
        self.shared.requests.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.shared.requests.lock().unwrap().len()
    }

    /// The settings of a proxy with one route to these upstreams, and the rest of the file.
    pub(crate) fn proxied(upstreams: &[&Upstream], route: &str, rest: &str) -> String {
        let urls: Vec<String> = upstreams.iter().map(|one| format!("http://{}", one.address)).collect();
        proxied_to(&urls.iter().map(String::as_str).collect::<Vec<_>>(), route, rest)
    }
}

/// The settings of a proxy with one route to these URLs, and the rest of the file.
pub(crate) fn proxied_to(urls: &[&str], route: &str, rest: &str) -> String {
    format!(
        "{rest}\n[proxy]\nlisten = \"127.0.0.1:0\"\n[[proxy.routes]]\nupstreams = [{}]\n{route}\n",
        urls.iter().map(|url| format!("{url:?}")).collect::<Vec<_>>().join(", ")
    )
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
        let _ = TcpStream::connect(self.address); // wakes the accept loop
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        shared.connections.lock().unwrap().push(stream.try_clone().unwrap());
        let shared = Arc::clone(shared);
        std::thread::spawn(move || serve(stream, &shared));
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) {
    let mut bytes = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut bytes) {
        let reaction = (shared.react)(&request);
        shared.requests.lock().unwrap().push(request);
        let (reply, closes) = match reaction {
            Reaction::Reply(reply) => (reply, false),
            Reaction::ReplyAndClose(reply) => (reply, true),
            Reaction::Echo(reply) => return echo(&mut stream, &[reply, bytes].concat()),
            Reaction::Late(wait, reply) => {
                std::thread::sleep(wait);
                (reply, false)
            }
        };
        if stream.write_all(&reply).is_err() || closes {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

fn echo(stream: &mut TcpStream, first: &[u8]) {
    let mut bytes = first.to_vec();
    loop {
        if stream.write_all(&bytes).is_err() {
            return;
        }
        bytes.clear();
        if read_more(stream, &mut bytes).is_none() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

/// The next request on a connection; `bytes` keeps what follows it.
fn read_request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<Recorded> {
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        read_more(stream, bytes)?;
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.drain(..end + 4);
    let mut request = Recorded { head, body: Vec::new(), trailers: String::new() };
    if request.headers("transfer-encoding") == ["chunked"] {
        (request.body, request.trailers) = read_chunks(stream, bytes)?;
    } else {
        let length = request.headers("content-length").first().map_or(0, |text| text.parse().unwrap_or(0));
        while bytes.len() < length {
            read_more(stream, bytes)?;
        }
        request.body = bytes.drain(..length).collect();
    }
    Some(request)
}

fn read_chunks(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<(Vec<u8>, String)> {
    let mut body = Vec::new();
    loop {
        let size = read_line(stream, bytes)?;
        let size = usize::from_str_radix(&size, 16).ok()?;
        if size == 0 {
            break;
        }
        while bytes.len() < size + 2 {
            read_more(stream, bytes)?;
        }
        body.extend_from_slice(&bytes[..size]);
        bytes.drain(..size + 2);
    }
    let mut trailers = String::new();
    loop {
        match read_line(stream, bytes)?.as_str() {
            "" => return Some((body, trailers)),
            line => trailers.extend([line, "\r\n"]),
        }
    }
}

fn read_line(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
            let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
            bytes.drain(..end + 2);
            return Some(line);
        }
        read_more(stream, bytes)?;
    }
}

fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0; 16 << 10];
    match stream.read(&mut chunk) {
        Ok(0) | Err(_) => None,
        Ok(count) => {
            bytes.extend_from_slice(&chunk[..count]);
            Some(())
        }
    }
}

/// The address of the proxy of a service.
pub(crate) fn proxy_of(service: &Service) -> SocketAddr {
    let line = service.banner.lines().find(|line| line.trim_start().starts_with("proxy ")).expect("a proxy");
    let url = line.split("://").nth(1).unwrap();
    url.split(' ').next().unwrap().parse().unwrap()
}

/// Sends bytes on a new connection and reads one response.
pub(crate) fn send(proxy: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = connect(proxy);
    let _ = stream.write_all(request);
    read_answer(&mut stream)
}

pub(crate) fn get(proxy: SocketAddr, target: &str) -> Answer {
    send(proxy, format!("GET {target} HTTP/1.1\r\nhost: api.example\r\n\r\n").as_bytes())
}

pub(crate) fn connect(proxy: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}
