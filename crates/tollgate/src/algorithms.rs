//! The algorithms: pure functions from (state, limit, cost, now) to a verdict and the next state.
//!
//! All arithmetic uses integers and is exact; waits are rounded up, remaining units are rounded down. A refusal has no
//! next state, so retries do not lengthen the wait. A counter stores consumption, not the values of its limit: consumption
//! carries over when the limit changes.

pub mod bucket;
pub mod fixed_window;
pub mod sliding_window_counter;
pub mod sliding_window_log;

use crate::limit::{Algorithm, Limit};
use crate::time::{Span, Timestamp};

/// The verdict of one limit on one charge.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the charge may be taken.
    pub outcome: Outcome,
    /// The largest cost that would be admitted at this instant, after this charge.
    pub remaining: u32,
    /// How long until the limit is restored in full, if no other request comes.
    pub reset_after: Span,
}

/// Whether a charge is admitted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Admitted; the request should start after `delay`, which is zero unless the limit delays requests.
    Admit {
        /// How long to delay the request.
        delay: Span,
    },
    /// Refused; the same charge alone is admitted after exactly `retry_after`.
    Refuse {
        /// How long to wait.
        retry_after: Span,
    },
    /// The cost exceeds the capacity: waiting does not help.
    Never,
}

impl Verdict {
    /// Whether the charge may be taken.
    pub const fn admits(&self) -> bool {
        matches!(self.outcome, Outcome::Admit { .. })
    }

    /// The verdict of an unused limit, for one that was not read.
    pub const fn unused(limit: &Limit) -> Self {
        let outcome = Outcome::Admit { delay: Span::ZERO };
        Verdict { outcome, remaining: limit.capacity(), reset_after: Span::ZERO }
    }

    /// The verdict of a limit that can never admit this cost.
    const fn never(remaining: u32, reset_after: Span) -> Self {
        Verdict { outcome: Outcome::Never, remaining, reset_after }
    }
}

/// The state of a counter between two charges: sixteen bytes for every algorithm but the log.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// The last write of a bucket, or the start of a window.
    pub at: Timestamp,
    /// What was used at that instant, encoded by the algorithm.
    pub value: u64,
}

/// A verdict and, if it admits, the next state.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The verdict.
    pub verdict: Verdict,
    /// The state after the charge; `None` for a refusal or a peek.
    pub next: Option<NextState>,
}

/// The state after an admitted charge.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NextState {
    /// The new state.
    pub state: CounterState,
    /// When the counter is restored in full and may be dropped.
    pub restored_at: Timestamp,
}

/// Evaluates one charge against one counter. A pure function.
///
/// A cost of zero is a peek: it is admitted if a cost of one would be, and changes nothing. The log has a state of its
/// own, see [`sliding_window_log`].
pub fn evaluate(limit: &Limit, state: Option<CounterState>, cost: u32, now: Timestamp) -> Evaluation {
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
            bucket::evaluate(limit, state, cost, now)
        }
        Algorithm::SlidingWindowCounter => sliding_window_counter::evaluate(limit, state, cost, now),
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog => {
            fixed_window::evaluate(limit, state, cost, now)
        }
    }
}

/// A charge that was admitted earlier.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AdmittedCharge {
    /// The units that it took.
    pub cost: u32,
    /// When the counter was to be restored in full after it: `now` of the charge plus `reset_after` of its verdict.
    pub restored_at: Timestamp,
    /// Units of a bucket that the charge does not owe although `restored_at` suggests it: what refunds have taken since, and
    /// what `restored_at` was rounded up by ([`bucket::rounded_up`]).
    pub not_owed: u64,
}

/// A state without an earlier charge.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RefundedState {
    /// The new state.
    pub state: CounterState,
    /// What the refund took from the debt of a bucket, for [`AdmittedCharge::not_owed`] of other charges.
    pub debt: u64,
}

/// Takes back a charge from a counter. `None` if it does not certainly count any more: its window ended, or its bucket
/// may have been empty since. The limit must be the one by which it was charged. The log has a state of its own, see
/// [`sliding_window_log`].
pub fn refund(
    limit: &Limit,
    state: CounterState,
    charge: AdmittedCharge,
    now: Timestamp,
) -> Option<RefundedState> {
    let window = |state| RefundedState { state, debt: 0 };
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
            bucket::refund(limit, state, charge, now)
        }
        Algorithm::SlidingWindowCounter => {
            sliding_window_counter::refund(limit, state, charge, now).map(window)
        }
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog => {
            fixed_window::refund(limit, state, charge, now).map(window)
        }
    }
}

/// Moves a state that a wrong clock wrote from the future to `now`, keeping what was used. `None` if it need not move.
///
/// A state may be slightly ahead of the caller's clock; each algorithm then assumes that no time has passed. A state
/// ahead by more than two windows and a minute would lock the client out until the clock catches up.
pub fn rewind_future(limit: &Limit, state: CounterState, now: Timestamp) -> Option<CounterState> {
    if state.at <= now + tolerance(limit) {
        return None;
    }
    let at = match limit.algorithm() {
        Algorithm::SlidingWindowCounter => sliding_window_counter::window_start(limit, now),
        Algorithm::FixedWindow => fixed_window::bounds(limit, now).0,
        _ => now,
    };
    Some(CounterState { at, ..state })
}

/// How far ahead of the clock a state may be.
pub(crate) fn tolerance(limit: &Limit) -> Span {
    const FLOOR: Span = Span::from_secs(60);
    let window = limit.window_longest();
    (window + window).max(FLOOR)
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
