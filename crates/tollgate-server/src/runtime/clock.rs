//! The clock of decisions: the wall clock at the start, advanced by the monotonic clock.
//!
//! An operator, NTP or a resumed virtual machine may step the wall clock; windows must neither restart nor freeze because of it.
//! The difference is a metric, and a restart removes it.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tollgate::{Span, Timestamp};

/// A clock that never steps. Copies agree with each other.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    started: Instant,
    started_at: Timestamp,
}

impl Clock {
    /// A clock set to the wall clock.
    pub fn start() -> Self {
        Self::anchored(SystemTime::now())
    }

    /// A clock set to `wall`.
    pub fn anchored(wall: SystemTime) -> Self {
        Clock { started: Instant::now(), started_at: Timestamp::from(wall) }
    }

    /// The time; never goes back.
    pub fn now(&self) -> Timestamp {
        self.read().0
    }

    /// The time, and the instant for measuring what follows: one reading of the clock for both.
    pub fn read(&self) -> (Timestamp, Instant) {
        let instant = Instant::now();
        (self.started_at + Span::from(instant.saturating_duration_since(self.started)), instant)
    }

    /// Wall clock minus this clock, in seconds.
    pub fn wall_offset(&self) -> f64 {
        self.offset_from(SystemTime::now())
    }

    fn offset_from(&self, wall: SystemTime) -> f64 {
        // Not as a `Timestamp`, which would hide a wall clock before 1970.
        let here = UNIX_EPOCH + self.now_as_duration();
        match wall.duration_since(here) {
            Ok(ahead) => ahead.as_secs_f64(),
            Err(behind) => -behind.duration().as_secs_f64(),
        }
    }

    fn now_as_duration(&self) -> std::time::Duration {
        std::time::Duration::from_micros(self.now().as_micros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn wall_clock_step_changes_the_offset_not_the_time() {
        let wall = UNIX_EPOCH + Duration::from_hours(500_000);
        let clock = Clock::anchored(wall);
        let before = clock.now();
        let hour = Duration::from_hours(1);
        assert!((clock.offset_from(wall + hour) - 3_600.0).abs() < 1.0);
        assert!((clock.offset_from(wall - hour) + 3_600.0).abs() < 1.0);
        assert!(clock.now().since(before) < Span::from_secs(1));
    }

    #[test]
    fn clock_never_goes_back() {
        let clock = Clock::start();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn wall_clock_before_1970_does_not_panic() {
        let clock = Clock::anchored(UNIX_EPOCH - Duration::from_secs(10));
        assert!(clock.now() < Timestamp::from_secs(5));
        assert!(clock.offset_from(UNIX_EPOCH - Duration::from_secs(100)) < -99.0);
    }
}
