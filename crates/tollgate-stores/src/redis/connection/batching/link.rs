//! The network connection behind a queue: dialed, watched, replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use futures_util::FutureExt;
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{info, warn};

use super::ConnectionSettings;
use crate::redis::connection::dial::{DialError, dial};
use crate::redis::connection::error::Fault;
use crate::redis::connection::random::jitter;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A connection that lasted this long resets the backoff even if it served no call.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// A connection without replies for this long is replaced.
const REDIAL_AFTER: Duration = Duration::from_secs(1);
/// Minimum time that a batch waits for its replies. Decisions time out earlier; this frees the slot of the batch.
const RESPONSE_TIMEOUT_MIN: Duration = Duration::from_millis(500);

/// The network connection of one queue.
pub(crate) struct Link {
    settings: ConnectionSettings,
    response_timeout: Duration,
    /// Empty while disconnected.
    connection: ArcSwapOption<MultiplexedConnection>,
    rejection: ArcSwapOption<Fault>,
    dial_error: ArcSwapOption<String>,
    /// Whether the current connection has served a call.
    served: AtomicBool,
    broken: Notify,
    connected: Notify,
    dials: AtomicU64,
    /// Start of the current run of calls without reply, in milliseconds since `opened`; zero if all replied.
    no_reply_since: AtomicU64,
    /// Whether a replacement is being dialed.
    redialing: AtomicBool,
    opened: Instant,
}

impl Link {
    pub(crate) fn new(settings: ConnectionSettings) -> Self {
        Link {
            response_timeout: settings.timeout.max(RESPONSE_TIMEOUT_MIN),
            settings,
            connection: ArcSwapOption::empty(),
            rejection: ArcSwapOption::empty(),
            dial_error: ArcSwapOption::empty(),
            served: AtomicBool::new(false),
            broken: Notify::new(),
            connected: Notify::new(),
            dials: AtomicU64::new(0),
            no_reply_since: AtomicU64::new(0),
            redialing: AtomicBool::new(false),
            opened: Instant::now(),
        }
    }

    pub(crate) fn current(&self) -> Option<Arc<MultiplexedConnection>> {
        self.connection.load_full()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.load().is_some()
    }

    /// Whether the last call got no reply in time.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.no_reply_since.load(Ordering::Relaxed) != 0
    }

    /// Why the server rejects us, if only an operator can help.
    pub(crate) fn rejection(&self) -> Option<Arc<Fault>> {
        self.rejection.load_full()
    }

    /// Why the last dial failed; none after a successful one.
    pub(crate) fn dial_error(&self) -> Option<Arc<String>> {
        self.dial_error.load_full()
    }

    /// Connections attempted.
    pub(crate) fn dials(&self) -> u64 {
        self.dials.load(Ordering::Relaxed)
    }

    /// Waits for a connection, or for a rejection.
    pub(crate) async fn connected(&self) {
        loop {
            let connected = self.connected.notified();
            if self.is_connected() || self.rejection().is_some() {
                return;
            }
            connected.await;
        }
    }

    /// Dials, and dials again whenever the connection breaks.
    pub(crate) async fn keep_connected(self: Arc<Self>) {
        let mut failures = 0_u32;
        loop {
            match self.dial().await {
                Ok((connection, ping)) => {
                    let was_stable = self.use_until_broken(connection, ping).await;
                    // A connection that the server closes at once counts as a failure.
                    failures = if was_stable { 0 } else { failures + 1 };
                }
                Err(error) => {
                    self.note_dial_error(error, failures == 0);
                    failures += 1;
                }
            }
            if let Some(doublings) = failures.checked_sub(1) {
                let ceiling = BACKOFF_MIN.saturating_mul(1 << doublings.min(10)).min(BACKOFF_MAX);
                sleep(jitter(ceiling)).await;
            }
        }
    }

    async fn dial(&self) -> Result<(MultiplexedConnection, Option<Duration>), DialError> {
        let _permit = self.settings.dialing.acquire().await;
        self.dials.fetch_add(1, Ordering::Relaxed);
        dial(&self.settings.client, self.settings.connect_timeout, self.response_timeout).await
    }

    /// Puts a new connection to use until it breaks. Returns whether it was stable.
    async fn use_until_broken(&self, connection: MultiplexedConnection, ping: Option<Duration>) -> bool {
        let made = Instant::now();
        self.rejection.store(None);
        self.dial_error.store(None);
        self.served.store(false, Ordering::Relaxed);
        self.no_reply_since.store(0, Ordering::Relaxed);
        self.redialing.store(false, Ordering::Relaxed);
        // A notification about the previous connection must not end this one.
        let _ = self.broken.notified().now_or_never();
        self.connection.store(Some(Arc::new(connection)));
        self.connected.notify_waiters();
        let breaker = &self.settings.breaker;
        if ping.is_some_and(|took| took <= self.settings.timeout) && !breaker.is_open_by_error_reply() {
            breaker.close(Instant::now());
        }
        self.broken.notified().await;
        // An unresponsive connection stays in use until the next one stands: the server may only be slow.
        let was_stable = self.served.load(Ordering::Relaxed) || made.elapsed() >= STABLE_AFTER;
        if was_stable && self.connection.load().is_none() {
            info!(server = %self.server(), "redis: connection lost");
        }
        was_stable
    }

    /// Keeps the last rejection until there is a connection: a server that is down does not accept us either.
    fn note_dial_error(&self, DialError { fault, message }: DialError, is_first: bool) {
        let server = self.server();
        let is_rejection = matches!(fault, Fault::Misconfigured(_));
        if is_rejection && self.rejection.load().is_none() {
            warn!(%server, reason = message, "redis: server rejects the connection");
        } else if is_first && !is_rejection {
            warn!(%server, reason = message, "redis: cannot connect; retrying");
        }
        if is_rejection {
            self.rejection.store(Some(Arc::new(fault)));
            self.connected.notify_waiters();
        }
        self.dial_error.store(Some(Arc::new(message)));
    }

    /// Replaces the connection if it has been unresponsive for long.
    pub(crate) fn redial_if_unresponsive(&self) {
        let since = Duration::from_millis(self.no_reply_since.load(Ordering::Relaxed));
        let is_suspect = !since.is_zero() && self.opened.elapsed() > since + REDIAL_AFTER;
        if is_suspect && self.is_connected() && !self.redialing.swap(true, Ordering::Relaxed) {
            // The breaker logs a server that is unresponsive on all connections.
            if !self.settings.breaker.is_open() {
                warn!(server = %self.server(), "redis: connection without replies; opening another");
            }
            self.broken.notify_one();
        }
    }

    /// A reply arrived. A late reply on a replaced connection says nothing about the current one.
    pub(crate) fn note_reply(&self, connection: &Arc<MultiplexedConnection>) {
        if self.is_unresponsive() && self.is_current(connection) {
            self.no_reply_since.store(0, Ordering::Relaxed);
        }
    }

    /// A batch was answered on the current connection.
    pub(crate) fn note_served(&self, connection: &Arc<MultiplexedConnection>) {
        if !self.served.load(Ordering::Relaxed) {
            self.served.store(true, Ordering::Relaxed);
        }
        self.note_reply(connection);
    }

    /// A call sent at this instant got no reply.
    pub(crate) fn note_no_reply(&self, since: Instant) {
        let millis = since.saturating_duration_since(self.opened).as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX).max(1);
        let _ = self.no_reply_since.compare_exchange(0, millis, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn is_current(&self, connection: &Arc<MultiplexedConnection>) -> bool {
        self.connection.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, connection))
    }

    /// Stops using a broken connection.
    pub(crate) fn discard(&self, broken: &Arc<MultiplexedConnection>) {
        if self.is_current(broken) {
            self.connection.store(None);
            self.broken.notify_one();
        }
    }

    fn server(&self) -> &redis::ConnectionAddr {
        self.settings.client.get_connection_info().addr()
    }
}
