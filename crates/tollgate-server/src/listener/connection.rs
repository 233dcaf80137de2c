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
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};
use tokio::task::coop;
use tokio::time::{Instant, Sleep};
use tracing::debug;

use super::accept_policy::AcceptPolicy;
use super::activity::{Activity, Phase, Shared, Stage};
use super::limits::ConnectionPermit;
use super::protocol::{HttpConnection, Protocols};
use super::service::{ConnectionInfo, ConnectionService, HttpService};
use super::socket::LingeringSocket;
use super::tcp::Tcp;
use super::transport::Transport;
use super::unsent;
use super::{ConnectionStats, proxy_header};
use crate::config::settings::ServerSettings;

/// How long a TLS handshake may take, if `header_timeout` is not shorter.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an idle HTTP/1 connection stays open while draining, so that a request already on its way is answered. HTTP/2 has
/// GOAWAY for this.
const DRAIN_LINGER: Duration = Duration::from_millis(300);
/// How long a client that is still sending may take to read the last response.
const CLOSE_LINGER: Duration = Duration::from_secs(5);

/// What a client must take of its responses per `write_timeout`: less is no progress.
const PROGRESS_BYTES_MIN: usize = 16 * 1024;
/// How often it is looked whether a client takes its responses.
const STALL_CHECK_EVERY: Duration = Duration::from_secs(1);
/// The write timeout while many responses wait.
const SCARCE_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves all connections.
pub(super) struct Connections<S> {
    protocols: Protocols,
    service: Arc<S>,
    pub(super) accept: Arc<ArcSwap<AcceptPolicy>>,
    pub(super) policy: ConnectionPolicy,
}

/// Timeouts and the lifecycle stage, shared by all connections.
pub(super) struct ConnectionPolicy {
    header_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    shared: Arc<Shared>,
    stage_changed: Notify,
    pub(super) stats: Arc<ConnectionStats>,
}

impl<S: HttpService> Connections<S> {
    pub(super) fn new(
        service: S,
        settings: &ServerSettings,
        accept: Arc<ArcSwap<AcceptPolicy>>,
        stats: Arc<ConnectionStats>,
    ) -> Self {
        let policy = ConnectionPolicy {
            header_timeout: settings.header_timeout,
            idle_timeout: settings.idle_timeout,
            write_timeout: settings.write_timeout,
            shared: Arc::default(),
            stage_changed: Notify::new(),
            stats,
        };
        Connections { protocols: Protocols::new(S::JOINS_WRITES), service: Arc::new(service), accept, policy }
    }

    /// Reads the PROXY header and performs the TLS handshake, if there are any, then serves the connection to its end.
    pub(super) async fn open(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        accept: &AcceptPolicy,
        permit: &mut ConnectionPermit,
    ) {
        let mut info = ConnectionInfo::direct(peer);
        if accept.expects_proxy_header(peer) {
            match self.policy.read_proxy_header(&mut stream, peer).await {
                Some(Some(source)) if !permit.count_for(source.ip()) => {
                    return self.policy.note_refused(source);
                }
                Some(source) => info.source = source.unwrap_or(peer),
                None => return,
            }
        }
        let transport = match &accept.tls {
            None => Transport::Plain(Tcp(stream)),
            Some(config) => {
                // Boxed, so that connections without TLS do not reserve its space.
                let accepting = Box::pin(self.policy.accept_tls(stream, Arc::clone(config), info.source));
                match accepting.await {
                    Some(transport) => transport,
                    None => return,
                }
            }
        };
        info.certificate = transport.client_certificate();
        info.is_tls = accept.tls.is_some();
        self.serve(transport, info).await;
    }

    async fn serve(&self, transport: Transport, mut info: ConnectionInfo) {
        let peer = info.source;
        let activity = Activity::new(&self.policy.shared);
        let socket = LingeringSocket::new(transport, Arc::clone(&activity));
        let (alive, gone) = S::UPGRADES.then(oneshot::channel).unzip();
        info.alive = alive;
        let (service, info) = (Arc::clone(&self.service), Arc::new(info));
        let service = ConnectionService { service, info, activity: Arc::clone(&activity) };
        self.drive(self.protocols.serve(socket, service), &activity, peer).await;
        if let Some(gone) = gone {
            self.policy.unless_aborted(gone).await;
        }
    }

    /// Serves requests until the connection ends or is upgraded.
    async fn drive(&self, mut connection: HttpConnection<'_, S>, activity: &Activity, peer: SocketAddr) {
        let mut watch = Watch::new(&self.policy, activity);
        let mut timer = pin!(tokio::time::sleep_until(watch.deadline()));
        let mut changed = pin!(self.policy.stage_changed.notified());
        let end = std::future::poll_fn(|cx| {
            activity.begin_turn();
            loop {
                if let Poll::Ready(result) = Pin::new(&mut connection).poll(cx) {
                    return Poll::Ready(End::Closed(result.err()));
                }
                match watch.step(timer.as_mut(), changed.as_mut(), cx) {
                    Step::Wait => return Poll::Pending,
                    Step::Finish => connection.graceful_shutdown(),
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
        self.shared.enter(stage);
        self.stage_changed.notify_waiters();
    }

    /// The client that a trusted proxy names, if it names one. None if the connection must be closed.
    async fn read_proxy_header(
        &self,
        stream: &mut TcpStream,
        peer: SocketAddr,
    ) -> Option<Option<SocketAddr>> {
        let reading = tokio::time::timeout(self.header_timeout, proxy_header::read(stream));
        let read = self.unless_aborted(reading).await?;
        match read {
            Ok(Ok(source)) => return Some(source),
            Ok(Err(error)) => debug!(%peer, %error, "connection of a trusted proxy closed"),
            Err(_) => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                debug!(%peer, "connection of a trusted proxy timed out before its PROXY header");
            }
        }
        self.stats.proxy_headers_invalid.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Performs the TLS handshake. None if it fails.
    async fn accept_tls(
        &self,
        stream: TcpStream,
        config: Arc<ServerConfig>,
        peer: SocketAddr,
    ) -> Option<Transport> {
        let timeout = HANDSHAKE_TIMEOUT.min(self.header_timeout);
        let handshake = tokio::time::timeout(timeout, Transport::accept_tls(stream, config));
        match self.unless_aborted(handshake).await? {
            Ok(Ok(transport)) => {
                self.stats.handshakes.fetch_add(1, Ordering::Relaxed);
                return Some(transport);
            }
            Ok(Err(error)) => debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                debug!(%peer, "TLS handshake timed out");
            }
        }
        self.stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Waits for a future, unless connections are aborted meanwhile.
    async fn unless_aborted<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let aborted = async {
            loop {
                let changed = self.stage_changed.notified();
                if self.shared.stage() == Stage::Aborting {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            done = future => Some(done),
            () = aborted => None,
        }
    }

    pub(super) fn note_refused(&self, peer: SocketAddr) {
        self.stats.refused.fetch_add(1, Ordering::Relaxed);
        debug!(%peer, "connection refused: connection limit reached");
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
            End::Unread(bytes) => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                debug!(%peer, bytes, "connection closed: the client does not read its responses");
            }
            End::Closed(Some(error)) => debug!(%peer, ?error, "connection failed"),
            End::Closed(None) | End::Aborted => {}
        }
    }
}

enum End {
    Closed(Option<Box<dyn std::error::Error + Send + Sync>>),
    TimedOut(Phase),
    Flooded,
    /// Responses that the client did not take.
    Unread(usize),
    Aborted,
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
    /// Set while the client has not taken all responses.
    stall: Option<Stall>,
    /// This connection's parts of the totals.
    reported: usize,
    streams: usize,
    stage: Stage,
    /// When to finish the connection, once draining.
    finish_at: Option<Instant>,
    /// Whether a change of stage wakes this task. Registered once per stage, not at each request.
    listening: bool,
    /// Whether the timer wakes this task. Polled once per deadline, not at each request.
    is_timer_armed: bool,
}

/// Responses that wait for the client.
struct Stall {
    /// Since when the client took too little.
    since: Instant,
    sent: usize,
    check_at: Instant,
}

impl<'c> Watch<'c> {
    fn new(policy: &'c ConnectionPolicy, activity: &'c Activity) -> Self {
        Watch {
            policy,
            activity,
            phase: Phase::Reading,
            requests: 0,
            since: Instant::now(),
            stall: None,
            reported: 0,
            streams: 0,
            stage: Stage::Running,
            finish_at: None,
            listening: false,
            is_timer_armed: false,
        }
    }

    /// When the connection times out.
    fn deadline(&self) -> Instant {
        let patience = match self.phase {
            Phase::Reading => self.since + self.policy.header_timeout,
            Phase::Serving | Phase::Idle => self.since + self.policy.idle_timeout,
            Phase::Closing => self.since + CLOSE_LINGER,
        };
        let check_at = self.stall.as_ref().map(|stall| stall.check_at);
        [self.finish_at, check_at].into_iter().flatten().fold(patience, Instant::min)
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
        self.follow_unsent();
        if unsent::is_excessive(self.activity.unsent(), self.policy.shared.unsent.get()) {
            return Step::End(End::Unread(self.activity.unsent()));
        }
        if self.deadline() < timer.deadline() {
            self.reset_timer(timer.as_mut());
        }
        while !self.is_timer_armed || timer.is_elapsed() {
            if timer.as_mut().poll(cx).is_pending() {
                // Without budget the timer was not looked at.
                self.is_timer_armed = coop::has_budget_remaining();
                break;
            }
            let now = Instant::now();
            if self.finish_at.take_if(|finish_at| *finish_at <= now).is_some() {
                self.reset_timer(timer.as_mut());
                return Step::Finish;
            }
            if self.has_stalled(now) {
                return Step::End(End::Unread(self.activity.unsent()));
            }
            if self.phase == Phase::Serving {
                self.since = now; // a slow response is not the client's fault
            } else if self.deadline() <= now {
                let closing = self.phase == Phase::Closing;
                return Step::End(if closing { End::Closed(None) } else { End::TimedOut(self.phase) });
            }
            self.reset_timer(timer.as_mut());
        }
        Step::Wait
    }

    /// Resets the timer; it must be polled again.
    fn reset_timer(&mut self, timer: Pin<&mut Sleep>) {
        timer.reset(self.deadline());
        self.is_timer_armed = false;
    }

    /// Registers before it reads the stage, so that no change is missed.
    fn follow_stage(&mut self, mut changed: Pin<&mut Notified<'c>>, cx: &mut Context<'_>) {
        loop {
            if !self.listening {
                self.listening = changed.as_mut().poll(cx).is_pending();
            }
            let stage = self.policy.shared.stage();
            if self.listening && stage == self.stage {
                return;
            }
            if stage != self.stage && stage == Stage::Draining {
                let linger = if self.activity.is_http2() { Duration::ZERO } else { DRAIN_LINGER };
                self.finish_at = Some(Instant::now() + linger);
            }
            self.stage = stage;
            self.listening = false;
            changed.set(self.policy.stage_changed.notified());
        }
    }

    fn follow_phase(&mut self) {
        let (phase, requests) = (self.activity.phase(), self.activity.requests());
        if (phase, requests) != (self.phase, self.requests) {
            (self.phase, self.requests) = (phase, requests);
            // Serving is not timed.
            if phase != Phase::Serving {
                self.since = Instant::now();
            }
        }
    }

    /// Reports what waits to the total, and notes since when the client takes too little of it.
    fn follow_unsent(&mut self) {
        let (shared, unsent) = (&self.policy.shared, self.activity.unsent());
        shared.unsent.report(&mut self.reported, self.activity.unreported());
        shared.streams.report(&mut self.streams, self.activity.streams());
        let sent = self.activity.sent();
        if unsent == 0 {
            self.stall = None;
        } else if self.stall.as_ref().is_none_or(|stall| sent.wrapping_sub(stall.sent) >= PROGRESS_BYTES_MIN)
        {
            let since = Instant::now();
            self.stall = Some(Stall { since, sent, check_at: since + self.stall_check_after() });
        }
    }

    fn stall_check_after(&self) -> Duration {
        STALL_CHECK_EVERY.min(self.policy.write_timeout)
    }

    /// Whether the client took too little for too long.
    fn has_stalled(&mut self, now: Instant) -> bool {
        let (policy, after) = (self.policy, self.stall_check_after());
        let Some(stall) = self.stall.as_mut().filter(|stall| stall.check_at <= now) else { return false };
        stall.check_at = now + after;
        let is_scarce = unsent::is_scarce(policy.shared.unsent.get());
        let timeout = if is_scarce { SCARCE_WRITE_TIMEOUT } else { policy.write_timeout };
        now >= stall.since + timeout.min(policy.write_timeout)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.activity.end();
        self.policy.shared.unsent.report(&mut self.reported, 0);
        self.policy.shared.streams.report(&mut self.streams, 0);
    }
}
