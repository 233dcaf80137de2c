//! One connection: served by hyper, with timeouts for slow and idle clients.
//!
//! hyper's own header timeout also ends idle connections, sets a timer for every request, and does not run before the first
//! byte. Here a connection has one timer. Reading and serving record [`Activity`]; after hyper has made progress, the task compares it
//! and notes the time when the connection enters another [`Phase`]. The timer is moved only when it fires too early, so a request
//! costs one clock read.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::{Instant, Sleep};
use tracing::debug;

use super::ConnectionStats;
use super::service::{ConnectionService, HttpService};
use super::socket::LingeringSocket;
use crate::config::settings::ServerSettings;

const HTTP1_BUFFER_BYTES_MAX: usize = 64 * 1024;
const HTTP2_HEADER_BYTES_MAX: u32 = 16 * 1024;
const HTTP2_STREAMS_MAX: u32 = 256;
/// Streams that a client may open and reset before they are accepted (rapid reset, CVE-2023-44487).
const HTTP2_RESETS_MAX: usize = 20;
/// Streams that a client may make the server reset (`MadeYouReset`, CVE-2025-8671).
const HTTP2_FAULTS_MAX: usize = 256;
/// Bytes that a client may send without a request in flight: pings, settings, the rest of a refused body. More than the
/// connection window (1 MiB).
const HTTP2_IDLE_BYTES_MAX: u32 = 2 * 1024 * 1024;
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an idle HTTP/1 connection stays open while draining, so that a request already on its way is answered. HTTP/2 has
/// GOAWAY for this.
const DRAIN_LINGER: Duration = Duration::from_millis(300);
/// How long a client that is still sending may take to read the last response.
const CLOSE_LINGER: Duration = Duration::from_secs(2);

/// Serves all connections.
pub(super) struct Connections<S> {
    builder: Builder<TokioExecutor>,
    service: Arc<S>,
    pub(super) policy: ConnectionPolicy,
}

/// Timeouts and the lifecycle stage, shared by all connections.
pub(super) struct ConnectionPolicy {
    header_timeout: Duration,
    idle_timeout: Duration,
    stage: Arc<CurrentStage>,
    stage_changed: Notify,
    pub(super) stats: Arc<ConnectionStats>,
}

/// The lifecycle stage of the service.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Serving.
    Running,
    /// Finishing requests in flight.
    Draining,
    /// Closing connections at once.
    Aborting,
}

/// The current stage, shared by all connections.
#[derive(Debug, Default)]
struct CurrentStage(AtomicU8);

impl CurrentStage {
    fn enter(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::SeqCst);
    }

    fn get(&self) -> Stage {
        match self.0.load(Ordering::SeqCst) {
            0 => Stage::Running,
            1 => Stage::Draining,
            _ => Stage::Aborting,
        }
    }
}

impl<S: HttpService> Connections<S> {
    pub(super) fn new(service: S, settings: &ServerSettings, stats: Arc<ConnectionStats>) -> Self {
        let policy = ConnectionPolicy {
            header_timeout: settings.header_timeout,
            idle_timeout: settings.idle_timeout,
            stage: Arc::default(),
            stage_changed: Notify::new(),
            stats,
        };
        Connections { builder: builder(), service: Arc::new(service), policy }
    }

    /// Serves one connection to its end.
    pub(super) async fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let activity = Arc::new(Activity { stage: Arc::clone(&self.policy.stage), ..Activity::default() });
        let io = TokioIo::new(LingeringSocket::new(stream, Arc::clone(&activity)));
        let service =
            ConnectionService { service: Arc::clone(&self.service), peer, activity: Arc::clone(&activity) };
        let mut connection = pin!(self.builder.serve_connection(io, service));
        let mut watch = Watch::new(&self.policy, &activity);
        let mut timer = pin!(tokio::time::sleep_until(watch.deadline()));
        let mut changed = pin!(self.policy.stage_changed.notified());
        let end = std::future::poll_fn(|cx| {
            loop {
                if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                    return Poll::Ready(End::Closed(result.err()));
                }
                match watch.step(timer.as_mut(), changed.as_mut(), cx) {
                    Step::Wait => return Poll::Pending,
                    Step::Finish => connection.as_mut().graceful_shutdown(),
                    Step::End(end) => return Poll::Ready(end),
                }
            }
        });
        self.policy.note(&end.await, peer);
    }
}

impl ConnectionPolicy {
    /// Enters a stage and wakes every connection.
    pub(super) fn enter(&self, stage: Stage) {
        self.stage.enter(stage);
        self.stage_changed.notify_waiters();
    }

    fn note(&self, end: &End, peer: SocketAddr) {
        match end {
            End::TimedOut(phase) => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                debug!(%peer, ?phase, "connection timed out");
            }
            End::Flooded => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                debug!(%peer, "connection closed: too many bytes without a request");
            }
            End::Closed(Some(error)) => debug!(%peer, ?error, "connection failed"),
            End::Closed(None) | End::Aborted => {}
        }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // hyper's default of 100 header fields stays: setting it would allocate them at each request.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None) // see the module documentation
        .max_buf_size(HTTP1_BUFFER_BYTES_MAX)
        // Head and body in one write. `pipeline_flush` would also hold back a response while an incomplete request is
        // buffered, so that responses to malformed or oversized heads are never sent.
        .writev(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(HTTP2_HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(HTTP2_RESETS_MAX)
        .max_local_error_reset_streams(HTTP2_FAULTS_MAX)
        .keep_alive_interval(HTTP2_PING_EVERY)
        .keep_alive_timeout(HTTP2_PING_TIMEOUT);
    builder
}

enum End {
    Closed(Option<Box<dyn std::error::Error + Send + Sync>>),
    TimedOut(Phase),
    Flooded,
    Aborted,
}

/// What reading and serving record. Each field is written by one side and read by [`Watch`]; they are independent, so a
/// value seen late is seen at the next step.
#[derive(Debug, Default)]
pub(super) struct Activity {
    in_flight: AtomicU32,
    /// Requests so far; distinguishes two idle periods.
    requests: AtomicU32,
    /// Whether bytes arrived since the last request began.
    reading: AtomicBool,
    http2: AtomicBool,
    /// Bytes received on HTTP/2 with no request in flight, since the last one.
    idle_bytes: AtomicU32,
    /// Whether the last response is sent and the client may still be sending.
    closing: AtomicBool,
    stage: Arc<CurrentStage>,
}

impl Activity {
    /// A request began. It ends with its response; the time to read that counts towards the idle timeout.
    pub(super) fn begin(self: &Arc<Self>, http2: bool) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.reading.store(false, Ordering::Relaxed);
        if http2 {
            self.http2.store(true, Ordering::Relaxed);
            self.idle_bytes.store(0, Ordering::Relaxed);
        }
        InFlight(Arc::clone(self))
    }

    pub(super) fn read(&self, bytes: &[u8]) {
        if !self.reading.load(Ordering::Relaxed) && !bytes.is_empty() {
            self.reading.store(true, Ordering::Relaxed);
            // An HTTP/2 connection may be opened ahead of its first request.
            if self.requests.load(Ordering::Relaxed) == 0 && bytes.starts_with(b"PRI * HTTP/2") {
                self.http2.store(true, Ordering::Relaxed);
            }
        }
        if self.http2.load(Ordering::Relaxed) && self.in_flight.load(Ordering::Relaxed) == 0 {
            let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.idle_bytes.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Whether the client may still be sending bytes that will not be read, so that closing would lose the response.
    pub(super) fn needs_linger(&self) -> bool {
        let lingers = self.reading.load(Ordering::Relaxed)
            && !self.http2.load(Ordering::Relaxed)
            && self.stage.get() == Stage::Running;
        if lingers {
            self.closing.store(true, Ordering::Relaxed);
        }
        lingers
    }

    fn is_flooded(&self) -> bool {
        self.idle_bytes.load(Ordering::Relaxed) > HTTP2_IDLE_BYTES_MAX
    }

    fn phase(&self) -> Phase {
        if self.closing.load(Ordering::Relaxed) {
            return Phase::Closing;
        }
        let begun = self.reading.load(Ordering::Relaxed) || self.requests.load(Ordering::Relaxed) == 0;
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            Phase::Serving
        } else if begun && !self.http2.load(Ordering::Relaxed) {
            Phase::Reading
        } else {
            Phase::Idle
        }
    }
}

/// A request in flight, until dropped.
pub(super) struct InFlight(Arc<Activity>);

impl InFlight {
    /// Whether this is the last request on its connection.
    pub(super) fn is_last(&self) -> bool {
        self.0.stage.get() != Stage::Running && !self.0.http2.load(Ordering::Relaxed)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection is waiting for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// For the head of the first request, or of one that has begun.
    Reading,
    /// For a response.
    Serving,
    /// For another request. On HTTP/2 regardless of what is read, because of pings.
    Idle,
    /// For the client to read the last response.
    Closing,
}

/// What to do with a connection on which hyper cannot make progress.
enum Step {
    Wait,
    Finish,
    End(End),
}

/// Ends a connection on timeout, flood or shutdown.
struct Watch<'c> {
    policy: &'c ConnectionPolicy,
    activity: &'c Activity,
    phase: Phase,
    requests: u32,
    since: Instant,
    stage: Stage,
    /// When to finish the connection, once draining.
    finish_at: Option<Instant>,
    /// Whether a change of stage wakes this task. Registered once per stage, not at each request.
    listening: bool,
}

impl<'c> Watch<'c> {
    fn new(policy: &'c ConnectionPolicy, activity: &'c Activity) -> Self {
        Watch {
            policy,
            activity,
            phase: Phase::Reading,
            requests: 0,
            since: Instant::now(),
            stage: Stage::Running,
            finish_at: None,
            listening: false,
        }
    }

    /// When the connection times out.
    fn deadline(&self) -> Instant {
        let patience = match self.phase {
            Phase::Reading => self.since + self.policy.header_timeout,
            Phase::Serving | Phase::Idle => self.since + self.policy.idle_timeout,
            Phase::Closing => self.since + CLOSE_LINGER,
        };
        self.finish_at.map_or(patience, |finish_at| finish_at.min(patience))
    }

    fn step(
        &mut self,
        mut timer: Pin<&mut Sleep>,
        changed: Pin<&mut Notified<'c>>,
        cx: &mut Context<'_>,
    ) -> Step {
        self.follow_stage(changed, cx);
        if self.stage == Stage::Aborting {
            return Step::End(End::Aborted);
        }
        if self.activity.is_flooded() {
            return Step::End(End::Flooded);
        }
        self.follow_phase();
        if self.deadline() < timer.deadline() {
            timer.as_mut().reset(self.deadline());
        }
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.finish_at.take_if(|finish_at| *finish_at <= now).is_some() {
                timer.as_mut().reset(self.deadline());
                return Step::Finish;
            }
            if self.phase == Phase::Serving {
                self.since = now; // a slow response is not the client's fault
            } else if self.deadline() <= now {
                let closing = self.phase == Phase::Closing;
                return Step::End(if closing { End::Closed(None) } else { End::TimedOut(self.phase) });
            }
            timer.as_mut().reset(self.deadline());
        }
        Step::Wait
    }

    /// Registers before it reads the stage, so that no change is missed.
    fn follow_stage(&mut self, mut changed: Pin<&mut Notified<'c>>, cx: &mut Context<'_>) {
        loop {
            if !self.listening {
                self.listening = changed.as_mut().poll(cx).is_pending();
            }
            let stage = self.policy.stage.get();
            if self.listening && stage == self.stage {
                return;
            }
            if stage != self.stage && stage == Stage::Draining {
                let http2 = self.activity.http2.load(Ordering::Relaxed);
                let linger = if http2 { Duration::ZERO } else { DRAIN_LINGER };
                self.finish_at = Some(Instant::now() + linger);
            }
            self.stage = stage;
            self.listening = false;
            changed.set(self.policy.stage_changed.notified());
        }
    }

    fn follow_phase(&mut self) {
        let (phase, requests) = (self.activity.phase(), self.activity.requests.load(Ordering::Relaxed));
        if (phase, requests) != (self.phase, self.requests) {
            (self.phase, self.requests, self.since) = (phase, requests, Instant::now());
        }
    }
}
