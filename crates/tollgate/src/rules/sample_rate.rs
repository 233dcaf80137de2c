//! The share of admitted requests that is recorded.

use std::fmt;

/// A share between none and all.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SampleRate(u32);

impl SampleRate {
    /// Every request.
    pub const ALL: SampleRate = SampleRate(u32::MAX);
    /// No request.
    pub const NONE: SampleRate = SampleRate(0);

    /// A share from 0 to 1; `None` outside of it.
    pub fn new(share: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range, and rounded")]
        (0.0..=1.0).contains(&share).then(|| SampleRate((share * f64::from(u32::MAX)).round() as u32))
    }

    /// The share as a number from 0 to 1, with at most six digits.
    pub fn share(self) -> f64 {
        (f64::from(self.0) / f64::from(u32::MAX) * 1e6).round() / 1e6
    }

    /// The share of 2³² − 1: a random 32-bit number is below it with that probability.
    pub const fn as_u32(self) -> u32 {
        self.0
    }
}

impl fmt::Display for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.share())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_survives_a_round_trip() {
        for share in [0.0, 0.000_1, 0.01, 0.5, 0.999, 1.0] {
            assert_eq!(SampleRate::new(share).unwrap().to_string(), share.to_string());
        }
        assert_eq!(SampleRate::new(1.0), Some(SampleRate::ALL));
        assert!([-0.1, 1.1, f64::NAN].into_iter().all(|share| SampleRate::new(share).is_none()));
    }
}
