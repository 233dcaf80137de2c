//! Randomness, so that the nodes of a fleet do not act in step.

use std::time::Duration;

/// A random duration between zero and `ceiling`.
pub(crate) fn jitter(ceiling: Duration) -> Duration {
    let part = f64::from(u32::from_le_bytes(bytes())) / f64::from(u32::MAX);
    ceiling.mul_f64(part)
}

/// Random bytes; zeros if the system provides none.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let _ = getrandom::fill(&mut bytes);
    bytes
}
