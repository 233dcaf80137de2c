//! One server: its connections, its breaker, and a probe that asks whether it is back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::{Client, Cmd, Value};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout_at};
use tracing::warn;

use crate::redis::connection::batching::{BatchingConnection, DIALS_AT_ONCE};
use crate::redis::connection::breaker::Breaker;
use crate::redis::connection::call::{Call, Departure};
use crate::redis::connection::error::Fault;
use crate::redis::random::jitter;
use crate::redis::script::keys;
use crate::redis::settings::{Address, RedisSettings};

/// How often a server that is left alone is asked whether it is back.
const PROBE_EVERY: Duration = Duration::from_millis(75);
const PROBE_JITTER: Duration = Duration::from_millis(50);
/// What a probe writes ends by itself after this.
const PROBE_KEPT_MILLIS: u64 = 1_000;

/// How long a refused decision speaks for those to come. Not for ever: a node that is sent no requests because of it
/// would not learn that all is well again.
const REFUSAL_KEPT: Duration = Duration::from_secs(5);
/// The same of what is done beside decisions, some of it every few seconds.
const SIDE_REFUSAL_KEPT: Duration = Duration::from_secs(20);
/// How often the log is told that decisions are refused.
const REFUSAL_TOLD_EVERY: Duration = Duration::from_mins(1);

/// One server.
pub(crate) struct Server {
    name: String,
    client: Client,
    /// So many connections may be dialled at once.
    dialling: Arc<Semaphore>,
    inner: Arc<Inner>,
    tasks: Vec<JoinHandle<()>>,
}

struct Inner {
    connections: Box<[BatchingConnection]>,
    next: AtomicUsize,
    breaker: Arc<Breaker>,
    /// How long a probe waits: as long as a decision would, or a server too slow for decisions would be called back,
    /// and one far away never.
    patience: Duration,
    calls: AtomicU64,
    /// Calls that failed, by the label of the fault.
    faults: Mutex<BTreeMap<&'static str, u64>>,
    /// What our login was last refused of decisions; nothing since one was answered.
    refused: ArcSwapOption<Refused>,
    /// The same of everything else; nothing since the same command was answered.
    refused_aside: ArcSwapOption<Refused>,
    /// When the log was told that decisions are refused.
    refusal_told: Mutex<Option<Instant>>,
    /// The slot of a cluster in which a call was last answered with a fault; none outside of clusters.
    slot: AtomicU32,
}

const NO_SLOT: u32 = u32::MAX;

struct Refused {
    fault: Fault,
    /// The name of the command, where it is not the one of decisions.
    command: Option<Box<[u8]>>,
    at: Instant,
}

impl Refused {
    /// Whether an answer to this command ends it. One of a cluster that is asked alone serves its own part of the clients:
    /// that says nothing of the others.
    fn is_over_with(&self, command: Option<&[u8]>) -> bool {
        self.command.as_deref() == command && !self.fault.is_of_topology()
    }

    /// The fault, if it was noted not long ago.
    fn within(this: &ArcSwapOption<Self>, kept: Duration) -> Option<Arc<Fault>> {
        let refused = this.load_full().filter(|refused| refused.at.elapsed() < kept)?;
        Some(Arc::new(refused.fault.clone()))
    }
}

impl Server {
    /// Begins to connect; nothing waits for it.
    pub(crate) fn open(address: &Address, settings: &RedisSettings) -> Result<Self, Fault> {
        let client = settings.client(address).map_err(|error| Fault::Misconfigured(error.to_string()))?;
        let mut tasks = Vec::new();
        let name = address.to_string();
        let breaker = Arc::new(Breaker::new(name.clone(), Instant::now()));
        let dialling = Arc::new(Semaphore::new(DIALS_AT_ONCE));
        let connections = (0..settings.connections.get()).map(|_| {
            let (breaker, dialling) = (Arc::clone(&breaker), Arc::clone(&dialling));
            let (connection, own) = BatchingConnection::open(
                client.clone(),
                settings.connect_timeout,
                settings.timeout,
                breaker,
                dialling,
            );
            tasks.extend(own);
            connection
        });
        let connections = connections.collect();
        let inner = Arc::new(Inner {
            connections,
            next: AtomicUsize::new(0),
            breaker,
            patience: settings.timeout,
            calls: AtomicU64::new(0),
            faults: Mutex::default(),
            refused: ArcSwapOption::empty(),
            refused_aside: ArcSwapOption::empty(),
            refusal_told: Mutex::default(),
            slot: AtomicU32::new(NO_SLOT),
        });
        tasks.push(tokio::spawn(probe(Arc::clone(&inner))));
        Ok(Server { name, client, dialling, inner, tasks })
    }

    /// The address, as settings write it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A client for connections of their own.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Has a permit for as long as a connection is dialled.
    pub(crate) fn dialling(&self) -> Arc<Semaphore> {
        Arc::clone(&self.dialling)
    }

    /// Whether the server is being left alone.
    pub(crate) fn is_open(&self) -> bool {
        self.inner.breaker.is_open()
    }

    /// Whether the last call failed, or the server is being left alone.
    pub(crate) fn is_doubted(&self) -> bool {
        self.inner.breaker.is_doubted()
    }

    /// Why the server refuses us, when it is dialled or has of late refused a decision.
    pub(crate) fn trouble(&self) -> Option<Arc<Fault>> {
        self.refusal().or_else(|| Refused::within(&self.inner.refused, REFUSAL_KEPT))
    }

    /// What the server has of late refused us beside decisions.
    pub(crate) fn warning(&self) -> Option<Arc<Fault>> {
        Refused::within(&self.inner.refused_aside, SIDE_REFUSAL_KEPT)
    }

    /// Keeps in mind that decisions are refused, until one is not.
    pub(crate) fn refuse(&self, fault: &Fault) {
        let refused = Refused { fault: fault.clone(), command: None, at: Instant::now() };
        self.inner.refused.store(Some(Arc::new(refused)));
    }

    /// Keeps in mind in which slot of a cluster the server said that it cannot: there it is asked whether it can.
    pub(crate) fn note_slot(&self, slot: u32) {
        self.inner.slot.store(slot, Ordering::Relaxed);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.inner.connections.iter().any(BatchingConnection::is_connected)
    }

    /// Why the server refuses us, if only an operator can help.
    pub(crate) fn refusal(&self) -> Option<Arc<Fault>> {
        self.inner.connections.iter().find_map(BatchingConnection::refusal)
    }

    pub(crate) fn stats(&self) -> ServerStats {
        let inner = &self.inner;
        ServerStats {
            server: self.name.clone(),
            connected: self.is_connected(),
            breaker_open: self.is_open(),
            breaker_openings: inner.breaker.openings(),
            calls: inner.calls.load(Ordering::Relaxed),
            dials: inner.connections.iter().map(BatchingConnection::dials).sum(),
            faults: inner.faults.lock().iter().map(|(label, count)| (*label, *count)).collect(),
            trouble: self.words(),
        }
    }

    /// Why nothing is asked of the server, if nothing is.
    fn words(&self) -> Option<String> {
        if !self.is_connected() {
            let failure = self.inner.connections.iter().find_map(BatchingConnection::failure);
            return Some(failure.map_or_else(|| Fault::NotSent.words(), |words| words.to_string()));
        }
        self.inner.breaker.why().map(|fault| fault.words())
    }

    /// Waits until there is a connection, or a refusal.
    pub(crate) async fn connected(&self) {
        if let Some(connection) = self.inner.connections.first() {
            connection.connected().await;
        }
    }

    /// One call, answered by `deadline` or not at all.
    pub(crate) async fn call(&self, command: Cmd, asking: bool, deadline: Instant) -> Result<Value, Fault> {
        let inner = &*self.inner;
        if let Some(refusal) = self.refusal() {
            return Err(Fault::clone(&refusal));
        }
        if inner.breaker.is_open() {
            return Err(Fault::NotSent);
        }
        let turn = inner.next.fetch_add(1, Ordering::Relaxed) % inner.connections.len().max(1);
        let aside = (!is_decision(&command)).then(|| name_of(&command).into());
        let outcome = self.exchange(turn, command, asking, deadline).await;
        self.note(&outcome, aside);
        outcome
    }

    /// A call past the breaker, and past all others: about the server itself, however it is.
    pub(crate) async fn ask_aside(&self, command: &Cmd, patience: Duration) -> Result<Value, Fault> {
        if let Some(refusal) = self.refusal() {
            return Err(Fault::clone(&refusal));
        }
        let connection = self.inner.connection(0).ok_or(Fault::NotSent)?;
        let outcome = connection.ask(command, patience).await;
        self.note_refusal(&outcome, Some(name_of(command).into()));
        outcome
    }

    /// Draws conclusions from how a call ended. `aside` is the name of its command if it was no decision.
    fn note(&self, outcome: &Result<Value, Fault>, aside: Option<Box<[u8]>>) {
        let inner = &*self.inner;
        self.note_refusal(outcome, aside);
        let fault = outcome.as_ref().err();
        if let Some(label) = fault.and_then(Fault::label) {
            *inner.faults.lock().entry(label).or_default() += 1;
        }
        inner.breaker.note(fault.filter(|fault| fault.counts()), Instant::now());
    }

    /// Keeps in mind that our login may not do what it must, until it may.
    fn note_refusal(&self, outcome: &Result<Value, Fault>, command: Option<Box<[u8]>>) {
        let inner = &*self.inner;
        let kept = if command.is_some() { &inner.refused_aside } else { &inner.refused };
        match outcome {
            Err(fault) if fault.is_of_login() => {
                if command.is_none() {
                    inner.tell_refusal(&self.name, fault);
                }
                kept.store(Some(Arc::new(Refused { fault: fault.clone(), command, at: Instant::now() })));
            }
            Ok(_) if kept.load().as_ref().is_some_and(|refused| refused.is_over_with(command.as_deref())) => {
                kept.store(None);
            }
            _ => {}
        }
    }

    async fn exchange(
        &self,
        turn: usize,
        command: Cmd,
        asking: bool,
        deadline: Instant,
    ) -> Result<Value, Fault> {
        let connection = self.inner.connection(turn).ok_or(Fault::NotSent)?;
        let (answer, told) = oneshot::channel();
        let (asked, departure) = (Instant::now(), Departure::default());
        connection.send(Call { command, asking, answer, departure: departure.clone() })?;
        self.inner.calls.fetch_add(1, Ordering::Relaxed);
        match timeout_at(deadline.into(), told).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Fault::ConnectionLost),
            Err(_) => {
                connection.note_silence(asked);
                Err(if departure.decide() { Fault::QueueTimeout } else { Fault::NoReply })
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// What is known of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStats {
    /// Its address.
    pub server: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether it is being left alone because it did not answer.
    pub breaker_open: bool,
    /// How often that happened.
    pub breaker_openings: u64,
    /// Calls that were sent.
    pub calls: u64,
    /// Connections that were tried.
    pub dials: u64,
    /// Calls that failed, by what they were told: a code of the server, or that it said nothing.
    pub faults: Vec<(&'static str, u64)>,
    /// Why it is not asked, if it is not.
    pub trouble: Option<String>,
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

/// Asks a server that is left alone whether it is back, and lets the others know; and asks on each connection that is
/// silent, for the server may be well and the connection lead nowhere.
async fn probe(inner: Arc<Inner>) {
    loop {
        sleep(PROBE_EVERY + jitter(PROBE_JITTER)).await;
        for connection in &inner.connections {
            if inner.breaker.is_open() {
                match connection.ask(&inner.question(), inner.patience).await {
                    Err(fault) if fault.counts() => inner.breaker.still_open(&fault, Instant::now()),
                    _ => drop(inner.breaker.close(Instant::now())),
                }
            } else if connection.is_silent() {
                let _ = connection.ask(&redis::cmd("PING"), inner.patience).await;
            }
            connection.redial_if_silent();
        }
    }
}

impl Inner {
    /// The connection whose turn it is. One that is not there is passed over, because a server may take fewer of us than we
    /// would like, and so is one that is silent, as long as another is not.
    fn connection(&self, turn: usize) -> Option<&BatchingConnection> {
        let in_turn = || self.connections.iter().cycle().skip(turn).take(self.connections.len());
        let connected = || in_turn().filter(|connection| connection.is_connected());
        connected().find(|connection| !connection.is_silent()).or_else(|| connected().next())
    }

    /// Tells the log now and then that decisions are refused.
    fn tell_refusal(&self, server: &str, fault: &Fault) {
        let now = Instant::now();
        let mut told = self.refusal_told.lock();
        if told.is_none_or(|told| now.duration_since(told) >= REFUSAL_TOLD_EVERY) {
            *told = Some(now);
            warn!(%server, reason = fault.words(), "the counter store refuses decisions");
        }
    }

    /// What tells whether the server is back. If it was silent, that it speaks; if it said that it cannot, that it can:
    /// a full server, and one that became a replica, still speak.
    fn question(&self) -> Cmd {
        if !self.breaker.is_answered() {
            return redis::cmd("PING");
        }
        let slot = Some(self.slot.load(Ordering::Relaxed)).filter(|slot| *slot != NO_SLOT);
        let mut write = redis::cmd("SET");
        write.arg(keys::probe(slot)).arg(1).arg("PX").arg(PROBE_KEPT_MILLIS);
        write
    }
}
