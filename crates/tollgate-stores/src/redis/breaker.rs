//! The breaker: a server that does not answer is left alone, and asked from aside whether it is back.
//!
//! While it is open a decision costs no wait at all. It closes when a probe is answered, not when some time is over, so
//! no request is spent on finding out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So many failures in a row open it.
const IN_A_ROW: u32 = 5;
/// Or half of the calls of a second, if there were at least so many.
const CALLS_MIN: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);

/// Whether a server may be asked.
#[derive(Debug)]
pub(super) struct Breaker {
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
}

impl State {
    /// Counts a call. Whether the server should be left alone.
    fn count(&mut self, failed: bool, now: Instant) -> bool {
        if now.duration_since(self.since) >= PERIOD {
            *self = State { in_a_row: self.in_a_row, calls: 0, failures: 0, since: now };
        }
        self.calls += 1;
        self.failures += u32::from(failed);
        self.in_a_row = if failed { self.in_a_row + 1 } else { 0 };
        self.in_a_row >= IN_A_ROW || self.calls >= CALLS_MIN && self.failures * 2 >= self.calls
    }
}

impl Breaker {
    pub(super) fn new(now: Instant) -> Self {
        let state = Mutex::new(State { in_a_row: 0, calls: 0, failures: 0, since: now });
        Breaker {
            open: AtomicBool::new(false),
            troubled: AtomicBool::new(false),
            openings: AtomicU64::new(0),
            state,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether the last call failed, as far as is known.
    pub(super) fn is_doubted(&self) -> bool {
        self.is_open() || self.troubled.load(Ordering::Relaxed) && self.state.lock().in_a_row > 0
    }

    /// How often it has opened.
    pub(super) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed)
    }

    /// Notes how a call ended. Whether this opened it.
    pub(super) fn note(&self, failed: bool, now: Instant) -> bool {
        if failed {
            self.troubled.store(true, Ordering::Relaxed);
        } else if !self.troubled.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        let trip = state.count(failed, now);
        if state.failures == 0 && state.in_a_row == 0 {
            self.troubled.store(false, Ordering::Relaxed);
        }
        let opened = trip && failed && !self.open.swap(true, Ordering::Relaxed);
        if opened {
            self.openings.fetch_add(1, Ordering::Relaxed);
        }
        opened
    }

    /// A probe was answered. Whether this closed it.
    pub(super) fn close(&self, now: Instant) -> bool {
        *self.state.lock() = State { in_a_row: 0, calls: 0, failures: 0, since: now };
        self.open.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_in_a_row_open_it_and_a_success_between_does_not_count() {
        let now = Instant::now();
        let breaker = Breaker::new(now);
        assert!((0..4).all(|_| !breaker.note(true, now)));
        breaker.note(false, now);
        assert!((0..4).all(|_| !breaker.note(true, now)));
        assert!(!breaker.is_open());
        assert!(breaker.note(true, now) && breaker.is_open());
        assert!(!breaker.note(true, now), "it is open already");
        assert!(breaker.close(now) && !breaker.is_open());
    }

    #[test]
    fn half_of_twenty_calls_of_a_second_open_it() {
        let now = Instant::now();
        let breaker = Breaker::new(now);
        for _ in 0..9 {
            breaker.note(true, now);
            breaker.note(false, now);
        }
        breaker.note(false, now);
        breaker.note(true, now);
        assert!(breaker.is_open(), "ten of twenty");
        let later = Breaker::new(now);
        for turn in 0..40 {
            later.note(turn % 2 == 0, now + PERIOD * (turn / 2));
        }
        assert!(!later.is_open(), "one of two in each second is too few to tell");
    }
}
