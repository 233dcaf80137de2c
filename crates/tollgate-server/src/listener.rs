//! Accepts connections, plain or with TLS, serves them over HTTP/1 and HTTP/2, and drains them at shutdown.
//!
//! A rate limiter is a target itself: slow or idle clients are timed out (`connection.rs`), connections are limited in total and
//! per address (`limits.rs`), and running out of file descriptors neither ends nor spins the accept loop. One thin service and no
//! layer stands between hyper and the handlers, because every decision pays for it.

mod accept_policy;
mod activity;
mod connection;
mod framing;
mod limits;
mod payload;
mod protocol;
pub(crate) mod proxy_header;
mod service;
mod socket;
mod tcp;
mod transport;
mod unsent;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

pub use self::accept_policy::AcceptPolicy;
use self::activity::Stage;
use self::connection::{ConnectionPolicy, Connections};
use self::limits::{ConnectionLimits, ConnectionPermit};
pub use self::payload::{Payload, StreamAborted};
pub(crate) use self::service::address_header;
pub use self::service::{ConnectionInfo, HttpService};
pub(crate) use self::tcp::write_at_once;
use crate::config::settings::ServerSettings;

/// The pause after a failed accept, for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often failed accepts are logged.
const WARN_EVERY: Duration = Duration::from_mins(1);
/// How long aborted connections may take to end.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// The listen backlog. A client that finds it full retries after a second. The system may allow less.
const BACKLOG: u32 = 4_096;

/// Connection counters, for metrics.
#[derive(Debug, Default)]
pub struct ConnectionStats {
    /// Open now.
    pub open: AtomicU64,
    /// Accepted and served.
    pub accepted: AtomicU64,
    /// Closed on arrival because of a connection limit.
    pub refused: AtomicU64,
    /// Closed because the client sent its request too slowly or was idle.
    pub timed_out: AtomicU64,
    /// Failed accepts.
    pub accept_errors: AtomicU64,
    /// Completed TLS handshakes.
    pub handshakes: AtomicU64,
    /// TLS handshakes that failed or timed out.
    pub handshakes_failed: AtomicU64,
    /// Connections of trusted proxies closed for lack of a valid PROXY header.
    pub proxy_headers_invalid: AtomicU64,
}

/// The result of draining.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections open when draining began.
    pub open: u64,
    /// Connections aborted after the drain timeout.
    pub aborted: u64,
    /// How long it took.
    pub took: Duration,
}

/// Listens on an address.
///
/// # Errors
/// When the address is in use or not local.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Lets a restarted process bind while old connections are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `service` on `listener` until `shutdown` completes, then drains requests in flight.
///
/// The service times out slow bodies itself, because only it can respond to them. Each new connection is accepted under the policy
/// of that moment.
pub async fn run(
    listener: TcpListener,
    service: impl HttpService,
    settings: &ServerSettings,
    policy: Arc<ArcSwap<AcceptPolicy>>,
    stats: Arc<ConnectionStats>,
    shutdown: impl Future<Output = ()>,
) -> DrainReport {
    let connections = Arc::new(Connections::new(service, settings, policy, Arc::clone(&stats)));
    let limits = Arc::new(ConnectionLimits::new(settings));
    // Each connection holds a sender; the channel closes with the last one.
    let (alive, gone) = mpsc::channel(1);
    let mut shutdown = pin!(shutdown);
    let mut warned = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => open(&connections, &limits, stream, peer, alive.clone()),
            Err(error) => {
                stats.accept_errors.fetch_add(1, Ordering::Relaxed);
                if !affects_one_connection(&error) {
                    log_accept_error(&error, &mut warned);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    accept_backlog(&listener, &connections, &limits, &alive).await;
    drop((listener, alive));
    drain(&connections.policy, gone, settings.drain_timeout).await
}

/// Accepts connections that are already in the backlog: their clients may have sent a request. Bounded, so that a flood does not
/// prevent shutdown.
async fn accept_backlog(
    listener: &TcpListener,
    connections: &Arc<Connections<impl HttpService>>,
    limits: &Arc<ConnectionLimits>,
    alive: &mpsc::Sender<()>,
) {
    for _ in 0..BACKLOG {
        match tokio::time::timeout(Duration::ZERO, listener.accept()).await {
            Ok(Ok((stream, peer))) => open(connections, limits, stream, peer, alive.clone()),
            _ => return,
        }
    }
}

fn log_accept_error(error: &io::Error, warned: &mut Option<Instant>) {
    if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
        *warned = Some(Instant::now());
        warn!(%error, "cannot accept connections");
    }
}

/// Whether only this client is affected: it disconnected before it was accepted.
fn affects_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn open(
    connections: &Arc<Connections<impl HttpService>>,
    limits: &Arc<ConnectionLimits>,
    stream: TcpStream,
    peer: SocketAddr,
    alive: mpsc::Sender<()>,
) {
    let accept = connections.accept.load_full();
    let Some(permit) = limits.acquire(accept.limited_address(peer)) else {
        connections.policy.note_refused(peer);
        return;
    };
    // Responses are small; Nagle's algorithm would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%peer, %error, "cannot set TCP_NODELAY");
    }
    connections.policy.stats.accepted.fetch_add(1, Ordering::Relaxed);
    connections.policy.stats.open.fetch_add(1, Ordering::Relaxed);
    let connections = Arc::clone(connections);
    tokio::spawn(async move {
        // Dropped when the task ends, also by a panic.
        let mut open = Open { stats: &connections.policy.stats, permit, _alive: alive };
        connections.open(stream, peer, &accept, &mut open.permit).await;
    });
}

struct Open<'c> {
    stats: &'c ConnectionStats,
    permit: ConnectionPermit,
    _alive: mpsc::Sender<()>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.stats.open.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn drain(policy: &ConnectionPolicy, mut gone: mpsc::Receiver<()>, timeout: Duration) -> DrainReport {
    let started = Instant::now();
    let open = || policy.stats.open.load(Ordering::Relaxed);
    let open_before = open();
    policy.enter(Stage::Draining);
    let mut aborted = 0;
    if tokio::time::timeout(timeout, gone.recv()).await.is_err() {
        aborted = open();
        warn!(aborted, "aborting connections that did not finish within drain_timeout");
        policy.enter(Stage::Aborting);
        let _ = tokio::time::timeout(ABORT_GRACE, gone.recv()).await;
    }
    let report = DrainReport { open: open_before, aborted, took: started.elapsed() };
    info!(open = report.open, aborted, took = ?report.took, "connections drained");
    report
}
