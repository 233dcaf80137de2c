//! A limit: how much, over which window, counted by which algorithm. Checked once, exact ever after.

mod limit_override;

use std::fmt;
use std::sync::Arc;

pub use self::limit_override::LimitOverride;
use crate::calendar::Calendar;
use crate::time::Span;

/// How a limit counts.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A bucket of `capacity` tokens refilled at `requests / window`, exactly.
    TokenBucket,
    /// The same decisions as the token bucket, told as a theoretical arrival time.
    Gcra,
    /// Two aligned windows, the older one weighted by what is left of it.
    SlidingWindowCounter,
    /// Every admitted request remembered: never more than `requests` in any window.
    SlidingWindowLog,
    /// A count per aligned (or calendar) window.
    FixedWindow,
    /// A queue that starts requests evenly spaced; an admission may carry a delay.
    LeakyBucket,
}

impl Algorithm {
    /// All algorithms, in the order of the documentation.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::TokenBucket,
        Algorithm::Gcra,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
        Algorithm::FixedWindow,
        Algorithm::LeakyBucket,
    ];

    /// The name users write and read (`strategy` in the API).
    pub const fn as_str(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::Gcra => "gcra",
            Algorithm::SlidingWindowCounter => "sliding_window_counter",
            Algorithm::SlidingWindowLog => "sliding_window_log",
            Algorithm::FixedWindow => "fixed_window",
            Algorithm::LeakyBucket => "leaky_bucket",
        }
    }

    /// The algorithm of that name; `sliding_window` is an alias of the counter.
    pub fn parse(name: &str) -> Option<Self> {
        if name == "sliding_window" {
            return Some(Algorithm::SlidingWindowCounter);
        }
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }

    /// Whether a burst other than `requests` means anything to it.
    pub const fn has_burst(self) -> bool {
        matches!(self, Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Over which time a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// A fixed length, aligned to the Unix epoch where alignment matters.
    Length(Span),
    /// Days, weeks or months of a time zone.
    Calendar(Arc<Calendar>),
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Window::Length(span) => span.fmt(f),
            Window::Calendar(calendar) => calendar.fmt(f),
        }
    }
}

/// The unit in which a limit counts time: the finest in which all of its products stay exact.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tick {
    /// One microsecond.
    Micro,
    /// One millisecond.
    Milli,
    /// One second.
    Second,
}

impl Tick {
    const ALL: [Tick; 3] = [Tick::Micro, Tick::Milli, Tick::Second];

    /// Length of the tick in microseconds.
    pub const fn micros(self) -> u64 {
        match self {
            Tick::Micro => 1,
            Tick::Milli => 1_000,
            Tick::Second => 1_000_000,
        }
    }

    /// Whole ticks in `micros`, rounded down. The branch spares the common case a division.
    pub const fn floor(self, micros: u64) -> u64 {
        match self {
            Tick::Micro => micros,
            Tick::Milli => micros / 1_000,
            Tick::Second => micros / 1_000_000,
        }
    }
}

/// Products of a limit stay at or below this, so that a store that computes in doubles is exact too.
const EXACT_MAX: u128 = 1 << 53;
/// The longest window, 2^32 - 1 seconds, as the configuration states it.
const WINDOW_MAX: Span = Span::from_secs(u32::MAX as u64);
/// The shortest window: below it no clock of a fleet agrees on anything.
const WINDOW_MIN: Span = Span::from_millis(1);
/// A log keeps one entry per admitted request, so its limit is bounded.
const LOG_REQUESTS_MAX: u32 = 10_000;

/// Why numbers do not make a limit. The message names no field: the caller knows which it read.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Zero or less than a millisecond.
    #[error("window must be at least 1ms")]
    WindowTooShort,
    /// Over 2^32 - 1 seconds.
    #[error("window must be at most 4294967295s")]
    WindowTooLong,
    /// A calendar window with an algorithm that needs one fixed length.
    #[error("a calendar window needs the algorithm fixed_window")]
    CalendarNeedsFixedWindow,
    /// `requests` times `window` cannot be counted exactly in any unit of time.
    #[error("requests (or burst) times window is too large to count exactly: lower one of them")]
    TooLarge,
    /// A burst of zero with a limit above zero admits nothing, for ever.
    #[error("burst must be at least 1")]
    BurstZero,
    /// The algorithm has no notion of a burst.
    #[error("burst has no meaning for this algorithm: use token_bucket, gcra or leaky_bucket")]
    BurstWithoutBucket,
    /// Only buckets can promise a later start.
    #[error("max_delay has no meaning for this algorithm: use token_bucket, gcra or leaky_bucket")]
    DelayWithoutBucket,
    /// A log remembers each request.
    #[error("sliding_window_log remembers every request: at most 10000 requests")]
    LogTooLong,
}

/// A checked limit. Its products cannot overflow and its rate is exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    algorithm: Algorithm,
    requests: u32,
    burst: Option<u32>,
    window: Window,
    max_delay: Option<Span>,
    tick: Tick,
    length: Span,
    window_ticks: u64,
    capacity: u32,
    capacity_units: u64,
    debt_units_max: u64,
    by_window: Divisor,
    by_rate: Divisor,
}

/// Division by a number that is known beforehand: a multiplication, and one step of correction.
///
/// Two divisions stand in the way of every decision, and the processor takes longer over one than over
/// everything else in a bucket.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Divisor {
    by: u64,
    inverse: u64,
}

impl Divisor {
    /// A divisor of one stands in for zero, which is never divided by.
    const fn new(by: u64) -> Self {
        let by = if by == 0 { 1 } else { by };
        Divisor { by, inverse: u64::MAX / by }
    }

    #[inline]
    const fn floor(self, number: u64) -> u64 {
        let (estimate, rest) = self.estimate(number);
        estimate + (rest >= self.by) as u64
    }

    #[inline]
    const fn ceil(self, number: u64) -> u64 {
        let (estimate, rest) = self.estimate(number);
        estimate + (rest > 0) as u64 + (rest > self.by) as u64
    }

    /// The quotient or one less, and what it leaves of `number`.
    #[inline]
    const fn estimate(self, number: u64) -> (u64, u64) {
        // The inverse is short by less than one part in 2^64 / by, so the estimate is exact or one too low, and its
        // product is at most the number: nothing wraps.
        let estimate = ((number as u128 * self.inverse as u128) >> 64) as u64;
        (estimate, number.wrapping_sub(estimate.wrapping_mul(self.by)))
    }
}

impl Limit {
    /// A limit of `requests` per `window`; a bucket holds `requests` at most.
    ///
    /// ```
    /// use tollgate::{Algorithm, Limit, Span, Window};
    /// let limit = Limit::new(Algorithm::TokenBucket, 100, Window::Length(Span::from_secs(60)))?;
    /// assert_eq!(limit.capacity(), 100);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// When the window is out of range or the product of the numbers cannot be counted exactly.
    pub fn new(algorithm: Algorithm, requests: u32, window: Window) -> Result<Self, LimitError> {
        Self::with_options(algorithm, requests, window, None, None)
    }

    /// A limit with a burst (what a bucket holds) and the longest delay an admission may carry.
    ///
    /// # Errors
    /// As [`Limit::new`], and when the algorithm has no use for `burst` or `max_delay`.
    pub fn with_options(
        algorithm: Algorithm,
        requests: u32,
        window: Window,
        burst: Option<u32>,
        max_delay: Option<Span>,
    ) -> Result<Self, LimitError> {
        let length = check_window(algorithm, &window)?;
        check_shape(algorithm, requests, burst, max_delay)?;
        let capacity = if requests == 0 { 0 } else { burst.unwrap_or(requests) };
        let tick = pick_tick(requests.max(capacity), length, max_delay).ok_or(LimitError::TooLarge)?;
        let window_ticks = tick.floor(length.as_micros());
        let capacity_units = u64::from(capacity) * window_ticks;
        let queue = max_delay.map(|delay| tick.floor(delay.as_micros()) * u64::from(requests));
        let debt_units_max = match (algorithm, queue) {
            // A shaper starts one request at a time: what may wait is bounded by the burst and by the delay.
            // One of a higher cost takes as many turns, and the last of them begins within the delay too.
            (Algorithm::LeakyBucket, Some(queue)) => capacity_units.min(window_ticks + queue),
            (_, Some(queue)) if requests > 0 => capacity_units + queue,
            _ => capacity_units,
        };
        let debt_units_max = if capacity == 0 { 0 } else { debt_units_max };
        let admitted_max = u32::try_from(debt_units_max / window_ticks).unwrap_or(u32::MAX);
        Ok(Limit {
            algorithm,
            requests,
            burst,
            window,
            max_delay,
            tick,
            length,
            window_ticks,
            capacity: if algorithm.has_burst() { admitted_max } else { requests },
            capacity_units,
            debt_units_max,
            by_window: Divisor::new(window_ticks),
            by_rate: Divisor::new(u64::from(requests)),
        })
    }

    /// How it counts.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Requests per window, as configured.
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// The window, as configured.
    pub const fn window(&self) -> &Window {
        &self.window
    }

    /// The burst, if one was configured.
    pub const fn burst(&self) -> Option<u32> {
        self.burst
    }

    /// The longest delay of an admission, if one was configured.
    pub const fn max_delay(&self) -> Option<Span> {
        self.max_delay
    }

    /// The largest cost that can ever be admitted at once.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The length of one window; of a calendar's, whose lengths differ, as people say it.
    pub fn window_length(&self) -> Span {
        match &self.window {
            Window::Length(length) => *length,
            Window::Calendar(calendar) => calendar.nominal(),
        }
    }

    /// No window lasts longer. For how long to remember, never to be told: a day of some calendar may be two.
    pub const fn window_longest(&self) -> Span {
        self.length
    }

    /// The unit of time in which it counts.
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// The window in ticks; also the units of debt of one request.
    pub const fn window_ticks(&self) -> u64 {
        self.window_ticks
    }

    /// Whole requests that so many units of debt are.
    #[inline]
    pub(crate) fn requests_in(&self, units: u64) -> u32 {
        u32::try_from(self.by_window.floor(units)).unwrap_or(u32::MAX)
    }

    /// Ticks until so many units of debt are paid back, rounded up.
    #[inline]
    pub(crate) fn ticks_to_pay(&self, units: u64) -> u64 {
        self.by_rate.ceil(units)
    }

    /// Units of debt that start without delay.
    pub const fn capacity_units(&self) -> u64 {
        self.capacity_units
    }

    /// Units of debt beyond which nothing is admitted.
    pub const fn debt_units_max(&self) -> u64 {
        self.debt_units_max
    }
}

impl fmt::Display for Limit {
    /// `100 per 1m, token_bucket`, with the burst if there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}, {}", self.requests, self.window, self.algorithm)?;
        self.burst.map_or(Ok(()), |burst| write!(f, ", burst {burst}"))
    }
}

fn check_window(algorithm: Algorithm, window: &Window) -> Result<Span, LimitError> {
    match window {
        Window::Length(span) if *span < WINDOW_MIN => Err(LimitError::WindowTooShort),
        Window::Length(span) if *span > WINDOW_MAX => Err(LimitError::WindowTooLong),
        Window::Length(span) => Ok(*span),
        Window::Calendar(_) if algorithm != Algorithm::FixedWindow => {
            Err(LimitError::CalendarNeedsFixedWindow)
        }
        Window::Calendar(calendar) => Ok(calendar.longest()),
    }
}

fn check_shape(
    algorithm: Algorithm,
    requests: u32,
    burst: Option<u32>,
    max_delay: Option<Span>,
) -> Result<(), LimitError> {
    if algorithm == Algorithm::SlidingWindowLog && requests > LOG_REQUESTS_MAX {
        return Err(LimitError::LogTooLong);
    }
    match burst {
        Some(_) if !algorithm.has_burst() => return Err(LimitError::BurstWithoutBucket),
        Some(0) if requests > 0 => return Err(LimitError::BurstZero),
        _ => {}
    }
    if max_delay.is_some() && !algorithm.has_burst() {
        return Err(LimitError::DelayWithoutBucket);
    }
    Ok(())
}

/// The finest tick that divides the window and keeps every product exact.
fn pick_tick(numerator: u32, length: Span, max_delay: Option<Span>) -> Option<Tick> {
    Tick::ALL.into_iter().find(|tick| {
        let window = length.as_micros() / tick.micros();
        let delay = max_delay.unwrap_or(Span::ZERO).as_micros() / tick.micros();
        let products = u128::from(numerator) * (u128::from(window) + u128::from(delay));
        length.as_micros().is_multiple_of(tick.micros()) && products <= EXACT_MAX
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per(span: Span) -> Window {
        Window::Length(span)
    }

    #[test]
    fn t37_windows_and_products_out_of_range_are_refused_with_the_reason() {
        let bucket = Algorithm::TokenBucket;
        let day = Span::from_secs(86_400);
        assert_eq!(Limit::new(bucket, 1, per(Span::ZERO)), Err(LimitError::WindowTooShort));
        assert_eq!(Limit::new(bucket, 1, per(Span::from_secs(1 << 32))), Err(LimitError::WindowTooLong));
        assert_eq!(
            Limit::new(bucket, u32::MAX, per(Span::from_secs(86_400 * 365))),
            Err(LimitError::TooLarge)
        );
        assert!(Limit::new(bucket, u32::MAX, per(day)).is_ok(), "counted in seconds");
        assert_eq!(Limit::new(Algorithm::SlidingWindowLog, 10_001, per(day)), Err(LimitError::LogTooLong));
    }

    #[test]
    fn the_finest_exact_tick_is_chosen() {
        let tick = |requests, secs| {
            Limit::new(Algorithm::Gcra, requests, per(Span::from_secs(secs))).unwrap().tick()
        };
        assert_eq!(tick(100, 60), Tick::Micro);
        assert_eq!(tick(1_000_000, 86_400), Tick::Milli);
        assert_eq!(tick(1_000_000_000, 86_400), Tick::Second);
        let at_the_edge = |requests| Limit::new(Algorithm::Gcra, requests, per(Span::from_micros(1 << 33)));
        assert_eq!(at_the_edge(1 << 20).map(|limit| limit.tick()), Ok(Tick::Micro), "2^53 is still exact");
        assert_eq!(
            at_the_edge((1 << 20) + 1),
            Err(LimitError::TooLarge),
            "and no coarser tick divides the window"
        );
    }

    #[test]
    fn burst_and_delay_are_refused_where_they_mean_nothing() {
        let minute = per(Span::from_secs(60));
        let with_options =
            |algorithm, burst, delay| Limit::with_options(algorithm, 10, minute.clone(), burst, delay).err();
        assert_eq!(with_options(Algorithm::FixedWindow, Some(5), None), Some(LimitError::BurstWithoutBucket));
        assert_eq!(with_options(Algorithm::TokenBucket, Some(0), None), Some(LimitError::BurstZero));
        assert_eq!(
            with_options(Algorithm::SlidingWindowLog, None, Some(Span::from_secs(1))),
            Some(LimitError::DelayWithoutBucket)
        );
        assert_eq!(with_options(Algorithm::TokenBucket, Some(5), Some(Span::from_secs(1))), None);
    }

    proptest::proptest! {
        #[test]
        fn a_known_divisor_divides_like_any_other(number: u64, by in 1_u64.., near in 0_u64..3) {
            let divisor = Divisor::new(by);
            proptest::prop_assert_eq!(divisor.floor(number), number / by);
            // Around multiples the estimate is most likely to be one off.
            let multiple = (number / by * by).saturating_add(near).saturating_sub(1);
            proptest::prop_assert_eq!(divisor.floor(multiple), multiple / by);
        }
    }

    #[test]
    fn divisors_at_the_edges_are_exact() {
        for by in [1, 2, 3, 1 << 32, (1 << 53) - 1, u64::MAX - 1, u64::MAX] {
            for number in [0, 1, by - 1, by, by.saturating_add(1), u64::MAX - 1, u64::MAX] {
                assert_eq!(Divisor::new(by).floor(number), number / by, "{number} / {by}");
            }
        }
    }

    #[test]
    fn every_algorithm_is_found_by_its_name() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::parse(algorithm.as_str()), Some(algorithm));
        }
        assert_eq!(Algorithm::parse("sliding_window"), Some(Algorithm::SlidingWindowCounter));
        assert_eq!(Algorithm::parse("Token_Bucket"), None);
    }
}
