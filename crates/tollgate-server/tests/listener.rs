//! Connections over real sockets: timeouts, limits, draining.

#![allow(clippy::unwrap_used)] // test helpers

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate_server::config::settings::ServerSettings;
use tollgate_server::listener::{self, ConnectionInfo, ConnectionStats, DrainReport, Payload};

/// A generous deadline.
const PATIENCE: Duration = Duration::from_secs(20);
const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

struct Server {
    address: SocketAddr,
    stats: Arc<ConnectionStats>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<DrainReport>,
}

fn settings() -> ServerSettings {
    ServerSettings {
        header_timeout: Duration::from_millis(200),
        idle_timeout: 2 * PATIENCE,
        drain_timeout: PATIENCE,
        ..ServerSettings::default()
    }
}

/// Long timeouts, for a busy machine.
fn with_long_timeouts() -> ServerSettings {
    ServerSettings { header_timeout: PATIENCE, ..settings() }
}

type Answering = Pin<Box<dyn Future<Output = Response<Payload>> + Send>>;

/// Long enough for a test to act meanwhile.
const SLOW: Duration = Duration::from_secs(2);

/// More than the socket buffers of both sides hold.
const LARGE: usize = 32 << 20;

/// Responds with the client's address; slowly, never or with a large body on request.
fn respond(request: Request<Incoming>, connection: &Arc<ConnectionInfo>) -> Answering {
    let peer = connection.peer;
    Box::pin(async move {
        match request.uri().path() {
            "/slow" => tokio::time::sleep(SLOW).await,
            "/stuck" => std::future::pending().await,
            "/body" => drop(request.into_body().collect().await),
            "/large" => return Response::new(Payload::from(vec![b'x'; LARGE])),
            _ => {}
        }
        Response::new(Payload::from(peer.to_string()))
    })
}

async fn start(settings: ServerSettings) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stats = Arc::new(ConnectionStats::default());
    let (stop, stopped) = oneshot::channel();
    let served = Arc::clone(&stats);
    let task = tokio::spawn(async move {
        let shutdown = async { stopped.await.unwrap_or(()) };
        listener::run(listener, respond, &settings, Arc::default(), served, shutdown).await
    });
    Server { address, stats, stop: Some(stop), task }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }
}

/// Everything until the server closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text).await;
    text
}

/// One response of known length; the connection stays open.
async fn answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("\r\n\r\n") {
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    text
}

async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(GET.as_bytes()).await.unwrap();
    answer(stream).await
}

/// Waits until the condition holds.
async fn eventually(holds: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < PATIENCE, "timed out");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn handlers_see_the_client_address() {
    let server = start(with_long_timeouts()).await;
    let mut stream = server.connect().await;
    let text = ask(&mut stream).await;
    assert!(text.ends_with(&stream.local_addr().unwrap().to_string()), "{text}");
}

#[tokio::test]
async fn slow_request_head_is_timed_out() {
    let server = start(settings()).await;
    let mut stream = server.connect().await;
    for byte in GET.as_bytes() {
        if stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    assert_eq!(rest(&mut stream).await, "");
    assert_eq!(server.stats.timed_out.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn silent_connection_is_timed_out() {
    let server = start(settings()).await;
    let started = Instant::now();
    let mut stream = server.connect().await;
    assert_eq!(rest(&mut stream).await, "");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(190) && took < PATIENCE, "{took:?}");
}

#[tokio::test]
async fn slow_head_on_a_reused_connection_is_timed_out() {
    let server = start(ServerSettings { header_timeout: Duration::from_secs(2), ..settings() }).await;
    let mut stream = server.connect().await;
    ask(&mut stream).await;
    stream.write_all(b"GET / HT").await.unwrap();
    let started = Instant::now();
    assert_eq!(rest(&mut stream).await, "");
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

#[tokio::test]
async fn idle_connection_is_closed_after_its_timeout() {
    let (header_timeout, idle_timeout) = (Duration::from_secs(1), Duration::from_secs(3));
    let server = start(ServerSettings { header_timeout, idle_timeout, ..settings() }).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        ask(&mut stream).await;
        // Longer than the header timeout, which does not apply to idle connections.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
    let started = Instant::now();
    ask(&mut stream).await;
    assert_eq!(rest(&mut stream).await, "");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(2_900) && took < PATIENCE, "{took:?}");
}

#[tokio::test]
async fn idle_http2_connection_is_closed() {
    let server = start(ServerSettings { idle_timeout: Duration::from_millis(600), ..settings() }).await;
    let started = Instant::now();
    let mut stream = server.connect().await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let took = started.elapsed();
    assert!(!bytes.is_empty(), "the server's settings");
    assert!(took >= Duration::from_millis(550) && took < PATIENCE, "{took:?}");
}

#[tokio::test]
async fn body_in_a_separate_read_keeps_the_connection_idle() {
    let (header_timeout, idle_timeout) = (Duration::from_millis(500), 2 * PATIENCE);
    let server = start(ServerSettings { header_timeout, idle_timeout, ..settings() }).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        stream.write_all(b"POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(b"body").await.unwrap();
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(server.stats.timed_out.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn half_closed_connection_is_answered() {
    let server = start(with_long_timeouts()).await;
    for path in ["/", "/slow"] {
        let mut stream = server.connect().await;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let text = rest(&mut stream).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text:?}");
    }
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let write_timeout = Duration::from_millis(500);
    let server = start(ServerSettings { write_timeout, ..with_long_timeouts() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    eventually(async || server.stats.timed_out.load(Ordering::Relaxed) == 1).await;
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    assert!(received.len() < LARGE, "{}", received.len());
}

#[tokio::test]
async fn slow_reader_gets_the_whole_response() {
    let write_timeout = Duration::from_secs(3);
    let server = start(ServerSettings { write_timeout, ..with_long_timeouts() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut received = 0;
    let mut buffer = vec![0; 4 << 20];
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        if read == 0 {
            break;
        }
        received += read;
        // In all longer than the write timeout.
        if received < LARGE / 2 {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
    assert!(received > LARGE, "{received}");
}

#[tokio::test]
async fn oversized_request_head_is_431() {
    let server = start(with_long_timeouts()).await;
    for fields in ["a: b\r\n".repeat(101), format!("a: {}\r\n", "b".repeat(70_000))] {
        let mut stream = server.connect().await;
        // The server may respond before everything is written.
        let _ = stream.write_all(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_bytes()).await;
        let text = rest(&mut stream).await;
        assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    }
    let mut stream = server.connect().await;
    assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"), "others are served");
}

#[tokio::test]
async fn request_may_outlast_the_idle_timeout() {
    let server =
        start(ServerSettings { idle_timeout: Duration::from_millis(100), ..with_long_timeouts() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn connections_per_address_are_limited() {
    let server = start(ServerSettings { connections_per_ip_max: 2, ..with_long_timeouts() }).await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    ask(&mut first).await;
    ask(&mut second).await;
    let mut third = server.connect().await;
    assert_eq!(rest(&mut third).await, "");
    assert_eq!(server.stats.refused.load(Ordering::Relaxed), 1);
    drop(first);
    eventually(async || server.stats.open.load(Ordering::Relaxed) == 1).await;
    let mut fourth = server.connect().await;
    assert!(ask(&mut fourth).await.starts_with("HTTP/1.1 200"), "a slot was freed");
    assert_eq!(server.stats.open.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn slow_connections_do_not_delay_a_healthy_one() {
    let slow = ServerSettings { header_timeout: 3 * PATIENCE, ..settings() };
    let server = start(slow).await;
    let mut sockets = Vec::new();
    for _ in 0..500 {
        let mut socket = server.connect().await;
        socket.write_all(b"GET / HTTP/1.1\r\nx-slow: ").await.unwrap();
        sockets.push(socket);
    }
    let mut healthy = server.connect().await;
    for _ in 0..100 {
        assert!(ask(&mut healthy).await.starts_with("HTTP/1.1 200"));
    }
    assert_eq!(server.stats.open.load(Ordering::Relaxed), 501);
}

#[tokio::test]
async fn shutdown_answers_requests_in_flight() {
    let mut server = start(with_long_timeouts()).await;
    let mut busy = server.connect().await;
    let mut idle = server.connect().await;
    ask(&mut idle).await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop();
    eventually(async || TcpStream::connect(server.address).await.is_err()).await; // no longer listening
    let text = rest(&mut busy).await;
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("connection: close"), "{text}");
    assert_eq!(rest(&mut idle).await, "");
    let report = server.task.await.unwrap();
    assert_eq!((report.open, report.aborted), (2, 0));
    assert!(report.took < PATIENCE, "{report:?}");
}

#[tokio::test]
async fn shutdown_answers_requests_on_their_way() {
    for _ in 0..5 {
        let Some(responses) = requests_during_shutdown().await else { continue };
        for text in responses {
            assert!(text.starts_with("HTTP/1.1 200") && text.contains("connection: close"), "{text}");
        }
        return;
    }
    panic!("the machine stands still each time");
}

/// The responses, on a used and on a new connection, to requests sent just after shutdown began. None if they came too late: idle
/// connections stay open for 300 ms.
async fn requests_during_shutdown() -> Option<[String; 2]> {
    let mut server = start(with_long_timeouts()).await;
    let mut used = server.connect().await;
    ask(&mut used).await;
    let mut fresh = server.connect().await;
    eventually(async || server.stats.open.load(Ordering::Relaxed) == 2).await;
    let ending = Instant::now();
    server.stop();
    tokio::time::sleep(Duration::from_millis(20)).await;
    for stream in [&mut used, &mut fresh] {
        let _ = stream.write_all(GET.as_bytes()).await;
    }
    let in_time = ending.elapsed() < Duration::from_millis(200);
    let responses = [rest(&mut used).await, rest(&mut fresh).await];
    let report = server.task.await.unwrap();
    in_time.then(|| {
        assert_eq!(report.aborted, 0);
        responses
    })
}

#[tokio::test]
async fn shutdown_aborts_what_exceeds_the_drain_timeout() {
    let mut server = start(ServerSettings { drain_timeout: Duration::from_millis(500), ..settings() }).await;
    let mut stuck = server.connect().await;
    stuck.write_all(b"GET /stuck HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.stop();
    assert_eq!(rest(&mut stuck).await, "");
    let report = server.task.await.unwrap();
    assert_eq!((report.open, report.aborted), (1, 1));
    assert!(report.took < PATIENCE, "{report:?}");
    assert_eq!(server.stats.open.load(Ordering::Relaxed), 0);
}
