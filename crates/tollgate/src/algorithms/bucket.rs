//! Token bucket, GCRA and leaky bucket: three descriptions of the same arithmetic.
//!
//! The state of a bucket is its *debt*: the units taken and not refilled yet. One request takes `window` units (its
//! length in ticks), and each tick refills `requests` units, so the rate `requests / window` is exact in integers. The
//! token count is `capacity - debt`; the theoretical arrival time of GCRA, and the finish time of a leaky bucket, is
//! `at + debt / requests`. The debt does not depend on the capacity, so consumption carries over when a limit changes.
//!
//! Callers may hold different limits for one counter, for example while a change reaches the nodes of a fleet. A debt above
//! the caller's capacity is never cut: a caller with a higher limit would get the difference again. The store bounds how
//! long such a debt refuses: until the counter would be restored under the limit by which it was charged last.

use super::{AdmittedCharge, CounterState, Evaluation, NextState, Outcome, RefundedState, Verdict};
use crate::limit::{Algorithm, Limit, Tick};
use crate::time::{Span, Timestamp};

/// The two top bits of a value hold the tick in which the debt below them is measured.
const TICK_SHIFT: u32 = 62;
const DEBT_MASK: u64 = (1 << TICK_SHIFT) - 1;

/// Evaluates one charge against one bucket.
///
/// Within any span of `d` ticks at most `capacity + d * requests / window` is admitted.
pub fn evaluate(limit: &Limit, state: Option<CounterState>, cost: u32, now: Timestamp) -> Evaluation {
    match admit(limit, state, cost, now) {
        Some((verdict, next)) => Evaluation { verdict, next: (cost > 0).then_some(next) },
        None => Evaluation { verdict: refuse(limit, state, cost, now), next: None },
    }
}

/// The verdict and the next state if the charge is admitted, else `None`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "passing the result through memory costs as much as the arithmetic")]
pub(crate) fn admit(
    limit: &Limit,
    state: Option<CounterState>,
    cost: u32,
    now: Timestamp,
) -> Option<(Verdict, NextState)> {
    let tick = limit.tick();
    let (debt, at) = debt_at(limit, state, now);
    let (free, wanted) = (limit.debt_units_max().saturating_sub(debt), wanted(limit, cost));
    if wanted > free {
        return None;
    }
    let taken = if cost == 0 { 0 } else { wanted };
    let restored_at = instant(tick, at + limit.ticks_to_refill(debt + taken));
    let verdict = Verdict {
        outcome: Outcome::Admit { delay: delay(limit, debt, wanted, at, now) },
        remaining: limit.requests_in(free - taken),
        reset_after: restored_at.since(now),
    };
    let state = CounterState { at: instant(tick, at), value: pack(debt + taken, tick) };
    Some((verdict, NextState { state, restored_at }))
}

/// The verdict on a refused charge.
fn refuse(limit: &Limit, state: Option<CounterState>, cost: u32, now: Timestamp) -> Verdict {
    let (debt, at) = debt_at(limit, state, now);
    let (most, wanted) = (limit.debt_units_max(), wanted(limit, cost));
    let remaining = limit.requests_in(most.saturating_sub(debt));
    let wait = |units| wait_until(limit.tick(), at + limit.ticks_to_refill(units), now);
    if wanted > most {
        return Verdict::never(remaining, if limit.requests() == 0 { Span::ZERO } else { wait(debt) });
    }
    let outcome = Outcome::Refuse { retry_after: wait(debt + wanted - most) };
    Verdict { outcome, remaining, reset_after: wait(debt) }
}

/// Takes back the part of a charge that time has not refilled.
///
/// The charge was to be refilled by `restored_at`, along with the debt before it. Later charges do not change that, and
/// refunds since bring it forward by what they took. To refund more would free what other requests have taken since.
pub(super) fn refund(
    limit: &Limit,
    state: CounterState,
    charge: AdmittedCharge,
    now: Timestamp,
) -> Option<RefundedState> {
    let tick = limit.tick();
    let restored_at = charge.restored_at.as_micros().div_ceil(tick.micros());
    let at = tick.floor(now.as_micros()).max(tick.ceil(state.at.as_micros()));
    let refilled_later = restored_at.saturating_sub(at).saturating_mul(u64::from(limit.requests()));
    let owed = refilled_later.saturating_sub(charge.not_owed);
    if owed == 0 || now >= charge.restored_at || holds_place(limit, state, charge, now) {
        return None;
    }
    let debt = unpack(state.value, tick);
    let back = wanted(limit, charge.cost).min(owed).min(debt);
    let state = CounterState { value: pack(debt - back, tick), ..state };
    Some(RefundedState { state, debt: back })
}

/// Whether the debt exceeded what the limit admits when it was written, under a higher limit.
pub(crate) fn exceeds(limit: &Limit, state: CounterState) -> bool {
    unpack(state.value, limit.tick()) > limit.debt_units_max()
}

/// The units by which the instant at which a debt is refilled is rounded up to whole ticks.
pub fn rounded_up(limit: &Limit, state: CounterState) -> u64 {
    let debt = unpack(state.value, limit.tick());
    limit.ticks_to_refill(debt).saturating_mul(u64::from(limit.requests())).saturating_sub(debt)
}

/// How long a bucket without anything left takes to refill.
pub(crate) fn full_refill(limit: &Limit) -> Span {
    let ticks = limit.ticks_to_refill(limit.debt_units_max());
    Span::from_micros(ticks.saturating_mul(limit.tick().micros()))
}

/// Whether requests admitted after the charge wait for their start: moving the queue forward would start the next request
/// too soon after them. The last request of a queue can be taken back.
fn holds_place(limit: &Limit, state: CounterState, charge: AdmittedCharge, now: Timestamp) -> bool {
    let (debt, at) = debt_at(limit, Some(state), now);
    let has_queue = match limit.algorithm() {
        Algorithm::LeakyBucket => true,
        _ => limit.max_delay().is_some() && debt > limit.capacity_units(),
    };
    has_queue && instant(limit.tick(), at + limit.ticks_to_refill(debt)) != charge.restored_at
}

/// The units that a charge takes; a peek asks for one request.
#[inline]
fn wanted(limit: &Limit, cost: u32) -> u64 {
    u64::from(cost.max(1)).saturating_mul(limit.window_ticks())
}

/// The debt left at `now`, and the tick it refers to: the later of the clock and the last write, so that a clock that
/// steps back changes nothing. It may exceed the capacity, see above.
#[inline]
fn debt_at(limit: &Limit, state: Option<CounterState>, now: Timestamp) -> (u64, u64) {
    let now_ticks = limit.tick().floor(now.as_micros());
    let Some(state) = state else { return (0, now_ticks) };
    // In a coarser tick, rounding down would refill the part of a tick before the write once more.
    let written = limit.tick().ceil(state.at.as_micros());
    let debt = unpack(state.value, limit.tick());
    let refilled = now_ticks.saturating_sub(written).saturating_mul(u64::from(limit.requests()));
    (debt.saturating_sub(refilled), now_ticks.max(written))
}

/// The delay of an admitted request.
#[inline]
fn delay(limit: &Limit, debt: u64, wanted: u64, at: u64, now: Timestamp) -> Span {
    let before = match limit.algorithm() {
        // A leaky bucket starts requests one after another.
        Algorithm::LeakyBucket => debt,
        // A bucket delays only what exceeds its capacity.
        _ => (debt + wanted).saturating_sub(limit.capacity_units()),
    };
    if before == 0 {
        return Span::ZERO;
    }
    wait_until(limit.tick(), at + limit.ticks_to_refill(before), now)
}

#[inline]
fn instant(tick: Tick, ticks: u64) -> Timestamp {
    // Most limits use microseconds, for which the branch avoids the multiplication.
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

/// Converts a debt that was written in another tick, rounded up. It counts up to 2^62 units.
#[cold]
fn convert(value: u64, tick: Tick) -> u64 {
    let written = match value >> TICK_SHIFT {
        0 => Tick::Micro,
        1 => Tick::Milli,
        _ => Tick::Second,
    };
    let micros = u128::from(value & DEBT_MASK) * u128::from(written.micros());
    u64::try_from(micros.div_ceil(u128::from(tick.micros()))).map_or(DEBT_MASK, |debt| debt.min(DEBT_MASK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Window;

    fn minute(requests: u32, burst: Option<u32>, delay: Option<Span>, algorithm: Algorithm) -> Limit {
        Limit::with_options(algorithm, requests, Window::Length(Span::from_secs(60)), burst, delay).unwrap()
    }

    fn charge(limit: &Limit, state: &mut Option<CounterState>, cost: u32, now: Timestamp) -> Verdict {
        let judgement = evaluate(limit, *state, cost, now);
        *state = judgement.next.map(|next| next.state).or(*state);
        judgement.verdict
    }

    #[test]
    fn burst_after_idle_time_is_at_most_the_capacity() {
        let limit = minute(10, Some(10), None, Algorithm::Gcra);
        let start = Timestamp::from_secs(1_000_000);
        for idle_secs in [0, 1, 59, 90, 107, 1_000, 1_000_000] {
            let mut state = None;
            while charge(&limit, &mut state, 1, start).admits() {}
            let later = start + Span::from_secs(idle_secs);
            let mut admitted = 0;
            while charge(&limit, &mut state, 1, later).admits() {
                admitted += 1;
            }
            assert_eq!(admitted, (idle_secs / 6).min(10), "after {idle_secs} s");
        }
    }

    #[test]
    fn cost_up_to_the_capacity_is_admitted() {
        let limit = minute(10, Some(3), None, Algorithm::TokenBucket);
        let now = Timestamp::from_secs(9);
        assert!(charge(&limit, &mut None, 3, now).admits());
        assert_eq!(charge(&limit, &mut None, 4, now).outcome, Outcome::Never);
    }

    #[test]
    fn limit_of_zero_always_refuses() {
        let limit = minute(0, None, None, Algorithm::TokenBucket);
        let verdict = charge(&limit, &mut None, 1, Timestamp::from_secs(9));
        assert_eq!(verdict, Verdict::never(0, Span::ZERO));
    }

    #[test]
    fn leaky_bucket_spaces_requests_up_to_the_delay() {
        let limit = minute(60, None, Some(Span::from_secs(2)), Algorithm::LeakyBucket);
        let now = Timestamp::from_secs(9);
        let mut state = None;
        let outcomes: Vec<Outcome> = (0..4).map(|_| charge(&limit, &mut state, 1, now).outcome).collect();
        let delayed = |secs| Outcome::Admit { delay: Span::from_secs(secs) };
        let refused = Outcome::Refuse { retry_after: Span::from_secs(1) };
        assert_eq!(outcomes, [delayed(0), delayed(1), delayed(2), refused]);
    }

    #[test]
    fn bucket_with_max_delay_delays_the_excess() {
        let limit = minute(60, Some(2), Some(Span::from_secs(1)), Algorithm::TokenBucket);
        let now = Timestamp::from_secs(9);
        let mut state = None;
        let outcomes: Vec<Outcome> = (0..4).map(|_| charge(&limit, &mut state, 1, now).outcome).collect();
        let delayed = |secs| Outcome::Admit { delay: Span::from_secs(secs) };
        assert_eq!(
            outcomes,
            [delayed(0), delayed(0), delayed(1), Outcome::Refuse { retry_after: Span::from_secs(1) }]
        );
    }

    #[test]
    fn consumption_carries_over_between_ticks() {
        let small = minute(100, None, None, Algorithm::TokenBucket);
        let large = minute(u32::MAX / 2, None, None, Algorithm::TokenBucket);
        assert_ne!(small.tick(), large.tick());
        let now = Timestamp::from_secs(60);
        let mut state = None;
        charge(&small, &mut state, 60, now);
        assert_eq!(charge(&large, &mut state, 0, now).remaining, u32::MAX / 2 - 60);
        charge(&large, &mut state, 20, now);
        assert_eq!(charge(&small, &mut state, 0, now).remaining, 20);
    }
}
