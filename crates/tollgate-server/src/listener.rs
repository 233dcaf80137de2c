//! Sockets: from `accept` to the surface, and the orderly end.
//!
//! A rate limiter is itself a target. So nothing a client does or omits holds a connection for long (see
//! `connection.rs`), connections are bounded in total and per address, and running out of file descriptors neither
//! ends the loop nor spins it. Between hyper and the surface there is one thin service and no layer: what is added to
//! a request here is paid for by every decision.

mod connection;
mod limits;
mod service;
mod socket;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use self::connection::{ConnectionPolicy, Connections, Stage};
use self::limits::Caps;
pub use self::service::HttpService;
use crate::config::settings::ServerSettings;

/// How long to wait when no connection can be accepted, for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often the log is told that none can be.
const WARN_EVERY: Duration = Duration::from_mins(1);
/// How long connections get to notice that they are to end at once.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// The queue of the listener is no longer than this. Whoever finds it full tries again a second later, so that a crowd that
/// comes at once would slow down everybody; the system may allow less.
const QUEUE_MAX: u32 = 4_096;

/// What happened to connections, for metrics.
#[derive(Debug, Default)]
pub struct ConnectionStats {
    /// Open now.
    pub open: AtomicU64,
    /// Accepted and served.
    pub accepted: AtomicU64,
    /// Closed at once because there were too many.
    pub refused: AtomicU64,
    /// Closed because the client took too long over a request, or had none.
    pub timed_out: AtomicU64,
    /// Failed attempts to accept one.
    pub accept_errors: AtomicU64,
}

impl ConnectionStats {
    /// Connections open now.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections closed at once because there were too many.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// How the end went.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections open when the end was asked for.
    pub open: u64,
    /// Connections cut off because they took too long.
    pub aborted: u64,
    /// How long it took.
    pub took: Duration,
}

/// Listens on an address.
///
/// # Errors
/// When it is taken, or not one of this machine.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a process that has just ended are not in the way.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE_MAX)
}

/// Serves `surface` on `listener` until `shutdown` completes, then lets requests in flight finish.
///
/// The surface itself gives up on a body that comes too slowly: only it can answer that.
pub async fn run(
    listener: TcpListener,
    surface: impl HttpService,
    settings: &ServerSettings,
    stats: Arc<ConnectionStats>,
    shutdown: impl Future<Output = ()>,
) -> DrainReport {
    let connections = Arc::new(Connections::new(surface, settings, Arc::clone(&stats)));
    let caps = Arc::new(Caps::new(settings));
    // Every connection holds a sender: when the last is gone, all are.
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
            Ok((stream, peer)) => open(&connections, &caps, stream, peer, alive.clone()),
            Err(error) => {
                stats.accept_errors.fetch_add(1, Ordering::Relaxed);
                if !is_of_one_connection(&error) {
                    tell_of(&error, &mut warned);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    accept_the_waiting(&listener, &connections, &caps, &alive).await;
    drop((listener, alive));
    drain(&connections.terms, gone, settings.drain_timeout).await
}

/// Clients in the queue of the listener are connected as far as they know, and may have sent a request. As many as the
/// queue can hold are served; a flood must not keep the service from ending.
async fn accept_the_waiting(
    listener: &TcpListener,
    connections: &Arc<Connections<impl HttpService>>,
    caps: &Arc<Caps>,
    alive: &mpsc::Sender<()>,
) {
    for _ in 0..QUEUE_MAX {
        match tokio::time::timeout(Duration::ZERO, listener.accept()).await {
            Ok(Ok((stream, peer))) => open(connections, caps, stream, peer, alive.clone()),
            _ => return,
        }
    }
}

/// A shortage lasts as long as whoever causes it likes: the log must not be as long.
fn tell_of(error: &io::Error, warned: &mut Option<Instant>) {
    if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
        *warned = Some(Instant::now());
        warn!(%error, "cannot accept connections");
    }
}

/// The client went away before it was accepted: the next one is fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn open(
    connections: &Arc<Connections<impl HttpService>>,
    caps: &Arc<Caps>,
    stream: TcpStream,
    peer: SocketAddr,
    alive: mpsc::Sender<()>,
) {
    let Some(place) = caps.take(peer.ip()) else {
        // Dropping the stream closes it: the cheapest answer there is.
        connections.terms.stats.refused.fetch_add(1, Ordering::Relaxed);
        debug!(%peer, "too many connections");
        return;
    };
    // Answers are small and single: waiting to fill a packet only delays them.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%peer, %error, "cannot set TCP_NODELAY");
    }
    connections.terms.stats.accepted.fetch_add(1, Ordering::Relaxed);
    connections.terms.stats.open.fetch_add(1, Ordering::Relaxed);
    let connections = Arc::clone(connections);
    tokio::spawn(async move {
        // Given back when the task ends, by a panic too.
        let _open = Open { stats: &connections.terms.stats, _place: place, _alive: alive };
        connections.serve(stream, peer).await;
    });
}

struct Open<'c> {
    stats: &'c ConnectionStats,
    _place: limits::Place,
    _alive: mpsc::Sender<()>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.stats.open.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn drain(terms: &ConnectionPolicy, mut gone: mpsc::Receiver<()>, timeout: Duration) -> DrainReport {
    let started = Instant::now();
    let open = terms.stats.open();
    terms.enter(Stage::Draining);
    let mut aborted = 0;
    if tokio::time::timeout(timeout, gone.recv()).await.is_err() {
        aborted = terms.stats.open();
        warn!(aborted, "cutting off connections that did not finish in time");
        terms.enter(Stage::Aborting);
        let _ = tokio::time::timeout(ABORT_GRACE, gone.recv()).await;
    }
    let report = DrainReport { open, aborted, took: started.elapsed() };
    info!(open, aborted, took = ?report.took, "connections drained");
    report
}
