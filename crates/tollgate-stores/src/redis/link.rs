//! One server: its connections, its breaker, and a probe that asks whether it is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::{Client, Cmd, Value};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout_at};
use tracing::{info, warn};

use super::breaker::Breaker;
use super::error::Fault;
use super::lane::{Job, Lane};
use super::random::jitter;
use super::settings::{Address, RedisSettings};

/// How often a server that is left alone is asked whether it is back.
const PROBE_EVERY: Duration = Duration::from_millis(75);
const PROBE_JITTER: Duration = Duration::from_millis(50);
/// After so long without an answer to any probe the connection itself is suspected.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);

/// How long a refused call speaks for those to come. Not for ever: a node that is sent no requests because of it would
/// not learn that all is well again.
const REFUSAL_KEPT: Duration = Duration::from_secs(5);

/// One server.
pub(super) struct Link {
    name: String,
    client: Client,
    inner: Arc<Inner>,
    tasks: Vec<JoinHandle<()>>,
}

struct Inner {
    lanes: Box<[Lane]>,
    next: AtomicUsize,
    breaker: Arc<Breaker>,
    /// How long a probe waits: as long as a decision would, or a server too slow for decisions would be called back,
    /// and one far away never.
    patience: Duration,
    calls: AtomicU64,
    /// What our login was last refused; nothing since an answer.
    refused: ArcSwapOption<Refused>,
}

struct Refused {
    fault: Fault,
    at: Instant,
}

impl Link {
    /// Begins to connect; nothing waits for it.
    pub(super) fn open(address: &Address, settings: &RedisSettings) -> Result<Self, Fault> {
        let client = settings.client(address).map_err(|error| Fault::Misconfigured(error.to_string()))?;
        let mut tasks = Vec::new();
        let breaker = Arc::new(Breaker::new(Instant::now()));
        let lanes = (0..settings.connections.get()).map(|_| {
            let (lane, own) =
                Lane::open(client.clone(), settings.connect_timeout, settings.timeout, Arc::clone(&breaker));
            tasks.extend(own);
            lane
        });
        let lanes = lanes.collect();
        let inner = Arc::new(Inner {
            lanes,
            next: AtomicUsize::new(0),
            breaker,
            patience: settings.timeout,
            calls: AtomicU64::new(0),
            refused: ArcSwapOption::empty(),
        });
        let name = address.to_string();
        tasks.push(tokio::spawn(probe(Arc::clone(&inner), name.clone())));
        Ok(Link { name, client, inner, tasks })
    }

    /// The address, as settings write it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A client for connections of their own.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the server is being left alone.
    pub(super) fn is_open(&self) -> bool {
        self.inner.breaker.is_open()
    }

    /// Whether the last call failed, or the server is being left alone.
    pub(super) fn is_doubted(&self) -> bool {
        self.inner.breaker.is_doubted()
    }

    /// Why the server refuses us, when it is dialled or has of late refused what was asked of it.
    pub(super) fn trouble(&self) -> Option<Arc<Fault>> {
        let of_late =
            |refused: Arc<Refused>| (refused.at.elapsed() < REFUSAL_KEPT).then(|| refused.fault.clone());
        self.refusal().or_else(|| self.inner.refused.load_full().and_then(of_late).map(Arc::new))
    }

    pub(super) fn is_connected(&self) -> bool {
        self.inner.lanes.iter().any(Lane::is_connected)
    }

    /// Why the server refuses us, if only an operator can help.
    pub(super) fn refusal(&self) -> Option<Arc<Fault>> {
        self.inner.lanes.iter().find_map(Lane::refusal)
    }

    pub(super) fn stats(&self) -> LinkStats {
        let inner = &self.inner;
        LinkStats {
            server: self.name.clone(),
            connected: self.is_connected(),
            breaker_open: self.is_open(),
            breaker_openings: inner.breaker.openings(),
            calls: inner.calls.load(Ordering::Relaxed),
            dials: inner.lanes.iter().map(Lane::dials).sum(),
        }
    }

    /// Waits until there is a connection, or a refusal.
    pub(super) async fn connected(&self) {
        if let Some(lane) = self.inner.lanes.first() {
            lane.connected().await;
        }
    }

    /// One call, answered by `deadline` or not at all.
    pub(super) async fn call(&self, command: Cmd, asking: bool, deadline: Instant) -> Result<Value, Fault> {
        let inner = &*self.inner;
        if let Some(refusal) = self.refusal() {
            return Err(Fault::clone(&refusal));
        }
        if inner.breaker.is_open() {
            return Err(Fault::NotDone);
        }
        let turn = inner.next.fetch_add(1, Ordering::Relaxed) % inner.lanes.len().max(1);
        let outcome = self.exchange(turn, command, asking, deadline).await;
        self.note_refusal(&outcome);
        let failed = outcome.as_ref().is_err_and(Fault::counts);
        if inner.breaker.note(failed, Instant::now()) {
            warn!(server = %self.name, "the counter store does not answer: deciding without it until it does");
        }
        outcome
    }

    /// Keeps in mind that our login may not do what it must, until it may.
    fn note_refusal(&self, outcome: &Result<Value, Fault>) {
        match outcome {
            Err(fault) if fault.is_of_login() => {
                self.inner
                    .refused
                    .store(Some(Arc::new(Refused { fault: fault.clone(), at: Instant::now() })));
            }
            Ok(_) if self.inner.refused.load().is_some() => self.inner.refused.store(None),
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
        // One that has no connection is passed over: a server may take fewer of us than we would like.
        let lanes = &self.inner.lanes;
        let mut in_turn = lanes.iter().cycle().skip(turn).take(lanes.len());
        let Some(lane) = in_turn.find(|lane| lane.is_connected()).or(lanes.get(turn)) else {
            return Err(Fault::NotDone);
        };
        let (answer, told) = oneshot::channel();
        lane.send(Job { command, asking, answer })?;
        self.inner.calls.fetch_add(1, Ordering::Relaxed);
        match timeout_at(deadline.into(), told).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Fault::Unknown),
            Err(_) => Err(Fault::Silent),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// What is known of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStats {
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
}

/// Asks a server that is left alone whether it is back, and lets the others know.
async fn probe(inner: Arc<Inner>, name: String) {
    let mut unanswered_since: Option<Instant> = None;
    loop {
        sleep(PROBE_EVERY + jitter(PROBE_JITTER)).await;
        if !inner.breaker.is_open() {
            unanswered_since = None;
            continue;
        }
        for lane in &inner.lanes {
            let asked = Instant::now();
            match lane.ping(inner.patience).await {
                Some(true) if inner.breaker.close(Instant::now()) => {
                    info!(server = %name, "the counter store answers again");
                }
                Some(false) => drop(unanswered_since.get_or_insert(asked)),
                Some(true) | None => {}
            }
            // The server may be back while this connection leads nowhere: another is tried beside it.
            if unanswered_since.is_some_and(|since| since.elapsed() > SUSPECT_AFTER) {
                unanswered_since = None;
                lane.redial();
            }
        }
    }
}
