//! Token bucket, GCRA and leaky bucket: one exact arithmetic, three ways to speak of it.
//!
//! A bucket is remembered as its *debt*: what was taken and is not yet paid back. One request owes `window`
//! ticks' worth of units, and `requests` units are paid back each tick, so the rate `requests / window` is exact
//! with no fraction anywhere. The token count of the textbook is `capacity - debt`; the theoretical arrival time
//! of GCRA is `at + debt / requests`; the finish time of a leaky bucket is the same instant. Debt knows nothing of
//! the capacity, so when a limit is raised or lowered the consumption carries over by itself.

use super::{CounterState, Evaluation, NextState, Outcome, Verdict};
use crate::limit::{Algorithm, Limit, Tick};
use crate::time::{Span, Timestamp};

/// The two top bits of a value say in which tick the debt below them was counted.
const TICK_SHIFT: u32 = 62;
const DEBT_MASK: u64 = (1 << TICK_SHIFT) - 1;

/// Judges one charge against one bucket.
///
/// Within any span of `d` ticks at most `capacity + d * requests / window` is admitted.
pub fn evaluate(limit: &Limit, cell: Option<CounterState>, cost: u32, now: Timestamp) -> Evaluation {
    match admit(limit, cell, cost, now) {
        Some((verdict, next)) => Evaluation { verdict, next: (cost > 0).then_some(next) },
        None => Evaluation { verdict: refuse(limit, cell, cost, now), next: None },
    }
}

/// What an admitted charge is told, and the state after it; nothing if it is refused.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "what is handed over through memory costs as much as the arithmetic"
)]
pub(crate) fn admit(
    limit: &Limit,
    cell: Option<CounterState>,
    cost: u32,
    now: Timestamp,
) -> Option<(Verdict, NextState)> {
    let tick = limit.tick();
    let (debt, at) = debt_at(limit, cell, now);
    let (room, wanted) = (limit.debt_units_max() - debt, wanted(limit, cost));
    if wanted > room {
        return None;
    }
    let taken = if cost == 0 { 0 } else { wanted };
    let restored_at = instant(tick, at + limit.ticks_to_pay(debt + taken));
    let verdict = Verdict {
        outcome: Outcome::Admit { delay: delay(limit, debt, wanted, at, now) },
        remaining: limit.requests_in(room - taken),
        reset_after: restored_at.since(now),
    };
    let cell = CounterState { at: instant(tick, at), value: pack(debt + taken, tick) };
    Some((verdict, NextState { cell, restored_at }))
}

/// What a refused charge is told.
fn refuse(limit: &Limit, cell: Option<CounterState>, cost: u32, now: Timestamp) -> Verdict {
    let (debt, at) = debt_at(limit, cell, now);
    let (room, wanted) = (limit.debt_units_max() - debt, wanted(limit, cost));
    let remaining = limit.requests_in(room);
    let wait = |units| wait_until(limit.tick(), at + limit.ticks_to_pay(units), now);
    if wanted > limit.debt_units_max() {
        return Verdict::never(remaining, if limit.requests() == 0 { Span::ZERO } else { wait(debt) });
    }
    let outcome = Outcome::Refuse { retry_after: wait(wanted - room) };
    Verdict { outcome, remaining, reset_after: wait(debt) }
}

/// The units of debt that a charge adds; a peek asks for one request's.
#[inline]
fn wanted(limit: &Limit, cost: u32) -> u64 {
    u64::from(cost.max(1)).saturating_mul(limit.window_ticks())
}

/// The debt still open at `now`, and the tick it speaks of: the later of the clock and the last write, so a
/// clock that steps back neither pays nor charges anything.
#[inline]
fn debt_at(limit: &Limit, cell: Option<CounterState>, now: Timestamp) -> (u64, u64) {
    let now_ticks = limit.tick().floor(now.as_micros());
    let Some(cell) = cell else { return (0, now_ticks) };
    let written = limit.tick().floor(cell.at.as_micros());
    let debt = unpack(cell.value, limit.tick()).min(limit.debt_units_max());
    let paid = now_ticks.saturating_sub(written).saturating_mul(u64::from(limit.requests()));
    (debt.saturating_sub(paid), now_ticks.max(written))
}

/// How long an admitted request waits for its turn.
#[inline]
fn delay(limit: &Limit, debt: u64, wanted: u64, at: u64, now: Timestamp) -> Span {
    let before = match limit.algorithm() {
        // A shaper serves one after another: this one starts when those before it are done.
        Algorithm::LeakyBucket => debt,
        // A bucket starts at once what its capacity covers, and holds the rest until it does.
        _ => (debt + wanted).saturating_sub(limit.capacity_units()),
    };
    if before == 0 {
        return Span::ZERO;
    }
    wait_until(limit.tick(), at + limit.ticks_to_pay(before), now)
}

#[inline]
fn instant(tick: Tick, ticks: u64) -> Timestamp {
    // Most limits count in microseconds: the branch spares them the multiplication.
    let micros = if tick == Tick::Micro { ticks } else { ticks.saturating_mul(tick.micros()) };
    Timestamp::from_micros(micros)
}

fn wait_until(tick: Tick, ticks: u64, now: Timestamp) -> Span {
    instant(tick, ticks).since(now)
}

#[inline]
fn pack(debt: u64, tick: Tick) -> u64 {
    code(tick) << TICK_SHIFT | debt
}

#[inline]
fn code(tick: Tick) -> u64 {
    match tick {
        Tick::Micro => 0,
        Tick::Milli => 1,
        Tick::Second => 2,
    }
}

/// The debt in the units of `tick`.
#[inline]
fn unpack(value: u64, tick: Tick) -> u64 {
    if value >> TICK_SHIFT == code(tick) { value & DEBT_MASK } else { convert(value, tick) }
}

/// The debt in the units of another tick than it was written in, rounded up if that was finer.
#[cold]
fn convert(value: u64, tick: Tick) -> u64 {
    let written = match value >> TICK_SHIFT {
        0 => Tick::Micro,
        1 => Tick::Milli,
        _ => Tick::Second,
    };
    let micros = u128::from(value & DEBT_MASK) * u128::from(written.micros());
    u64::try_from(micros.div_ceil(u128::from(tick.micros()))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Window;

    fn minute(requests: u32, burst: Option<u32>, delay: Option<Span>, algorithm: Algorithm) -> Limit {
        Limit::with_options(algorithm, requests, Window::Length(Span::from_secs(60)), burst, delay).unwrap()
    }

    fn charge(limit: &Limit, cell: &mut Option<CounterState>, cost: u32, now: Timestamp) -> Verdict {
        let judgement = evaluate(limit, *cell, cost, now);
        *cell = judgement.next.map(|next| next.cell).or(*cell);
        judgement.verdict
    }

    #[test]
    fn burst_after_any_idle_time_is_the_capacity() {
        let limit = minute(10, Some(10), None, Algorithm::Gcra);
        let start = Timestamp::from_secs(1_000_000);
        for idle_secs in [0, 1, 59, 90, 107, 1_000, 1_000_000] {
            let mut cell = None;
            while charge(&limit, &mut cell, 1, start).admits() {}
            let later = start + Span::from_secs(idle_secs);
            let mut admitted = 0;
            while charge(&limit, &mut cell, 1, later).admits() {
                admitted += 1;
            }
            assert_eq!(admitted, (idle_secs / 6).min(10), "after {idle_secs} s");
        }
    }

    #[test]
    fn cost_equal_to_the_capacity_is_served_and_one_more_never_is() {
        let limit = minute(10, Some(3), None, Algorithm::TokenBucket);
        let now = Timestamp::from_secs(9);
        assert!(charge(&limit, &mut None, 3, now).admits());
        assert_eq!(charge(&limit, &mut None, 4, now).outcome, Outcome::Never);
    }

    #[test]
    fn a_limit_of_zero_refuses_everything_for_ever() {
        let limit = minute(0, None, None, Algorithm::TokenBucket);
        let verdict = charge(&limit, &mut None, 1, Timestamp::from_secs(9));
        assert_eq!(verdict, Verdict::never(0, Span::ZERO));
    }

    #[test]
    fn a_shaper_spaces_starts_evenly_and_refuses_beyond_the_delay() {
        let limit = minute(60, None, Some(Span::from_secs(2)), Algorithm::LeakyBucket);
        let now = Timestamp::from_secs(9);
        let mut cell = None;
        let outcomes: Vec<Outcome> = (0..4).map(|_| charge(&limit, &mut cell, 1, now).outcome).collect();
        let delayed = |secs| Outcome::Admit { delay: Span::from_secs(secs) };
        let refused = Outcome::Refuse { retry_after: Span::from_secs(1) };
        assert_eq!(outcomes, [delayed(0), delayed(1), delayed(2), refused]);
    }

    #[test]
    fn a_bucket_with_a_delay_holds_what_exceeds_its_capacity() {
        let limit = minute(60, Some(2), Some(Span::from_secs(1)), Algorithm::TokenBucket);
        let now = Timestamp::from_secs(9);
        let mut cell = None;
        let outcomes: Vec<Outcome> = (0..4).map(|_| charge(&limit, &mut cell, 1, now).outcome).collect();
        let delayed = |secs| Outcome::Admit { delay: Span::from_secs(secs) };
        assert_eq!(
            outcomes,
            [delayed(0), delayed(0), delayed(1), Outcome::Refuse { retry_after: Span::from_secs(1) }]
        );
    }

    #[test]
    fn consumption_carries_over_when_the_limit_changes_even_between_ticks() {
        let small = minute(100, None, None, Algorithm::TokenBucket);
        let large = minute(u32::MAX / 2, None, None, Algorithm::TokenBucket);
        assert_ne!(small.tick(), large.tick());
        let now = Timestamp::from_secs(60);
        let mut cell = None;
        charge(&small, &mut cell, 60, now);
        assert_eq!(charge(&large, &mut cell, 0, now).remaining, u32::MAX / 2 - 60);
        charge(&large, &mut cell, 20, now);
        assert_eq!(charge(&small, &mut cell, 0, now).remaining, 20);
    }
}
