//! Instants and durations in whole microseconds, a resolution that every store keeps exactly.
//!
//! All arithmetic saturates, so a clock jump or a very long limit never wraps around. The library reads no clock: every
//! function that needs the time takes a [`Timestamp`].

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant: microseconds since the Unix epoch.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A duration in microseconds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Timestamp {
    /// The latest instant that a stored counter can hold (the year 2112).
    pub const MAX: Timestamp = Timestamp((1 << 52) - 1);

    /// The instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Timestamp(micros) }
    }

    /// The instant `secs` seconds after the Unix epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded up, so that a reset is never reported too early.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub const fn since(self, earlier: Timestamp) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    /// Times before 1970 become 1970.
    fn from(time: SystemTime) -> Self {
        let elapsed = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(Span::from(elapsed).0)
    }
}

impl Span {
    /// Zero.
    pub const ZERO: Span = Span(0);
    /// The longest duration.
    pub const MAX: Span = Span(u64::MAX);

    /// A duration of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Span(micros)
    }

    /// A duration of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Span(millis.saturating_mul(1_000))
    }

    /// A duration of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Span(secs.saturating_mul(1_000_000))
    }

    /// The duration in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The duration in whole milliseconds, rounded up.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// The duration in whole seconds, rounded up.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whether the duration is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Span(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Duration::from_micros(span.0)
    }
}

impl Add<Span> for Timestamp {
    type Output = Timestamp;
    fn add(self, span: Span) -> Timestamp {
        Timestamp::from_micros(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Timestamp;
    fn sub(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Span {
    /// The shortest exact form with one unit: `90s`, `1h`, `250ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] =
            [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
        for (unit, suffix) in UNITS {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{suffix}", self.0 / unit);
            }
        }
        if self.0 == 0 { f.write_str("0s") } else { write!(f, "{}us", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Timestamp::MAX + Span::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::from_secs(1) - Span::from_secs(2), Timestamp::default());
        assert_eq!(Timestamp::from_secs(u64::MAX), Timestamp::MAX);
        assert_eq!(Span::MAX + Span::from_secs(1), Span::MAX);
        assert_eq!(Timestamp::from_secs(1).since(Timestamp::from_secs(5)), Span::ZERO);
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(Span::from_micros(1).as_secs_ceil(), 1);
        assert_eq!(Span::from_secs(2).as_secs_ceil(), 2);
        assert_eq!(Timestamp::from_micros(1_000_001).as_secs_ceil(), 2);
    }

    #[test]
    fn spans_print_in_the_largest_exact_unit() {
        let shown: Vec<String> = [0, 1, 1_500, 2_000, 60_000_000, 90_000_000, 86_400_000_000]
            .map(|micros| Span::from_micros(micros).to_string())
            .into();
        assert_eq!(shown, ["0s", "1us", "1500us", "2ms", "1m", "90s", "1d"]);
    }
}
