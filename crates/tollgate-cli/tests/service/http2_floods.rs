//! HTTP/2 floods with hand-written frames, against every listener that speaks HTTP/2.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Service, wait_for};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// No attack may grow the process beyond this; one connection needs far less.
const GROWTH_KIB_MAX: u64 = 96 * 1024;
/// How often an attacker reconnects, unless that takes longer than [`ATTACK_TIME_MAX`].
const CONNECTIONS: u32 = 50;
const ATTACK_TIME_MAX: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_mins(1);
const SHORT_TIMEOUTS: &str = "idle_timeout = \"3s\"\nbody_timeout = \"3s\"";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A request head, encoded without the dynamic table.
pub(crate) fn headers(method: &str, path: &str) -> Vec<u8> {
    headers_to("localhost", method, path)
}

pub(crate) fn headers_to(authority: &str, method: &str, path: &str) -> Vec<u8> {
    let mut block = vec![if method == "GET" { 0x82 } else { 0x83 }, 0x86];
    for (name, value) in [(0x01, authority), (0x04, path)] {
        block.push(name);
        put_text(&mut block, value);
    }
    block
}

pub(crate) fn put_text(block: &mut Vec<u8>, text: &str) {
    block.push(u8::try_from(text.len()).unwrap());
    block.extend_from_slice(text.as_bytes());
}

/// A listener under attack.
pub(crate) struct Listener {
    pub(crate) service: Service,
    pub(crate) address: SocketAddr,
    /// The metric of its open connections.
    pub(crate) connections: &'static str,
    /// Whether another client is served.
    pub(crate) serves: Box<dyn Fn(&Service) -> bool>,
}

/// Starts the listener with these keys of `[server]`.
type Start = fn(&str) -> Listener;

/// The tests of one listener.
macro_rules! flood_tests {
    ($start:path) => {
        use crate::http2_floods as floods;

        #[test]
        fn rapid_reset_closes_the_connection() {
            floods::rapid_reset($start);
        }

        #[test]
        fn induced_resets_close_the_connection() {
            floods::induced_resets($start);
        }

        #[test]
        fn endless_continuation_closes_the_connection() {
            floods::endless_continuation($start);
        }

        #[test]
        fn settings_and_ping_floods_close_the_connection() {
            floods::settings_and_pings($start);
        }

        #[test]
        fn hpack_bomb_closes_the_connection() {
            floods::hpack_bomb($start);
        }

        #[test]
        fn empty_data_flood_closes_the_connection() {
            floods::empty_data($start);
        }

        #[test]
        fn unread_response_closes_the_connection() {
            floods::unread_responses($start);
        }
    };
}
pub(crate) use flood_tests;

pub(crate) fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &headers("GET", "/healthz"))
}

/// A request head whose body follows.
fn post(stream: u32) -> Vec<u8> {
    let mut block = headers("POST", "/v1/rate-limit/check");
    // content-type: application/json
    block.extend([0x0f, 0x10, 16]);
    block.extend_from_slice(b"application/json");
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// The id of the stream opened in a turn.
fn stream(turn: u32) -> u32 {
    2 * turn + 1
}

/// The result of an attack.
#[derive(Default)]
struct Outcome {
    /// How often the attacker reconnected and was disconnected.
    connections: u32,
    /// How often it was repeated. The kernel buffers data that the server has not read, so this is not a bound of the server.
    turns: u32,
    /// The last GOAWAY error code, if one arrived.
    goaway: Option<u32>,
    /// Streams that the server reset.
    resets: u32,
}

/// Connects, repeats `turn` until the server closes the connection, and reconnects. Meanwhile another client must be served
/// and the process must not grow. Every connection must be closed by the server.
fn attack(name: &str, start: Start, reads: bool, turn: impl Fn(u32) -> Vec<u8> + Sync) {
    let Listener { service, address, connections, serves } = start(SHORT_TIMEOUTS);
    assert!(serves(&service));
    let (before, over) = (service.resident_kib(), AtomicBool::new(false));
    let (mut peak, mut answered) = (before, 0);
    let started = Instant::now();
    let spent = service.processor_time();
    let outcome = std::thread::scope(|scope| {
        let attacking = scope.spawn(|| {
            let mut outcome = Outcome::default();
            while outcome.connections < CONNECTIONS && started.elapsed() < ATTACK_TIME_MAX {
                run(address, reads, &turn, &mut outcome);
            }
            over.store(true, Ordering::Relaxed);
            outcome
        });
        while !over.load(Ordering::Relaxed) {
            assert!(serves(&service), "request {answered} during {name}");
            answered += 1;
            peak = peak.max(service.resident_kib());
            std::thread::sleep(Duration::from_millis(2));
        }
        attacking.join().unwrap()
    });
    let (took, spent) = (started.elapsed(), service.processor_time().saturating_sub(spent));
    println!(
        "{name}: {} connections closed after {} turns in all (GOAWAY {:?}, {} resets) in {took:?}, {spent:?} of a processor; {answered} others answered; {before} to {peak} KiB",
        outcome.connections, outcome.turns, outcome.goaway, outcome.resets,
    );
    assert!(peak <= before + GROWTH_KIB_MAX, "{name}: grew from {before} to {peak} KiB");
    wait_for("the connection to close", || (service.metric(connections).unwrap() <= 1.0).then_some(()));
    assert!(serves(&service));
}

fn run(address: SocketAddr, reads: bool, turn: &impl Fn(u32) -> Vec<u8>, outcome: &mut Outcome) {
    let mut writing = TcpStream::connect(address).unwrap();
    writing.set_write_timeout(Some(TIMEOUT)).unwrap();
    writing.set_read_timeout(Some(TIMEOUT)).unwrap();
    let reading = writing.try_clone().unwrap();
    std::thread::scope(|scope| {
        let listening = reads.then(|| scope.spawn(|| listen(reading)));
        writing.write_all(PREFACE).unwrap();
        let _ = writing.write_all(&frame(SETTINGS, 0, 0, &[]));
        let (mut turns, started) = (0, Instant::now());
        let ended = loop {
            // Several turns per write, like a real attacker.
            let bytes: Vec<u8> = (turns..turns + 50).flat_map(turn).collect();
            match writing.write_all(&bytes) {
                Err(error) => break error.kind(),
                Ok(()) => turns += 50,
            }
            assert!(started.elapsed() < TIMEOUT, "after {turns} turns the connection is still open");
        };
        assert_ne!(ended, std::io::ErrorKind::WouldBlock, "the server neither reads nor closes");
        let _ = writing.shutdown(Shutdown::Both);
        let (goaway, resets) = listening.map(|thread| thread.join().unwrap()).unwrap_or_default();
        outcome.connections += 1;
        outcome.turns += turns;
        outcome.goaway = goaway.or(outcome.goaway);
        outcome.resets += resets;
    });
}

/// Reads to the end; returns the GOAWAY error code and the number of streams reset before.
fn listen(mut stream: TcpStream) -> (Option<u32>, u32) {
    let (mut goaway, mut resets) = (None, 0);
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        if stream.read_exact(&mut payload).is_err() {
            break;
        }
        resets += u32::from(head[3] == RST_STREAM);
        if head[3] == GOAWAY {
            goaway = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
    }
    (goaway, resets)
}

pub(crate) fn rapid_reset(start: Start) {
    let cancelled =
        |turn| [get(stream(turn)), frame(RST_STREAM, 0, stream(turn), &8_u32.to_be_bytes())].concat();
    attack("rapid reset", start, true, cancelled);
}

pub(crate) fn induced_resets(start: Start) {
    let no_window = |turn| [post(stream(turn)), frame(WINDOW_UPDATE, 0, stream(turn), &[0; 4])].concat();
    attack("window update of 0", start, true, no_window);
    let overflow = |turn| {
        let most = 0x7fff_ffff_u32.to_be_bytes();
        [post(stream(turn)), frame(WINDOW_UPDATE, 0, stream(turn), &most)].concat()
    };
    attack("window overflow", start, true, overflow);
    let more = |turn| [get(stream(turn)), frame(DATA, 0, stream(turn), b"more")].concat();
    attack("data after the end of the stream", start, true, more);
    let itself = |turn| {
        let block = frame(2, 0, stream(turn), &[stream(turn).to_be_bytes().as_slice(), &[0]].concat());
        [post(stream(turn)), block].concat()
    };
    attack("a stream that depends on itself", start, true, itself);
}

pub(crate) fn endless_continuation(start: Start) {
    let piece = frame(CONTINUATION, 0, 1, &[&[0x00, 1, b'x', 100][..], &[b'y'; 100]].concat());
    let endless = |turn| if turn == 0 { frame(HEADERS, 0, 1, &headers("GET", "/")) } else { piece.clone() };
    attack("continuation flood", start, true, endless);
    let empty = |turn| {
        if turn == 0 { frame(HEADERS, 0, 1, &headers("GET", "/")) } else { frame(CONTINUATION, 0, 1, &[]) }
    };
    attack("empty continuation flood", start, true, empty);
}

pub(crate) fn settings_and_pings(start: Start) {
    // SETTINGS_HEADER_TABLE_SIZE, with another value in each turn.
    let settings = |turn: u32| {
        let value = (turn % 4096).to_be_bytes();
        frame(SETTINGS, 0, 0, &[&[0, 1][..], &value].concat())
    };
    attack("settings flood", start, true, settings);
    attack("settings flood, nothing read", start, false, settings);
    let ping = |turn: u32| frame(PING, 0, 0, &u64::from(turn).to_be_bytes());
    attack("ping flood", start, true, ping);
    attack("ping flood, nothing read", start, false, ping);
}

pub(crate) fn hpack_bomb(start: Start) {
    // A field of 4,000 bytes enters the table once and is referenced by one byte each time.
    let mut planted = headers("GET", "/");
    planted.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    planted.extend([b'y'; 4_000]);
    let bomb = [headers("GET", "/"), vec![0xbe; 16_000]].concat();
    attack("hpack bomb", start, true, |turn| {
        let block = if turn == 0 { &planted } else { &bomb };
        frame(HEADERS, END_HEADERS | END_STREAM, stream(turn), block)
    });
}

pub(crate) fn empty_data(start: Start) {
    let empty = |turn| if turn == 0 { post(1) } else { frame(DATA, 0, 1, &[]) };
    attack("empty data flood", start, true, empty);
}

pub(crate) fn unread_responses(start: Start) {
    // SETTINGS_INITIAL_WINDOW_SIZE of 0: the server may not send any body.
    let refusing = |turn| match turn {
        0 => frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]),
        turn if turn <= 100 => get(stream(turn)),
        // The attacker answers the server's pings.
        _ => {
            std::thread::sleep(Duration::from_millis(2));
            frame(PING, ACK, 0, &[0x3b, 0x7c, 0xdb, 0x7a, 0x0b, 0x87, 0x16, 0xb4])
        }
    };
    attack("answers that are not taken", start, true, refusing);
}
