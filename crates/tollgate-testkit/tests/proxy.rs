//! Each fault, as a client of a real server sees it.
#![allow(clippy::unwrap_used, reason = "helpers of tests are test code too")]

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
        // Through, so that the fault under test meets an established connection.
        assert_eq!(ping(&mut client).unwrap(), "PONG");
        client
    }

    /// One that soon gives up, once it is through.
    fn hasty_client(&self) -> RespClient {
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
fn without_a_fault_everything_passes_and_is_counted() {
    let bench = Bench::new();
    let (mut one, mut two) = (bench.client(), bench.client());
    let value = vec![b'x'; 300_000];
    assert_eq!(one.command(&[b"SET", b"big", &value]).unwrap().to_string(), "OK");
    assert_eq!(two.command(&[b"GET", b"big"]).unwrap(), Reply::Bulk(Some(value)));
    assert_eq!(bench.proxy.connections_opened(), 2);
    assert_eq!(bench.proxy.commands_forwarded(), 4);
    assert!(bench.proxy.bytes_forwarded() > 600_000);
}

#[test]
fn latency_delays_each_reply_once() {
    let bench = Bench::new();
    let mut client = bench.client();
    bench.proxy.set(Fault::Latency(SHORT));
    let started = Instant::now();
    // Sent one by one and not waited for: delays that add up would make 25 seconds of it.
    for _ in 0..100 {
        client.send(PING).unwrap();
    }
    for _ in 0..100 {
        assert_eq!(client.receive().unwrap().to_string(), "PONG");
    }
    assert!((SHORT..60 * SHORT).contains(&started.elapsed()), "{:?}", started.elapsed());
}

#[test]
fn drop_closes_open_connections_and_new_ones() {
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
fn reset_is_a_reset() {
    let bench = Bench::new();
    let (mut old, mut untouched) = (bench.client(), bench.client());
    bench.proxy.set(Fault::Reset);
    assert_kind(increment(&mut old), ErrorKind::ConnectionReset);
    let mut new = RespClient::connect(bench.proxy.address(), PATIENCE).unwrap();
    assert_kind(increment(&mut new), ErrorKind::ConnectionReset);
    bench.proxy.set(Fault::None);
    assert_eq!(increment(&mut untouched).unwrap(), Reply::Int(1), "those before did not get through");
}

#[test]
fn half_open_holds_both_ways_and_goes_on_afterwards() {
    let bench = Bench::new();
    let mut client = bench.hasty_client();
    bench.proxy.set(Fault::HalfOpen);
    assert_kind(increment(&mut client), ErrorKind::WouldBlock);
    assert_eq!(bench.increments(), "", "nothing reached the server");
    bench.proxy.set(Fault::None);
    client.set_timeout(PATIENCE).unwrap();
    assert_eq!(client.receive().unwrap(), Reply::Int(1));
    assert_eq!(bench.increments(), "1");
}

#[test]
fn half_open_hides_the_end_of_the_server() {
    let bench = Bench::new();
    let mut client = bench.hasty_client();
    bench.proxy.set(Fault::HalfOpen);
    bench.redis.kill9();
    assert_kind(client.receive(), ErrorKind::WouldBlock);
    bench.proxy.set(Fault::None);
    client.set_timeout(PATIENCE).unwrap();
    assert_kind(client.receive(), ErrorKind::UnexpectedEof);
}

#[test]
fn trickle_hands_out_byte_by_byte() {
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
fn black_hole_takes_requests_and_gives_nothing_back() {
    let bench = Bench::new();
    let mut client = bench.hasty_client();
    bench.proxy.set(Fault::BlackHoleReplies);
    assert_kind(increment(&mut client), ErrorKind::WouldBlock);
    assert!(wait_until(PATIENCE, || bench.increments() == "1"));
    bench.proxy.set(Fault::None);
    // What the server said may be late; what it says next must not be there at all.
    let told = ping(&mut client).ok();
    assert_ne!(told.as_deref(), Some("PONG"), "a lost reply must not make way for a later one");
}

#[test]
fn garbage_is_no_resp() {
    let bench = Bench::new();
    let mut client = bench.client();
    bench.proxy.set(Fault::Garbage);
    assert_kind(increment(&mut client), ErrorKind::InvalidData);
    assert_eq!(bench.increments(), "1");
    bench.proxy.set(Fault::None);
    assert!(ping(&mut client).is_err());
}

#[test]
fn each_command_of_a_pipeline_gets_its_own_answer() {
    let bench = Bench::new();
    let mut client = bench.client();
    let before = bench.proxy.commands_forwarded();
    bench.proxy.set(Fault::reply("-LOADING Redis is loading the dataset in memory"));
    let loading = Reply::Error("LOADING Redis is loading the dataset in memory".to_owned());
    // Cut in the middle of a command: it must be counted once.
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
fn an_answer_of_the_proxy_does_not_overtake_the_server() {
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
fn reply_to_answers_one_command_and_lets_the_others_pass() {
    let bench = Bench::new();
    let mut client = bench.client();
    bench.proxy.set(Fault::reply_to("incr", format!("-MOVED 1 {}", bench.redis.address())));
    let pipeline = [PING, b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n", PING].concat();
    client.send(&pipeline).unwrap();
    let replies = [(); 3].map(|()| client.receive().unwrap().to_string());
    assert_eq!(replies, ["PONG", &format!("MOVED 1 {}", bench.redis.address()), "PONG"]);
}

#[test]
fn other_protocols_pass_as_they_are() {
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
fn a_dropped_proxy_closes_its_connections_and_its_port() {
    let Bench { redis, proxy } = Bench::new();
    let mut client = RespClient::connect(proxy.address(), PATIENCE).unwrap();
    assert_eq!(ping(&mut client).unwrap(), "PONG");
    let address = proxy.address();
    drop(proxy);
    assert!(ping(&mut client).is_err());
    // A program that another test is just starting holds what this process had open until it is loaded.
    assert!(wait_until(PATIENCE, || TcpStream::connect(address).is_err()));
    assert_eq!(redis.cli(&["PING"]), "PONG");
}
