//! Division by a prepared divisor.

/// A divisor prepared for many divisions: each is a multiplication and one correction.
///
/// Every decision of a bucket needs two divisions, which would cost more than the rest of its arithmetic.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Divisor {
    by: u64,
    inverse: u64,
}

impl Divisor {
    /// Zero becomes one; a limit of zero never divides.
    pub(super) const fn new(by: u64) -> Self {
        let by = if by == 0 { 1 } else { by };
        Divisor { by, inverse: u64::MAX / by }
    }

    #[inline]
    pub(super) const fn floor(self, number: u64) -> u64 {
        let (estimate, rest) = self.estimate(number);
        estimate + (rest >= self.by) as u64
    }

    #[inline]
    pub(super) const fn ceil(self, number: u64) -> u64 {
        let (estimate, rest) = self.estimate(number);
        estimate + (rest > 0) as u64 + (rest > self.by) as u64
    }

    /// The quotient or one less, and the remainder.
    #[inline]
    const fn estimate(self, number: u64) -> (u64, u64) {
        // The inverse is low by less than one part in 2^64 / by, so the estimate is exact or one too low, and its
        // product does not exceed the number.
        let estimate = ((number as u128 * self.inverse as u128) >> 64) as u64;
        (estimate, number.wrapping_sub(estimate.wrapping_mul(self.by)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn prepared_divisor_equals_division(number: u64, by in 1_u64.., near in 0_u64..3) {
            let divisor = Divisor::new(by);
            proptest::prop_assert_eq!(divisor.floor(number), number / by);
            // Around multiples the estimate is most likely to be one off.
            let multiple = (number / by * by).saturating_add(near).saturating_sub(1);
            proptest::prop_assert_eq!(divisor.floor(multiple), multiple / by);
        }
    }

    #[test]
    fn extreme_divisors_are_exact() {
        for by in [1, 2, 3, 1 << 32, (1 << 53) - 1, u64::MAX - 1, u64::MAX] {
            for number in [0, 1, by - 1, by, by.saturating_add(1), u64::MAX - 1, u64::MAX] {
                assert_eq!(Divisor::new(by).floor(number), number / by, "{number} / {by}");
            }
        }
    }
}
