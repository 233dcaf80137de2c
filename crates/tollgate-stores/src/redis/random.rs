//! Chance, where a fleet must not act in step.

use std::time::Duration;

/// Anything from nothing to `ceiling`.
pub(crate) fn jitter(ceiling: Duration) -> Duration {
    let part = f64::from(u32::from_le_bytes(bytes())) / f64::from(u32::MAX);
    ceiling.mul_f64(part)
}

/// Bytes nobody can foresee, or zeros on a system that has none.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let _ = getrandom::fill(&mut bytes);
    bytes
}
