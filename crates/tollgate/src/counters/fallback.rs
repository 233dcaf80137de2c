//! Counting without the shared counters: this node's share of each limit, in memory, until they are back.
//!
//! A node that cannot ask counts what it admits itself, and leaves to the other nodes what is theirs: of a limit of 100
//! shared by 4 nodes each admits 25. Parts are rounded up, so that a small limit admits something on every node; the fleet
//! together then admits less than one request per node beyond the limit.
//!
//! A cost that the limit admits at once and the share does not would never pass here, through no fault of the client. It
//! takes the whole share, and passes if nothing of that is used.
//!
//! What was counted here is no second allowance: when a client comes back after the outage, it is taken out of here and
//! added to the shared counters, unless its window is over by then.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::memory::{MemoryBounds, MemoryCounters, SHARDS};
use super::{Charge, Charges, Effect, Verdicts};
use crate::limit::Limit;
use crate::time::Timestamp;

/// Counters that stand in for shared ones.
pub(crate) struct Fallback {
    counters: MemoryCounters,
    /// Whether anything may be held: without an outage nobody looks further. Not a count, because the counters know
    /// theirs; written by the sweep, and where something was counted.
    used: AtomicBool,
}

impl Fallback {
    pub(crate) fn new(bounds: MemoryBounds) -> Self {
        Fallback { counters: MemoryCounters::new(bounds), used: AtomicBool::new(false) }
    }

    pub(crate) fn counters(&self) -> &MemoryCounters {
        &self.counters
    }

    /// Whether something may have been counted here.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Charges the share of one of so many nodes.
    pub(crate) fn charge(&self, charges: &Charges<'_>, nodes: NonZeroU32, now: Timestamp) -> Verdicts {
        let verdicts = match nodes {
            NonZeroU32::MIN => self.counters.charge_all_now(charges, now),
            nodes => self.charge_share(charges, nodes, now),
        };
        if !charges.dry_run {
            self.mark_used();
        }
        verdicts
    }

    fn charge_share(&self, charges: &Charges<'_>, nodes: NonZeroU32, now: Timestamp) -> Verdicts {
        let limits: SmallVec<[Limit; 4]> =
            charges.charges.iter().map(|charge| share(charge.limit, nodes)).collect();
        let part = |(charge, limit)| {
            let charge: &Charge<'_> = charge;
            let limit: &Limit = limit;
            let possible = charge.cost <= charge.limit.capacity();
            let cost = if possible { charge.cost.min(limit.capacity()) } else { charge.cost };
            Charge { limit, cost, ..*charge }
        };
        let shares = Charges {
            charges: charges.charges.iter().zip(&limits).map(part).collect(),
            // Over its share is not over its limit: that is nobody's misconduct.
            penalty: None,
            dry_run: charges.dry_run,
            tenant: charges.tenant,
        };
        self.counters.charge_all_now(&shares, now)
    }

    /// Takes out what the counters of these charges hold, as charges of their own.
    pub(crate) fn take<'a>(&self, charges: &Charges<'a>, now: Timestamp) -> Charges<'a> {
        let held = charges.charges.iter().map(|charge| Charge {
            cost: self.counters.take(charge, now),
            effect: Effect::Enforce,
            ..*charge
        });
        let held = held.filter(|charge| charge.cost > 0).collect();
        Charges { charges: held, tenant: charges.tenant, ..Charges::default() }
    }

    /// Counts again what was taken out and could not be brought anywhere, beside what was counted meanwhile. More than
    /// the limit holds is as good as the limit.
    pub(crate) fn put_back(&self, taken: &Charges<'_>, now: Timestamp) {
        for charge in &taken.charges {
            let held = self.counters.take(charge, now);
            let cost = held.saturating_add(charge.cost).min(charge.limit.capacity());
            let alone = Charges {
                charges: SmallVec::from_slice(&[Charge { cost, ..*charge }]),
                tenant: taken.tenant,
                ..Charges::default()
            };
            self.counters.charge_all_now(&alone, now);
        }
        self.mark_used();
    }

    /// Forgets counters and records that were reset elsewhere.
    pub(crate) fn forget(&self, names: &[u128]) {
        if self.is_used() {
            for name in names {
                self.counters.forget(*name);
            }
        }
    }

    /// Drops what is as good as new from one shard in turn; after a whole round, notes whether anything is left.
    pub(crate) fn sweep_shard(&self, turn: usize, now: Timestamp) {
        if !self.is_used() {
            return;
        }
        self.counters.sweep_shard(turn, now);
        if turn % SHARDS == SHARDS - 1 {
            // In this order: whatever is counted from here on is noted after it.
            self.used.store(false, Ordering::SeqCst);
            if !self.counters.is_empty() {
                self.mark_used();
            }
        }
    }

    /// Written only when it is news, so that nodes in an outage do not fight over the line.
    fn mark_used(&self) {
        if !self.used.load(Ordering::SeqCst) {
            self.used.store(true, Ordering::SeqCst);
        }
    }
}

/// The part of a limit that one of so many nodes may admit: at least one request of any that admits some.
pub(crate) fn share(limit: &Limit, nodes: NonZeroU32) -> Limit {
    let part = |number: u32| number.div_ceil(nodes.get());
    let smaller = Limit::shaped(
        limit.algorithm(),
        part(limit.requests()),
        limit.window().clone(),
        limit.burst().map(part),
        limit.max_delay(),
    );
    // Smaller numbers are never too large to count.
    smaller.unwrap_or_else(|_| limit.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Outcome;
    use crate::counters::CounterId;
    use crate::identity::Subject;
    use crate::limit::{Algorithm, Window};
    use crate::time::Span;

    const MINUTE: Window = Window::Length(Span::from_secs(60));
    const NOW: Timestamp = Timestamp::from_secs(6_000);

    fn nodes(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    fn charges(limit: &Limit, cost: u32) -> Charges<'_> {
        let (subject, counter) = (Subject(7), CounterId(9));
        let charge =
            Charge { subject, counter, rule: "r", limit, cost, effect: Effect::Enforce, leases: true };
        Charges { charges: SmallVec::from_slice(&[charge]), ..Charges::default() }
    }

    fn admitted(fallback: &Fallback, limit: &Limit, number: u32) -> usize {
        let charge = |_: &u32| fallback.charge(&charges(limit, 1), nodes(number), NOW).verdicts[0].admits();
        (0..1_000).filter(charge).count()
    }

    #[test]
    fn each_of_three_nodes_admits_a_third_rounded_up_by_every_algorithm() {
        for algorithm in Algorithm::ALL {
            let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
            let fallback = Fallback::new(MemoryBounds::default());
            assert_eq!(admitted(&fallback, &limit, 3), 34, "{algorithm}");
        }
    }

    #[test]
    fn more_nodes_than_requests_admit_one_each_and_a_limit_of_none_admits_none() {
        for (requests, expected) in [(2, 1), (1, 1), (0, 0)] {
            let limit = Limit::new(Algorithm::FixedWindow, requests, MINUTE).unwrap();
            assert_eq!(admitted(&Fallback::new(MemoryBounds::default()), &limit, 50), expected);
        }
    }

    #[test]
    fn a_cost_beyond_the_share_passes_while_the_share_is_unused() {
        for algorithm in Algorithm::ALL {
            let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
            let fallback = Fallback::new(MemoryBounds::default());
            let outcome = |cost: u32| fallback.charge(&charges(&limit, cost), nodes(4), NOW).verdicts[0];
            assert!(outcome(80).admits(), "{algorithm}");
            assert!(matches!(outcome(80).outcome, Outcome::Refuse { .. }), "{algorithm}");
            assert_eq!(outcome(101).outcome, Outcome::Never, "{algorithm}");
        }
    }

    #[test]
    fn what_was_counted_is_taken_out_once_and_only_while_its_window_lasts() {
        for algorithm in Algorithm::ALL {
            let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
            let fallback = Fallback::new(MemoryBounds::default());
            assert!(!fallback.is_used());
            assert_eq!(admitted(&fallback, &limit, 4), 25);
            assert!(fallback.is_used());
            let taken = fallback.take(&charges(&limit, 1), NOW);
            assert_eq!(
                taken.charges.iter().map(|charge| charge.cost).collect::<Vec<_>>(),
                [25],
                "{algorithm}"
            );
            assert!(fallback.take(&charges(&limit, 1), NOW).charges.is_empty());
            fallback.put_back(&taken, NOW);
            let later = NOW + Span::from_secs(121);
            assert!(fallback.take(&charges(&limit, 1), later).charges.is_empty(), "{algorithm}");
        }
    }

    #[test]
    fn what_cannot_be_brought_anywhere_is_not_lost_to_what_was_counted_meanwhile() {
        for algorithm in Algorithm::ALL {
            let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
            let fallback = Fallback::new(MemoryBounds::default());
            assert_eq!(admitted(&fallback, &limit, 1), 100);
            let taken = fallback.take(&charges(&limit, 1), NOW);
            assert!(fallback.charge(&charges(&limit, 60), nodes(1), NOW).verdicts[0].admits());
            fallback.put_back(&taken, NOW);
            assert_eq!(admitted(&fallback, &limit, 1), 0, "{algorithm}");
        }
    }

    #[test]
    fn a_sweep_after_the_outage_forgets_that_there_was_one() {
        let limit = Limit::new(Algorithm::TokenBucket, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        admitted(&fallback, &limit, 1);
        (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW));
        assert!(fallback.is_used(), "it still holds something");
        (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW + Span::from_secs(61)));
        assert!(!fallback.is_used() && fallback.counters().is_empty());
    }
}
