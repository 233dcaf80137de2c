//! Which counters are leased, and how long a node pauses when little of one is left.

use std::time::Duration;

use tollgate::Span;
use tollgate::counters::Charge;
use tollgate::limit::{Algorithm, Limit};

/// Pause before the server is asked again for a counter that has little left, unless `RESTORE_FRACTION` is shorter.
pub(super) const SCARCE_FOR: Duration = Duration::from_millis(100);
/// The pause is at most this fraction of the time in which the limit is restored.
const RESTORE_FRACTION: u64 = 50;
/// Limits that are restored faster are not leased.
const RESTORE_MIN: Span = Span::from_secs(1);

/// A sliding log cannot be leased: its units expire one by one. Neither can a queue, whose order matters, nor a charge that
/// may be refunded, because its lease may have been returned by then, nor a limit that is restored within moments.
pub(super) fn can_be_leased(charge: &Charge<'_>) -> bool {
    let algorithm = matches!(
        charge.limit.algorithm(),
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::FixedWindow | Algorithm::SlidingWindowCounter
    );
    algorithm
        && charge.leases
        && !charge.refundable
        && charge.cost > 0
        && charge.limit.max_delay().is_none()
        && restored_in(charge.limit) >= RESTORE_MIN
}

/// The window, or the time in which an empty bucket fills up.
fn restored_in(limit: &Limit) -> Span {
    let window = limit.window_length();
    if !is_bucket(limit) || limit.capacity() == limit.requests() {
        return window;
    }
    let micros = u128::from(window.as_micros()) * u128::from(limit.capacity());
    let micros = micros / u128::from(limit.requests().max(1));
    Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// How long the server is not asked for a counter that has little left.
pub(super) fn pause(limit: &Limit) -> Duration {
    SCARCE_FOR.min(Duration::from_micros(restored_in(limit).as_micros() / RESTORE_FRACTION))
}

pub(super) fn is_bucket(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra)
}
