//! Counters in this process's memory: sharded, bounded, exact.
//!
//! A counter is 32 bytes: a 16-byte key (subject and limit, hashed; no strings are kept) and a 16-byte packed
//! [`CounterState`](crate::algorithms::CounterState). A decision locks the shards of its keys in ascending order, judges all
//! charges, and commits all or none.
//!
//! **When a shard is full**, counters that are as good as new are dropped first; that loses nothing. If every
//! counter still holds consumption, none of them is pushed out: newcomers of that shard share one overflow counter
//! per limit until there is room. So filling the table with invented clients frees nobody from a limit. Full it is for
//! each tenant on its own: one that invents clients leaves room for those of the others, and shares its overflow counters
//! with nobody else as long as there is room for them.
//!
//! **When a limit is lowered**, counters last longer than they say: a counter knows how long it lasts, by the limit it was
//! written under, and no limit. Which of them are that limit's cannot be told, so each that there is lasts longer by as much
//! as the limit became slower ([`RetentionExtension`]); the others are forgotten later than they could be, and nothing else.

mod entry;
mod eviction;
mod fair_share;
mod penalties;
mod shard;
mod snapshot;
mod table;

use std::future::{Future, ready};
use std::num::NonZeroUsize;

use smallvec::{SmallVec, smallvec};

pub(super) use self::fair_share::TenantSlot;
use self::shard::{Evaluated, Shard};
pub use self::snapshot::SnapshotError;
use super::{
    Charge, Charges, CounterAdmin, CounterId, CounterStore, PenalizedClient, RetentionExtension, StoreError,
    Verdicts,
};
use crate::identity::{Subject, Tenant};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::time::{Span, Timestamp};

/// Shards of a table. Enough that two threads rarely meet and that growing one stalls nobody for long.
pub(super) const SHARDS: usize = if cfg!(loom) { 2 } else { 256 };

/// How much a table may hold.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// Counters at most, but for logs of requests, which have a bound of their own. 512 is the least that is kept to: each of 256
    /// shards has room for one counter and for the one that newcomers share when it is full. Newcomers under different limits
    /// share different counters, so a small table with many limits may hold some more.
    pub keys_max: NonZeroUsize,
    /// Bytes at most that logs of requests may reserve.
    pub log_bytes_max: usize,
    /// Clients on record at most; 256 is the least that is kept to.
    pub penalties_max: usize,
}

impl MemoryBounds {
    /// The least [`log_bytes_max`](Self::log_bytes_max) with which clients of a `sliding_window_log` of so many requests have logs of
    /// their own: each of 256 shards must have room for one, beside that which is left for those that newcomers share.
    pub const fn log_bytes_min(requests: u32) -> usize {
        let bytes = shard::bytes_of_log(requests);
        SHARDS * (bytes + bytes / 31)
    }
}

impl Default for MemoryBounds {
    /// A million counters (about 50 MB when full), 256 MB of logs, 100,000 clients on record.
    fn default() -> Self {
        const KEYS: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();
        MemoryBounds { keys_max: KEYS, log_bytes_max: 256 << 20, penalties_max: 100_000 }
    }
}

/// Counters in this process's memory.
///
/// ```
/// use tollgate::counters::memory::MemoryCounters;
/// let counters = MemoryCounters::default();
/// assert_eq!(counters.len(), 0);
/// ```
pub struct MemoryCounters {
    /// One lock per shard; all logic is in [`Shard`], and in `eviction` and `penalties` what is not about charges.
    shards: Box<[Padded]>,
}

/// A shard on cache lines of its own, so that neighbours do not slow each other down.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// The key of a counter. Both halves are hashes, so their combination is as good as one hash of both.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Key(u128);

impl Key {
    /// Never inlined, so that subject and counter arrive as halves. Inlined they are loaded whole, and a subject whose
    /// halves were just stored cannot be: the processor waits until they have reached the cache.
    #[inline(never)]
    fn new(subject: Subject, counter: CounterId) -> Self {
        Key::of(subject.0 ^ counter.0)
    }

    /// One bit is always set: a place that is empty has none that is.
    #[inline]
    fn of(hash: u128) -> Self {
        Key(hash | 1 << 64)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "each half keeps its own bits")]
    fn halves(self) -> [u64; 2] {
        [self.0 as u64, (self.0 >> 64) as u64]
    }

    fn from_halves([low, high]: [u64; 2]) -> Self {
        Key(u128::from(high) << 64 | u128::from(low))
    }

    /// The upper half is a good hash already.
    #[inline]
    fn hash(self) -> u64 {
        self.halves()[1]
    }

    /// Bits that the tables inside a shard do not look at.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low bits are enough to choose a shard by")]
    fn shard(self) -> usize {
        self.halves()[0] as usize % SHARDS
    }
}

impl Default for MemoryCounters {
    fn default() -> Self {
        Self::new(MemoryBounds::default())
    }
}

impl MemoryCounters {
    /// An empty table.
    pub fn new(bounds: MemoryBounds) -> Self {
        let shards =
            (0..SHARDS).map(|number| Padded(Mutex::new(Shard::new(bounds, number, SHARDS)))).collect();
        MemoryCounters { shards }
    }

    /// How many counters are held.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).len()).sum()
    }

    /// Whether no counter is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes reserved for counters, logs and records, without what the allocator adds.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).bytes()).sum()
    }

    /// Decisions that had to share an overflow counter because a shard was full.
    pub fn overflow_charges(&self) -> u64 {
        self.shards.iter().map(|shard| lock(&shard.0).overflow_charges()).sum()
    }

    /// Drops what is as good as new from one shard in turn. Called from time to time, it keeps memory at what is
    /// in use without ever stopping more than one shard.
    pub fn sweep_shard(&self, turn: usize, now: Timestamp) {
        lock(&self.shards[turn % SHARDS].0).sweep(now);
    }

    /// Drops everything that is as good as new.
    pub fn sweep(&self, now: Timestamp) {
        (0..SHARDS).for_each(|turn| self.sweep_shard(turn, now));
    }

    /// [`CounterStore::charge_all`] without a future: memory never waits.
    pub fn charge_all_now(&self, charges: &Charges<'_>, now: Timestamp) -> Verdicts {
        if let ([charge], None, false) = (charges.charges.as_slice(), charges.penalty, charges.dry_run) {
            return self.charge_alone(charge, charges.tenant, now);
        }
        self.charge_several(charges, now)
    }

    /// Takes a counter out: how much of its limit is used at `now`. What newcomers share belongs to no one and stays.
    pub(super) fn take(&self, charge: &Charge<'_>, now: Timestamp) -> u32 {
        let key = Key::new(charge.subject, charge.counter);
        lock(&self.shards[key.shard()].0).take(key, charge, now)
    }

    /// Whether there is a counter by what [`Limiter::discard_fallback`](crate::Limiter::discard_fallback) knows it by.
    pub(super) fn holds(&self, name: u128) -> bool {
        let key = Key::of(name);
        let shard = lock(&self.shards[key.shard()].0);
        shard.cells.contains(key) || shard.has_log(key)
    }

    /// Counts again what was [taken](Self::take) out, beside what was counted meanwhile. More than the limit holds is as
    /// good as the limit.
    pub(super) fn put_back(&self, charge: &Charge<'_>, holder: TenantSlot, now: Timestamp) {
        let key = Key::new(charge.subject, charge.counter);
        let mut shard = lock(&self.shards[key.shard()].0);
        let held = shard.take(key, charge, now);
        let cost = held.saturating_add(charge.cost).min(charge.limit.capacity());
        let charge = Charge { cost, ..*charge };
        let evaluated = shard.evaluate(key, holder, &charge, now);
        shard.commit(&evaluated, &charge, now);
    }

    /// Forgets a counter or a record by what [`Limiter::discard_fallback`](crate::Limiter::discard_fallback) knows it by.
    pub(super) fn discard(&self, key: u128) {
        let key = Key::of(key);
        let mut shard = lock(&self.shards[key.shard()].0);
        shard.remove(key);
        shard.pardon(key);
    }

    #[inline]
    fn charge_alone(&self, charge: &Charge<'_>, tenant: Option<Tenant<'_>>, now: Timestamp) -> Verdicts {
        let alone = |verdict| Verdicts { verdicts: smallvec![verdict], ..Verdicts::default() };
        let key = Key::new(charge.subject, charge.counter);
        let mut shard = lock(&self.shards[key.shard()].0);
        match shard.charge_known_bucket(key, charge, now) {
            Some(verdict) => alone(verdict),
            None => alone(shard.charge(key, tenant, charge, now)),
        }
    }

    /// Apart, so that the place it takes on the stack is not asked for by a charge that stands alone.
    #[inline(never)]
    fn charge_several(&self, charges: &Charges<'_>, now: Timestamp) -> Verdicts {
        let mut locked = self.lock_ascending(charges);
        let in_cooldown = charges.penalty.and_then(|penalty| {
            let key = Key::of(penalty.subject.0);
            locked.shard(key).cooldown_remaining(key, &penalty, now)
        });
        let holder = TenantSlot::of(charges.tenant);
        let evaluated: SmallVec<[Evaluated; 4]> = (charges.charges.iter())
            .map(|charge| {
                let key = Key::new(charge.subject, charge.counter);
                locked.shard(key).evaluate(key, holder, charge, now)
            })
            .collect();
        let mut verdicts = Verdicts {
            verdicts: evaluated.iter().map(|evaluated| evaluated.verdict).collect(),
            cooldown: in_cooldown,
            in_cooldown: in_cooldown.is_some(),
        };
        let admitted = verdicts.admitted(charges);
        if !admitted || charges.dry_run {
            let evaluated = charges.charges.iter().zip(&evaluated);
            for ((charge, evaluated), verdict) in evaluated.zip(&mut verdicts.verdicts) {
                let shard = locked.shard(Key::new(charge.subject, charge.counter));
                *verdict = shard.uncharged(evaluated, charge, now);
            }
        }
        if charges.dry_run || verdicts.in_cooldown {
            return verdicts;
        }
        for (charge, evaluated) in charges.charges.iter().zip(&evaluated) {
            let shard = locked.shard(Key::new(charge.subject, charge.counter));
            if admitted { shard.commit(evaluated, charge, now) } else { shard.repair(evaluated, charge, now) }
        }
        let cooldown = if admitted { None } else { locked.note_refusal(charges, &verdicts, now) };
        Verdicts { cooldown, ..verdicts }
    }

    /// Locks each shard of the charges once, in ascending order: two callers may wait for each other but cannot
    /// deadlock.
    fn lock_ascending(&self, charges: &Charges<'_>) -> Locked<'_> {
        let keys = charges.charges.iter().map(|charge| Key::new(charge.subject, charge.counter));
        let penalty = charges.penalty.map(|penalty| Key::of(penalty.subject.0));
        let mut numbers: SmallVec<[usize; 8]> = keys.chain(penalty).map(Key::shard).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Locked(numbers.into_iter().map(|number| (number, lock(&self.shards[number].0))).collect())
    }
}

/// The shards of one decision, all locked.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl Locked<'_> {
    /// The shard of a key that was locked for; every key of the decision was.
    fn shard(&mut self, key: Key) -> &mut Shard {
        let position = self.0.iter().position(|(number, _)| *number == key.shard()).unwrap_or(0);
        &mut self.0[position].1
    }

    /// Notes the refusal in the client's record, once per episode. How long the client is kept out for it, if it is.
    fn note_refusal(&mut self, charges: &Charges<'_>, verdicts: &Verdicts, now: Timestamp) -> Option<Span> {
        let penalty = charges.penalty?;
        let episode = verdicts.episode(charges)?;
        let key = Key::of(penalty.subject.0);
        self.shard(key).note_refusal(key, TenantSlot::of(charges.tenant), &penalty, episode, now)
    }
}

impl CounterStore for MemoryCounters {
    fn charge_all(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send {
        ready(Ok(self.charge_all_now(charges, now)))
    }

    fn extend_retention(&self, slower: &RetentionExtension) {
        if let Some(name) = slower.counter {
            let key = Key::of(name);
            lock(&self.shards[key.shard()].0).extend_retention_of(key, slower);
        } else {
            self.shards.iter().for_each(|shard| lock(&shard.0).extend_retention(slower));
        }
    }
}

impl CounterAdmin for MemoryCounters {
    fn reset(&self, charges: &Charges<'_>) -> impl Future<Output = Result<usize, StoreError>> + Send {
        let mut locked = self.lock_ascending(charges);
        let keys = charges.charges.iter().map(|charge| Key::new(charge.subject, charge.counter));
        let forgotten = keys.filter(|key| locked.shard(*key).remove(*key)).count();
        if let Some(penalty) = charges.penalty {
            locked.shard(Key::of(penalty.subject.0)).pardon(Key::of(penalty.subject.0));
        }
        ready(Ok(forgotten))
    }

    fn pardon(&self, client: &str) -> impl Future<Output = Result<bool, StoreError>> + Send {
        // Records are kept by hash and an API key prints as another one: only a look at all of them finds it.
        let found = self.shards.iter().any(|shard| lock(&shard.0).pardon_by_name(client));
        ready(Ok(found))
    }

    fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<PenalizedClient>, StoreError>> + Send {
        let mut found: Vec<PenalizedClient> =
            self.shards.iter().flat_map(|shard| lock(&shard.0).penalized_clients(now)).collect();
        found.sort_unstable_by(|a, b| {
            b.cooldown_until.cmp(&a.cooldown_until).then_with(|| a.client.cmp(&b.client))
        });
        found.truncate(count_max);
        ready(Ok(found))
    }
}
