//! One Redis server: its connections, its circuit breaker, and the probe that closes the breaker.

mod rejection;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Client, Cmd, Value};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout_at};

use self::rejection::Rejections;
use super::batching::link::Link;
use super::batching::{BatchingConnection, CONCURRENT_DIALS_MAX, ConnectionSettings};
use super::breaker::Breaker;
use super::call::{Call, SendOrCancel};
use super::error::Fault;
use super::random::jitter;
use crate::redis::script::keys;
use crate::redis::settings::{Address, RedisSettings};

const PROBE_INTERVAL: Duration = Duration::from_millis(75);
const PROBE_JITTER: Duration = Duration::from_millis(50);
/// Expiry of the key that a probe writes.
const PROBE_TTL_MILLIS: u64 = 1_000;

/// One Redis server.
pub(crate) struct Server {
    name: String,
    client: Client,
    dialing: Arc<Semaphore>,
    pool: Arc<Pool>,
    rejections: Rejections,
    calls: AtomicU64,
    /// Failed calls by label.
    faults: Mutex<BTreeMap<&'static str, u64>>,
    /// Stopped when the server is dropped.
    _probe: JoinSet<()>,
}

/// The connections to a server.
struct Pool {
    connections: Box<[BatchingConnection]>,
    next: AtomicUsize,
    breaker: Arc<Breaker>,
    /// Timeout of a probe, the same as of a decision: a server too slow for decisions has not recovered.
    timeout: Duration,
    /// The slot in which the last call failed, for a probe that writes; `NO_SLOT` outside a cluster.
    failed_slot: AtomicU32,
}

const NO_SLOT: u32 = u32::MAX;

/// Statistics of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStats {
    /// The address.
    pub server: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether the circuit breaker is open.
    pub breaker_open: bool,
    /// How often the circuit breaker has opened.
    pub breaker_openings: u64,
    /// Calls sent.
    pub calls: u64,
    /// Connection attempts.
    pub dials: u64,
    /// Failed calls by the code of the error reply, or by the kind of failure.
    pub faults: Vec<(&'static str, u64)>,
    /// Why the server is not used, if it is not.
    pub error: Option<String>,
}

impl Server {
    /// Starts connecting and returns at once.
    pub(crate) fn open(address: &Address, settings: &RedisSettings) -> Result<Self, Fault> {
        let client = settings.client(address).map_err(|error| Fault::misconfigured(error.to_string()))?;
        let name = address.to_string();
        let breaker = Arc::new(Breaker::new(name.clone(), Instant::now()));
        let dialing = Arc::new(Semaphore::new(CONCURRENT_DIALS_MAX));
        let connection = ConnectionSettings {
            client: client.clone(),
            connect_timeout: settings.connect_timeout,
            timeout: settings.timeout,
            breaker: Arc::clone(&breaker),
            dialing: Arc::clone(&dialing),
        };
        let count = settings.connections.get();
        let pool = Arc::new(Pool {
            connections: (0..count).map(|_| BatchingConnection::open(connection.clone())).collect(),
            next: AtomicUsize::new(0),
            breaker,
            timeout: settings.timeout,
            failed_slot: AtomicU32::new(NO_SLOT),
        });
        let mut probe = JoinSet::new();
        probe.spawn(Arc::clone(&pool).probe());
        Ok(Server {
            name,
            client,
            dialing,
            pool,
            rejections: Rejections::default(),
            calls: AtomicU64::new(0),
            faults: Mutex::default(),
            _probe: probe,
        })
    }

    /// The address as configured.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Bounds concurrent dials; take a permit to dial.
    pub(crate) fn dialing(&self) -> Arc<Semaphore> {
        Arc::clone(&self.dialing)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.pool.links().any(Link::is_connected)
    }

    /// Whether the breaker is open or the last call failed.
    pub(crate) fn is_suspect(&self) -> bool {
        self.pool.breaker.is_suspect()
    }

    /// Why the server rejects our connections, if only an operator can help.
    pub(crate) fn rejection(&self) -> Option<Arc<Fault>> {
        self.pool.links().find_map(Link::rejection)
    }

    /// Why the server rejects connections, or lately rejected decisions.
    pub(crate) fn decision_rejection(&self) -> Option<Arc<Fault>> {
        self.rejection().or_else(|| self.rejections.recent_decision())
    }

    /// Why the server lately rejected commands other than decisions.
    pub(crate) fn admin_rejection(&self) -> Option<Arc<Fault>> {
        self.rejections.recent_admin()
    }

    /// Reports decisions as rejected until one succeeds.
    pub(crate) fn reject_decisions(&self, fault: &Fault) {
        self.rejections.reject_decisions(fault);
    }

    /// Remembers the cluster slot in which a call failed: the probe writes there.
    pub(crate) fn note_failed_slot(&self, slot: u32) {
        self.pool.failed_slot.store(slot, Ordering::Relaxed);
    }

    /// Waits for a connection, or for a rejection.
    pub(crate) async fn connected(&self) {
        if let Some(connection) = self.pool.connections.first() {
            connection.link().connected().await;
        }
    }

    pub(crate) fn stats(&self) -> ServerStats {
        let breaker = &self.pool.breaker;
        ServerStats {
            server: self.name.clone(),
            connected: self.is_connected(),
            breaker_open: breaker.is_open(),
            breaker_openings: breaker.openings(),
            calls: self.calls.load(Ordering::Relaxed),
            dials: self.pool.links().map(Link::dials).sum(),
            faults: self.faults.lock().iter().map(|(label, count)| (*label, *count)).collect(),
            error: self.error(),
        }
    }

    fn error(&self) -> Option<String> {
        if !self.is_connected() {
            let error = self.pool.links().find_map(Link::dial_error);
            return Some(error.map_or_else(|| Fault::NotSent.to_string(), |error| error.to_string()));
        }
        self.pool.breaker.reason().map(|fault| fault.to_string())
    }

    /// Sends a command and waits for its reply until the deadline.
    pub(crate) async fn call(&self, command: Cmd, asking: bool, deadline: Instant) -> Result<Value, Fault> {
        if let Some(rejection) = self.rejection() {
            return Err(Fault::clone(&rejection));
        }
        if self.pool.breaker.is_open() {
            return Err(Fault::NotSent);
        }
        let admin_command = (!is_decision(&command)).then(|| name_of(&command).into());
        let outcome = self.exchange(command, asking, deadline).await;
        self.rejections.record(&self.name, &outcome, admin_command);
        let fault = outcome.as_ref().err();
        if let Some(label) = fault.and_then(Fault::label) {
            *self.faults.lock().entry(label).or_default() += 1;
        }
        self.pool.breaker.record(fault.filter(|fault| fault.trips_breaker()), Instant::now());
        outcome
    }

    /// Sends a command about the server itself, past the breaker and the queue.
    pub(crate) async fn query(&self, command: &Cmd, patience: Duration) -> Result<Value, Fault> {
        if let Some(rejection) = self.rejection() {
            return Err(Fault::clone(&rejection));
        }
        let connection = self.pool.connection(0).ok_or(Fault::NotSent)?;
        let outcome = connection.send_now(command, patience).await;
        self.rejections.record(&self.name, &outcome, Some(name_of(command).into()));
        outcome
    }

    async fn exchange(&self, command: Cmd, asking: bool, deadline: Instant) -> Result<Value, Fault> {
        let turn = self.pool.next.fetch_add(1, Ordering::Relaxed) % self.pool.connections.len().max(1);
        let connection = self.pool.connection(turn).ok_or(Fault::NotSent)?;
        let (reply, received) = oneshot::channel();
        let (queued, fate) = (Instant::now(), SendOrCancel::default());
        connection.send(Call { command, asking, reply, fate: fate.clone() })?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        match timeout_at(deadline.into(), received).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Fault::ConnectionLost),
            Err(_) => {
                connection.link().note_no_reply(queued);
                Err(if fate.decide() { Fault::QueueTimeout } else { Fault::NoReply })
            }
        }
    }
}

impl Pool {
    fn links(&self) -> impl Iterator<Item = &Link> {
        self.connections.iter().map(BatchingConnection::link)
    }

    /// The connection whose turn it is. Skips missing ones, because the server may accept fewer than configured, and
    /// unresponsive ones unless all are.
    fn connection(&self, turn: usize) -> Option<&BatchingConnection> {
        let in_turn = || self.connections.iter().cycle().skip(turn).take(self.connections.len());
        let connected = || in_turn().filter(|connection| connection.link().is_connected());
        connected().find(|connection| !connection.link().is_unresponsive()).or_else(|| connected().next())
    }

    /// Probes the server while its breaker is open, and each unresponsive connection.
    async fn probe(self: Arc<Self>) {
        loop {
            sleep(PROBE_INTERVAL + jitter(PROBE_JITTER)).await;
            for connection in &self.connections {
                if self.breaker.is_open() {
                    match connection.send_now(&self.probe_command(), self.timeout).await {
                        Err(fault) if fault.trips_breaker() => {
                            self.breaker.probe_failed(&fault, Instant::now());
                        }
                        _ => drop(self.breaker.close(Instant::now())),
                    }
                } else if connection.link().is_unresponsive() {
                    let _ = connection.send_now(&redis::cmd("PING"), self.timeout).await;
                }
                connection.link().redial_if_unresponsive();
            }
        }
    }

    /// `PING`, or a write if an error reply opened the breaker.
    fn probe_command(&self) -> Cmd {
        if !self.breaker.is_open_by_error_reply() {
            return redis::cmd("PING");
        }
        let slot = Some(self.failed_slot.load(Ordering::Relaxed)).filter(|slot| *slot != NO_SLOT);
        let mut write = redis::cmd("SET");
        write.arg(keys::probe(slot)).arg(1).arg("PX").arg(PROBE_TTL_MILLIS);
        write
    }
}

/// Decisions are calls of the script.
fn is_decision(command: &Cmd) -> bool {
    name_of(command) == b"EVALSHA"
}

fn name_of(command: &Cmd) -> &[u8] {
    match command.args_iter().next() {
        Some(redis::Arg::Simple(name)) => name,
        _ => b"",
    }
}
