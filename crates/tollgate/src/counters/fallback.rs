//! Counting without the shared counters: this node's share of each limit, in memory, until they are back.
//!
//! A node that cannot ask counts what it admits itself, and leaves to the other nodes what is theirs: of a limit of 100
//! shared by 4 nodes each admits 25. Parts are rounded up, so that a small limit admits something on every node; the fleet
//! together then admits less than one request per node beyond the limit.
//!
//! A cost that the limit admits at once and the share does not would never pass here, through no fault of the client. It
//! takes the whole share, and passes if nothing of that is used.
//!
//! What was counted here is no second allowance: after the outage it is taken out of here and added to the shared
//! counters, unless its window is over by then. That of a client that comes back at once, before it is decided about; that
//! of all others one after another, by the list of the [`ledger`].

mod ledger;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use smallvec::SmallVec;

use self::ledger::Ledger;
pub(crate) use self::ledger::PendingCharge;
use super::memory::{MemoryBounds, MemoryCounters, SHARDS, TenantSlot};
use super::{Charge, Charges, Effect, Verdicts};
use crate::limit::{Algorithm, Limit};
use crate::time::Timestamp;

/// Counters that stand in for shared ones.
pub(crate) struct Fallback {
    counters: MemoryCounters,
    /// Which of them were charged.
    ledger: Ledger,
    /// By how many nodes limits were last shared.
    nodes: AtomicU32,
    /// Counters that were brought in.
    reconciled: AtomicU64,
    /// Whether anything may be held: without an outage nobody looks further. Not a count, because the counters know
    /// theirs; written by the sweep, and where something was counted.
    used: AtomicBool,
}

impl Fallback {
    pub(crate) fn new(bounds: MemoryBounds) -> Self {
        Fallback {
            counters: MemoryCounters::new(bounds),
            ledger: Ledger::new(bounds.keys_max),
            nodes: AtomicU32::new(1),
            reconciled: AtomicU64::new(0),
            used: AtomicBool::new(false),
        }
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
            if self.nodes.load(Ordering::Relaxed) != nodes.get() {
                self.nodes.store(nodes.get(), Ordering::Relaxed);
            }
            if verdicts.admitted(charges) {
                self.note(charges, &verdicts);
            }
        }
        verdicts
    }

    /// Notes what was charged.
    fn note(&self, charges: &Charges<'_>, verdicts: &Verdicts) {
        let holder = TenantSlot::of(charges.tenant);
        for (charge, verdict) in charges.charges.iter().zip(&verdicts.verdicts) {
            if charge.cost > 0 && verdict.admits() {
                self.ledger.note(charge, holder);
            }
        }
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
    pub(crate) fn take<'a>(&self, charges: &Charges<'a>, now: Timestamp) -> Taken<'_, 'a> {
        let mut taken = Taken::new(self, now);
        let holder = TenantSlot::of(charges.tenant);
        for charge in charges.charges.iter().filter(|charge| self.counters.holds(ledger::name(charge))) {
            self.ledger.depart_of(charge, holder);
            taken.add(charge);
        }
        taken
    }

    /// Takes a counter out, and says how much it holds.
    fn take_out(&self, charge: &Charge<'_>, now: Timestamp) -> u32 {
        let limit = self.paid_back(charge.limit);
        self.counters.take(&Charge { limit: limit.as_ref().unwrap_or(charge.limit), ..*charge }, now)
    }

    /// Counts again what was taken out.
    fn put_back(&self, charge: &Charge<'_>, holder: TenantSlot, now: Timestamp) {
        let limit = self.paid_back(charge.limit);
        let charge = Charge { limit: limit.as_ref().unwrap_or(charge.limit), ..*charge };
        self.counters.put_back(&charge, holder, now);
    }

    /// A bucket that holds what the limit holds, and is paid back what the nodes leave to this one: each of them would pay
    /// everybody's part otherwise. Nothing if that is the limit itself.
    fn paid_back(&self, limit: &Limit) -> Option<Limit> {
        let nodes = NonZeroU32::new(self.nodes.load(Ordering::Relaxed))?;
        let is_bucket =
            matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket);
        if nodes == NonZeroU32::MIN || !is_bucket {
            return None;
        }
        let (requests, burst) =
            (limit.requests().div_ceil(nodes.get()), limit.burst().unwrap_or(limit.requests()));
        Limit::with_options(
            limit.algorithm(),
            requests,
            limit.window().clone(),
            Some(burst),
            limit.max_delay(),
        )
        .ok()
    }

    /// Takes so many entries off the list of what was charged here. They are to be [taken out](Taken::add_listed), or put on
    /// the list again.
    pub(crate) fn listed(&self, count_max: usize) -> Vec<(u128, PendingCharge)> {
        self.ledger.next(count_max)
    }

    /// Puts an entry on the list again.
    pub(crate) fn list(&self, (name, owed): (u128, PendingCharge)) {
        self.ledger.list(name, owed);
    }

    pub(crate) fn count_reconciled(&self, counters: usize) {
        self.reconciled.fetch_add(counters as u64, Ordering::Relaxed);
    }

    /// How far it is with bringing in.
    pub(crate) fn reconcile_status(&self) -> ReconcileStatus {
        ReconcileStatus {
            pending: self.ledger.len(),
            in_flight: self.ledger.in_flight(),
            reconciled: self.reconciled.load(Ordering::Relaxed),
            untracked: self.ledger.untracked(),
        }
    }

    /// Forgets counters and records that were reset elsewhere.
    pub(crate) fn forget(&self, names: &[u128]) {
        if self.is_used() {
            for name in names {
                // In this order: what is taken out between is on its way before it is struck off.
                self.counters.forget(*name);
                self.ledger.forget(*name);
            }
        }
    }

    /// Gives up bringing anything in: its subjects are not known by these names any more.
    pub(crate) fn discard_pending(&self) {
        self.ledger.clear();
    }

    /// Drops what is as good as new from one shard in turn; after a whole round, notes whether anything is left.
    pub(crate) fn sweep_shard(&self, turn: usize, now: Timestamp) {
        if !self.is_used() {
            return;
        }
        self.counters.sweep_shard(turn, now);
        self.ledger.sweep_shard(turn, |name| self.counters.holds(name));
        if turn % SHARDS == SHARDS - 1 {
            // In this order: whatever is counted from here on is noted after it.
            self.used.store(false, Ordering::SeqCst);
            // What is on its way may come back, and must hear of resets until then.
            if !self.counters.is_empty() || self.ledger.in_flight() > 0 {
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

/// What was taken out of the local counters. What is left of it in the end goes back, also when nobody waits for it any
/// more.
pub(crate) struct Taken<'a, 'c> {
    local: &'a Fallback,
    /// What is to be added elsewhere. A store removes what it has added.
    pub(crate) charges: Charges<'c>,
    /// The names of all of it.
    names: SmallVec<[u128; 4]>,
    now: Timestamp,
}

impl<'a, 'c> Taken<'a, 'c> {
    pub(crate) fn new(local: &'a Fallback, now: Timestamp) -> Self {
        Taken { local, charges: Charges::default(), names: SmallVec::new(), now }
    }

    /// Takes a counter out that is on the list.
    pub(crate) fn add_listed(&mut self, charge: &Charge<'c>, owed: PendingCharge) {
        self.local.ledger.depart(ledger::name(charge), owed);
        self.add(charge);
    }

    /// Takes a counter out that was noted to depart. Not before: a reset that comes between would be missed.
    fn add(&mut self, charge: &Charge<'c>) {
        self.names.push(ledger::name(charge));
        let cost = self.local.take_out(charge, self.now);
        if cost > 0 {
            self.charges.charges.push(Charge { cost, effect: Effect::Enforce, ..*charge });
        }
    }
}

impl Drop for Taken<'_, '_> {
    fn drop(&mut self) {
        let Taken { local, charges, names, now } = self;
        for name in names.drain(..) {
            let left = charges.charges.iter().find(|charge| ledger::name(charge) == name);
            // One that was reset on the way is over.
            let Some((owed, charge)) = local.ledger.arrive(name).zip(left) else { continue };
            local.put_back(charge, owed.holder, *now);
            local.ledger.list(name, owed);
            local.mark_used();
        }
    }
}

/// How far a node is with bringing in what it counted itself while the shared counters could not be reached.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ReconcileStatus {
    /// Counters that are still to be brought in.
    pub pending: usize,
    /// Counters that are being brought in at this moment.
    pub in_flight: usize,
    /// Counters that were brought in, as often as they were.
    pub reconciled: u64,
    /// Charges of counters for which there was no room on the list: these are brought in only when their clients come.
    pub untracked: u64,
}

/// The part of a limit that one of so many nodes may admit: at least one request of any that admits some.
pub(crate) fn share(limit: &Limit, nodes: NonZeroU32) -> Limit {
    let part = |number: u32| number.div_ceil(nodes.get());
    let smaller = Limit::with_options(
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
            let costs: Vec<u32> = taken.charges.charges.iter().map(|charge| charge.cost).collect();
            assert_eq!(costs, [25], "{algorithm}");
            assert!(fallback.take(&charges(&limit, 1), NOW).charges.charges.is_empty());
            drop(taken);
            let later = NOW + Span::from_secs(121);
            assert!(fallback.take(&charges(&limit, 1), later).charges.charges.is_empty(), "{algorithm}");
        }
    }

    #[test]
    fn nodes_together_are_paid_back_what_one_limit_pays() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
            for burst in [None, Some(40), Some(400)] {
                let limit = Limit::with_options(algorithm, 120, MINUTE, burst, None).unwrap();
                let (share, later) = (limit.capacity() / 4, NOW + Span::from_secs(8));
                let fallback = Fallback::new(MemoryBounds::default());
                assert_eq!(admitted(&fallback, &limit, 4), share as usize);
                let taken = fallback.take(&charges(&limit, 1), later);
                let cost = taken.charges.charges.first().map_or(0, |charge| charge.cost);
                // Of the 16 that come back in eight seconds each of four nodes pays 4.
                assert_eq!(cost, share - 4, "{algorithm}, {burst:?}");
                drop(taken);
                let again = fallback.take(&charges(&limit, 1), later + Span::from_secs(2));
                assert_eq!(again.charges.charges[0].cost, share - 5, "{algorithm}, put back");
            }
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
            drop(taken);
            assert_eq!(admitted(&fallback, &limit, 1), 0, "{algorithm}");
            assert_eq!(fallback.reconcile_status().pending, 1, "and is still to be brought in");
        }
    }

    #[test]
    fn what_is_reset_on_its_way_does_not_come_back() {
        let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        assert_eq!(admitted(&fallback, &limit, 4), 25);
        let taken = fallback.take(&charges(&limit, 1), NOW);
        fallback.forget(&[7 ^ 9]);
        drop(taken);
        assert!(fallback.counters().is_empty());
        assert_eq!(admitted(&fallback, &limit, 4), 25);
    }

    #[test]
    fn the_list_is_of_counters_and_not_of_requests_and_a_sweep_strikes_off_what_is_over() {
        let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        assert_eq!(admitted(&fallback, &limit, 1), 100);
        assert_eq!(fallback.reconcile_status().pending, 1);
        (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW));
        assert_eq!(fallback.reconcile_status().pending, 1, "its window lasts");
        (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW + Span::from_secs(61)));
        assert_eq!(fallback.reconcile_status(), ReconcileStatus::default());
    }

    #[test]
    fn a_list_that_is_full_says_so_and_the_rest_is_brought_in_when_its_client_comes() {
        let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
        let keys_max = std::num::NonZeroUsize::MIN;
        let fallback = Fallback::new(MemoryBounds { keys_max, ..MemoryBounds::default() });
        let mut in_one_shard = charges(&limit, 1);
        for number in [0, SHARDS as u128, 2 * SHARDS as u128] {
            in_one_shard.charges[0].subject = Subject(number);
            assert!(fallback.charge(&in_one_shard, nodes(1), NOW).verdicts[0].admits());
        }
        let ReconcileStatus { pending, untracked, .. } = fallback.reconcile_status();
        assert_eq!((pending, untracked), (1, 2));
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
