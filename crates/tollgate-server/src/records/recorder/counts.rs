//! What is counted of windows and rollups between two flushes.

use tollgate_stores::sql::records::{DecisionKind, LatencyHistogram};

use super::batch::CountedDecision;
use crate::records::delta_table::Counts;

/// Set in the count of refused requests if the limit is known: an `Option` would take four bytes more.
const HAS_LIMIT: u32 = 1 << 31;

/// Requests of one client on one route, in few bytes: with many clients, each of them is in another cache line.
#[derive(Default)]
pub(in crate::records) struct WindowDelta {
    allowed: u32,
    /// With [`HAS_LIMIT`].
    refused: u32,
    limit: u32,
}

/// Requests of one client on one route.
#[derive(Default)]
pub(in crate::records) struct WindowCounts {
    pub(in crate::records) allowed: u64,
    pub(in crate::records) refused: u64,
    pub(in crate::records) limit: Option<u32>,
}

/// Requests on one route, decided by one rule.
#[derive(Default)]
pub(in crate::records) struct RollupCounts {
    pub(in crate::records) allowed: u64,
    pub(in crate::records) throttled: u64,
    pub(in crate::records) blocked: u64,
    pub(in crate::records) cache_hits: u64,
    pub(in crate::records) cache_misses: u64,
    pub(in crate::records) latency: LatencyHistogram,
}

impl WindowDelta {
    /// Counts a request. False if it does not fit, after two billion since the last flush.
    pub(super) fn add(&mut self, kind: DecisionKind, limit: Option<u32>) -> bool {
        let count = if kind == DecisionKind::Allowed { &mut self.allowed } else { &mut self.refused };
        if *count & !HAS_LIMIT == !HAS_LIMIT {
            return false;
        }
        *count += 1;
        if let Some(limit) = limit {
            self.limit = limit;
            self.refused |= HAS_LIMIT;
        }
        true
    }
}

impl RollupCounts {
    /// Counts a decision.
    pub(super) fn add(&mut self, decision: &CountedDecision) {
        match decision.kind {
            DecisionKind::Allowed => self.allowed += 1,
            DecisionKind::Blocked => self.blocked += 1,
            DecisionKind::Throttled | DecisionKind::Unavailable => self.throttled += 1,
        }
        self.cache_hits += u64::from(decision.is_cached == Some(true));
        self.cache_misses += u64::from(decision.is_cached == Some(false));
        self.latency.record(decision.latency_micros);
    }
}

impl Counts for WindowDelta {
    type Taken = WindowCounts;

    fn take(&mut self) -> Option<WindowCounts> {
        if self.allowed == 0 && self.refused == 0 {
            return None;
        }
        let WindowDelta { allowed, refused, limit } = std::mem::take(self);
        let limit = Some(limit).filter(|_| refused & HAS_LIMIT != 0);
        Some(WindowCounts { allowed: allowed.into(), refused: (refused & !HAS_LIMIT).into(), limit })
    }
}

impl Counts for RollupCounts {
    type Taken = RollupCounts;

    fn take(&mut self) -> Option<RollupCounts> {
        let is_empty = self.allowed + self.throttled + self.blocked == 0;
        (!is_empty).then(|| std::mem::take(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_keeps_the_last_known_limit() {
        let mut delta = WindowDelta::default();
        assert!(delta.take().is_none());
        assert!(delta.add(DecisionKind::Allowed, Some(u32::MAX)) && delta.add(DecisionKind::Blocked, None));
        let taken = delta.take().unwrap();
        assert_eq!((taken.allowed, taken.refused, taken.limit), (1, 1, Some(u32::MAX)));
        assert!(delta.add(DecisionKind::Throttled, None));
        let taken = delta.take().unwrap();
        assert_eq!((taken.allowed, taken.refused, taken.limit), (0, 1, None));
    }

    #[test]
    fn full_count_takes_no_request() {
        for kind in [DecisionKind::Allowed, DecisionKind::Throttled] {
            let full = !HAS_LIMIT;
            let mut delta = WindowDelta { allowed: full, refused: full, limit: 0 };
            assert!(!delta.add(kind, Some(7)));
            let taken = delta.take().unwrap();
            assert_eq!((taken.allowed, taken.refused, taken.limit), (full.into(), full.into(), None));
        }
    }
}
