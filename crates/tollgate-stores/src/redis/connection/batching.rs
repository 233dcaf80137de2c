//! One connection, kept alive, and the batches that travel on it.
//!
//! Decisions that wait at the same moment leave in one write: that, and not the client library, is what a call costs.
//! Two batches are under way at once, so that the second fills while the first is answered. A connection that is lost
//! is dialled again after a random wait that doubles, so that a fleet does not arrive all at once; while there is none,
//! nothing waits. One on which nothing comes back while it is asked is passed over by decisions, asked from aside, and
//! dialled again beside it: the other end may have forgotten it without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use futures_util::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Pipeline, Value};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::redis::connection::breaker::Breaker;
use crate::redis::connection::call::Call;
use crate::redis::connection::dial::{NoConnection, dial};
use crate::redis::connection::error::Fault;
use crate::redis::random::jitter;
use crate::redis::script::ChargeScript;

/// Calls in one write at most.
const BATCH_MAX: usize = 128;
/// Writes that wait for an answer at most.
const BATCHES_IN_FLIGHT: usize = 2;
/// Calls that may wait for their batch; more than a server answers within the budget of a decision.
const QUEUE_MAX: usize = 4_096;
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A connection that lasted so long was one.
const LASTED: Duration = Duration::from_secs(1);
/// After so long without an answer the connection itself is suspected.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// Dials of one server that are under way at once at most.
pub(crate) const DIALS_AT_ONCE: usize = 2;
/// How long a batch waits for its answer at least. Decisions usually stop waiting long before; this frees the place of
/// the batch.
const SILENCE_MIN: Duration = Duration::from_millis(500);

/// One connection to one server.
pub(crate) struct BatchingConnection {
    calls: mpsc::Sender<Call>,
    line: Arc<Line>,
}

/// What the connection's tasks share.
struct Line {
    client: Client,
    connect_timeout: Duration,
    /// How long a batch waits for its answer.
    silence_max: Duration,
    /// Nothing while it is being dialled.
    connection: ArcSwapOption<MultiplexedConnection>,
    /// Why the server does not take us, if only an operator can help.
    refused: ArcSwapOption<Fault>,
    /// Why the last attempt to connect failed; nothing since one did not.
    failed: ArcSwapOption<String>,
    /// Whether a call was answered on this connection.
    served: AtomicBool,
    /// Told when the connection is found broken, or made.
    broken: Notify,
    made: Notify,
    dials: AtomicU64,
    /// Since when calls have gone unanswered on this connection, in milliseconds of `opened`; none if zero.
    silent_since: AtomicU64,
    /// Whether another is being made beside the one in use.
    dials_again: AtomicBool,
    opened: Instant,
    /// Of the server: so many may be dialled at once.
    dialling: Arc<Semaphore>,
    /// Of the server: a connection that was just greeted ends its doubts.
    breaker: Arc<Breaker>,
    /// How long a decision would wait.
    budget: Duration,
}

impl BatchingConnection {
    /// A connection whose tasks run until it is dropped.
    pub(crate) fn open(
        client: Client,
        connect_timeout: Duration,
        budget: Duration,
        breaker: Arc<Breaker>,
        dialling: Arc<Semaphore>,
    ) -> (Self, [tokio::task::JoinHandle<()>; 2]) {
        let line = Arc::new(Line {
            client,
            connect_timeout,
            silence_max: budget.max(SILENCE_MIN),
            connection: ArcSwapOption::empty(),
            refused: ArcSwapOption::empty(),
            failed: ArcSwapOption::empty(),
            served: AtomicBool::new(false),
            broken: Notify::new(),
            made: Notify::new(),
            dials: AtomicU64::new(0),
            silent_since: AtomicU64::new(0),
            dials_again: AtomicBool::new(false),
            opened: Instant::now(),
            dialling,
            breaker,
            budget,
        });
        let (calls, queue) = mpsc::channel(QUEUE_MAX);
        let keeper = tokio::spawn(Arc::clone(&line).keep());
        let sender = tokio::spawn(send_batches(queue, Arc::clone(&line)));
        (BatchingConnection { calls, line }, [keeper, sender])
    }

    /// Queues a call. If it cannot be, nothing was sent.
    pub(crate) fn send(&self, call: Call) -> Result<(), Fault> {
        if let Some(fault) = self.line.refused.load_full() {
            return Err(Fault::clone(&fault));
        }
        if self.line.connection.load().is_none() {
            return Err(Fault::NotSent);
        }
        self.calls.try_send(call).map_err(|_| Fault::NotSent)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.line.connection.load().is_some()
    }

    /// Whether the last that was asked on it was not answered, or not in time.
    pub(crate) fn is_silent(&self) -> bool {
        self.line.silent_since.load(Ordering::Relaxed) != 0
    }

    /// A call that was queued at this instant was not answered in time. It may yet be, or others.
    pub(crate) fn note_silence(&self, since: Instant) {
        self.line.unheard_since(since);
    }

    /// Whether a server refuses us for good.
    pub(crate) fn refusal(&self) -> Option<Arc<Fault>> {
        self.line.refused.load_full()
    }

    /// Waits until there is a connection.
    pub(crate) async fn connected(&self) {
        loop {
            let made = self.line.made.notified();
            if self.is_connected() || self.refusal().is_some() {
                return;
            }
            made.await;
        }
    }

    /// Why the last attempt to connect failed, if it did.
    pub(crate) fn failure(&self) -> Option<Arc<String>> {
        self.line.failed.load_full()
    }

    /// A call past everything that is queued.
    pub(crate) async fn ask(&self, command: &Cmd, patience: Duration) -> Result<Value, Fault> {
        let connection = self.line.connection.load_full().ok_or(Fault::NotSent)?;
        let mut speaker = MultiplexedConnection::clone(&connection);
        let asked = Instant::now();
        match timeout(patience, speaker.send_packed_command(command)).await {
            Ok(Ok(value)) => {
                self.line.heard_on(&connection);
                plain(value)
            }
            Ok(Err(error)) => {
                let fault = Fault::from_connection(&error);
                if fault != Fault::NoReply {
                    self.line.give_up(&connection);
                }
                Err(fault)
            }
            Err(_) => {
                self.line.unheard_since(asked);
                Err(Fault::NoReply)
            }
        }
    }

    /// Has another connection made beside one that has been silent for long.
    pub(crate) fn redial_if_silent(&self) {
        let line = &*self.line;
        let since = Duration::from_millis(line.silent_since.load(Ordering::Relaxed));
        let is_suspect = !since.is_zero() && line.opened.elapsed() > since + SUSPECT_AFTER;
        if is_suspect && self.is_connected() && !line.dials_again.swap(true, Ordering::Relaxed) {
            // Of a server that is silent on all of them the breaker tells.
            if !line.breaker.is_open() {
                let server = line.client.get_connection_info().addr();
                warn!(%server, "a connection to the counter store leads nowhere: making another");
            }
            line.broken.notify_one();
        }
    }

    /// Connections that were tried.
    pub(crate) fn dials(&self) -> u64 {
        self.line.dials.load(Ordering::Relaxed)
    }
}

impl Line {
    /// Makes the connection, and makes it again whenever it breaks. The first failure in a row is told with its reason.
    async fn keep(self: Arc<Self>) {
        let mut failures = 0_u32;
        loop {
            match self.dial().await {
                Ok((connection, greeting)) => {
                    let lasted = self.use_until_broken(connection, greeting).await;
                    // A connection that is closed on arrival is no better than none.
                    failures = if lasted { 0 } else { failures + 1 };
                }
                Err(failure) => {
                    self.note_failure(failure, failures == 0);
                    failures += 1;
                }
            }
            if let Some(doublings) = failures.checked_sub(1) {
                let ceiling = BACKOFF_MIN.saturating_mul(1 << doublings.min(10)).min(BACKOFF_MAX);
                sleep(jitter(ceiling)).await;
            }
        }
    }

    async fn dial(&self) -> Result<(MultiplexedConnection, Option<Duration>), NoConnection> {
        let _permit = self.dialling.acquire().await;
        self.dials.fetch_add(1, Ordering::Relaxed);
        dial(&self.client, self.connect_timeout, self.silence_max).await
    }

    /// Has calls made on a new connection until it is found broken. Whether it was of any use.
    async fn use_until_broken(&self, connection: MultiplexedConnection, greeting: Option<Duration>) -> bool {
        let made = Instant::now();
        self.refused.store(None);
        self.failed.store(None);
        self.served.store(false, Ordering::Relaxed);
        self.silent_since.store(0, Ordering::Relaxed);
        self.dials_again.store(false, Ordering::Relaxed);
        // What was said of the one before is not said of this one.
        let _ = self.broken.notified().now_or_never();
        self.connection.store(Some(Arc::new(connection)));
        self.made.notify_waiters();
        // A server that is too slow for decisions, or not ready for them, is still left alone.
        if greeting.is_some_and(|took| took <= self.budget) && !self.breaker.is_answered() {
            self.breaker.close(Instant::now());
        }
        self.broken.notified().await;
        // Not taken away before the next is there: a server that was only slow may answer on it.
        let lasted = self.served.load(Ordering::Relaxed) || made.elapsed() >= LASTED;
        if lasted && self.connection.load().is_none() {
            info!(server = %self.client.get_connection_info().addr(), "lost the connection to the counter store");
        }
        lasted
    }

    fn note_failure(&self, NoConnection { fault, words }: NoConnection, tell: bool) {
        let server = self.client.get_connection_info().addr();
        let is_refusal = matches!(fault, Fault::Misconfigured(_));
        if is_refusal && self.refused.load().is_none() {
            warn!(%server, reason = words, "the counter store refuses us");
        } else if tell && !is_refusal {
            warn!(%server, reason = words, "cannot connect to the counter store; will try again");
        }
        // What it was last refused for stands until there is a connection: a server that is down does not take us either.
        if is_refusal {
            self.refused.store(Some(Arc::new(fault)));
            self.made.notify_waiters();
        }
        self.failed.store(Some(Arc::new(words)));
    }

    /// Something came back on a connection.
    fn heard_on(&self, connection: &Arc<MultiplexedConnection>) {
        // That of one that was replaced says nothing of the one in use.
        if self.silent_since.load(Ordering::Relaxed) != 0 && self.is_current(connection) {
            self.silent_since.store(0, Ordering::Relaxed);
        }
    }

    /// Nothing has come back on the connection for what was sent at this instant.
    fn unheard_since(&self, since: Instant) {
        let millis = since.saturating_duration_since(self.opened).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX).max(1);
        let _ = self.silent_since.compare_exchange(0, millis, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_current(&self, connection: &Arc<MultiplexedConnection>) -> bool {
        self.connection.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, connection))
    }

    /// Takes a broken connection out of use, unless it was replaced meanwhile.
    fn give_up(&self, broken: &Arc<MultiplexedConnection>) {
        if self.is_current(broken) {
            self.connection.store(None);
            self.broken.notify_one();
        }
    }
}

/// Sends what is queued, in batches.
async fn send_batches(mut queue: mpsc::Receiver<Call>, line: Arc<Line>) {
    let in_flight = Arc::new(Semaphore::new(BATCHES_IN_FLIGHT));
    let mut calls = Vec::with_capacity(BATCH_MAX);
    while queue.recv_many(&mut calls, BATCH_MAX).await > 0 {
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return };
        // Whoever has stopped waiting is not charged.
        calls.retain(Call::leaves);
        let batch = std::mem::replace(&mut calls, Vec::with_capacity(BATCH_MAX));
        let line = Arc::clone(&line);
        tokio::spawn(async move {
            send_batch(batch, &line).await;
            drop(permit);
        });
    }
}

async fn send_batch(batch: Vec<Call>, line: &Line) {
    let Some(connection) = line.connection.load_full() else {
        answer_all(batch, &Fault::NotSent);
        return;
    };
    let mut waiting = Vec::with_capacity(batch.len());
    let mut pipeline = Pipeline::with_capacity(batch.len());
    for call in batch {
        if call.asking {
            pipeline.add_command(redis::cmd("ASKING")).ignore();
        }
        pipeline.add_command(call.command);
        waiting.push((call.asking, call.answer));
    }
    if waiting.is_empty() {
        return;
    }
    let sent = Instant::now();
    let mut answers = match exchange(&connection, &pipeline).await {
        Ok(answers) => answers,
        Err(fault) => {
            if fault != Fault::NoReply {
                line.give_up(&connection);
            } else if line.is_current(&connection) {
                line.unheard_since(sent);
            }
            for (_, answer) in waiting {
                let _ = answer.send(Err(fault.clone()));
            }
            return;
        }
    };
    if !line.served.load(Ordering::Relaxed) {
        line.served.store(true, Ordering::Relaxed);
    }
    line.heard_on(&connection);
    if answers.contains(&Err(Fault::NoScript)) {
        say_script_again(&connection, &pipeline, &mut answers).await;
    }
    let mut answers = answers.into_iter();
    for (asking, answer) in waiting {
        if asking {
            answers.next();
        }
        let _ = answer.send(answers.next().unwrap_or(Err(Fault::ConnectionLost)));
    }
}

/// What a server said to each command of a batch.
type Answers = Vec<Result<Value, Fault>>;

/// Sends a batch and reads an answer for each of its commands.
async fn exchange(connection: &Arc<MultiplexedConnection>, pipeline: &Pipeline) -> Result<Answers, Fault> {
    let mut connection = MultiplexedConnection::clone(connection);
    let count = pipeline.len();
    let answers = connection.send_packed_commands(pipeline, 0, count).await;
    let answers = answers.map_err(|error| Fault::from_connection(&error))?;
    Ok(answers.into_iter().map(plain).collect())
}

/// The server has forgotten the script (or never had it): it is told once, and what failed for it is sent again. Nothing
/// was charged by a call that failed so.
async fn say_script_again(
    connection: &Arc<MultiplexedConnection>,
    pipeline: &Pipeline,
    answers: &mut Answers,
) {
    let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
    let mut again = Pipeline::with_capacity(commands.len() + 1);
    again.add_command(ChargeScript::load());
    // Which they are, and where they are in the second batch.
    let mut missing = Vec::new();
    for (index, _) in answers.iter().enumerate().filter(|(_, answer)| **answer == Err(Fault::NoScript)) {
        // Permission to ask for a slot that is on its way is for one command: it was used up by the first attempt.
        if index.checked_sub(1).is_some_and(|before| is_asking(commands[before])) {
            again.add_command(redis::cmd("ASKING"));
        }
        missing.push((index, again.len()));
        again.add_command((*commands[index]).clone());
    }
    let second = exchange(connection, &again).await;
    for (index, position) in missing {
        answers[index] = match &second {
            // Why it stays unknown: we may not tell it.
            Ok(second) if let Some(Err(fault)) = second.first() => Err(fault.clone()),
            Ok(second) => second.get(position).cloned().unwrap_or(Err(Fault::ConnectionLost)),
            // The next batch finds out about the connection.
            Err(fault) => Err(fault.clone()),
        };
    }
}

fn is_asking(command: &Cmd) -> bool {
    matches!(command.args_iter().next(), Some(redis::Arg::Simple(name)) if name == b"ASKING")
}

fn plain(value: Value) -> Result<Value, Fault> {
    match value {
        Value::ServerError(error) => Err(Fault::from_server(&error)),
        value => Ok(value),
    }
}

fn answer_all(batch: Vec<Call>, fault: &Fault) {
    for call in batch {
        let _ = call.answer.send(Err(fault.clone()));
    }
}
