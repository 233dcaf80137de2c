//! What the shared counters last answered about clients that were refused or have little left.
//!
//! The fallback starts from it, so that an outage does not admit a client that was just refused. Other clients are not
//! stored: they are admitted up to this node's share.
//!
//! The table is bounded. A client that does not fit is admitted up to the share, as one that was never seen.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;

use super::pending::key_of;
use crate::algorithms::{Outcome, Verdict};
use crate::counters::memory::SHARDS;
use crate::counters::{Charge, Charges, Verdicts};
use crate::mutex::PaddedMutex;
use crate::time::Timestamp;

/// The fraction of `keys_max` that may be stored.
const KEYS_FRACTION: usize = 4;

/// The last answers, sharded like the counters.
pub(super) struct LastAnswers {
    shards: Box<[PaddedMutex<HashMap<u128, LastAnswer>>]>,
    entries_max: usize,
    /// Whether anything may be stored.
    used: AtomicBool,
}

/// One counter as the shared store last reported it.
#[derive(Copy, Clone, Debug)]
pub(super) struct LastAnswer {
    pub(super) at: Timestamp,
    pub(super) remaining: u32,
    /// When the counter is restored in full, so that the answer says nothing any more.
    restored_at: Timestamp,
}

impl LastAnswers {
    pub(super) fn new(keys_max: NonZeroUsize) -> Self {
        let shards = (0..SHARDS).map(|_| PaddedMutex::new(HashMap::new())).collect();
        let entries_max = keys_max.get().div_ceil(SHARDS * KEYS_FRACTION);
        LastAnswers { shards, entries_max, used: AtomicBool::new(false) }
    }

    /// Stores what was answered about clients with little left, and forgets older answers about the others.
    pub(super) fn update(
        &self,
        charges: &Charges<'_>,
        verdicts: &Verdicts,
        nodes: NonZeroU32,
        now: Timestamp,
    ) {
        for (charge, verdict) in charges.charges.iter().zip(&verdicts.verdicts) {
            if is_low(charge, verdict, nodes) {
                let restored_at = now + verdict.reset_after;
                self.insert(
                    key_of(charge),
                    LastAnswer { at: now, remaining: verdict.remaining, restored_at },
                );
            } else {
                self.remove(key_of(charge));
            }
        }
    }

    pub(super) fn get(&self, key: u128, now: Timestamp) -> Option<LastAnswer> {
        if !self.is_used() {
            return None;
        }
        self.shard(key).lock().get(&key).copied().filter(|answer| answer.restored_at > now)
    }

    pub(super) fn remove(&self, key: u128) {
        if self.is_used() {
            self.shard(key).lock().remove(&key);
        }
    }

    /// Drops outdated answers from one shard. After a whole round, updates whether anything is stored.
    pub(super) fn sweep_shard(&self, turn: usize, now: Timestamp) {
        if !self.is_used() {
            return;
        }
        let mut shard = self.shards[turn % SHARDS].lock();
        shard.retain(|_, answer| answer.restored_at > now);
        let length = shard.len();
        shard.shrink_to(length * 2);
        drop(shard);
        if turn % SHARDS == SHARDS - 1 {
            // Cleared before the check, so that an answer in between sets it again.
            self.used.store(false, Ordering::SeqCst);
            if self.shards.iter().any(|shard| !shard.lock().is_empty()) {
                self.used.store(true, Ordering::SeqCst);
            }
        }
    }

    pub(super) fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }

    fn insert(&self, key: u128, answer: LastAnswer) {
        let mut shard = self.shard(key).lock();
        // Full shards are not scanned for outdated answers: a flood of refused clients must not cause a scan each.
        if shard.len() < self.entries_max || shard.contains_key(&key) {
            shard.insert(key, answer);
            self.used.store(true, Ordering::SeqCst);
        }
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    fn shard(&self, key: u128) -> &PaddedMutex<HashMap<u128, LastAnswer>> {
        &self.shards[key as usize % SHARDS]
    }
}

/// Whether the client was refused or has less left than one node's share. On a single node, whose share is the limit,
/// less than half of it: ordinary decisions store nothing.
fn is_low(charge: &Charge<'_>, verdict: &Verdict, nodes: NonZeroU32) -> bool {
    let refused = charge.cost > 0 && matches!(verdict.outcome, Outcome::Refuse { .. });
    refused || verdict.remaining < charge.limit.capacity().div_ceil(nodes.get().max(2))
}
