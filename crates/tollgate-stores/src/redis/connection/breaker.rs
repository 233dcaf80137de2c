//! Circuit breaker of one server.
//!
//! While it is open, decisions do not wait for the server. A probe closes it, not a timer, so no request is spent on
//! finding out. If an error reply opened it, only a successful write closes it: a full server, or a master that became a
//! replica, still replies to `PING`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{info, warn};

use super::error::Fault;

/// Consecutive failures that open the breaker.
const CONSECUTIVE_FAILURES: u32 = 5;
/// It also opens when half of the calls of a second fail, given at least this many calls.
const CALLS_MIN: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
/// A flapping server is logged at most this often.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The circuit breaker of one server.
#[derive(Debug)]
pub(crate) struct Breaker {
    server: String,
    /// Read by every decision; written under the lock of `state`.
    open: AtomicBool,
    /// Whether anything failed lately. While nothing has, successes are not counted.
    failing: AtomicBool,
    openings: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    consecutive_failures: u32,
    calls: u32,
    failures: u32,
    since: Instant,
    reason: Option<Fault>,
    log: LogState,
}

/// What has been logged about the breaker.
#[derive(Debug, Default)]
struct LogState {
    open: bool,
    last: Option<Instant>,
    /// Openings since `last` that were not logged.
    suppressed: u32,
}

impl LogState {
    fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL)
    }
}

impl State {
    fn new(now: Instant) -> Self {
        State {
            consecutive_failures: 0,
            calls: 0,
            failures: 0,
            since: now,
            reason: None,
            log: LogState::default(),
        }
    }

    /// Counts a call. Returns whether the breaker should open.
    fn count(&mut self, failed: bool, now: Instant) -> bool {
        if now.duration_since(self.since) >= PERIOD {
            (self.calls, self.failures, self.since) = (0, 0, now);
        }
        self.calls += 1;
        self.failures += u32::from(failed);
        self.consecutive_failures = if failed { self.consecutive_failures + 1 } else { 0 };
        self.consecutive_failures >= CONSECUTIVE_FAILURES
            || self.calls >= CALLS_MIN && self.failures * 2 >= self.calls
    }

    fn is_error_reply(&self) -> bool {
        self.reason.as_ref().is_some_and(Fault::is_error_reply)
    }

    fn log_open(&mut self, server: &str, now: Instant) {
        let reason = self.reason.as_ref().map(Fault::to_string).unwrap_or_default();
        let suppressed = self.log.suppressed;
        if self.is_error_reply() {
            warn!(%server, reason, suppressed, "redis: server cannot write; circuit breaker open, using the fallback");
        } else {
            warn!(%server, reason, suppressed, "redis: server unreachable; circuit breaker open, using the fallback");
        }
        self.log = LogState { open: true, last: Some(now), suppressed: 0 };
    }
}

impl Breaker {
    pub(crate) fn new(server: String, now: Instant) -> Self {
        Breaker {
            server,
            open: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            openings: AtomicU64::new(0),
            state: Mutex::new(State::new(now)),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether the breaker is open or the last call failed.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_open() || self.failing.load(Ordering::Relaxed) && self.state.lock().consecutive_failures > 0
    }

    /// Whether an error reply opened it, as opposed to missing replies.
    pub(crate) fn is_open_by_error_reply(&self) -> bool {
        self.is_open() && self.state.lock().is_error_reply()
    }

    /// Why it is open; none while closed.
    pub(crate) fn reason(&self) -> Option<Fault> {
        if self.is_open() { self.state.lock().reason.clone() } else { None }
    }

    pub(crate) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed)
    }

    /// Records the outcome of a call. Returns whether this opened the breaker.
    pub(crate) fn record(&self, fault: Option<&Fault>, now: Instant) -> bool {
        if fault.is_some() {
            self.failing.store(true, Ordering::Relaxed);
        } else if !self.failing.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        let trip = state.count(fault.is_some(), now);
        if state.failures == 0 && state.consecutive_failures == 0 {
            self.failing.store(false, Ordering::Relaxed);
        }
        let Some(fault) = fault else { return false };
        let opened = trip && !self.open.swap(true, Ordering::Relaxed);
        if opened {
            state.reason = Some(fault.clone());
            self.openings.fetch_add(1, Ordering::Relaxed);
            if state.log.is_due(now) {
                state.log_open(&self.server, now);
            } else {
                state.log.suppressed += 1;
            }
        }
        opened
    }

    /// Records a failed probe. A probe without a reply does not replace an error reply as the reason.
    pub(crate) fn probe_failed(&self, fault: &Fault, now: Instant) {
        let mut state = self.state.lock();
        if fault.is_error_reply() && state.reason.as_ref() != Some(fault) {
            state.reason = Some(fault.clone());
        }
        // An outage that began within the log interval and lasts is logged after it.
        if !state.log.open && state.log.is_due(now) {
            state.log_open(&self.server, now);
        }
    }

    /// Closes the breaker after a successful probe. Returns whether it was open.
    pub(crate) fn close(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let log = std::mem::take(&mut state.log);
        let was_logged = log.open;
        *state = State { log: LogState { open: false, ..log }, ..State::new(now) };
        let closed = self.open.swap(false, Ordering::Relaxed);
        if closed && was_logged {
            info!(server = %self.server, "redis: server recovered; circuit breaker closed");
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(now: Instant) -> Breaker {
        Breaker::new("here".to_owned(), now)
    }

    #[test]
    fn opens_after_five_consecutive_failures() {
        let now = Instant::now();
        let breaker = breaker(now);
        let fail = || breaker.record(Some(&Fault::NoReply), now);
        assert!((0..4).all(|_| !fail()));
        breaker.record(None, now);
        assert!((0..4).all(|_| !fail()));
        assert!(!breaker.is_open());
        assert!(fail() && breaker.is_open());
        assert!(!fail(), "it is open already");
        assert!(breaker.close(now) && !breaker.is_open());
    }

    #[test]
    fn opens_when_half_of_twenty_calls_in_a_second_fail() {
        let now = Instant::now();
        let early = breaker(now);
        for _ in 0..9 {
            early.record(Some(&Fault::NoReply), now);
            early.record(None, now);
        }
        early.record(None, now);
        early.record(Some(&Fault::NoReply), now);
        assert!(early.is_open(), "ten of twenty");
        let later = breaker(now);
        for turn in 0..40 {
            later.record((turn % 2 == 0).then_some(&Fault::NoReply), now + PERIOD * (turn / 2));
        }
        assert!(!later.is_open(), "one of two in each second is too few");
    }

    #[test]
    fn lost_probe_keeps_the_error_reply_as_reason() {
        let now = Instant::now();
        let breaker = breaker(now);
        let full = Fault::Unavailable("OOM command not allowed".to_owned());
        assert!((0..5).any(|_| breaker.record(Some(&full), now)));
        breaker.probe_failed(&Fault::NoReply, now);
        assert!(breaker.is_open_by_error_reply());
        assert_eq!(breaker.reason(), Some(full));
    }

    #[test]
    fn flapping_server_is_logged_once_per_interval() {
        let start = Instant::now();
        let breaker = breaker(start);
        let open_at = |now| assert!((0..5).any(|_| breaker.record(Some(&Fault::NoReply), now)));
        let logged = || {
            let state = breaker.state.lock();
            (state.log.open, state.log.suppressed)
        };
        open_at(start);
        assert_eq!(logged(), (true, 0));
        for _ in 0..3 {
            breaker.close(start);
            open_at(start + LOG_INTERVAL / 2);
        }
        assert_eq!(logged(), (false, 3), "within the interval");
        breaker.probe_failed(&Fault::NoReply, start + LOG_INTERVAL);
        assert_eq!(logged(), (true, 0), "an outage that lasts is logged");
    }
}
