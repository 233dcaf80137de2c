//! Limits: requests per window, and the algorithm that counts them. Validated once; all arithmetic is exact.

mod divisor;
mod limit_override;

use std::fmt;
use std::sync::Arc;

use self::divisor::Divisor;
pub use self::limit_override::LimitOverride;
use crate::calendar::Calendar;
use crate::time::Span;

named_enum! {
    /// The algorithm of a limit.
    pub enum Algorithm {
        /// A bucket of `capacity` tokens, refilled at `requests / window`.
        TokenBucket = "token_bucket",
        /// The generic cell rate algorithm. It makes the same decisions as the token bucket.
        Gcra = "gcra",
        /// Two aligned windows, the previous one weighted by how much of it still overlaps.
        SlidingWindowCounter = "sliding_window_counter",
        /// A log of every admitted request: never more than `requests` in any window.
        SlidingWindowLog = "sliding_window_log",
        /// A count per aligned or calendar window.
        FixedWindow = "fixed_window",
        /// A queue that starts requests evenly spaced: an admitted request may be delayed.
        LeakyBucket = "leaky_bucket",
    }
}

impl Algorithm {
    /// The algorithm of that name; `sliding_window` is an alias of `sliding_window_counter`.
    pub fn parse(name: &str) -> Option<Self> {
        if name == "sliding_window" {
            return Some(Algorithm::SlidingWindowCounter);
        }
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }

    /// Whether a burst can be configured.
    pub const fn has_burst(self) -> bool {
        matches!(self, Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The window of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// A fixed length. Aligned windows start at multiples of it since the Unix epoch.
    Length(Span),
    /// Days, weeks or months in a time zone.
    Calendar(Arc<Calendar>),
}

impl Window {
    /// The length; nominal for a calendar window.
    pub fn length(&self) -> Span {
        match self {
            Window::Length(span) => *span,
            Window::Calendar(calendar) => calendar.nominal(),
        }
    }

    /// The window for people: `1m`, `month in Europe/Berlin`.
    pub fn describe(&self) -> impl fmt::Display {
        struct Described<'a>(&'a Window);
        impl fmt::Display for Described<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    Window::Length(span) => span.fmt(f),
                    Window::Calendar(calendar) => calendar.describe(f),
                }
            }
        }
        Described(self)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Window::Length(span) => span.fmt(f),
            Window::Calendar(calendar) => calendar.fmt(f),
        }
    }
}

/// The unit in which a limit measures time: the finest in which all of its products are exact.
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

    /// Whole ticks in `micros`, rounded down. The branch avoids the division for microseconds.
    pub const fn floor(self, micros: u64) -> u64 {
        match self {
            Tick::Micro => micros,
            Tick::Milli => micros / 1_000,
            Tick::Second => micros / 1_000_000,
        }
    }

    /// Whole ticks in `micros`, rounded up.
    pub(crate) const fn ceil(self, micros: u64) -> u64 {
        match self {
            Tick::Micro => micros,
            Tick::Milli => micros.div_ceil(1_000),
            Tick::Second => micros.div_ceil(1_000_000),
        }
    }
}

/// The largest product of a limit. Stores that compute in doubles are exact up to it.
const EXACT_MAX: u128 = 1 << 53;
/// The longest window: 2^32 - 1 seconds.
const WINDOW_MAX: Span = Span::from_secs(u32::MAX as u64);
/// The shortest window. Clocks of a fleet do not agree more precisely.
const WINDOW_MIN: Span = Span::from_millis(1);
/// The largest limit of a log, which stores one entry per admitted request.
const LOG_REQUESTS_MAX: u32 = 10_000;

/// Why values are not a valid limit. The message names no field; the caller adds it.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Zero or less than a millisecond.
    #[error("window must be at least 1ms")]
    WindowTooShort,
    /// Over 2^32 - 1 seconds.
    #[error("window must be at most 4294967295s")]
    WindowTooLong,
    /// A calendar window with an algorithm that needs a fixed length.
    #[error("a calendar window requires the algorithm fixed_window")]
    CalendarNeedsFixedWindow,
    /// `requests` times `window` is not exact in any unit of time.
    #[error("requests (or burst) times window is too large to count exactly: lower one of them")]
    TooLarge,
    /// A burst of zero with a limit above zero would never admit anything.
    #[error("burst must be at least 1")]
    BurstZero,
    /// The algorithm has no burst.
    #[error("burst is not supported by this algorithm: use token_bucket, gcra or leaky_bucket")]
    BurstWithoutBucket,
    /// Only buckets can delay requests.
    #[error("max_delay is not supported by this algorithm: use token_bucket, gcra or leaky_bucket")]
    DelayWithoutBucket,
    /// A log stores each request.
    #[error("sliding_window_log stores every request: at most 10000 requests per window")]
    LogTooLong,
}

/// A valid limit. Its products cannot overflow and its rate is exact.
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

impl Limit {
    /// A limit of `requests` per `window`. The capacity of a bucket is `requests`.
    ///
    /// ```
    /// use tollgate::{Algorithm, Limit, Span, Window};
    /// let limit = Limit::new(Algorithm::TokenBucket, 100, Window::Length(Span::from_secs(60)))?;
    /// assert_eq!(limit.capacity(), 100);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// When the window is out of range, or requests times window is too large to be exact.
    pub fn new(algorithm: Algorithm, requests: u32, window: Window) -> Result<Self, LimitError> {
        Self::with_options(algorithm, requests, window, None, None)
    }

    /// A limit with a burst (the capacity of a bucket) and the longest delay of an admitted request.
    ///
    /// # Errors
    /// As [`Limit::new`], and when the algorithm does not support `burst` or `max_delay`.
    pub fn with_options(
        algorithm: Algorithm,
        requests: u32,
        window: Window,
        burst: Option<u32>,
        max_delay: Option<Span>,
    ) -> Result<Self, LimitError> {
        let length = check_window(algorithm, &window)?;
        check_options(algorithm, requests, burst, max_delay)?;
        let capacity = if requests == 0 { 0 } else { burst.unwrap_or(requests) };
        let tick = pick_tick(requests.max(capacity), length, max_delay).ok_or(LimitError::TooLarge)?;
        let window_ticks = tick.floor(length.as_micros());
        let capacity_units = u64::from(capacity) * window_ticks;
        let queue = max_delay.map(|delay| tick.floor(delay.as_micros()) * u64::from(requests));
        let debt_units_max = match (algorithm, queue) {
            // The queue is bounded by the burst and by the delay. A request of a higher cost takes several places, the
            // last of which must start within the delay too.
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

    /// The algorithm.
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

    /// The longest delay of an admitted request, if one was configured.
    pub const fn max_delay(&self) -> Option<Span> {
        self.max_delay
    }

    /// The largest cost that can ever be admitted at once.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The length of one window; nominal for a calendar window, whose lengths differ.
    pub fn window_length(&self) -> Span {
        self.window.length()
    }

    /// The upper bound of a window's length, for retention. A calendar window may be much longer than its nominal length.
    pub const fn window_longest(&self) -> Span {
        self.length
    }

    /// The unit in which the limit measures time.
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// The window in ticks, which is also the number of units that one request takes.
    pub const fn window_ticks(&self) -> u64 {
        self.window_ticks
    }

    /// The whole requests in `units`.
    #[inline]
    pub(crate) fn requests_in(&self, units: u64) -> u32 {
        u32::try_from(self.by_window.floor(units)).unwrap_or(u32::MAX)
    }

    /// The ticks until `units` are refilled, rounded up.
    #[inline]
    pub(crate) fn ticks_to_refill(&self, units: u64) -> u64 {
        self.by_rate.ceil(units)
    }

    /// The units that are admitted without delay.
    pub const fn capacity_units(&self) -> u64 {
        self.capacity_units
    }

    /// The units beyond which nothing is admitted.
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

fn check_options(
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
    fn out_of_range_windows_and_products_are_rejected() {
        let bucket = Algorithm::TokenBucket;
        let day = Span::from_secs(86_400);
        assert_eq!(Limit::new(bucket, 1, per(Span::ZERO)), Err(LimitError::WindowTooShort));
        assert_eq!(Limit::new(bucket, 1, per(Span::from_secs(1 << 32))), Err(LimitError::WindowTooLong));
        assert_eq!(
            Limit::new(bucket, u32::MAX, per(Span::from_secs(86_400 * 365))),
            Err(LimitError::TooLarge)
        );
        assert!(Limit::new(bucket, u32::MAX, per(day)).is_ok(), "exact in seconds");
        assert_eq!(Limit::new(Algorithm::SlidingWindowLog, 10_001, per(day)), Err(LimitError::LogTooLong));
    }

    #[test]
    fn finest_exact_tick_is_chosen() {
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
            "no coarser tick divides the window"
        );
    }

    #[test]
    fn burst_and_delay_require_a_bucket() {
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

    #[test]
    fn algorithms_parse_by_name() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::parse(algorithm.as_str()), Some(algorithm));
        }
        assert_eq!(Algorithm::parse("sliding_window"), Some(Algorithm::SlidingWindowCounter));
        assert_eq!(Algorithm::parse("Token_Bucket"), None);
    }
}
