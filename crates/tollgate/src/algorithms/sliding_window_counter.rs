//! Sliding window counter: two aligned windows, the older weighted by how much of it still counts.
//!
//! With `e` ticks gone of the current window of `w` ticks, `previous * (w - e) + current * w` is compared with
//! `requests * w`: integers, no rounding. At most `requests` pass per aligned window and at most `2 * requests - 1`
//! in any span of a window's length. A client that never stops asking gets `requests - 1` per window in the long run
//! (one every other window if `requests` is 1): the last unit is free only when the older window has faded entirely.

use super::{CounterState, Evaluation, NextState, Outcome, Verdict};
use crate::limit::Limit;
use crate::time::{Span, Timestamp};

/// The counts as they stand at one instant.
struct Counts {
    /// Start of the current window, in ticks.
    start: u64,
    /// Ticks gone of the current window.
    elapsed: u64,
    current: u64,
    previous: u64,
}

/// Judges one charge against the weighted count.
pub fn evaluate(limit: &Limit, cell: Option<CounterState>, cost: u32, now: Timestamp) -> Evaluation {
    let counts = roll(limit, cell, now);
    let window = limit.window_ticks();
    let requests = u64::from(limit.requests());
    let wanted = u64::from(cost.max(1));
    let allowed = requests * window;
    // Counts taken under a higher limit may exceed this one by any factor: past `u64` nothing remains anyway.
    let fading = counts.previous.saturating_mul(window - counts.elapsed);
    let used = counts.current.saturating_mul(window).saturating_add(fading);
    let remaining = narrow(allowed.saturating_sub(used) / window);

    if wanted > requests {
        return refuse(Outcome::Never, remaining, reset_after(limit, &counts, now));
    }
    if used.saturating_add(wanted * window) > allowed {
        let retry_at = counts.start + admitted_after(&counts, requests - wanted, window);
        let retry_after = instant(limit, retry_at).since(now);
        return refuse(Outcome::Refuse { retry_after }, remaining, reset_after(limit, &counts, now));
    }
    let after = Counts { current: counts.current + u64::from(cost), ..counts };
    let verdict = Verdict {
        outcome: Outcome::Admit { delay: Span::ZERO },
        remaining: remaining - cost,
        reset_after: reset_after(limit, &after, now),
    };
    let next = (cost > 0).then(|| NextState {
        cell: CounterState { at: instant(limit, after.start), value: after.current << 32 | after.previous },
        restored_at: instant(limit, after.start + 2 * window),
    });
    Evaluation { verdict, next }
}

/// Ticks from the start of the current window until at most `spare` is used.
///
/// The weighted count falls with time only as the older window fades: within this window while the current
/// count alone leaves room, else within the next, where the current count is the fading one.
fn admitted_after(counts: &Counts, spare: u64, window: u64) -> u64 {
    if counts.current <= spare {
        share(counts.previous - (spare - counts.current), counts.previous, window)
    } else {
        window + share(counts.current - spare, counts.current, window)
    }
}

/// `part / whole` of a window in ticks, rounded up.
fn share(part: u64, whole: u64, window: u64) -> u64 {
    let ticks = (u128::from(part) * u128::from(window)).div_ceil(u128::from(whole));
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// The counts at `now`. A state ahead of the clock keeps its window, of which nothing has gone yet.
fn roll(limit: &Limit, cell: Option<CounterState>, now: Timestamp) -> Counts {
    let window = limit.window_ticks();
    let now_ticks = limit.tick().floor(now.as_micros());
    let elapsed = now_ticks % window;
    let start = now_ticks - elapsed;
    let Some(cell) = cell else { return Counts { start, elapsed, current: 0, previous: 0 } };

    let (current, previous) = (cell.value >> 32, cell.value & u64::from(u32::MAX));
    let stored = limit.tick().floor(cell.at.as_micros());
    if stored == start {
        Counts { start, elapsed, current, previous }
    } else if stored > start {
        Counts { start: stored, elapsed: 0, current, previous }
    } else if stored + window == start {
        Counts { start, elapsed, current: 0, previous: current }
    } else {
        Counts { start, elapsed, current: 0, previous: 0 }
    }
}

fn reset_after(limit: &Limit, counts: &Counts, now: Timestamp) -> Span {
    let windows = match (counts.current, counts.previous) {
        (0, 0) => return Span::ZERO,
        (0, _) => 1,
        _ => 2,
    };
    instant(limit, counts.start + windows * limit.window_ticks()).since(now)
}

/// Start of the window that contains `now`.
pub(super) fn window_start(limit: &Limit, now: Timestamp) -> Timestamp {
    let ticks = limit.tick().floor(now.as_micros());
    instant(limit, ticks - ticks % limit.window_ticks())
}

fn refuse(outcome: Outcome, remaining: u32, reset_after: Span) -> Evaluation {
    Evaluation { verdict: Verdict { outcome, remaining, reset_after }, next: None }
}

fn instant(limit: &Limit, ticks: u64) -> Timestamp {
    Timestamp::from_micros(ticks.saturating_mul(limit.tick().micros()))
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Window};

    #[test]
    fn a_limit_filled_late_in_the_window_names_the_true_wait() {
        // Full at 59 s of a minute: one second later the old window still weighs 100 %, so "1 s" would be a lie.
        let limit =
            Limit::new(Algorithm::SlidingWindowCounter, 100, Window::Length(Span::from_secs(60))).unwrap();
        let now = Timestamp::from_secs(59);
        let mut cell = None;
        for _ in 0..100 {
            cell = evaluate(&limit, cell, 1, now).next.map(|next| next.cell);
        }
        let refused = evaluate(&limit, cell, 1, now).verdict;
        assert_eq!(refused.outcome, Outcome::Refuse { retry_after: Span::from_micros(1_600_000) });
        assert!(!evaluate(&limit, cell, 1, now + Span::from_micros(1_599_999)).verdict.admits());
        assert!(evaluate(&limit, cell, 1, now + Span::from_micros(1_600_000)).verdict.admits());
    }

    #[test]
    fn at_most_twice_the_limit_less_one_in_any_window() {
        let limit =
            Limit::new(Algorithm::SlidingWindowCounter, 10, Window::Length(Span::from_secs(1))).unwrap();
        let mut cell = None;
        let mut admitted = 0;
        // Everything in the last instant of one window, then greedily until the end of the next.
        for micros in (999_999..1_999_999).step_by(1_000) {
            while let Some(next) = evaluate(&limit, cell, 1, Timestamp::from_micros(micros)).next {
                cell = Some(next.cell);
                admitted += 1;
            }
        }
        assert_eq!(admitted, 19);
    }
}
