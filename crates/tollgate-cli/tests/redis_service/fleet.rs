//! Several nodes share a limit.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tollgate_testkit::RedisServer;

use crate::harness::{Service, read_some};
use crate::{admitted, sharing};

const NODES: usize = 3;
const CONNECTIONS: usize = 60;
const REQUESTS: usize = 2_000;
const ROUNDS: usize = 50;

fn nodes(redis: &RedisServer, limit: u32, count: usize) -> Vec<Service> {
    // A long timeout: a busy machine must not cause degraded decisions.
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    (0..count).map(|_| sharing(limit, &counters, "")).collect()
}

#[test]
fn two_nodes_share_a_limit() {
    let redis = RedisServer::start();
    let nodes = nodes(&redis, 10, 2);
    assert_eq!(admitted(&nodes[0], "alice", 7), 7);
    assert_eq!(admitted(&nodes[1], "alice", 7), 3);
    assert_eq!(admitted(&nodes[0], "bob", 1), 1);
    let reset = nodes[1].admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"alice","endpoint":"/x"}"#);
    assert_eq!((reset.status, &reset.json()["counters"]), (200, &1.into()), "{}", reset.text);
    assert_eq!(admitted(&nodes[1], "alice", 20), 10);
}

#[test]
fn three_nodes_admit_exactly_the_limit_of_2000_requests() {
    let redis = RedisServer::start();
    let nodes = nodes(&redis, 100, NODES);
    let counts: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
    let together = Barrier::new(CONNECTIONS);
    thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let (node, counts, together) = (&nodes[number % NODES], &counts, &together);
            let share = REQUESTS / CONNECTIONS + usize::from(number < REQUESTS % CONNECTIONS);
            scope.spawn(move || {
                let mut stream = node.connect();
                for (round, count) in counts.iter().enumerate() {
                    together.wait();
                    count.fetch_add(burst(&mut stream, round, share), Ordering::Relaxed);
                }
            });
        }
    });
    let counts: Vec<usize> = counts.into_iter().map(AtomicUsize::into_inner).collect();
    let degraded = "tollgate_degraded_decisions_total{rule=\"by-user\",mode=\"local\"}";
    let degraded: Vec<_> = nodes.iter().map(|node| node.metric(degraded).unwrap_or(0.0)).collect();
    assert_eq!(degraded, [0.0; NODES], "decided without the shared counters; {counts:?}");
    assert!(counts.iter().all(|count| *count == 100), "{counts:?}");
}

/// Sends all requests at once and returns how many are admitted.
fn burst(stream: &mut TcpStream, round: usize, requests: usize) -> usize {
    let body = format!(r#"{{"user_id":"user-{round}","endpoint":"/x"}}"#);
    let request = format!(
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.repeat(requests).as_bytes()).unwrap();
    let mut statuses = Statuses::default();
    let mut chunk = [0; 16 << 10];
    while statuses.admitted + statuses.others < requests {
        let count = read_some(stream, &mut chunk).unwrap();
        assert!(count > 0, "the node hung up");
        statuses.read(&chunk[..count]);
    }
    assert_eq!(statuses.strange, 0, "neither 200 nor 429");
    statuses.admitted
}

/// Counts status lines; a response may be split over reads.
#[derive(Default)]
struct Statuses {
    rest: Vec<u8>,
    admitted: usize,
    others: usize,
    strange: usize,
}

impl Statuses {
    fn read(&mut self, bytes: &[u8]) {
        const LINE: &[u8] = b"HTTP/1.1 ";
        self.rest.extend_from_slice(bytes);
        let mut done = 0;
        while let Some(found) = find(&self.rest[done..], LINE) {
            let status = done + found + LINE.len();
            let Some(digits) = self.rest.get(status..status + 3) else { break };
            match digits {
                b"200" => self.admitted += 1,
                other => {
                    self.others += 1;
                    self.strange += usize::from(other != b"429");
                }
            }
            done = status + 3;
        }
        let kept = self.rest.len().saturating_sub(LINE.len() + 3).max(done);
        self.rest.drain(..kept);
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
