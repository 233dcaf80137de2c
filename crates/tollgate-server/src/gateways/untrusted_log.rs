//! Logs gateways that are not one of `identity.trusted_proxies`: the most common mistake in a new setup, and its client only sees 403.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Timestamp;
use tracing::warn;

/// Anyone who reaches the port can cause a line.
const SECONDS_BETWEEN_LINES: u64 = 60;

/// At most one line a minute.
#[derive(Debug, Default)]
pub(crate) struct UntrustedGatewayLog {
    /// No line before this second.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl UntrustedGatewayLog {
    pub(crate) fn note(&self, peer: IpAddr, now: Timestamp) {
        if let Some(suppressed) = self.admit(now) {
            warn!(
                %peer, suppressed,
                "forward-auth refused: the peer is not one of identity.trusted_proxies; add it if it is your gateway"
            );
        }
    }

    /// How many lines were left out before this one, which may be written.
    fn admit(&self, now: Timestamp) -> Option<u64> {
        let (second, next) = (now.as_micros() / 1_000_000, self.next.load(Ordering::Relaxed));
        let claim = || {
            let after = second.saturating_add(SECONDS_BETWEEN_LINES);
            self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
        };
        if second < next || claim().is_err() {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_counts_the_others() {
        let log = UntrustedGatewayLog::default();
        let admitted = |second: u64| log.admit(Timestamp::from_secs(1_000_000 + second));
        assert_eq!([0, 0, 59, 60, 61].map(admitted), [Some(0), None, None, Some(2), None]);
    }
}
