//! Which counters were charged here, so that they can be brought to the shared ones without their clients.
//!
//! A counter is kept under a hash, which tells neither its rule nor its subject. What is needed to find it again elsewhere
//! stands here, beside the counters and divided as they are, so that requests in an outage do not wait for each other. An
//! entry says only that its counter may hold something: what it holds is taken out of the counter itself, and that can be
//! done once. So an entry too many does no harm, and nobody has to remove one when a client comes back by itself.
//!
//! The ledger is bounded. A counter that finds no place in it is brought in when its client comes, as all of them can be.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use crate::counters::memory::{SHARDS, TenantSlot};
use crate::counters::{Charge, CounterId};
use crate::identity::Subject;
use crate::limit::Limit;
use crate::sync::{Mutex, MutexGuard, lock};

/// The list of counters to be brought in.
pub(super) struct Ledger {
    /// Each on cache lines of its own, as the counters are.
    shards: Box<[Padded]>,
    entries_max: usize,
    /// The shard to be looked at next.
    next: AtomicUsize,
}

#[repr(align(128))]
struct Padded(Mutex<Shard>);

#[derive(Default)]
struct Shard {
    owed: HashMap<u128, PendingCharge>,
    /// Whose turn it is: what cannot be brought in goes to the end.
    turns: VecDeque<u128>,
    /// What was taken out and is on its way, once for each time. A reset strikes it off: then it must not come back.
    away: Vec<(u128, PendingCharge)>,
    /// The numbers of the latest entry of each limit: most entries share them.
    numbers: HashMap<CounterId, Arc<Numbers>>,
    untracked: u64,
}

/// A counter that was charged here.
#[derive(Clone, Debug)]
pub(crate) struct PendingCharge {
    pub(crate) numbers: Arc<Numbers>,
    pub(in crate::counters) holder: TenantSlot,
}

/// Which limit a counter is of, and its numbers when it was last charged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) counter: CounterId,
    pub(crate) rule: Box<str>,
    pub(crate) limit: Limit,
    pub(crate) leases: bool,
}

impl Numbers {
    fn of(charge: &Charge<'_>) -> Self {
        let Charge { counter, leases, .. } = *charge;
        Numbers { counter, rule: charge.rule.into(), limit: charge.limit.clone(), leases }
    }

    /// The rule need not be compared: the counter is named after it.
    fn are_those_of(&self, charge: &Charge<'_>) -> bool {
        self.leases == charge.leases && self.limit == *charge.limit
    }

    /// Whose counter of this limit has that name.
    pub(crate) fn subject(&self, name: u128) -> Subject {
        Subject(name ^ self.counter.0)
    }
}

impl Ledger {
    pub(super) fn new(keys_max: NonZeroUsize) -> Self {
        let shards = (0..SHARDS).map(|_| Padded(Mutex::new(Shard::default()))).collect();
        Ledger { shards, entries_max: keys_max.get().div_ceil(SHARDS), next: AtomicUsize::new(0) }
    }

    /// Notes that a counter was charged. Called after it was: one that is noted before could be looked for, found empty and
    /// struck off.
    pub(super) fn note(&self, charge: &Charge<'_>, holder: TenantSlot) {
        let name = name(charge);
        let mut shard = self.shard(name);
        match shard.owed.get(&name) {
            Some(owed) if owed.numbers.are_those_of(charge) => {}
            None if shard.owed.len() >= self.entries_max => shard.untracked += 1,
            _ => {
                let numbers = shard.numbers_of(charge);
                shard.list(name, PendingCharge { numbers, holder });
            }
        }
    }

    /// Takes so many entries off the list, from one shard after another. The next call begins with another shard, even if
    /// this one has more: what cannot be brought in goes back to where it was, and would be all that is ever looked at.
    pub(super) fn next(&self, count_max: usize) -> Vec<(u128, PendingCharge)> {
        let mut found = Vec::new();
        for _ in 0..SHARDS {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let mut shard = lock(&self.shards[turn % SHARDS].0);
            while found.len() < count_max
                && let Some(name) = shard.turns.pop_front()
            {
                found.extend(shard.owed.remove(&name).map(|owed| (name, owed)));
            }
            if found.len() >= count_max {
                break;
            }
        }
        found
    }

    /// Puts an entry on the list again, behind the others.
    pub(super) fn list(&self, name: u128, owed: PendingCharge) {
        self.shard(name).list(name, owed);
    }

    /// Notes that a counter is about to be taken out.
    pub(super) fn depart(&self, name: u128, owed: PendingCharge) {
        self.shard(name).away.push((name, owed));
    }

    /// The same of a counter that a request is about to be charged.
    pub(super) fn depart_of(&self, charge: &Charge<'_>, holder: TenantSlot) {
        let name = name(charge);
        let mut shard = self.shard(name);
        let numbers = shard.numbers_of(charge);
        shard.away.push((name, PendingCharge { numbers, holder }));
    }

    /// Ends one journey. Nothing if the counter was reset meanwhile.
    pub(super) fn arrive(&self, name: u128) -> Option<PendingCharge> {
        let mut shard = self.shard(name);
        let position = shard.away.iter().position(|(away, _)| *away == name)?;
        Some(shard.away.swap_remove(position).1)
    }

    /// What is on its way of a counter that was reset is not to come back.
    pub(super) fn forget(&self, name: u128) {
        self.shard(name).away.retain(|(away, _)| *away != name);
    }

    /// Strikes off what holds nothing any more, in one shard in turn.
    pub(super) fn sweep_shard(&self, turn: usize, holds: impl Fn(u128) -> bool) {
        let mut shard = lock(&self.shards[turn % SHARDS].0);
        let Shard { owed, turns, numbers, .. } = &mut *shard;
        owed.retain(|name, _| holds(*name));
        turns.retain(|name| owed.contains_key(name));
        numbers.retain(|_, numbers| Arc::strong_count(numbers) > 1);
        owed.shrink_to(owed.len() * 2);
        turns.shrink_to(turns.len() * 2);
    }

    /// Strikes off everything.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = lock(&shard.0);
            *shard = Shard { untracked: shard.untracked, ..Shard::default() };
        }
    }

    /// How many are on the list.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).owed.len()).sum()
    }

    /// How many are on their way.
    pub(super) fn in_flight(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).away.len()).sum()
    }

    /// How often there was no room on the list.
    pub(super) fn untracked(&self) -> u64 {
        self.shards.iter().map(|shard| lock(&shard.0).untracked).sum()
    }

    /// By the same bits as the counter itself.
    fn shard(&self, name: u128) -> MutexGuard<'_, Shard> {
        lock(&self.shards[name as usize % SHARDS].0)
    }
}

impl Shard {
    fn list(&mut self, name: u128, owed: PendingCharge) {
        if self.owed.insert(name, owed).is_none() {
            self.turns.push_back(name);
        }
    }

    fn numbers_of(&mut self, charge: &Charge<'_>) -> Arc<Numbers> {
        match self.numbers.get(&charge.counter) {
            Some(known) if known.are_those_of(charge) => Arc::clone(known),
            _ => {
                let numbers = Arc::new(Numbers::of(charge));
                self.numbers.insert(charge.counter, Arc::clone(&numbers));
                numbers
            }
        }
    }
}

/// What a counter is known by, as [`Limiter::discard_fallback`](crate::Limiter::discard_fallback) says.
pub(super) fn name(charge: &Charge<'_>) -> u128 {
    charge.subject.0 ^ charge.counter.0
}
