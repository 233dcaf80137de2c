//! The algorithms as their definitions state them, in exact fractions.
//!
//! Nothing here calls the library. The library keeps one *debt* for three algorithms; here a token bucket keeps tokens,
//! GCRA its theoretical arrival time and the leaky bucket its virtual finish time. The library has a closed form for the
//! waits of the sliding window; here they are found by search. Times are microseconds, counts are requests.

use num_rational::Ratio;
use tollgate::Algorithm;

/// An exact number.
pub(crate) type Exact = Ratio<i128>;

/// Larger products are not exact in a double and use a coarser tick.
const EXACT_MAX: i128 = 1 << 53;
const MINUTE: i128 = 60_000_000;
/// The last instant that a counter can hold, in the year 2112.
pub(crate) const LAST: i128 = (1 << 52) - 1;

/// A limit as configured.
#[derive(Clone, Debug)]
pub(crate) struct ModelLimit {
    pub(crate) algorithm: Algorithm,
    pub(crate) requests: i128,
    pub(crate) window: i128,
    pub(crate) burst: Option<i128>,
    pub(crate) max_delay: Option<i128>,
}

/// The verdict of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelVerdict {
    pub(crate) outcome: ModelOutcome,
    pub(crate) remaining: i128,
    pub(crate) reset_after: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelOutcome {
    Admit { delay: i128 },
    Refuse { retry_after: i128 },
    Never,
}

/// The state of a counter.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Tokens left at `at` in a bucket that held `burst`, and when it was to be full again.
    Tokens { tokens: Exact, at: i128, burst: i128, full_at: i128 },
    /// A theoretical arrival time (or virtual finish time), written at `at` when one request took `interval`, and the
    /// instant of it that the store keeps.
    Arrival { tat: Exact, at: i128, interval: Exact, full_at: i128 },
    /// The counts of the window from `start` and of the one before it.
    Weighted { start: i128, current: i128, previous: i128 },
    /// Every admitted cost and its instant.
    Log(Vec<(i128, i128)>),
    /// The count of the window from `start`.
    Count { start: i128, count: i128 },
}

/// A verdict and the next state.
pub(crate) struct Evaluated {
    pub(crate) verdict: ModelVerdict,
    /// The state if the charge is taken.
    pub(crate) charged: Option<State>,
    /// The state if it was moved from the future to now, which also happens on a refusal.
    pub(crate) repaired: Option<State>,
}

impl ModelLimit {
    pub(crate) fn capacity_whole(&self) -> i128 {
        if self.requests == 0 { 0 } else { self.burst.unwrap_or(self.requests) }
    }

    /// The finest of 1 us, 1 ms and 1 s in which the window is whole and all products are exact.
    pub(crate) fn tick(&self) -> Option<i128> {
        let delay = self.max_delay.unwrap_or(0);
        let most = self.requests.max(self.capacity_whole());
        [1, 1_000, 1_000_000]
            .into_iter()
            .find(|tick| self.window % tick == 0 && most * (self.window / tick + delay / tick) <= EXACT_MAX)
    }

    fn tick_or_panic(&self) -> i128 {
        self.tick().unwrap_or_else(|| panic!("no tick for {self:?}"))
    }

    /// The time one request takes at the configured rate.
    fn interval(&self) -> Exact {
        Exact::new(self.window, self.requests)
    }

    /// The longest delay, in whole ticks.
    fn longest_delay(&self) -> i128 {
        floor_to(self.max_delay.unwrap_or(0), self.tick_or_panic())
    }

    /// The largest debt, in requests.
    fn owed_max(&self) -> Exact {
        let burst = Exact::from_integer(self.capacity_whole());
        if self.requests == 0 {
            return Exact::from_integer(0);
        }
        let queue = Exact::from_integer(self.longest_delay()) / self.interval();
        match (self.algorithm, self.max_delay) {
            (Algorithm::LeakyBucket, Some(_)) => burst.min(queue + 1),
            _ => burst + queue,
        }
    }

    /// The largest distance of a state ahead of the clock.
    fn tolerance(&self) -> i128 {
        (2 * self.window).max(MINUTE)
    }

    /// Consumption written in finer ticks is rounded up to ours. The library counts up to 2^62 units.
    fn in_units(&self, used: Exact) -> Exact {
        let units = Exact::from_integer(self.window / self.tick_or_panic());
        (used * units).ceil().min(Exact::from_integer((1 << 62) - 1)) / units
    }
}

/// Evaluates a charge of `cost` at `now`; a cost of zero asks whether one request would pass.
pub(crate) fn evaluate(limit: &ModelLimit, state: Option<&State>, cost: i128, now: i128) -> Evaluated {
    let repaired = state.and_then(|state| repair(limit, state, now));
    let seen = repaired.as_ref().or(state);
    let (mut verdict, mut next) = decide(limit, seen, cost, now);
    if let ModelOutcome::Refuse { retry_after } = &mut verdict.outcome
        && let Some(full_at) = seen.and_then(State::full_at)
        && seen.is_some_and(|state| state.exceeds(limit))
    {
        // Semantics 2.8: a client above a lowered limit is refused no longer than under the limit before.
        *retry_after = (full_at - now).min(*retry_after);
        verdict.reset_after = verdict.reset_after.min(full_at - now);
        if full_at <= now {
            (verdict, next) = decide(limit, None, cost, now);
        }
    }
    let admits = matches!(verdict.outcome, ModelOutcome::Admit { .. });
    Evaluated {
        verdict,
        charged: next.filter(|_| admits && cost > 0),
        repaired: repaired.filter(|_| cost > 0),
    }
}

fn decide(limit: &ModelLimit, state: Option<&State>, cost: i128, now: i128) -> (ModelVerdict, Option<State>) {
    match limit.algorithm {
        Algorithm::TokenBucket => tokens(limit, state, cost, now),
        Algorithm::Gcra | Algorithm::LeakyBucket => arrival(limit, state, cost, now),
        Algorithm::SlidingWindowCounter => weighted(limit, state, cost, now),
        Algorithm::SlidingWindowLog => log(limit, state, cost, now),
        Algorithm::FixedWindow => count(limit, state, cost, now),
    }
}

impl State {
    /// Whether a bucket owed more than the limit admits when it was charged.
    fn exceeds(&self, limit: &ModelLimit) -> bool {
        let used = match self {
            State::Tokens { tokens, burst, .. } => Exact::from_integer(*burst) - tokens,
            State::Arrival { tat, at, interval, .. } => (tat - at).max(Exact::from_integer(0)) / interval,
            _ => return false,
        };
        limit.in_units(used) > limit.owed_max()
    }

    /// When a bucket is full, as the store remembers it.
    fn full_at(&self) -> Option<i128> {
        match self {
            State::Tokens { full_at, .. } | State::Arrival { full_at, .. } => Some(*full_at),
            _ => None,
        }
    }
}

/// An instant as the store keeps it: the time since `at`, rounded up to seven significant bits.
fn kept(instant: i128, at: i128) -> i128 {
    let span = (instant.min(LAST) - at).max(0);
    let bits = i128::BITS - span.leading_zeros();
    let unit = 1 << bits.saturating_sub(7);
    at + (span + unit - 1) / unit * unit
}

/// Semantics 2.11: a state ahead by more than two windows and a minute is set to now and keeps what was used.
fn repair(limit: &ModelLimit, state: &State, now: i128) -> Option<State> {
    let impossible = |at: i128| at - now > limit.tolerance();
    let start = now - now % limit.window;
    match *state {
        State::Tokens { tokens, at, burst, full_at } if impossible(at) => {
            Some(State::Tokens { tokens, at: now, burst, full_at: full_at - (at - now) })
        }
        State::Arrival { tat, at, interval, full_at } if impossible(at) => {
            let back = at - now;
            Some(State::Arrival { tat: tat - back, at: now, interval, full_at: full_at - back })
        }
        State::Weighted { start: at, current, previous } if impossible(at) => {
            Some(State::Weighted { start, current, previous })
        }
        State::Count { start: at, count } if impossible(at) => Some(State::Count { start, count }),
        State::Log(ref entries) if entries.last().is_some_and(|(at, _)| impossible(*at)) => {
            Some(State::Log(vec![(now, entries.iter().map(|(_, cost)| cost).sum())]))
        }
        _ => None,
    }
}

/// Semantics 2.2; with `max_delay` the bucket may be overdrawn by what refills in that time.
fn tokens(limit: &ModelLimit, state: Option<&State>, cost: i128, now: i128) -> (ModelVerdict, Option<State>) {
    let burst = limit.capacity_whole();
    let overdraft = limit.owed_max() - burst;
    let wanted = Exact::from_integer(cost.max(1));
    let tick = limit.tick_or_panic();
    let mut at = floor_to(now, tick);
    let mut tokens = Exact::from_integer(burst);
    if let Some(State::Tokens { tokens: left, at: written, burst: held, .. }) = state {
        let used = limit.in_units(Exact::from_integer(*held) - left);
        let written = ceil_to(Exact::from_integer(*written), tick);
        let passed = Exact::from_integer((at - written).max(0));
        let refilled = passed * Exact::new(limit.requests, limit.window);
        tokens = (tokens - used + refilled).min(tokens);
        at = at.max(written);
    }
    let wait = |missing: Exact| wait_for(limit, at, missing, now);
    if wanted > limit.owed_max() {
        let remaining = (tokens + overdraft).floor().to_integer().max(0);
        let reset_after = wait(Exact::from_integer(burst) - tokens);
        return (ModelVerdict { outcome: ModelOutcome::Never, remaining, reset_after }, None);
    }
    if wanted > tokens + overdraft {
        let outcome = ModelOutcome::Refuse { retry_after: wait(wanted - overdraft - tokens) };
        let remaining = (tokens + overdraft).floor().to_integer().max(0);
        return (
            ModelVerdict { outcome, remaining, reset_after: wait(Exact::from_integer(burst) - tokens) },
            None,
        );
    }
    let delay = if wanted > tokens { wait(wanted - tokens) } else { 0 };
    let tokens = tokens - cost;
    let verdict = ModelVerdict {
        outcome: ModelOutcome::Admit { delay },
        remaining: (tokens + overdraft).floor().to_integer(),
        reset_after: wait(Exact::from_integer(burst) - tokens),
    };
    let full_at = kept(now + verdict.reset_after, at);
    (verdict, Some(State::Tokens { tokens, at, burst, full_at }))
}

/// From `now` to the first tick at which `missing` requests' worth has been refilled since `at`.
fn wait_for(limit: &ModelLimit, at: i128, missing: Exact, now: i128) -> i128 {
    if limit.requests == 0 {
        return 0;
    }
    let ready = Exact::from_integer(at) + missing * limit.interval();
    (ceil_to(ready, limit.tick_or_panic()) - now).max(0)
}

/// Semantics 2.3 and 2.7: a theoretical arrival time, or a virtual finish time.
fn arrival(
    limit: &ModelLimit,
    state: Option<&State>,
    cost: i128,
    now: i128,
) -> (ModelVerdict, Option<State>) {
    let wanted = cost.max(1);
    if limit.requests == 0 {
        return (ModelVerdict { outcome: ModelOutcome::Never, remaining: 0, reset_after: 0 }, None);
    }
    let (tick, interval) = (limit.tick_or_panic(), limit.interval());
    let mut at = floor_to(now, tick);
    let mut tat = Exact::from_integer(at);
    if let Some(State::Arrival { tat: stored, at: written, interval: then, .. }) = state {
        let used = (stored - written).max(Exact::from_integer(0)) / then;
        let written = ceil_to(Exact::from_integer(*written), tick);
        at = at.max(written);
        let used = limit.in_units(used);
        tat = (used * interval + written).max(Exact::from_integer(at));
    }
    let ahead_max = limit.owed_max() * interval;
    let until = |instant: Exact| (ceil_to(instant, tick) - now).max(0);
    let remaining = |tat: Exact| ((ahead_max - (tat - at)) / interval).floor().to_integer().max(0);
    let after = tat + interval * wanted;
    if interval * wanted > ahead_max {
        let verdict =
            ModelVerdict { outcome: ModelOutcome::Never, remaining: remaining(tat), reset_after: until(tat) };
        return (verdict, None);
    }
    if after - at > ahead_max {
        let outcome = ModelOutcome::Refuse { retry_after: until(after - ahead_max) };
        return (ModelVerdict { outcome, remaining: remaining(tat), reset_after: until(tat) }, None);
    }
    let starts = match limit.algorithm {
        Algorithm::LeakyBucket => tat,
        _ => after - interval * limit.capacity_whole(),
    };
    let delay = if starts > Exact::from_integer(at) { until(starts) } else { 0 };
    let tat = tat + interval * cost;
    let verdict = ModelVerdict {
        outcome: ModelOutcome::Admit { delay },
        remaining: remaining(tat),
        reset_after: until(tat),
    };
    let full_at = kept(ceil_to(tat, tick), at);
    (verdict, Some(State::Arrival { tat, at, interval, full_at }))
}

/// The counts of the window that contains an instant, and how much of it has elapsed.
#[derive(Clone, Copy)]
struct Rolled {
    start: i128,
    elapsed: i128,
    current: i128,
    previous: i128,
}

impl Rolled {
    fn new(limit: &ModelLimit, state: Option<&State>, now: i128) -> Self {
        let window = limit.window;
        let now = floor_to(now, limit.tick_or_panic());
        let (start, elapsed) = (now - now % window, now % window);
        match state {
            Some(State::Weighted { start: written, current, previous }) if *written >= start => {
                let elapsed = if *written > start { 0 } else { elapsed };
                Rolled { start: *written, elapsed, current: *current, previous: *previous }
            }
            Some(State::Weighted { start: written, current, .. }) if *written + window == start => {
                Rolled { start, elapsed, current: 0, previous: *current }
            }
            _ => Rolled { start, elapsed, current: 0, previous: 0 },
        }
    }

    fn weight(&self, window: i128) -> Exact {
        Exact::new(self.previous * (window - self.elapsed), window) + self.current
    }
}

/// Semantics 2.4. The wait is searched for, not computed.
fn weighted(
    limit: &ModelLimit,
    state: Option<&State>,
    cost: i128,
    now: i128,
) -> (ModelVerdict, Option<State>) {
    let (window, tick) = (limit.window, limit.tick_or_panic());
    let wanted = cost.max(1);
    let requests = Exact::from_integer(limit.requests);
    let rolled = Rolled::new(limit, state, now);
    let left = |rolled: &Rolled| (requests - rolled.weight(window)).floor().to_integer().max(0);
    let admits = |rolled: &Rolled| rolled.weight(window) + wanted <= requests;
    let reset_after = |rolled: &Rolled| match (rolled.current, rolled.previous) {
        (0, 0) => 0,
        (0, _) => rolled.start + window - now,
        _ => rolled.start + 2 * window - now,
    };
    if wanted > limit.requests {
        let verdict = ModelVerdict {
            outcome: ModelOutcome::Never,
            remaining: left(&rolled),
            reset_after: reset_after(&rolled),
        };
        return (verdict, None);
    }
    if !admits(&rolled) {
        let first = rolled.start / tick;
        let (mut refused, mut admitted) = (now / tick - first, 2 * window / tick);
        while admitted - refused > 1 {
            let middle = (refused + admitted).div_euclid(2);
            let then = Rolled::new(limit, state, (first + middle) * tick);
            if admits(&then) { admitted = middle } else { refused = middle }
        }
        let outcome = ModelOutcome::Refuse { retry_after: (first + admitted) * tick - now };
        return (ModelVerdict { outcome, remaining: left(&rolled), reset_after: reset_after(&rolled) }, None);
    }
    let after = Rolled { current: rolled.current + cost, ..rolled };
    let outcome = ModelOutcome::Admit { delay: 0 };
    let verdict = ModelVerdict { outcome, remaining: left(&after), reset_after: reset_after(&after) };
    let Rolled { start, current, previous, .. } = after;
    (verdict, Some(State::Weighted { start, current, previous }))
}

/// Semantics 2.5: everything admitted in `(now - window, now]`.
fn log(limit: &ModelLimit, state: Option<&State>, cost: i128, now: i128) -> (ModelVerdict, Option<State>) {
    let window = limit.window;
    let entries = match state {
        Some(State::Log(entries)) => entries.as_slice(),
        _ => &[],
    };
    let wanted = cost.max(1);
    let moment = entries.last().map_or(now, |(at, _)| now.max(*at));
    let mut counted: Vec<(i128, i128)> = entries.to_vec();
    counted.retain(|(at, _)| *at > moment - window);
    let used: i128 = counted.iter().map(|(_, cost)| cost).sum();
    let reset_after =
        |counted: &[(i128, i128)]| counted.last().map_or(0, |(at, _)| (at + window - now).max(0));
    let remaining = (limit.requests - used).max(0);
    if wanted > limit.requests {
        return (
            ModelVerdict { outcome: ModelOutcome::Never, remaining, reset_after: reset_after(&counted) },
            None,
        );
    }
    if used + wanted > limit.requests {
        // Oldest first, until enough has expired.
        let mut left = used;
        let freeing = counted.iter().find(|(_, cost)| {
            left -= cost;
            left + wanted <= limit.requests
        });
        let retry_after = freeing.map_or(0, |(at, _)| at + window - now);
        let verdict = ModelVerdict {
            outcome: ModelOutcome::Refuse { retry_after },
            remaining,
            reset_after: reset_after(&counted),
        };
        return (verdict, None);
    }
    if cost > 0 {
        counted.push((moment, cost));
    }
    let verdict = ModelVerdict {
        outcome: ModelOutcome::Admit { delay: 0 },
        remaining: remaining - cost,
        reset_after: reset_after(&counted),
    };
    (verdict, Some(State::Log(counted)))
}

/// Semantics 2.6: a count per aligned window.
fn count(limit: &ModelLimit, state: Option<&State>, cost: i128, now: i128) -> (ModelVerdict, Option<State>) {
    let window = limit.window;
    let mut start = now - now % window;
    let mut used = 0;
    if let Some(State::Count { start: written, count }) = state
        && *written >= start
    {
        (start, used) = (*written, *count);
    }
    let left = (limit.requests - used).max(0);
    let until_end = start + window - now;
    let reset_after = |used: i128| if used > 0 { until_end } else { 0 };
    if cost.max(1) > left {
        let never = cost.max(1) > limit.requests;
        let outcome =
            if never { ModelOutcome::Never } else { ModelOutcome::Refuse { retry_after: until_end } };
        return (ModelVerdict { outcome, remaining: left, reset_after: reset_after(used) }, None);
    }
    let count = used + cost;
    let verdict = ModelVerdict {
        outcome: ModelOutcome::Admit { delay: 0 },
        remaining: left - cost,
        reset_after: reset_after(count),
    };
    (verdict, Some(State::Count { start, count }))
}

fn floor_to(instant: i128, tick: i128) -> i128 {
    instant - instant % tick
}

fn ceil_to(instant: Exact, tick: i128) -> i128 {
    (instant / tick).ceil().to_integer() * tick
}
