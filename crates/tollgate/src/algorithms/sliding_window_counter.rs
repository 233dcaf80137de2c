//! Sliding window counter: two aligned windows, the previous one weighted by how much of it still overlaps.
//!
//! With `e` ticks elapsed of the current window of `w` ticks, `previous * (w - e) + current * w` is compared with
//! `requests * w`, in integers. At most `requests` are admitted per aligned window and at most `2 * requests - 1` in any
//! span of a window's length. A client that retries constantly gets `requests - 1` per window in the long run (one every
//! other window if `requests` is 1), because the last unit is free only once the previous window no longer counts.

use super::{AdmittedCharge, CounterState, Evaluation, NextState, Outcome, Verdict, narrow};
use crate::limit::Limit;
use crate::time::{Span, Timestamp};

/// The counts at one instant.
struct Counts {
    /// Start of the current window, in ticks.
    start: u64,
    /// Ticks elapsed of the current window.
    elapsed: u64,
    current: u64,
    previous: u64,
}

/// Evaluates one charge against the weighted count.
pub fn evaluate(limit: &Limit, state: Option<CounterState>, cost: u32, now: Timestamp) -> Evaluation {
    let counts = roll(limit, state, now);
    let window = limit.window_ticks();
    let requests = u64::from(limit.requests());
    let wanted = u64::from(cost.max(1));
    let allowed = requests * window;
    // Counts taken under a higher limit may exceed this one by any factor; beyond `u64` nothing remains anyway.
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
        state: CounterState { at: instant(limit, after.start), value: after.current << 32 | after.previous },
        restored_at: instant(limit, after.start + 2 * window),
    });
    Evaluation { verdict, next }
}

/// Takes back a charge of the window that contains `now`. A charge of the previous window stays counted.
pub(super) fn refund(
    limit: &Limit,
    state: CounterState,
    charge: AdmittedCharge,
    now: Timestamp,
) -> Option<CounterState> {
    let Counts { start, current, previous, .. } = roll(limit, Some(state), now);
    let current = current.checked_sub(u64::from(charge.cost))?;
    let is_current = instant(limit, start + 2 * limit.window_ticks()) == charge.restored_at;
    is_current.then_some(CounterState { at: instant(limit, start), value: current << 32 | previous })
}

/// Ticks from the start of the current window until at most `spare` is used.
///
/// The weighted count decreases only as the previous window loses weight: within this window if the current count alone
/// leaves enough, else within the next one, where the current count is the previous one.
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

/// The counts at `now`. A state ahead of the clock stays at the start of its window.
fn roll(limit: &Limit, state: Option<CounterState>, now: Timestamp) -> Counts {
    let window = limit.window_ticks();
    let now_ticks = limit.tick().floor(now.as_micros());
    let elapsed = now_ticks % window;
    let start = now_ticks - elapsed;
    let Some(state) = state else { return Counts { start, elapsed, current: 0, previous: 0 } };

    let (current, previous) = (state.value >> 32, state.value & u64::from(u32::MAX));
    let stored = limit.tick().floor(state.at.as_micros());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Window};

    #[test]
    fn retry_after_is_exact_late_in_the_window() {
        // Used up at 59 s of a minute: one second later the previous window still weighs 100 %.
        let limit =
            Limit::new(Algorithm::SlidingWindowCounter, 100, Window::Length(Span::from_secs(60))).unwrap();
        let now = Timestamp::from_secs(59);
        let mut state = None;
        for _ in 0..100 {
            state = evaluate(&limit, state, 1, now).next.map(|next| next.state);
        }
        let refused = evaluate(&limit, state, 1, now).verdict;
        assert_eq!(refused.outcome, Outcome::Refuse { retry_after: Span::from_micros(1_600_000) });
        assert!(!evaluate(&limit, state, 1, now + Span::from_micros(1_599_999)).verdict.admits());
        assert!(evaluate(&limit, state, 1, now + Span::from_micros(1_600_000)).verdict.admits());
    }

    #[test]
    fn any_window_admits_at_most_twice_the_limit_less_one() {
        let limit =
            Limit::new(Algorithm::SlidingWindowCounter, 10, Window::Length(Span::from_secs(1))).unwrap();
        let mut state = None;
        let mut admitted = 0;
        // Everything in the last instant of one window, then greedily until the end of the next.
        for micros in (999_999..1_999_999).step_by(1_000) {
            while let Some(next) = evaluate(&limit, state, 1, Timestamp::from_micros(micros)).next {
                state = Some(next.state);
                admitted += 1;
            }
        }
        assert_eq!(admitted, 19);
    }
}
