//! Minutes, hours and days.

/// The length of a period.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// One minute.
    Minute,
    /// One hour of UTC.
    Hour,
    /// One day of UTC.
    Day,
}

impl Granularity {
    /// All of them.
    pub const ALL: [Granularity; 3] = [Granularity::Minute, Granularity::Hour, Granularity::Day];

    /// Its name in tables and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Granularity::Minute => "minute",
            Granularity::Hour => "hour",
            Granularity::Day => "day",
        }
    }

    /// The granularity with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|granularity| granularity.as_str() == name)
    }

    /// Its length in microseconds.
    pub const fn micros(self) -> u64 {
        match self {
            Granularity::Minute => 60_000_000,
            Granularity::Hour => 3_600_000_000,
            Granularity::Day => 86_400_000_000,
        }
    }
}
