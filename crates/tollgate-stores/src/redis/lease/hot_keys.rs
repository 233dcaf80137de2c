//! Finds busy counters with a small fixed-size sketch.
//!
//! Each slot holds one counter. Another counter with the same slot decrements it and takes over at zero, so a counter that
//! is used more than its neighbors together keeps its slot, however many clients there are.

use std::time::{Duration, Instant};

/// Uses are counted over the life of a lease: a lease pays only if it is used often while it is valid.
const PERIOD: Duration = Duration::from_secs(2);
/// Units per `PERIOD` from which a counter is busy.
pub(super) const BUSY: u32 = 50;
/// Units from which a rate is computed. Fewer may be one page load.
const SAMPLE_MIN: u32 = 20;
/// Rates are computed over at least this time: a burst of milliseconds says little about a second.
pub(super) const RATE_PERIOD_MIN: Duration = Duration::from_millis(50);
const SLOTS: usize = 256;

/// The sketch.
pub(super) struct HotKeys {
    slots: Box<[Slot]>,
}

#[derive(Copy, Clone)]
struct Slot {
    key: u128,
    units: u32,
    since: Instant,
}

impl HotKeys {
    pub(super) fn new(now: Instant) -> Self {
        HotKeys { slots: vec![Slot { key: 0, units: 0, since: now }; SLOTS].into() }
    }

    /// Counts a use. Returns the units per second if the counter is busy.
    pub(super) fn touch(&mut self, key: u128, units: u32, now: Instant) -> Option<u32> {
        let slot = &mut self.slots[slot_of(key)];
        let age = now.saturating_duration_since(slot.since);
        if slot.key != key {
            if slot.units <= units || age > PERIOD {
                *slot = Slot { key, units, since: now };
            } else {
                slot.units -= units;
            }
            return None;
        }
        if age > PERIOD {
            *slot = Slot { key, units, since: now };
            return None;
        }
        slot.units = slot.units.saturating_add(units);
        let rate = per_second(slot.units, age);
        let period = u32::try_from(PERIOD.as_secs()).unwrap_or(1);
        (slot.units >= SAMPLE_MIN && rate.saturating_mul(period) >= BUSY).then_some(rate)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder fits")]
fn slot_of(key: u128) -> usize {
    ((key >> 64) % SLOTS as u128) as usize
}

/// Units per second at the rate of `units` in `time`.
pub(super) fn per_second(units: u32, time: Duration) -> u32 {
    let millis = u64::try_from(time.max(RATE_PERIOD_MIN).as_millis()).unwrap_or(u64::MAX);
    u32::try_from(u64::from(units) * 1_000 / millis).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_busy_from_twenty_uses_at_25_per_second() {
        let start = Instant::now();
        let mut hot_keys = HotKeys::new(start);
        let mut touch = |turn: u32| hot_keys.touch(7, 1, start + Duration::from_millis(38) * turn);
        assert!((0..19).all(|turn| touch(turn).is_none()));
        assert_eq!(touch(19), Some(20 * 1_000 / (19 * 38)));
    }

    #[test]
    fn slow_counter_is_never_busy() {
        let start = Instant::now();
        let mut hot_keys = HotKeys::new(start);
        let mut touch = |turn: u32| hot_keys.touch(7, 1, start + Duration::from_millis(50) * turn);
        assert!((0..500).all(|turn| touch(turn).is_none()));
    }

    #[test]
    fn colliding_counters_do_not_hide_a_busy_one() {
        let start = Instant::now();
        let mut hot_keys = HotKeys::new(start);
        let mut busy = 0;
        for turn in 0..1_000_u32 {
            let now = start + Duration::from_millis(1) * turn;
            busy += usize::from(hot_keys.touch(7, 1, now).is_some());
            if turn % 3 == 0 {
                // The same slot, another counter each time.
                hot_keys.touch(1_000 + u128::from(turn), 1, now);
            }
        }
        assert!(busy > 500, "{busy}");
    }
}
