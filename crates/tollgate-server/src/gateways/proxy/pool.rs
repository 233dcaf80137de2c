//! Pooled HTTP/1.1 connections to one upstream.
//!
//! hyper's connection is a future that somebody must poll. Here the request that uses a connection does, instead of a task per
//! connection: requests and responses then pass without wake-ups between tasks. Nothing polls idle connections: a
//! closed one is noticed by the sweep, or by the next request before any of it is written.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::body::RequestBody;
use super::client::{Connector, SendError, classify, connect_error};

/// Idle connections kept per upstream.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 256;
/// Shorter than the keep-alive timeouts of common servers, so that they seldom close a connection that is being used.
pub(super) const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(50);
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const IDLE_SWEEPS_MAX: u64 = IDLE_CONNECTION_TIMEOUT.as_secs() / SWEEP_EVERY.as_secs();

/// A request that is not sent yet. It stays where it is until a connection takes it, because it is large.
pub(super) type Outgoing<'r> = &'r mut Option<Request<RequestBody>>;

/// The connections to one upstream.
pub(super) struct Pool {
    connector: Connector,
    origin: Uri,
    response_timeout: Duration,
    /// The one that was used last is used next: the others can expire.
    idle: Mutex<Vec<IdleConnection>>,
    is_swept: AtomicBool,
    /// Measures how long a connection has been idle, without a clock read per request.
    sweeps: AtomicU64,
}

struct IdleConnection {
    connection: Connection,
    /// The sweeps so far when it became idle.
    since: u64,
}

impl Pool {
    pub(super) fn new(connector: Connector, origin: Uri, response_timeout: Duration) -> Arc<Self> {
        let (idle, is_swept, sweeps) = (Mutex::default(), AtomicBool::default(), AtomicU64::default());
        Arc::new(Pool { connector, origin, response_timeout, idle, is_swept, sweeps })
    }

    /// Sends a request, with a path as its target, and waits for the head of the response. A request that was not written at all,
    /// because its pooled connection had just closed, is sent on another one.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: Outgoing<'_>,
        mut now: Instant,
    ) -> Result<Response<ReceivedBody>, SendError> {
        loop {
            let (mut connection, is_reused) = if let Some(connection) = self.take() {
                (connection, true)
            } else {
                let connection = Box::pin(self.connect()).await?;
                now = Instant::now();
                (connection, false)
            };
            match connection.exchange(request, now, self.response_timeout).await {
                Ok(response) => return Ok(self.received(response, connection)),
                Err(_) if is_reused && request.is_some() => {}
                Err(_) if request.is_some() => return Err(SendError::Connect("closed at once".to_owned())),
                Err(error) => return Err(error),
            }
        }
    }

    /// An idle connection. Whether it is still open shows when it is polled with a request.
    fn take(&self) -> Option<Connection> {
        self.idle.lock().pop().map(|idle| idle.connection)
    }

    /// Takes back a connection whose response is complete.
    fn put(&self, mut connection: Connection) {
        // Not if the client is still sending the body of its request.
        if !connection.sender.is_ready() && !connection.is_usable() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(IdleConnection { connection, since: self.sweeps.load(Ordering::Relaxed) });
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Connection, SendError> {
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await.map_err(|error| connect_error(&*error))?;
        let stream = connector.call(self.origin.clone()).await.map_err(|error| connect_error(&*error))?;
        let (sender, driver) = http1::handshake(stream).await.map_err(|error| connect_error(&error))?;
        if !self.is_swept.swap(true, Ordering::Relaxed) {
            let pool = Arc::downgrade(self);
            tokio::spawn(async move {
                while let Some(pool) = pool.upgrade() {
                    pool.sweep();
                    drop(pool);
                    tokio::time::sleep(SWEEP_EVERY).await;
                }
            });
        }
        let timer = Box::pin(tokio::time::sleep(self.response_timeout));
        Ok(Connection { sender, driver: Some(Box::pin(driver.with_upgrades())), timer })
    }

    /// Closes connections that were idle for too long or that the upstream closed.
    fn sweep(&self) {
        let now = self.sweeps.fetch_add(1, Ordering::Relaxed);
        let mut idle = std::mem::take(&mut *self.idle.lock());
        idle.retain_mut(|idle| {
            now.wrapping_sub(idle.since) <= IDLE_SWEEPS_MAX && idle.connection.is_usable()
        });
        let mut current = self.idle.lock();
        // Those that came back meanwhile were used last.
        idle.append(&mut current);
        idle.truncate(IDLE_CONNECTIONS_MAX);
        *current = idle;
    }

    fn received(
        self: &Arc<Self>,
        response: Response<Incoming>,
        mut connection: Connection,
    ) -> Response<ReceivedBody> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Hands its stream over to `hyper::upgrade`.
            connection.driver.take().map(tokio::spawn);
            return response.map(ReceivedBody::from);
        }
        response.map(|body| ReceivedBody {
            body,
            is_read: false,
            lease: Some((Arc::clone(self), connection)),
        })
    }
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

struct Connection {
    sender: SendRequest<RequestBody>,
    /// Absent once the connection has ended.
    driver: Option<Driver>,
    /// Kept between requests, and moved to a later time only when it fires.
    timer: Pin<Box<Sleep>>,
}

impl Connection {
    fn drive(&mut self, cx: &mut Context<'_>) {
        self.driver.take_if(|driver| driver.as_mut().poll(cx).is_ready());
    }

    /// Whether the connection is open and takes a request.
    fn is_usable(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its response. A request of which nothing was sent is given back.
    async fn exchange(
        &mut self,
        outgoing: Outgoing<'_>,
        now: Instant,
        timeout: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let Some(request) = outgoing.take() else { return Err(SendError::Closed) };
        let progress = request.body().progress();
        // Only this connection completes it, and that is polled first. Were it woken too, the task would run once more for nothing.
        // Without a budget, because one that is used up would need that waker.
        let mut response = pin!(tokio::task::unconstrained(self.sender.try_send_request(request)));
        let mut is_sent = false;
        let received = poll_fn(|cx| {
            let mut poll = |cx: &mut Context<'_>| {
                self.driver.take_if(|driver| driver.as_mut().poll(cx).is_ready());
                response.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            };
            // hyper wakes the task that last polled the connection when a part of the body is read. To avoid waking a task that is
            // running, its waker is passed only if there is nothing to read yet.
            let mut received = Poll::Pending;
            if std::mem::replace(&mut is_sent, true) {
                received = poll(&mut Context::from_waker(Waker::noop()));
            }
            if received.is_pending() {
                received = poll(cx);
            }
            if let Poll::Ready(received) = received {
                return Poll::Ready(Some(received));
            }
            while self.timer.as_mut().poll(cx).is_ready() {
                let until = match &progress {
                    // The time starts when the body has been sent.
                    Some(progress) => progress.stalls_at(timeout),
                    None => Some(now + timeout).filter(|until| *until > Instant::now()),
                };
                let Some(until) = until else { return Poll::Ready(None) };
                self.timer.as_mut().reset(until);
            }
            Poll::Pending
        });
        match received.await {
            Some(Ok(response)) => Ok(response),
            Some(Err(mut error)) => {
                *outgoing = error.take_message();
                Err(classify(&error.into_error()))
            }
            None => Err(SendError::Timeout),
        }
    }
}

/// The body of a response, with the connection that it arrives on.
pub(super) struct ReceivedBody {
    body: Incoming,
    is_read: bool,
    /// Absent over HTTP/2, whose connections have tasks of their own.
    lease: Option<(Arc<Pool>, Connection)>,
}

impl From<Incoming> for ReceivedBody {
    fn from(body: Incoming) -> Self {
        ReceivedBody { body, is_read: false, lease: None }
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some((_, connection)) = &mut this.lease else { return Pin::new(&mut this.body).poll_frame(cx) };
        let mut unwoken = Context::from_waker(Waker::noop());
        let mut frame = Pin::new(&mut this.body).poll_frame(&mut unwoken);
        // As in `exchange`: the task's waker is passed only if there is nothing to read.
        if frame.is_pending() {
            connection.drive(&mut unwoken);
            frame = Pin::new(&mut this.body).poll_frame(&mut unwoken);
        }
        if frame.is_pending() {
            connection.drive(cx);
            frame = Pin::new(&mut this.body).poll_frame(&mut unwoken);
        }
        this.is_read |= matches!(frame, Poll::Ready(None));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        let is_complete = self.is_read || self.body.is_end_stream();
        if let Some((pool, connection)) = self.lease.take().filter(|_| is_complete) {
            pool.put(connection);
        }
    }
}
