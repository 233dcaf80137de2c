//! The algorithms: pure functions from (state, limit, cost, now) to a verdict and the next state.
//!
//! All numbers are integers and exact; waits are rounded up, what remains is rounded down. A refusal has no next
//! state: a refused request changes nothing, so knocking does not lengthen the wait. What a counter remembers is
//! its consumption, never the numbers of its limit: a limit can change under it and consumption carries over.

pub mod bucket;
pub mod fixed_window;
pub mod sliding_window_counter;
pub mod sliding_window_log;

use crate::limit::{Algorithm, Limit};
use crate::time::{Span, Timestamp};

/// What one limit says to one charge.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the charge may be taken.
    pub outcome: Outcome,
    /// The largest cost that would be admitted at this instant, after this charge.
    pub remaining: u32,
    /// How long until nothing is used any more, if no one else comes.
    pub reset_after: Span,
}

/// The answer itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Admitted; the request should start after `delay` (zero but for shaping limits).
    Admit {
        /// How long the request should be held.
        delay: Span,
    },
    /// Refused; the same charge alone is admitted after exactly `retry_after`.
    Refuse {
        /// How long to wait.
        retry_after: Span,
    },
    /// The cost exceeds what the limit ever admits at once: waiting does not help.
    Never,
}

impl Verdict {
    /// Whether the charge may be taken.
    pub const fn admits(&self) -> bool {
        matches!(self.outcome, Outcome::Admit { .. })
    }

    /// What is told of a limit that was not asked: as if nobody had used it.
    pub const fn unused(limit: &Limit) -> Self {
        let outcome = Outcome::Admit { delay: Span::ZERO };
        Verdict { outcome, remaining: limit.capacity(), reset_after: Span::ZERO }
    }

    /// The verdict of a limit that can never admit this cost.
    const fn never(remaining: u32, reset_after: Span) -> Self {
        Verdict { outcome: Outcome::Never, remaining, reset_after }
    }
}

/// What a counter remembers between two charges: sixteen bytes, whatever the algorithm.
///
/// `at` is the instant the state speaks of (the last write of a bucket, the start of a window), `value` what
/// was used by then, in the algorithm's own form.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// The instant the state speaks of.
    pub at: Timestamp,
    /// What was used by then.
    pub value: u64,
}

/// A verdict and, if it admits, what to remember.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// What to answer.
    pub verdict: Verdict,
    /// The state after the charge; nothing for a refusal or a peek.
    pub next: Option<NextState>,
}

/// The state after an admitted charge.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NextState {
    /// What to remember.
    pub cell: CounterState,
    /// From this instant on the counter is as good as new and may be forgotten.
    pub restored_at: Timestamp,
}

/// Judges one charge against one counter. Same arguments, same judgement.
///
/// A cost of zero is a peek: it is admitted if a cost of one would be, and leaves the counter alone.
/// The log keeps more than a cell holds and is evaluated by [`sliding_window_log`].
pub fn evaluate(limit: &Limit, cell: Option<CounterState>, cost: u32, now: Timestamp) -> Evaluation {
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
            bucket::evaluate(limit, cell, cost, now)
        }
        Algorithm::SlidingWindowCounter => sliding_window_counter::evaluate(limit, cell, cost, now),
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog => {
            fixed_window::evaluate(limit, cell, cost, now)
        }
    }
}

/// Brings a state from an impossible future back to `now`, keeping what was used.
///
/// A state may lie a little ahead of the caller's clock (another caller read a later one); each algorithm treats
/// that as "no time has passed". Further ahead than two windows, and than a minute, the clock that wrote it was wrong
/// and waiting for ours to catch up would lock the client out.
pub fn rewind_future(limit: &Limit, cell: CounterState, now: Timestamp) -> Option<CounterState> {
    if cell.at <= now + tolerance(limit) {
        return None;
    }
    let at = match limit.algorithm() {
        Algorithm::SlidingWindowCounter => sliding_window_counter::window_start(limit, now),
        Algorithm::FixedWindow => fixed_window::bounds(limit, now).0,
        _ => now,
    };
    Some(CounterState { at, ..cell })
}

/// How far ahead of the clock a state may lie before it is called corrupt.
pub(crate) fn tolerance(limit: &Limit) -> Span {
    const FLOOR: Span = Span::from_secs(60);
    let window = limit.window_longest();
    (window + window).max(FLOOR)
}
