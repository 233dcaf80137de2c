//! Which admitted requests are written to the decision log.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

use tollgate::rules::SampleRate;

/// Whether a request is in a sample of this rate.
pub(crate) fn is_sampled(rate: SampleRate) -> bool {
    rate == SampleRate::ALL || next_random() < rate.as_u32()
}

/// A pseudorandom number: xorshift, started differently in every thread.
fn next_random() -> u32 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish() | 1);
    }
    STATE.with(|state| {
        let mut bits = state.get();
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        state.set(bits);
        // The upper half of a product is more random than the bits themselves.
        u32::try_from(bits.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_has_the_rate() {
        let sampled = |rate: f64| {
            let rate = SampleRate::new(rate).unwrap();
            (0..100_000).filter(|_| is_sampled(rate)).count()
        };
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 100_000));
        // Ten standard deviations.
        assert!((700..1_300).contains(&sampled(0.01)), "{}", sampled(0.01));
        assert!((48_400..51_600).contains(&sampled(0.5)));
    }
}
