//! What reading, serving and writing record about one connection, for `connection.rs` to act on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use super::framing::Framing;
use super::unsent::{self, Total};

/// Bytes that a client may send without a request in flight: pings, settings, the rest of a refused body. More than the
/// connection window (1 MiB).
const HTTP2_IDLE_BYTES_MAX: u32 = 2 * 1024 * 1024;

/// HTTP/2 requests in flight from which on connections take turns.
const BUSY_STREAMS: usize = 512;

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

/// What all connections share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    stage: AtomicU8,
    pub(super) unsent: Total,
    /// HTTP/2 requests in flight.
    pub(super) streams: Total,
}

impl Shared {
    pub(super) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::SeqCst);
    }

    /// Whether connections must take turns: each read may begin dozens of requests.
    pub(super) fn is_busy(&self) -> bool {
        self.streams.get() > BUSY_STREAMS
    }

    pub(super) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::SeqCst) {
            0 => Stage::Running,
            1 => Stage::Draining,
            _ => Stage::Aborting,
        }
    }
}

/// What reading and serving record. Each field is written by one side and read by the connection's task; they are independent,
/// so a value seen late is seen at the next step.
#[derive(Debug)]
pub(super) struct Activity {
    in_flight: AtomicU32,
    /// Requests so far; distinguishes two idle periods.
    requests: AtomicU32,
    /// Whether a request head has begun and is not complete.
    in_head: AtomicBool,
    /// Whether the client may still be sending a request.
    in_request: AtomicBool,
    http2: AtomicBool,
    /// Whether the connection was upgraded: its bytes are not HTTP.
    is_upgraded: AtomicBool,
    /// Bytes received on HTTP/2 with no request in flight, since the last one.
    idle_bytes: AtomicU32,
    /// Whether the last response is sent and the client may still be sending.
    closing: AtomicBool,
    /// Whether the connection has read in this poll of its task; see [`Activity::must_take_turns`].
    had_its_turn: AtomicBool,
    /// Whether the connection is closed; HTTP/2 requests are served by tasks of their own, which may outlive it.
    is_gone: AtomicBool,
    /// Memory of responses that hyper has not passed to the socket.
    unsent: AtomicUsize,
    /// The same of large responses, which are in the total already.
    unsent_large: AtomicUsize,
    /// Bytes that the socket does not accept, because the client does not read.
    blocked: AtomicUsize,
    /// Bytes of responses that were passed on so far, modulo 2⁶⁴: the measure of progress.
    sent: AtomicUsize,
    shared: Arc<Shared>,
}

impl Activity {
    pub(super) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Activity {
            in_flight: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            in_head: AtomicBool::new(false),
            in_request: AtomicBool::new(false),
            http2: AtomicBool::new(false),
            is_upgraded: AtomicBool::new(false),
            idle_bytes: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            had_its_turn: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            unsent: AtomicUsize::new(0),
            unsent_large: AtomicUsize::new(0),
            blocked: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            shared: Arc::clone(shared),
        })
    }

    /// A request began. It ends with its response.
    pub(super) fn begin(self: &Arc<Self>, http2: bool) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        if http2 {
            self.http2.store(true, Ordering::Relaxed);
            self.idle_bytes.store(0, Ordering::Relaxed);
        }
        InFlight(Arc::clone(self))
    }

    pub(super) fn read(&self, bytes: &[u8], framing: &Framing) {
        self.in_head.store(framing.is_in_head(), Ordering::Relaxed);
        self.in_request.store(framing.is_in_request(), Ordering::Relaxed);
        if self.http2.load(Ordering::Relaxed) && self.in_flight.load(Ordering::Relaxed) == 0 {
            let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.idle_bytes.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The client speaks HTTP/2. It may open a connection ahead of its first request.
    pub(super) fn begin_http2(&self) {
        self.http2.store(true, Ordering::Relaxed);
    }

    /// The connection switches to another protocol.
    pub(super) fn switch_protocols(&self) {
        self.is_upgraded.store(true, Ordering::Relaxed);
        self.in_head.store(false, Ordering::Relaxed);
        self.in_request.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.is_upgraded.load(Ordering::Relaxed)
    }

    /// Whether the client may still be sending bytes that will not be read, so that closing would lose the response.
    pub(super) fn needs_linger(&self) -> bool {
        let lingers = self.in_request.load(Ordering::Relaxed)
            && !self.is_http2()
            && self.shared.stage() == Stage::Running;
        if lingers {
            self.closing.store(true, Ordering::Relaxed);
        }
        lingers
    }

    pub(super) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Whether only a little may be read at a time, so that the requests in flight are answered first.
    pub(super) fn must_take_turns(&self) -> bool {
        self.is_http2() && self.shared.is_busy()
    }

    /// The task of the connection is polled again.
    pub(super) fn begin_turn(&self) {
        self.had_its_turn.store(false, Ordering::Relaxed);
    }

    pub(super) fn had_its_turn(&self) -> bool {
        self.had_its_turn.load(Ordering::Relaxed)
    }

    pub(super) fn end_turn(&self) {
        self.had_its_turn.store(true, Ordering::Relaxed);
    }

    /// HTTP/2 requests in flight.
    pub(super) fn streams(&self) -> usize {
        if self.is_http2() { self.in_flight.load(Ordering::Relaxed) as usize } else { 0 }
    }

    pub(super) fn is_flooded(&self) -> bool {
        self.idle_bytes.load(Ordering::Relaxed) > HTTP2_IDLE_BYTES_MAX
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether a large response may be generated.
    pub(super) fn admits_large(&self) -> bool {
        !self.is_gone.load(Ordering::Relaxed) && unsent::admits_large(self.unsent(), self.shared.unsent.get())
    }

    pub(super) fn end(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// A response waits for the client. A large one is added to the total at once.
    pub(super) fn hold(&self, bytes: usize, is_large: bool) {
        if is_large {
            self.shared.unsent.add(bytes);
            self.unsent_large.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.unsent.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The memory of a response is free.
    pub(super) fn release(&self, bytes: usize, is_large: bool) {
        if is_large {
            self.shared.unsent.subtract(bytes);
            self.unsent_large.fetch_sub(bytes, Ordering::Relaxed);
        } else {
            self.unsent.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// hyper passed on part of a response.
    pub(super) fn record_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The socket accepts none of these bytes now.
    pub(super) fn block(&self, bytes: usize) {
        self.blocked.store(bytes, Ordering::Relaxed);
    }

    /// The socket accepted bytes. Returns whether it did not before.
    pub(super) fn unblock(&self, bytes: usize) -> bool {
        let was_blocked = self.is_blocked();
        if was_blocked {
            self.blocked.store(0, Ordering::Relaxed);
            // HTTP/2 also writes pings, which are no progress; its chunks record theirs.
            if !self.is_http2() {
                self.record_sent(bytes);
            }
        }
        was_blocked
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) > 0
    }

    /// Memory of responses that the client has not taken.
    pub(super) fn unsent(&self) -> usize {
        self.unreported() + self.unsent_large.load(Ordering::Relaxed)
    }

    /// The part of it that the connection's task reports to the total.
    pub(super) fn unreported(&self) -> usize {
        self.unsent.load(Ordering::Relaxed) + self.blocked.load(Ordering::Relaxed)
    }

    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    pub(super) fn phase(&self) -> Phase {
        if self.closing.load(Ordering::Relaxed) {
            return Phase::Closing;
        }
        let begun = self.in_head.load(Ordering::Relaxed) || self.requests() == 0;
        if self.in_flight.load(Ordering::Relaxed) > 0 || self.unsent() > 0 {
            Phase::Serving
        } else if begun && !self.is_http2() {
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
        self.0.shared.stage() != Stage::Running && !self.0.is_http2()
    }

    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection is waiting for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// For the head of the first request, or of one that has begun.
    Reading,
    /// For a response, or for the client to take it.
    Serving,
    /// For another request. On HTTP/2 regardless of what is read, because of pings.
    Idle,
    /// For the client to read the last response.
    Closing,
}
