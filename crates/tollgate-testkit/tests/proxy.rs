//! Each fault, as seen by a client of a real server.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tollgate_testkit::{Fault, FaultProxy, RedisServer, Reply, RespClient, wait_until};

const PATIENCE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(250);
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

struct Bench {
    proxy: FaultProxy,
    redis: RedisServer,
}

impl Bench {
    fn new() -> Self {
        let redis = RedisServer::start();
        Self { proxy: FaultProxy::in_front_of(redis.address()), redis }
    }

    fn client(&self) -> RespClient {
        let mut client = RespClient::connect(self.proxy.address(), PATIENCE).unwrap();
        // Connected to the server, so that the fault applies to an established connection.
        assert_eq!(ping(&mut client).unwrap(), "PONG");
        client
    }

    /// A connected client with a short timeout.
    fn impatient_client(&self) -> RespClient {
        let mut client = self.client();
        client.set_timeout(SHORT).unwrap();
        client
    }

    fn increments(&self) -> String {
        self.redis.cli(&["GET", "n"])
    }
}

fn ping(client: &mut RespClient) -> io::Result<String> {
    client.command(&[b"PING"]).map(|reply| reply.to_string())
}

fn increment(client: &mut RespClient) -> io::Result<Reply> {
    client.command(&[b"INCR", b"n"])
}

#[track_caller]
fn assert_kind<T: std::fmt::Debug>(outcome: io::Result<T>, kind: ErrorKind) {
    assert_eq!(outcome.map_err(|error| error.kind()).unwrap_err(), kind);
}

#[test]
fn no_fault_forwards_and_counts_everything() {
    let bench = Bench::new();
    let (mut one, mut two) = (bench.client(), bench.client());
    let value = vec![b'x'; 300_000];
    assert_eq!(one.command(&[b"SET", b"big", &value]).unwrap().to_string(), "OK");
    assert_eq!(two.command(&[b"GET", b"big"]).unwrap(), Reply::Bulk(Some(value)));
    assert_eq!(bench.proxy.connections_opened(), 2);
    assert_eq!(bench.proxy.commands_forwarded(), 4);
}

#[test]
fn latency_delays_each_reply_once() {
    let bench = Bench::new();
    let mut client = bench.client();
    bench.proxy.set(Fault::Latency(SHORT));
    let started = Instant::now();
    // Pipelined: delays that add up would take 25 seconds.
    for _ in 0..100 {
        client.send(PING).unwrap();
    }
    for _ in 0..100 {
        assert_eq!(client.receive().unwrap().to_string(), "PONG");
    }
    assert!((SHORT..60 * SHORT).contains(&started.elapsed()), "{:?}", started.elapsed());
}

#[test]
fn drop_closes_open_and_new_connections() {
    let bench = Bench::new();
    let mut old = bench.client();
    bench.proxy.set(Fault::Drop);
    assert!(ping(&mut old).is_err());
    let mut new = RespClient::connect(bench.proxy.address(), PATIENCE).unwrap();
    assert!(ping(&mut new).is_err());
    assert_eq!(bench.proxy.connections_opened(), 2);
    bench.proxy.set(Fault::None);
    bench.client();
}

#[test]
fn reset_sends_rst() {
    let bench = Bench::new();
    let (mut old, mut untouched) = (bench.client(), bench.client());
    bench.proxy.set(Fault::Reset);
    assert_kind(increment(&mut old), ErrorKind::ConnectionReset);
    let mut new = RespClient::connect(bench.proxy.address(), PATIENCE).unwrap();
    assert_kind(increment(&mut new), ErrorKind::ConnectionReset);
    bench.proxy.set(Fault::None);
    assert_eq!(
        increment(&mut untouched).unwrap(),
        Reply::Int(1),
        "earlier commands did not reach the server"
    );
}

#[test]
fn half_open_holds_bytes_until_it_ends() {
    let bench = Bench::new();
    let mut client = bench.impatient_client();
    bench.proxy.set(Fault::HalfOpen);
    assert_kind(increment(&mut client), ErrorKind::WouldBlock);
    assert_eq!(bench.increments(), "", "nothing reached the server");
    bench.proxy.set(Fault::None);
    client.set_timeout(PATIENCE).unwrap();
    assert_eq!(client.receive().unwrap(), Reply::Int(1));
    assert_eq!(bench.increments(), "1");
}

#[test]
fn half_open_hides_a_dead_server() {
    let bench = Bench::new();
    let mut client = bench.impatient_client();
    bench.proxy.set(Fault::HalfOpen);
    bench.redis.kill9();
    assert_kind(client.receive(), ErrorKind::WouldBlock);
    bench.proxy.set(Fault::None);
    client.set_timeout(PATIENCE).unwrap();
    assert_kind(client.receive(), ErrorKind::UnexpectedEof);
}

#[test]
fn trickle_sends_byte_by_byte() {
    let bench = Bench::new();
    let mut client = bench.client();
    let pause = Duration::from_millis(20);
    bench.proxy.set(Fault::Trickle(pause));
    let started = Instant::now();
    assert_eq!(ping(&mut client).unwrap(), "PONG");
    let pauses = u32::try_from(b"+PONG\r\n".len() - 1).unwrap();
    assert!(started.elapsed() >= pause * pauses, "{:?}", started.elapsed());
}

#[test]
fn black_hole_forwards_requests_and_drops_replies() {
    let bench = Bench::new();
    let mut client = bench.impatient_client();
    bench.proxy.set(Fault::BlackHoleReplies);
    assert_kind(increment(&mut client), ErrorKind::WouldBlock);
    assert!(wait_until(PATIENCE, || bench.increments() == "1"));
    bench.proxy.set(Fault::None);
    let reply = ping(&mut client).ok();
    assert_ne!(reply.as_deref(), Some("PONG"), "a later reply must not take the place of a lost one");
}

#[test]
fn garbage_is_not_resp() {
    let bench = Bench::new();
    let mut client = bench.client();
    bench.proxy.set(Fault::Garbage);
    assert_kind(increment(&mut client), ErrorKind::InvalidData);
    assert_eq!(bench.increments(), "1");
    bench.proxy.set(Fault::None);
    assert!(ping(&mut client).is_err());
}

#[test]
fn each_pipelined_command_gets_its_reply() {
    let bench = Bench::new();
    let mut client = bench.client();
    let before = bench.proxy.commands_forwarded();
    bench.proxy.set(Fault::reply("-LOADING Redis is loading the dataset in memory"));
    let loading = Reply::Error("LOADING Redis is loading the dataset in memory".to_owned());
    // Split within a command: it must be counted once.
    let pipeline = [PING, b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n", PING].concat();
    let (head, tail) = pipeline.split_at(20);
    client.send(head).unwrap();
    assert_eq!(client.receive().unwrap(), loading);
    client.send(tail).unwrap();
    assert_eq!([client.receive().unwrap(), client.receive().unwrap()], [loading.clone(), loading]);
    assert_eq!((bench.proxy.commands_forwarded(), &*bench.increments()), (before, ""));
    bench.proxy.set(Fault::None);
    assert_eq!(increment(&mut client).unwrap(), Reply::Int(1));
}

#[test]
fn proxy_reply_does_not_overtake_server_reply() {
    let bench = Bench::new();
    let mut client = bench.client();
    bench.redis.freeze();
    let before = bench.proxy.commands_forwarded();
    client.send(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n").unwrap();
    assert!(wait_until(PATIENCE, || bench.proxy.commands_forwarded() > before));
    bench.proxy.set(Fault::reply("-OOM command not allowed when used memory > 'maxmemory'."));
    client.send(PING).unwrap();
    bench.redis.thaw();
    assert_eq!(client.receive().unwrap(), Reply::Int(1));
    assert!(client.receive().unwrap().is_error());
}

#[test]
fn reply_to_answers_only_the_named_command() {
    let bench = Bench::new();
    let mut client = bench.client();
    bench.proxy.set(Fault::reply_to("incr", format!("-MOVED 1 {}", bench.redis.address())));
    let pipeline = [PING, b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n", PING].concat();
    client.send(&pipeline).unwrap();
    let replies = [(); 3].map(|()| client.receive().unwrap().to_string());
    assert_eq!(replies, ["PONG", &format!("MOVED 1 {}", bench.redis.address()), "PONG"]);
}

#[test]
fn other_protocols_are_forwarded_unchanged() {
    let bench = Bench::new();
    let mut stream = TcpStream::connect(bench.proxy.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"PI").unwrap(); // an inline command
    stream.write_all(b"NG\r\n").unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn dropped_proxy_closes_connections_and_port() {
    let Bench { redis, proxy } = Bench::new();
    let mut client = RespClient::connect(proxy.address(), PATIENCE).unwrap();
    assert_eq!(ping(&mut client).unwrap(), "PONG");
    let address = proxy.address();
    drop(proxy);
    assert!(ping(&mut client).is_err());
    // A child that another test is forking holds the sockets of this process until it execs.
    assert!(wait_until(PATIENCE, || TcpStream::connect(address).is_err()));
    assert_eq!(redis.cli(&["PING"]), "PONG");
}
