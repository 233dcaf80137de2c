//! Checks on several connections, each with a request id of its own.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::{Service, read_answer};

const CONNECTIONS: usize = 4;

/// Running load. Ends when it is stopped or the service ends.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Answered>>,
}

/// What the service answered: when, and with which status, by request id.
#[derive(Default)]
pub(crate) struct Answered {
    pub(crate) by_id: HashMap<String, (Instant, u16)>,
    /// Sent without an answer: the service may have decided them.
    pub(crate) unanswered: Vec<String>,
}

impl Answered {
    pub(crate) fn merge(&mut self, other: Answered) {
        self.by_id.extend(other.by_id);
        self.unanswered.extend(other.unanswered);
    }

    pub(crate) fn count(&self, status: u16) -> u64 {
        self.by_id.values().filter(|(_, answered)| *answered == status).count() as u64
    }
}

impl Load {
    /// Sends checks of a few users until it is stopped. `name` begins every request id.
    pub(crate) fn start(service: &Service, name: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..CONNECTIONS).map(|number| {
            let (stop, address, name) = (Arc::clone(&stop), service.address, format!("{name}-{number}"));
            std::thread::spawn(move || send(address, &name, || !stop.load(Ordering::Relaxed)))
        });
        Load { threads: threads.collect(), stop }
    }

    /// Ends the load and returns what was answered.
    pub(crate) fn stop(self) -> Answered {
        self.stop.store(true, Ordering::Relaxed);
        self.answered()
    }

    /// Waits until the connections have ended and returns what was answered.
    pub(crate) fn answered(self) -> Answered {
        let mut all = Answered::default();
        self.threads.into_iter().for_each(|thread| all.merge(thread.join().unwrap()));
        all
    }
}

fn send(address: SocketAddr, name: &str, mut goes_on: impl FnMut() -> bool) -> Answered {
    let mut answered = Answered::default();
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return answered };
    stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    let mut number = 0;
    while goes_on() {
        number += 1;
        let id = format!("{name}-{number}");
        let body = format!(r#"{{"user_id":"user-{}","endpoint":"/projects/{}"}}"#, number % 7, number % 3);
        let request = format!(
            "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             x-request-id: {id}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let is_sent = stream.write_all(request.as_bytes()).is_ok();
        let answer = is_sent.then(|| read_answer(&mut stream)).filter(|answer| answer.status != 0);
        let Some(answer) = answer else {
            answered.unanswered.push(id);
            break;
        };
        answered.by_id.insert(id, (Instant::now(), answer.status));
    }
    answered
}

/// Sends this many checks on one connection. All must be answered.
pub(crate) fn checks(service: &Service, name: &str, count: usize) -> Answered {
    let mut left = count + 1;
    let answered = send(service.address, name, || {
        left -= 1;
        left > 0
    });
    assert_eq!(answered.by_id.len(), count, "{name}");
    answered
}
