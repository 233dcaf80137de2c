//! Thousands of slow clients, and exhaustion of file descriptors.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::harness::{Service, allow_descriptors, read_answer, wait_for};
use crate::http2_floods::{PREFACE, frame, headers};

const SLOW: usize = 5_000;
/// Below the connection limit of one address.
const ADDRESSES: usize = 10;
const TIMEOUT: Duration = Duration::from_mins(1);

/// The time over which the connections are opened.
const ARRIVING: Duration = Duration::from_secs(3);

/// What a slow client sends first, and what it repeats.
type Manner = (Vec<u8>, Vec<u8>);

/// How long a silent client stays silent. The kernel may accept a connection that the server has already dropped; the
/// client notices only when it sends.
const SILENCE: Duration = Duration::from_secs(25);

fn manners() -> [Manner; 5] {
    let head =
        |rest: &str| format!("POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\n{rest}").into_bytes();
    let begun = |frames: &[Vec<u8>]| [PREFACE.to_vec(), frames.concat()].concat();
    let settings = frame(4, 0, 0, &[]);
    let ping = frame(6, 0, 0, &[7; 8]);
    [
        (Vec::new(), b"x".to_vec()),
        (head("x: "), b"x".to_vec()),
        (head("content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"), b" ".to_vec()),
        (begun(std::slice::from_ref(&settings)), ping),
        // A header block that continues in further frames and never ends.
        (begun(&[settings, frame(1, 0, 1, &headers("POST", "/v1/rate-limit/check"))]), frame(9, 0, 1, &[])),
    ]
}

/// Holds a connection until the server closes it; returns the kind of client if that takes too long.
async fn hold(server: SocketAddr, number: usize, (first, again): Manner) -> Result<(), usize> {
    // Staggered like real slow clients; otherwise all are closed within the same milliseconds.
    tokio::time::sleep(ARRIVING * u32::try_from(number).unwrap() / u32::try_from(SLOW).unwrap()).await;
    let socket = TcpSocket::new_v4().unwrap();
    let last = u8::try_from(2 + number % ADDRESSES).unwrap();
    socket.bind(SocketAddr::new(Ipv4Addr::new(127, 0, 0, last).into(), 0)).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    if stream.write_all(&first).await.is_err() {
        return Ok(());
    }
    let (mut reading, mut writing) = stream.split();
    let pause = if first.is_empty() { SILENCE } else { Duration::from_secs(1) };
    let mut turns = tokio::time::interval_at(tokio::time::Instant::now() + pause, pause);
    let mut heard = [0; 256];
    let ended = async {
        loop {
            tokio::select! {
                read = reading.read(&mut heard) => if matches!(read, Ok(0) | Err(_)) { return },
                _ = turns.tick() => if writing.write_all(&again).await.is_err() { return },
            }
        }
    };
    tokio::time::timeout(TIMEOUT, ended).await.map_err(|_| number % manners().len())
}

/// Sends requests on new connections until stopped. Each must get a response. Returns the latencies.
fn healthy(service: &Service, stop: impl Fn(usize) -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !stop(took.len()) {
        let started = Instant::now();
        assert_eq!(service.check("healthy", "/x").status, 200, "request {}", took.len());
        took.push(started.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    took.sort_unstable();
    took
}

fn print_latency(what: &str, took: &[Duration]) {
    let at = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)];
    println!("{what}: {} requests, p50 {:?}, p99 {:?}, longest {:?}", took.len(), at(50), at(99), at(100));
}

#[test]
fn healthy_requests_pass_beside_5000_slow_sockets() {
    allow_descriptors(SLOW);
    let service = Service::with_config(
        "default_limit = 1000000\n[server]\nheader_timeout = \"8s\"\nbody_timeout = \"8s\"\nidle_timeout = \"8s\"",
    );
    print_latency("without slow sockets", &healthy(&service, |count| count == 2_000));
    let over = AtomicBool::new(false);
    let (peak, ended) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| healthy(&service, |count| count > 0 && over.load(Ordering::Relaxed)));
        let watching = scope.spawn(|| {
            let mut peak = 0.0_f64;
            while !over.load(Ordering::Relaxed) {
                peak = peak.max(service.metric("tollgate_connections").unwrap());
                std::thread::sleep(Duration::from_millis(100));
            }
            peak
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let manners = manners();
            let held: JoinSet<_> = (0..SLOW)
                .map(|number| hold(service.address, number, manners[number % manners.len()].clone()))
                .collect();
            held.join_all().await
        });
        over.store(true, Ordering::Relaxed);
        print_latency("with slow sockets", &asking.join().unwrap());
        (watching.join().unwrap(), ended)
    });
    println!("{peak} connections were open at once; {} KiB in use", service.resident_kib());
    let mut left = [0; 5];
    ended.iter().filter_map(|ended| ended.err()).for_each(|manner| left[manner] += 1);
    assert_eq!((ended.len(), left), (SLOW, [0; 5]), "every kind of slow socket must be closed");
    assert_eq!(
        service.metric("tollgate_connections_refused_total"),
        Some(0.0),
        "all connections must be accepted"
    );
    wait_for("the connections to close", || {
        (service.metric("tollgate_connections").unwrap() <= 2.0).then_some(())
    });
}

/// One request on a kept-alive connection.
fn send(stream: &mut TcpStream, path: &str) -> crate::harness::Answer {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).unwrap();
    read_answer(stream)
}

fn accept_errors(stream: &mut TcpStream) -> u32 {
    let text = send(stream, "/metrics").text;
    let line = text.lines().find_map(|line| line.strip_prefix("tollgate_accept_errors_total "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[test]
fn accepting_recovers_from_descriptor_exhaustion() {
    let service = Service::with_descriptors("-n 96", "[server]\nheader_timeout = \"10m\"");
    let mut kept = service.connect();
    assert_eq!(send(&mut kept, "/healthz").status, 200);
    // More than the descriptor limit: the rest waits in the accept queue.
    let held: Vec<TcpStream> = (0..200).map(|_| service.connect()).collect();
    wait_for("descriptors to run out", || (accept_errors(&mut kept) > 0).then_some(()));
    // Read the clock before counting here, and after counting below, so that the bound holds.
    let (started, errors, spent) = (Instant::now(), accept_errors(&mut kept), service.processor_time());
    wait_for("more accept attempts", || (accept_errors(&mut kept) >= errors + 20).then_some(()));
    let (tried, took) = (accept_errors(&mut kept) - errors, started.elapsed());
    println!(
        "{tried} attempts in {took:?}, {:?} of a processor",
        service.processor_time().saturating_sub(spent)
    );
    // Each failed accept is followed by a pause of 50 ms, under any load.
    assert!(u128::from(tried) <= took.as_millis() / 50 + 2, "{tried} attempts in {took:?}: no pause between");
    assert_eq!(send(&mut kept, "/healthz").status, 200, "open connections must be served");
    let lines = service.log().lines().filter(|line| line.contains("cannot accept connections")).count();
    assert!(lines <= 3, "expected one line per outage, not per attempt: {lines}");
    drop(held);
    assert_eq!(service.check("a", "/x").status, 200, "new connections must be served again");
}

#[test]
fn descriptor_limit_is_raised_to_the_maximum() {
    allow_descriptors(SLOW);
    let service = Service::with_descriptors("-Sn 96", "");
    let mut held: Vec<TcpStream> = (0..300).map(|_| service.connect()).collect();
    for stream in &mut held {
        assert_eq!(send(stream, "/healthz").status, 200);
    }
    assert_eq!(accept_errors(&mut held[0]), 0);
}
