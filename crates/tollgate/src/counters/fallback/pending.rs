//! The fallback counters that are to be reconciled.
//!
//! A memory counter is stored under a hash that reveals neither rule nor subject. This list keeps what is needed to
//! charge the same counter in the shared store. An entry only says that its counter may hold something: the amount is
//! taken out of the counter, which succeeds once, so a superfluous entry does no harm.
//!
//! The list is bounded. A counter that does not fit is reconciled when its client sends the next request.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use crate::counters::memory::{SHARDS, TenantSlot};
use crate::counters::{Charge, CounterId};
use crate::identity::Subject;
use crate::limit::Limit;
use crate::mutex::{MutexGuard, PaddedMutex};

/// The pending counters, sharded like the counters themselves.
pub(crate) struct PendingList {
    shards: Box<[PaddedMutex<Shard>]>,
    entries_max: usize,
    /// The shard that [`PendingList::take_next`] reads next.
    next_shard: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    pending: HashMap<u128, PendingCounter>,
    /// The keys of `pending` in the order in which they are reconciled.
    queue: VecDeque<u128>,
    /// Counters that were taken out, once per transfer. A reset removes them, so that they do not return.
    in_flight: Vec<PendingCounter>,
    /// The latest limit of each counter id, shared by its entries.
    limits: HashMap<CounterId, Arc<ChargedLimit>>,
    untracked: u64,
}

/// A counter that was charged here.
#[derive(Clone, Debug)]
pub(crate) struct PendingCounter {
    /// The exclusive or of subject and counter id.
    pub(super) key: u128,
    pub(crate) charged: Arc<ChargedLimit>,
    pub(super) tenant: TenantSlot,
}

impl PendingCounter {
    pub(crate) fn subject(&self) -> Subject {
        Subject(self.key ^ self.charged.counter.0)
    }
}

/// A limit as it was when its counter was last charged here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChargedLimit {
    pub(crate) counter: CounterId,
    pub(crate) rule: Box<str>,
    pub(crate) limit: Limit,
    pub(crate) leases: bool,
}

impl ChargedLimit {
    fn of(charge: &Charge<'_>) -> Self {
        let Charge { counter, leases, .. } = *charge;
        ChargedLimit { counter, rule: charge.rule.into(), limit: charge.limit.clone(), leases }
    }

    /// Whether the charge has the same limit. The counter id covers the rule's name.
    fn is_of(&self, charge: &Charge<'_>) -> bool {
        self.leases == charge.leases && self.limit == *charge.limit
    }
}

impl PendingList {
    pub(super) fn new(keys_max: NonZeroUsize) -> Self {
        let shards = (0..SHARDS).map(|_| PaddedMutex::new(Shard::default())).collect();
        PendingList { shards, entries_max: keys_max.get().div_ceil(SHARDS), next_shard: AtomicUsize::new(0) }
    }

    /// Adds the counter of a charge. Call it after the counter was charged: an entry whose counter is still empty would
    /// be dropped.
    pub(super) fn track(&self, charge: &Charge<'_>, tenant: TenantSlot) {
        let key = key_of(charge);
        let mut shard = self.shard(key);
        match shard.pending.get(&key) {
            Some(entry) if entry.charged.is_of(charge) => {}
            None if shard.pending.len() >= self.entries_max => shard.untracked += 1,
            _ => {
                let charged = shard.charged_limit(charge);
                shard.add(PendingCounter { key, charged, tenant });
            }
        }
    }

    /// Takes at most `count_max` entries. Each call starts with another shard, so that counters that cannot be reconciled
    /// now do not hold up the others.
    pub(crate) fn take_next(&self, count_max: usize) -> Vec<PendingCounter> {
        let mut found = Vec::new();
        for _ in 0..SHARDS {
            let turn = self.next_shard.fetch_add(1, Ordering::Relaxed);
            let mut shard = self.shards[turn % SHARDS].lock();
            while found.len() < count_max
                && let Some(key) = shard.queue.pop_front()
            {
                found.extend(shard.pending.remove(&key));
            }
            if found.len() >= count_max {
                break;
            }
        }
        found
    }

    /// Puts an entry back at the end of the queue.
    pub(crate) fn put_back(&self, counter: PendingCounter) {
        self.shard(counter.key).add(counter);
    }

    /// Marks a counter as in flight. Call it before the counter is taken out, or a reset in between would be missed.
    pub(super) fn begin_transfer(&self, counter: PendingCounter) {
        self.shard(counter.key).in_flight.push(counter);
    }

    /// Marks the counter of a charge as in flight, whether or not it is in the list.
    pub(super) fn begin_transfer_of(&self, charge: &Charge<'_>, tenant: TenantSlot) {
        let key = key_of(charge);
        let mut shard = self.shard(key);
        let charged = shard.charged_limit(charge);
        shard.in_flight.push(PendingCounter { key, charged, tenant });
    }

    /// Ends one transfer of a counter. Returns `None` if the counter was reset meanwhile.
    pub(super) fn end_transfer(&self, key: u128) -> Option<PendingCounter> {
        let mut shard = self.shard(key);
        let position = shard.in_flight.iter().position(|counter| counter.key == key)?;
        Some(shard.in_flight.swap_remove(position))
    }

    /// Cancels the transfers of a counter that was reset: what is left of them must not return.
    pub(super) fn cancel_transfers(&self, key: u128) {
        self.shard(key).in_flight.retain(|counter| counter.key != key);
    }

    /// Drops the entries of one shard whose counters hold nothing any more.
    pub(super) fn sweep_shard(&self, turn: usize, holds: impl Fn(u128) -> bool) {
        let mut shard = self.shards[turn % SHARDS].lock();
        let Shard { pending, queue, limits, .. } = &mut *shard;
        pending.retain(|key, _| holds(*key));
        queue.retain(|key| pending.contains_key(key));
        limits.retain(|_, charged| Arc::strong_count(charged) > 1);
        pending.shrink_to(pending.len() * 2);
        queue.shrink_to(queue.len() * 2);
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            *shard = Shard { untracked: shard.untracked, ..Shard::default() };
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().pending.len()).sum()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().in_flight.len()).sum()
    }

    /// How many charges found the list full.
    pub(super) fn untracked(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().untracked).sum()
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Shard> {
        self.shards[key as usize % SHARDS].lock()
    }
}

impl Shard {
    fn add(&mut self, counter: PendingCounter) {
        let key = counter.key;
        if self.pending.insert(key, counter).is_none() {
            self.queue.push_back(key);
        }
    }

    fn charged_limit(&mut self, charge: &Charge<'_>) -> Arc<ChargedLimit> {
        match self.limits.get(&charge.counter) {
            Some(known) if known.is_of(charge) => Arc::clone(known),
            _ => {
                let charged = Arc::new(ChargedLimit::of(charge));
                self.limits.insert(charge.counter, Arc::clone(&charged));
                charged
            }
        }
    }
}

/// Identifies a counter, as for [`Limiter::discard_fallback`](crate::Limiter::discard_fallback).
pub(super) fn key_of(charge: &Charge<'_>) -> u128 {
    charge.subject.0 ^ charge.counter.0
}
