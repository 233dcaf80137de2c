//! The clock of decisions: the wall clock at the start, moved on by the monotonic clock.
//!
//! An administrator, NTP or a resumed virtual machine may set the wall clock by an hour; windows must neither
//! restart nor freeze because of it. So the wall clock is read once. How far the two have come apart since is a
//! metric, and a restart brings them together again.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tollgate::{Span, Timestamp};

/// A clock that never steps. Copies agree with each other.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    started: Instant,
    started_at: Timestamp,
}

impl Clock {
    /// A clock that agrees with the wall clock now.
    pub fn start() -> Self {
        Self::anchored(SystemTime::now())
    }

    /// A clock that shows `wall` now.
    pub fn anchored(wall: SystemTime) -> Self {
        Clock { started: Instant::now(), started_at: Timestamp::from(wall) }
    }

    /// The time. Never earlier than an answer given before.
    pub fn now(&self) -> Timestamp {
        self.started_at + Span::from(self.started.elapsed())
    }

    /// Seconds by which the wall clock is ahead of this one; negative if it is behind.
    pub fn wall_offset(&self) -> f64 {
        self.offset_from(SystemTime::now())
    }

    fn offset_from(&self, wall: SystemTime) -> f64 {
        // From microseconds, not as a `Timestamp`: that would hide a wall clock set to before 1970.
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
    fn t65_a_wall_clock_that_jumps_an_hour_moves_the_offset_and_not_the_time() {
        let wall = UNIX_EPOCH + Duration::from_hours(500_000);
        let clock = Clock::anchored(wall);
        let before = clock.now();
        let hour = Duration::from_hours(1);
        assert!((clock.offset_from(wall + hour) - 3_600.0).abs() < 1.0);
        assert!((clock.offset_from(wall - hour) + 3_600.0).abs() < 1.0);
        assert!(clock.now().since(before) < Span::from_secs(1));
    }

    #[test]
    fn t65_it_never_goes_back() {
        let clock = Clock::start();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn t65_a_wall_clock_before_1970_is_no_reason_to_panic() {
        let clock = Clock::anchored(UNIX_EPOCH - Duration::from_secs(10));
        assert!(clock.now() < Timestamp::from_secs(5));
        assert!(clock.offset_from(UNIX_EPOCH - Duration::from_secs(100)) < -99.0);
    }
}
