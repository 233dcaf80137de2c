//! A connection that sends concurrent calls in batches and is kept open.
//!
//! Calls that wait at the same moment leave in one write; the number of writes decides what a call costs. Two batches may
//! be in flight, so that the second fills while the first waits for its replies. A lost connection is dialed again with
//! exponential backoff and jitter, and calls fail at once meanwhile. A connection without replies is avoided, probed, and
//! replaced, because the other end may have dropped it silently.

pub(crate) mod link;
mod sender;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Value};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::link::Link;
use super::breaker::Breaker;
use super::call::Call;
use super::error::Fault;

/// Calls that may wait for their batch: more than a server replies to within the timeout of a decision.
const QUEUE_MAX: usize = 4_096;
/// Concurrent dials per server.
pub(crate) const CONCURRENT_DIALS_MAX: usize = 2;

/// One connection to one server, with its queue.
pub(crate) struct BatchingConnection {
    queue: mpsc::Sender<Call>,
    link: Arc<Link>,
    /// Stopped when the connection is dropped.
    _tasks: JoinSet<()>,
}

/// What the connections of a server have in common.
#[derive(Clone)]
pub(crate) struct ConnectionSettings {
    pub(crate) client: Client,
    pub(crate) connect_timeout: Duration,
    /// Timeout of a decision.
    pub(crate) timeout: Duration,
    pub(crate) breaker: Arc<Breaker>,
    /// Bounds concurrent dials of the server.
    pub(crate) dialing: Arc<Semaphore>,
}

impl BatchingConnection {
    pub(crate) fn open(settings: ConnectionSettings) -> Self {
        let link = Arc::new(Link::new(settings));
        let (queue, calls) = mpsc::channel(QUEUE_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&link).keep_connected());
        tasks.spawn(sender::send_batches(calls, Arc::clone(&link)));
        BatchingConnection { queue, link, _tasks: tasks }
    }

    /// Queues a call. On error nothing was sent.
    pub(crate) fn send(&self, call: Call) -> Result<(), Fault> {
        if let Some(fault) = self.link.rejection() {
            return Err(Fault::clone(&fault));
        }
        if !self.link.is_connected() {
            return Err(Fault::NotSent);
        }
        self.queue.try_send(call).map_err(|_| Fault::NotSent)
    }

    /// Sends a command ahead of the queue.
    pub(crate) async fn send_now(&self, command: &Cmd, patience: Duration) -> Result<Value, Fault> {
        let connection = self.link.current().ok_or(Fault::NotSent)?;
        let mut handle = MultiplexedConnection::clone(&connection);
        let sent = Instant::now();
        match timeout(patience, handle.send_packed_command(command)).await {
            Ok(Ok(value)) => {
                self.link.note_reply(&connection);
                sender::check_error(value)
            }
            Ok(Err(error)) => {
                let fault = Fault::from_connection(&error);
                if fault != Fault::NoReply {
                    self.link.discard(&connection);
                }
                Err(fault)
            }
            Err(_) => {
                self.link.note_no_reply(sent);
                Err(Fault::NoReply)
            }
        }
    }

    /// The network connection and its state.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }
}
