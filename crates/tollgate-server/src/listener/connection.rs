//! One connection: served by hyper, watched for clients that hold it for nothing.
//!
//! hyper's own header timeout also ends connections that merely lie idle, sets up a timer for every request, and does
//! not run before the first bytes came. Here a connection has one timer for its whole life. Reading and serving only
//! leave marks in [`Activity`]; after hyper has done what it can, the task looks at the marks and, if the connection
//! passed into another [`Phase`], notes the time. The timer is moved forward only when it went off too early, so a
//! request costs one reading of the clock.

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
use super::socket::Watched;
use crate::config::settings::ServerSettings;

const HTTP1_BUFFER_BYTES_MAX: usize = 64 * 1024;
const HTTP2_HEADER_BYTES_MAX: u32 = 16 * 1024;
const HTTP2_STREAMS_MAX: u32 = 256;
/// Streams that a client may open and reset before they were looked at ("rapid reset").
const HTTP2_RESETS_MAX: usize = 20;
/// Streams that a client may make us reset by what it sends on them ("made you reset").
const HTTP2_FAULTS_MAX: usize = 256;
/// What a client may send while it asks nothing: pings, settings, the rest of a body that was refused. More than the window of
/// a connection (1 MiB), less than would keep a core busy.
const HTTP2_UNASKED_BYTES_MAX: u32 = 2 * 1024 * 1024;
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an idle HTTP/1 connection is kept when the service drains. A request that is on its way already is still
/// answered (and told that the connection closes); closing at once would lose it. HTTP/2 has GOAWAY for this.
const DRAIN_LINGER: Duration = Duration::from_millis(300);
/// How long a client gets to take the last answer while it still sends.
const CLOSE_LINGER: Duration = Duration::from_secs(2);

/// What serves all connections.
pub(super) struct Connections<S> {
    builder: Builder<TokioExecutor>,
    surface: Arc<S>,
    pub(super) terms: ConnectionPolicy,
}

/// On which terms a connection lives.
pub(super) struct ConnectionPolicy {
    header_timeout: Duration,
    idle_timeout: Duration,
    stage: Arc<CurrentStage>,
    stage_changed: Notify,
    pub(super) stats: Arc<ConnectionStats>,
}

/// Where the service is in its life.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Serving.
    Running,
    /// Finishing what is in flight.
    Draining,
    /// Ending at once.
    Aborting,
}

/// The stage now, for every connection to see.
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
    pub(super) fn new(surface: S, settings: &ServerSettings, stats: Arc<ConnectionStats>) -> Self {
        let terms = ConnectionPolicy {
            header_timeout: settings.header_timeout,
            idle_timeout: settings.idle_timeout,
            stage: Arc::default(),
            stage_changed: Notify::new(),
            stats,
        };
        Connections { builder: builder(), surface: Arc::new(surface), terms }
    }

    /// Serves one connection to its end.
    pub(super) async fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let pulse = Arc::new(Activity { stage: Arc::clone(&self.terms.stage), ..Activity::default() });
        let io = TokioIo::new(Watched::new(stream, Arc::clone(&pulse)));
        let service =
            ConnectionService { surface: Arc::clone(&self.surface), peer, pulse: Arc::clone(&pulse) };
        let mut connection = pin!(self.builder.serve_connection(io, service));
        let mut watch = Watch::new(&self.terms, &pulse);
        let mut timer = pin!(tokio::time::sleep_until(watch.deadline()));
        let mut changed = pin!(self.terms.stage_changed.notified());
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
        self.terms.note(&end.await, peer);
    }
}

impl ConnectionPolicy {
    /// Tells every connection.
    pub(super) fn enter(&self, stage: Stage) {
        self.stage.enter(stage);
        self.stage_changed.notify_waiters();
    }

    fn note(&self, end: &End, peer: SocketAddr) {
        match end {
            End::TimedOut(phase) => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                debug!(%peer, ?phase, "closed a connection that took too long");
            }
            End::Flooded => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                debug!(%peer, "closed a connection that sent much and asked nothing");
            }
            End::Closed(Some(error)) => debug!(%peer, ?error, "a connection ended badly"),
            End::Closed(None) | End::Aborted => {}
        }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // At most 100 header fields is hyper's default, and setting it would allocate for them at each request.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None) // see above
        .max_buf_size(HTTP1_BUFFER_BYTES_MAX)
        // Head and body in one piece. Not by `pipeline_flush`, which also keeps back every answer as long as something that
        // was read is no whole request: that of a head that is no request, or too large, is then never sent.
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

/// The marks that reading and serving leave. Each is written by one side and read by the watch; none depends on
/// another, and a mark seen late is seen at the next look.
#[derive(Debug, Default)]
pub(super) struct Activity {
    in_flight: AtomicU32,
    /// Requests so far, so that two idle times are not taken for one.
    requests: AtomicU32,
    /// Whether bytes came since the last request began.
    reading: AtomicBool,
    http2: AtomicBool,
    /// Bytes that came on HTTP/2 while no request was in flight, since the last one.
    unasked: AtomicU32,
    /// Whether the last answer is sent, and only the client is yet to stop.
    closing: AtomicBool,
    stage: Arc<CurrentStage>,
}

impl Activity {
    /// A request began; it lasts until there is an answer. To take that is up to the client: it has no longer for it than to
    /// ask again.
    pub(super) fn begin(self: &Arc<Self>, http2: bool) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.reading.store(false, Ordering::Relaxed);
        if http2 {
            self.http2.store(true, Ordering::Relaxed);
            self.unasked.store(0, Ordering::Relaxed);
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
            self.unasked.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Whether the client may still be sending what is not going to be read: to close then would take the answer from it.
    pub(super) fn closes_early(&self) -> bool {
        let early = self.reading.load(Ordering::Relaxed)
            && !self.http2.load(Ordering::Relaxed)
            && self.stage.get() == Stage::Running;
        if early {
            self.closing.store(true, Ordering::Relaxed);
        }
        early
    }

    fn is_flooded(&self) -> bool {
        self.unasked.load(Ordering::Relaxed) > HTTP2_UNASKED_BYTES_MAX
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

/// A request that waits for its answer, until dropped.
pub(super) struct InFlight(Arc<Activity>);

impl InFlight {
    /// Whether no other request is to follow on this connection.
    pub(super) fn is_the_last(&self) -> bool {
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
    /// For the head of a request: the first, or one that has begun.
    Reading,
    /// For us.
    Serving,
    /// For another request. On HTTP/2, where pings come all the time, whatever is read.
    Idle,
    /// For the client to have taken the last answer.
    Closing,
}

/// What is to be done with a connection that hyper can do nothing more about now.
enum Step {
    Wait,
    Finish,
    End(End),
}

/// Ends a connection that waits too long, or that the service no longer wants.
struct Watch<'c> {
    terms: &'c ConnectionPolicy,
    pulse: &'c Activity,
    phase: Phase,
    requests: u32,
    since: Instant,
    stage: Stage,
    /// When to finish it, once the service drains.
    finish_at: Option<Instant>,
    /// Whether a change of stage wakes this task. A task has one waker, so it is left there once per stage and not at
    /// each request.
    listening: bool,
}

impl<'c> Watch<'c> {
    fn new(terms: &'c ConnectionPolicy, pulse: &'c Activity) -> Self {
        Watch {
            terms,
            pulse,
            phase: Phase::Reading,
            requests: 0,
            since: Instant::now(),
            stage: Stage::Running,
            finish_at: None,
            listening: false,
        }
    }

    /// When the connection is next to be looked at.
    fn deadline(&self) -> Instant {
        let patience = match self.phase {
            Phase::Reading => self.since + self.terms.header_timeout,
            Phase::Serving | Phase::Idle => self.since + self.terms.idle_timeout,
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
        if self.pulse.is_flooded() {
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
                self.since = now; // a request may take its time: that is not the client's doing
            } else if self.deadline() <= now {
                let closing = self.phase == Phase::Closing;
                return Step::End(if closing { End::Closed(None) } else { End::TimedOut(self.phase) });
            }
            timer.as_mut().reset(self.deadline());
        }
        Step::Wait
    }

    /// Listens before it looks: a change in between is heard.
    fn follow_stage(&mut self, mut changed: Pin<&mut Notified<'c>>, cx: &mut Context<'_>) {
        loop {
            if !self.listening {
                self.listening = changed.as_mut().poll(cx).is_pending();
            }
            let stage = self.terms.stage.get();
            if self.listening && stage == self.stage {
                return;
            }
            if stage != self.stage && stage == Stage::Draining {
                let http2 = self.pulse.http2.load(Ordering::Relaxed);
                let linger = if http2 { Duration::ZERO } else { DRAIN_LINGER };
                self.finish_at = Some(Instant::now() + linger);
            }
            self.stage = stage;
            self.listening = false;
            changed.set(self.terms.stage_changed.notified());
        }
    }

    fn follow_phase(&mut self) {
        let (phase, requests) = (self.pulse.phase(), self.pulse.requests.load(Ordering::Relaxed));
        if (phase, requests) != (self.phase, self.requests) {
            (self.phase, self.requests, self.since) = (phase, requests, Instant::now());
        }
    }
}
