//! The breaker: a server that does not answer, or answers that it cannot, is left alone, and asked from aside whether it
//! is back.
//!
//! While it is open a decision costs no wait at all. It closes when a probe is answered, not when some time is over, so
//! no request is spent on finding out. If it opened by an answer, only a probe that writes closes it: a full server, or
//! one that became a replica, answers everything else as ever.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{info, warn};

use crate::redis::connection::error::Fault;

/// So many failures in a row open it.
const IN_A_ROW: u32 = 5;
/// Or half of the calls of a second, if there were at least so many.
const CALLS_MIN: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
/// A server that comes and goes is told of no more often than this.
const QUIET: Duration = Duration::from_secs(10);

/// Whether a server may be asked.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// The server's name.
    server: String,
    /// What a decision looks at; decided by `state`.
    open: AtomicBool,
    /// Whether anything failed of late. While nothing has, successes need not be counted.
    troubled: AtomicBool,
    openings: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    in_a_row: u32,
    calls: u32,
    failures: u32,
    since: Instant,
    /// What failed last; nothing since all was well.
    why: Option<Fault>,
    told: Told,
}

/// What the log was told.
#[derive(Debug, Default)]
struct Told {
    /// That it is open.
    open: bool,
    /// When that was, the last time.
    at: Option<Instant>,
    /// How often it opened since then without a word.
    unsaid: u32,
}

impl Told {
    /// Whether enough time has passed to say it again.
    fn is_due(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| now.duration_since(at) >= QUIET)
    }
}

impl State {
    fn new(now: Instant) -> Self {
        State { in_a_row: 0, calls: 0, failures: 0, since: now, why: None, told: Told::default() }
    }

    /// Counts a call. Whether the server should be left alone.
    fn count(&mut self, failed: bool, now: Instant) -> bool {
        if now.duration_since(self.since) >= PERIOD {
            (self.calls, self.failures, self.since) = (0, 0, now);
        }
        self.calls += 1;
        self.failures += u32::from(failed);
        self.in_a_row = if failed { self.in_a_row + 1 } else { 0 };
        self.in_a_row >= IN_A_ROW || self.calls >= CALLS_MIN && self.failures * 2 >= self.calls
    }

    fn is_answered(&self) -> bool {
        self.why.as_ref().is_some_and(Fault::is_answer)
    }

    /// Says that it is open.
    fn tell(&mut self, server: &str, now: Instant) {
        let reason = self.why.as_ref().map(Fault::words).unwrap_or_default();
        let unsaid = self.told.unsaid;
        if self.is_answered() {
            warn!(%server, reason, unsaid, "the counter store does not count: deciding without it until it does");
        } else {
            warn!(%server, reason, unsaid, "the counter store does not answer: deciding without it until it does");
        }
        self.told = Told { open: true, at: Some(now), unsaid: 0 };
    }
}

impl Breaker {
    pub(crate) fn new(server: String, now: Instant) -> Self {
        Breaker {
            server,
            open: AtomicBool::new(false),
            troubled: AtomicBool::new(false),
            openings: AtomicU64::new(0),
            state: Mutex::new(State::new(now)),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether the last call failed, as far as is known.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_open() || self.troubled.load(Ordering::Relaxed) && self.state.lock().in_a_row > 0
    }

    /// Whether it is open by an answer and not by silence.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_open() && self.state.lock().is_answered()
    }

    /// Why it is open; nothing if it is not.
    pub(crate) fn why(&self) -> Option<Fault> {
        if self.is_open() { self.state.lock().why.clone() } else { None }
    }

    /// How often it has opened.
    pub(crate) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed)
    }

    /// Notes how a call ended. Whether this opened it.
    pub(crate) fn note(&self, fault: Option<&Fault>, now: Instant) -> bool {
        if fault.is_some() {
            self.troubled.store(true, Ordering::Relaxed);
        } else if !self.troubled.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        let trip = state.count(fault.is_some(), now);
        if state.failures == 0 && state.in_a_row == 0 {
            self.troubled.store(false, Ordering::Relaxed);
        }
        let Some(fault) = fault else { return false };
        let opened = trip && !self.open.swap(true, Ordering::Relaxed);
        if opened {
            state.why = Some(fault.clone());
            self.openings.fetch_add(1, Ordering::Relaxed);
            if state.told.is_due(now) {
                state.tell(&self.server, now);
            } else {
                state.told.unsaid += 1;
            }
        }
        opened
    }

    /// A probe failed. What was opened by an answer stays so: a probe that got lost says nothing new.
    pub(crate) fn still_open(&self, fault: &Fault, now: Instant) {
        let mut state = self.state.lock();
        if fault.is_answer() && state.why.as_ref() != Some(fault) {
            state.why = Some(fault.clone());
        }
        // An outage that began within the quiet time and lasts is told of after it.
        if !state.told.open && state.told.is_due(now) {
            state.tell(&self.server, now);
        }
    }

    /// A probe was answered. Whether this closed it.
    pub(crate) fn close(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let told = std::mem::take(&mut state.told);
        *state = State { told: Told { open: false, ..told }, ..State::new(now) };
        let closed = self.open.swap(false, Ordering::Relaxed);
        if closed && told.open {
            info!(server = %self.server, "the counter store answers again");
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
    fn five_failures_in_a_row_open_it_and_a_success_between_does_not_count() {
        let now = Instant::now();
        let breaker = breaker(now);
        let fail = || breaker.note(Some(&Fault::NoReply), now);
        assert!((0..4).all(|_| !fail()));
        breaker.note(None, now);
        assert!((0..4).all(|_| !fail()));
        assert!(!breaker.is_open());
        assert!(fail() && breaker.is_open());
        assert!(!fail(), "it is open already");
        assert!(breaker.close(now) && !breaker.is_open());
    }

    #[test]
    fn half_of_twenty_calls_of_a_second_open_it() {
        let now = Instant::now();
        let early = breaker(now);
        for _ in 0..9 {
            early.note(Some(&Fault::NoReply), now);
            early.note(None, now);
        }
        early.note(None, now);
        early.note(Some(&Fault::NoReply), now);
        assert!(early.is_open(), "ten of twenty");
        let later = breaker(now);
        for turn in 0..40 {
            later.note((turn % 2 == 0).then_some(&Fault::NoReply), now + PERIOD * (turn / 2));
        }
        assert!(!later.is_open(), "one of two in each second is too few to tell");
    }

    #[test]
    fn a_lost_probe_does_not_make_silence_of_an_answer() {
        let now = Instant::now();
        let breaker = breaker(now);
        let full = Fault::Unavailable("OOM command not allowed".to_owned());
        assert!((0..5).any(|_| breaker.note(Some(&full), now)));
        breaker.still_open(&Fault::NoReply, now);
        assert!(breaker.is_answered());
        assert_eq!(breaker.why(), Some(full));
    }

    #[test]
    fn a_server_that_comes_and_goes_is_told_of_now_and_then_and_one_that_stays_away_surely() {
        let start = Instant::now();
        let breaker = breaker(start);
        let open_at = |now| assert!((0..5).any(|_| breaker.note(Some(&Fault::NoReply), now)));
        let told = || {
            let state = breaker.state.lock();
            (state.told.open, state.told.unsaid)
        };
        open_at(start);
        assert_eq!(told(), (true, 0));
        for _ in 0..3 {
            breaker.close(start);
            open_at(start + QUIET / 2);
        }
        assert_eq!(told(), (false, 3), "just told");
        breaker.still_open(&Fault::NoReply, start + QUIET);
        assert_eq!(told(), (true, 0), "still open");
    }
}
