//! Which counters are busy: a small table that only the busy ones stay in.
//!
//! Each place holds one counter at a time. Another that falls on the same place wears it down by one and takes it over at
//! zero, so a counter that is asked for more often than its neighbours together keeps its place, however many clients
//! there are and whatever they call themselves.

use std::time::{Duration, Instant};

/// Counted over this long: the life of a lease, because a lease pays only if it is used often while it lasts.
const PERIOD: Duration = Duration::from_secs(2);
/// A counter is busy if so many units are used in the life of a lease, at its pace of late.
pub(crate) const BUSY: u32 = 50;
/// A pace is known from this many units on: each of them was a call, and fewer may be a page that loads.
const SAMPLE: u32 = 20;
/// A burst within a few milliseconds says little about a second: no pace is told from less time than this.
pub(crate) const PACE_FROM: Duration = Duration::from_millis(50);
const PLACES: usize = 256;

/// The table.
pub(crate) struct Sketch {
    places: Box<[Place]>,
}

#[derive(Copy, Clone)]
struct Place {
    key: u128,
    units: u32,
    since: Instant,
}

impl Sketch {
    pub(crate) fn new(now: Instant) -> Self {
        Sketch { places: vec![Place { key: 0, units: 0, since: now }; PLACES].into() }
    }

    /// Counts a use. How many units a second the counter is used by, if it is busy.
    pub(crate) fn touch(&mut self, key: u128, units: u32, now: Instant) -> Option<u32> {
        let place = &mut self.places[place_of(key)];
        let age = now.saturating_duration_since(place.since);
        if place.key != key {
            if place.units <= units || age > PERIOD {
                *place = Place { key, units, since: now };
            } else {
                place.units -= units;
            }
            return None;
        }
        if age > PERIOD {
            *place = Place { key, units, since: now };
            return None;
        }
        place.units = place.units.saturating_add(units);
        let rate = per_second(place.units, age);
        let period = u32::try_from(PERIOD.as_secs()).unwrap_or(1);
        (place.units >= SAMPLE && rate.saturating_mul(period) >= BUSY).then_some(rate)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder fits")]
fn place_of(key: u128) -> usize {
    ((key >> 64) % PLACES as u128) as usize
}

/// Units in a second at the pace of `units` in `time`.
pub(crate) fn per_second(units: u32, time: Duration) -> u32 {
    let millis = u64::try_from(time.max(PACE_FROM).as_millis()).unwrap_or(u64::MAX);
    u32::try_from(u64::from(units) * 1_000 / millis).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_busy_from_its_twentieth_use_at_a_pace_of_fifty_in_two_seconds() {
        let start = Instant::now();
        let mut sketch = Sketch::new(start);
        let mut touch = |turn: u32| sketch.touch(7, 1, start + Duration::from_millis(38) * turn);
        assert!((0..19).all(|turn| touch(turn).is_none()));
        assert_eq!(touch(19), Some(20 * 1_000 / (19 * 38)));
    }

    #[test]
    fn a_slow_counter_never_is() {
        let start = Instant::now();
        let mut sketch = Sketch::new(start);
        assert!((0..500).all(|turn| sketch.touch(7, 1, start + Duration::from_millis(50) * turn).is_none()));
    }

    #[test]
    fn strangers_on_the_same_place_do_not_hide_a_busy_counter() {
        let start = Instant::now();
        let mut sketch = Sketch::new(start);
        let mut busy = 0;
        for turn in 0..1_000_u32 {
            let now = start + Duration::from_millis(1) * turn;
            busy += usize::from(sketch.touch(7, 1, now).is_some());
            if turn % 3 == 0 {
                // The same place, another counter each time.
                sketch.touch(1_000 + u128::from(turn), 1, now);
            }
        }
        assert!(busy > 500, "{busy}");
    }
}
