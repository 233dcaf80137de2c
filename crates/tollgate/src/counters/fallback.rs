//! Counting in memory while the shared counters are unreachable.
//!
//! Each node admits its share of a limit: of a limit of 100 on four nodes each admits 25. Shares are rounded up, so that
//! a small limit admits something on every node; the fleet admits less than one request per node beyond the limit.
//!
//! A cost that fits the limit but not the share is charged the whole share, and passes only while the share is unused.
//!
//! What was admitted uses the share until its window ends, through any number of outages: all of them together admit at
//! most one more allowance. A client that was refused or has little left starts with what the shared counters
//! [last answered](last_answers).
//!
//! What was admitted is reconciled after the outage: it is added to the shared counters once, unless its window has
//! ended. The counters of a client that sends a request are reconciled first, all others from the [`pending`] list.

mod last_answers;
mod pending;
mod refund;
#[cfg(test)]
mod tests;
mod transfer;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use smallvec::SmallVec;

use self::last_answers::LastAnswers;
pub(crate) use self::pending::PendingCounter;
use self::pending::{PendingList, key_of};
pub(crate) use self::refund::{FallbackMark, FallbackMarks};
pub(crate) use self::transfer::Transfer;
use super::memory::{MemoryBounds, MemoryCounters, SHARDS, TenantSlot};
use super::{Charge, ChargeMark, ChargeMarks, Charges, Verdicts};
use crate::limit::{Algorithm, Limit};
use crate::time::Timestamp;

/// The counters of this node while the shared ones are unreachable.
pub(crate) struct Fallback {
    /// What this node admitted of its shares. Reconciliation does not change them.
    shares: MemoryCounters,
    last_answers: LastAnswers,
    /// The part of what was admitted that is not added to the shared counters yet.
    unreconciled: MemoryCounters,
    pending: PendingList,
    /// The number of nodes by which limits were last divided.
    nodes: AtomicU32,
    reconciled: AtomicU64,
    /// Whether anything may be unreconciled. Without an outage a decision reads nothing else before it is charged.
    used: AtomicBool,
}

impl Fallback {
    pub(crate) fn new(bounds: MemoryBounds) -> Self {
        Fallback {
            shares: MemoryCounters::new(bounds),
            last_answers: LastAnswers::new(bounds.keys_max),
            unreconciled: MemoryCounters::new(bounds),
            pending: PendingList::new(bounds.keys_max),
            nodes: AtomicU32::new(1),
            reconciled: AtomicU64::new(0),
            used: AtomicBool::new(false),
        }
    }

    /// What this node admitted of its shares.
    pub(crate) fn shares(&self) -> &MemoryCounters {
        &self.shares
    }

    /// Whether anything may be unreconciled.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Remembers what the shared counters answered, if the client was refused or has little left.
    pub(crate) fn remember(
        &self,
        charges: &Charges<'_>,
        verdicts: &Verdicts,
        nodes: NonZeroU32,
        now: Timestamp,
    ) {
        self.last_answers.update(charges, verdicts, nodes, now);
    }

    /// Charges the share that one of `nodes` nodes has of each limit. Also returns the marks of refundable charges.
    pub(crate) fn charge(
        &self,
        charges: &Charges<'_>,
        nodes: NonZeroU32,
        now: Timestamp,
    ) -> (Verdicts, Option<FallbackMarks>) {
        self.apply_last_answers(charges, nodes, now);
        let mut verdicts = match nodes {
            NonZeroU32::MIN => self.shares.charge_all_now(charges, now),
            nodes => self.charge_share(charges, nodes, now),
        };
        if !charges.dry_run && verdicts.admitted(charges) {
            if self.nodes.load(Ordering::Relaxed) != nodes.get() {
                self.nodes.store(nodes.get(), Ordering::Relaxed);
            }
            let unreconciled = self.add_unreconciled(charges, &verdicts, now);
            let shares = verdicts.marks.take();
            return (verdicts, shares.map(|shares| refund::combine(&shares, unreconciled, nodes)));
        }
        (verdicts, None)
    }

    /// Leaves of each share at most what one node has of what the shared counters last answered.
    fn apply_last_answers(&self, charges: &Charges<'_>, nodes: NonZeroU32, now: Timestamp) {
        let tenant = TenantSlot::of(charges.tenant);
        for charge in &charges.charges {
            let key = key_of(charge);
            if let Some(answer) = self.last_answers.get(key, now) {
                let limit = share(charge.limit, nodes);
                let left = answer.remaining.div_ceil(nodes.get());
                self.shares.lower(&Charge { limit: &limit, ..*charge }, tenant, left, answer.at);
                // After it took effect: a concurrent charge must not find neither.
                self.last_answers.remove(key);
            }
        }
    }

    fn charge_share(&self, charges: &Charges<'_>, nodes: NonZeroU32, now: Timestamp) -> Verdicts {
        let limits: SmallVec<[Limit; 4]> =
            charges.charges.iter().map(|charge| share(charge.limit, nodes)).collect();
        let part = |(charge, limit)| charge_of_share(charge, limit);
        let shares = Charges {
            charges: charges.charges.iter().zip(&limits).map(part).collect(),
            // Exceeding the share is not exceeding the limit, and so no violation.
            penalty: None,
            dry_run: charges.dry_run,
            tenant: charges.tenant,
        };
        self.shares.charge_all_now(&shares, now)
    }

    /// Counts what was admitted as unreconciled. Returns the marks of refundable charges, one per charge.
    fn add_unreconciled(&self, charges: &Charges<'_>, verdicts: &Verdicts, now: Timestamp) -> ChargeMarks {
        self.mark_used();
        let tenant = TenantSlot::of(charges.tenant);
        let mut marks = ChargeMarks::new();
        for (charge, verdict) in charges.charges.iter().zip(&verdicts.verdicts) {
            let mut mark = None;
            if charge.cost > 0 && verdict.admits() {
                mark = self.count_unreconciled(charge, tenant, now);
                self.pending.track(charge, tenant);
            }
            marks.push(mark);
        }
        marks
    }

    /// Takes out what is unreconciled of these charges' counters.
    pub(crate) fn transfer<'a>(&self, charges: &Charges<'a>, now: Timestamp) -> Transfer<'_, 'a> {
        let mut transfer = Transfer::new(self, now);
        let tenant = TenantSlot::of(charges.tenant);
        for charge in &charges.charges {
            if self.unreconciled.holds(key_of(charge)) {
                transfer.add(charge, tenant);
            }
        }
        transfer
    }

    /// Takes at most `count_max` counters from the pending list.
    pub(crate) fn take_pending(&self, count_max: usize) -> Vec<PendingCounter> {
        self.pending.take_next(count_max)
    }

    /// Returns a counter that cannot be reconciled now to the pending list.
    pub(crate) fn put_back_pending(&self, counter: PendingCounter) {
        self.pending.put_back(counter);
    }

    /// Forgets what is known by subjects that are hashed with another key now.
    pub(crate) fn forget_subjects(&self) {
        self.pending.clear();
        self.last_answers.clear();
    }

    pub(crate) fn count_reconciled(&self, counters: usize) {
        self.reconciled.fetch_add(counters as u64, Ordering::Relaxed);
    }

    /// The progress of reconciliation.
    pub(crate) fn status(&self) -> ReconcileStatus {
        ReconcileStatus {
            pending: self.pending.len(),
            in_flight: self.pending.in_flight(),
            reconciled: self.reconciled.load(Ordering::Relaxed),
            untracked: self.pending.untracked(),
        }
    }

    /// Discards counters and penalty records that were reset, also those in flight.
    pub(crate) fn discard(&self, keys: &[u128]) {
        for key in keys {
            self.last_answers.remove(*key);
            self.shares.discard(*key);
            // In this order: a counter that is taken out in between is in flight already and is cancelled.
            self.unreconciled.discard(*key);
            self.pending.cancel_transfers(*key);
        }
    }

    /// Drops expired counters from one shard. After a whole round, updates whether anything is unreconciled.
    pub(crate) fn sweep_shard(&self, turn: usize, now: Timestamp) {
        self.shares.sweep_shard(turn, now);
        self.last_answers.sweep_shard(turn, now);
        if !self.is_used() {
            return;
        }
        self.unreconciled.sweep_shard(turn, now);
        self.pending.sweep_shard(turn, |key| self.unreconciled.holds(key));
        if turn % SHARDS == SHARDS - 1 {
            // Cleared before the check, so that a charge in between sets it again. Counters in flight may return, and
            // must notice resets until then.
            self.used.store(false, Ordering::SeqCst);
            if !self.unreconciled.is_empty() || self.pending.in_flight() > 0 {
                self.mark_used();
            }
        }
    }

    /// Written only on change, so that threads do not contend for the cache line during an outage.
    fn mark_used(&self) {
        if !self.used.load(Ordering::SeqCst) {
            self.used.store(true, Ordering::SeqCst);
        }
    }

    /// Takes a counter out and returns how much it held.
    fn take_out(&self, charge: &Charge<'_>, now: Timestamp) -> u32 {
        let limit = self.with_shared_refill(charge.limit);
        self.unreconciled.take(&Charge { limit: limit.as_ref().unwrap_or(charge.limit), ..*charge }, now)
    }

    /// Counts an admitted charge, or one that was taken out, as unreconciled.
    fn count_unreconciled(
        &self,
        charge: &Charge<'_>,
        tenant: TenantSlot,
        now: Timestamp,
    ) -> Option<ChargeMark> {
        let limit = self.with_shared_refill(charge.limit);
        let charge = Charge { limit: limit.as_ref().unwrap_or(charge.limit), ..*charge };
        self.unreconciled.charge_forced(&charge, tenant, now)
    }

    /// A bucket with the capacity of the limit and this node's share of its refill: otherwise every node would refill the
    /// whole. `None` if that is the limit itself.
    fn with_shared_refill(&self, limit: &Limit) -> Option<Limit> {
        let nodes = NonZeroU32::new(self.nodes.load(Ordering::Relaxed))?;
        let is_bucket =
            matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket);
        if nodes == NonZeroU32::MIN || !is_bucket {
            return None;
        }
        let requests = limit.requests().div_ceil(nodes.get());
        let burst = Some(limit.burst().unwrap_or(limit.requests()));
        Limit::with_options(limit.algorithm(), requests, limit.window().clone(), burst, limit.max_delay())
            .ok()
    }
}

/// The progress of adding what the fallback counted to the shared counters.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ReconcileStatus {
    /// Counters still to be reconciled.
    pub pending: usize,
    /// Counters being reconciled at this moment.
    pub in_flight: usize,
    /// Counters reconciled since the start.
    pub reconciled: u64,
    /// Charges that found the pending list full: their counters are reconciled when their clients send a request.
    pub untracked: u64,
}

/// The charge of a share. A cost that fits the limit but not the share takes the whole share.
fn charge_of_share<'a>(charge: &Charge<'a>, limit: &'a Limit) -> Charge<'a> {
    let possible = charge.cost <= charge.limit.capacity();
    let cost = if possible { charge.cost.min(limit.capacity()) } else { charge.cost };
    Charge { limit, cost, ..*charge }
}

/// The share that one of `nodes` nodes has of a limit, rounded up.
pub(crate) fn share(limit: &Limit, nodes: NonZeroU32) -> Limit {
    let part = |number: u32| number.div_ceil(nodes.get());
    let smaller = Limit::with_options(
        limit.algorithm(),
        part(limit.requests()),
        limit.window().clone(),
        limit.burst().map(part),
        limit.max_delay(),
    );
    // Smaller values of a valid limit are valid.
    smaller.unwrap_or_else(|_| limit.clone())
}
