//! Fixed window: a count per aligned window, or per day, week or month in a time zone.
//!
//! Only admitted requests are counted. At most `requests` are admitted per window, and at most twice that in any span of
//! a window's length, around a boundary.

use super::{AdmittedCharge, CounterState, Evaluation, NextState, Outcome, Verdict, narrow};
use crate::limit::{Limit, Window};
use crate::time::{Span, Timestamp};

/// Evaluates one charge against the count of the window that contains `now`.
pub fn evaluate(limit: &Limit, state: Option<CounterState>, cost: u32, now: Timestamp) -> Evaluation {
    // A state ahead of the clock stays in its window.
    let moment = state.map_or(now, |state| state.at.max(now));
    let (start, end) = bounds(limit, moment);
    let used = state.filter(|state| state.at >= start).map_or(0, |state| state.value);
    let left = u64::from(limit.requests()).saturating_sub(used);
    let wanted = u64::from(cost.max(1));
    let until_end = end.since(now);

    if wanted > left {
        let reset_after = if used > 0 { until_end } else { Span::ZERO };
        let outcome = if cost > limit.requests() || limit.requests() == 0 {
            Outcome::Never
        } else {
            Outcome::Refuse { retry_after: until_end }
        };
        return Evaluation { verdict: Verdict { outcome, remaining: narrow(left), reset_after }, next: None };
    }
    let used = used + u64::from(cost);
    let verdict = Verdict {
        outcome: Outcome::Admit { delay: Span::ZERO },
        remaining: narrow(left - u64::from(cost)),
        reset_after: if used > 0 { until_end } else { Span::ZERO },
    };
    let next =
        (cost > 0).then_some(NextState { state: CounterState { at: start, value: used }, restored_at: end });
    Evaluation { verdict, next }
}

/// Takes back a charge of the window that contains `now`.
pub(super) fn refund(
    limit: &Limit,
    state: CounterState,
    charge: AdmittedCharge,
    now: Timestamp,
) -> Option<CounterState> {
    let (start, end) = bounds(limit, state.at.max(now));
    let value = state.value.checked_sub(u64::from(charge.cost))?;
    let is_current = state.at >= start && end == charge.restored_at;
    is_current.then_some(CounterState { value, ..state })
}

/// The window that contains `now`: its start, and the start of the next.
pub(super) fn bounds(limit: &Limit, now: Timestamp) -> (Timestamp, Timestamp) {
    match limit.window() {
        Window::Calendar(calendar) => calendar.bounds(now),
        Window::Length(length) => {
            let start = now.as_micros() - now.as_micros() % length.as_micros();
            let start = Timestamp::from_micros(start);
            (start, start + *length)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::calendar::{Calendar, CalendarUnit};
    use crate::limit::Algorithm;

    #[test]
    fn calendar_month_counts_until_its_last_microsecond() {
        let month = Calendar::new(CalendarUnit::Month(1), "America/New_York").unwrap();
        let limit = Limit::new(Algorithm::FixedWindow, 1, Window::Calendar(Arc::new(month))).unwrap();
        let (start, end) = bounds(&limit, Timestamp::from_secs(1_773_000_000));
        let first = evaluate(&limit, None, 1, start).next.map(|next| next.state);
        let last_moment = Timestamp::from_micros(end.as_micros() - 1);
        let refused = evaluate(&limit, first, 1, last_moment).verdict;
        assert_eq!(refused.outcome, Outcome::Refuse { retry_after: Span::from_micros(1) });
        assert!(evaluate(&limit, first, 1, end).verdict.admits());
    }

    #[test]
    fn clock_stepping_back_admits_nothing_extra() {
        let limit = Limit::new(Algorithm::FixedWindow, 1, Window::Length(Span::from_secs(60))).unwrap();
        let state = evaluate(&limit, None, 1, Timestamp::from_secs(120)).next.map(|next| next.state);
        let earlier = evaluate(&limit, state, 1, Timestamp::from_secs(119)).verdict;
        assert_eq!(earlier.outcome, Outcome::Refuse { retry_after: Span::from_secs(61) });
    }
}
