//! Counters in the memory of this process: sharded, bounded, exact.
//!
//! A counter takes 32 bytes: a 16-byte key (a hash of subject and limit; no strings are stored) and a 16-byte packed
//! [`CounterState`](crate::algorithms::CounterState). A decision locks the shards of its keys in ascending order, evaluates
//! all charges, and commits all or none.
//!
//! **When a shard is full**, counters that are restored in full are evicted first, which loses nothing. A counter that
//! holds consumption is never evicted: new clients share one overflow counter per limit until there is space. Flooding the
//! table with fake client ids therefore cannot evict a real client's counter. Each tenant has a fair share of the table,
//! and its own overflow counters as long as they fit.
//!
//! A counter stores when it is restored under the limit it was charged by. When that limit is lowered later, the counter may
//! be dropped at that time, although the lower limit would have restored it later.

mod entry;
mod eviction;
mod fair_share;
mod penalties;
mod refunds;
mod shard;
mod snapshot;
mod table;

use std::future::{Future, ready};
use std::num::NonZeroUsize;

use smallvec::{SmallVec, smallvec};

pub(super) use self::fair_share::TenantSlot;
use self::shard::{Evaluated, Shard};
use super::{
    Charge, ChargeMark, ChargeMarks, Charges, CounterAdmin, CounterId, CounterStore, PenalizedClient, Refund,
    RefundOutcome, RefundOutcomes, StoreError, Verdicts,
};
use crate::identity::{Subject, Tenant};
use crate::mutex::{MutexGuard, PaddedMutex};
pub use crate::snapshot::SnapshotError;
use crate::time::{Span, Timestamp};

/// The number of shards: enough that threads rarely contend, and that growing one shard is fast.
pub(super) const SHARDS: usize = if cfg!(loom) { 2 } else { 256 };

/// The bounds of a table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// The maximum number of counters, without logs. Values below 512 act as 512: each of 256 shards has space for one
    /// counter and one overflow counter. Overflow counters are per limit, so a small table with many limits may hold
    /// slightly more.
    pub keys_max: NonZeroUsize,
    /// The maximum bytes reserved for logs.
    pub log_bytes_max: usize,
    /// The maximum number of penalty records. Values from 1 to 255 act as 256.
    pub penalties_max: usize,
}

impl MemoryBounds {
    /// The smallest [`log_bytes_max`](Self::log_bytes_max) with which each client of a `sliding_window_log` of `requests`
    /// can have its own log: each of 256 shards needs space for one besides the overflow reserve.
    pub const fn log_bytes_min(requests: u32) -> usize {
        let bytes = shard::bytes_of_log(requests);
        SHARDS * (bytes + bytes / 31)
    }
}

impl Default for MemoryBounds {
    /// One million counters (about 50 MB when full), 256 MB of logs, 100,000 penalty records.
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
    shards: Box<[PaddedMutex<Shard>]>,
}

/// The key of a counter: the exclusive or of two hashes, subject and counter id.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Key(u128);

impl Key {
    /// Never inlined, so that subject and counter are passed as halves. Inlined, they are loaded as a whole right after the
    /// halves were stored, which stalls on store forwarding.
    #[inline(never)]
    fn new(subject: Subject, counter: CounterId) -> Self {
        Key::of(subject.0 ^ counter.0)
    }

    /// One bit is always set, so that no key equals an empty slot.
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

    /// The upper half, which is a hash already.
    #[inline]
    fn hash(self) -> u64 {
        self.halves()[1]
    }

    /// The shard, from bits that the tables inside a shard do not use.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low bits select the shard")]
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
    /// Creates an empty table.
    pub fn new(bounds: MemoryBounds) -> Self {
        let shards = (0..SHARDS).map(|number| PaddedMutex::new(Shard::new(bounds, number, SHARDS))).collect();
        MemoryCounters { shards }
    }

    /// The number of counters.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether there are no counters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes reserved for counters, logs and penalty records, without allocator overhead.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// Charges to an overflow counter because a shard was full.
    pub fn overflow_charges(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().overflow_charges).sum()
    }

    /// Drops restored counters and expired penalty records from shard `turn`, modulo the number of shards. Call it
    /// periodically with increasing `turn`; it locks one shard at a time.
    pub fn sweep_shard(&self, turn: usize, now: Timestamp) {
        self.shards[turn % SHARDS].lock().sweep(now);
    }

    /// Drops restored counters and expired penalty records from all shards.
    pub fn sweep(&self, now: Timestamp) {
        (0..SHARDS).for_each(|turn| self.sweep_shard(turn, now));
    }

    /// [`CounterStore::charge_all`] without a future.
    pub fn charge_all_now(&self, charges: &Charges<'_>, now: Timestamp) -> Verdicts {
        if let ([charge], None, false) = (charges.charges.as_slice(), charges.penalty, charges.dry_run)
            && !charge.refundable
        {
            return self.charge_single(charge, charges.tenant, now);
        }
        self.charge_several(charges, now)
    }

    /// [`CounterStore::refund`] without a future.
    pub fn refund_now(&self, refunds: &[Refund<'_>], now: Timestamp) -> RefundOutcomes {
        let outcome = |taken_back| if taken_back { RefundOutcome::Refunded } else { RefundOutcome::Dropped };
        refunds.iter().map(|refund| outcome(self.refund_charge(&refund.charge, refund.mark, now))).collect()
    }

    /// Takes back one charge. Returns whether it still counted.
    pub(super) fn refund_charge(&self, charge: &Charge<'_>, mark: ChargeMark, now: Timestamp) -> bool {
        let key = Key::new(charge.subject, charge.counter);
        self.shards[key.shard()].lock().refund(key, charge, mark, now)
    }

    /// Removes a counter and returns how much of its limit is used at `now`. Overflow counters stay.
    pub(super) fn take(&self, charge: &Charge<'_>, now: Timestamp) -> u32 {
        let key = Key::new(charge.subject, charge.counter);
        self.shards[key.shard()].lock().take(key, charge, now)
    }

    /// Whether a counter exists, by the key of [`Limiter::discard_fallback`](crate::Limiter::discard_fallback).
    pub(super) fn holds(&self, key: u128) -> bool {
        let key = Key::of(key);
        let shard = self.shards[key.shard()].lock();
        shard.counters.contains(key) || shard.has_log(key)
    }

    /// Charges regardless of the limit, up to its capacity. Returns the mark of a refundable charge that fits.
    pub(super) fn charge_forced(
        &self,
        charge: &Charge<'_>,
        tenant: TenantSlot,
        now: Timestamp,
    ) -> Option<ChargeMark> {
        let key = Key::new(charge.subject, charge.counter);
        let mut shard = self.shards[key.shard()].lock();
        let evaluated = shard.evaluate(key, tenant, charge, now);
        if evaluated.verdict.admits() {
            shard.commit(&evaluated, charge, now);
            return shard.mark(key, &evaluated, charge, now);
        }
        shard.lower(key, tenant, charge, 0, now);
        None
    }

    /// Charges a counter so that at most `remaining` is left at `now`.
    pub(super) fn lower(&self, charge: &Charge<'_>, tenant: TenantSlot, remaining: u32, now: Timestamp) {
        let key = Key::new(charge.subject, charge.counter);
        self.shards[key.shard()].lock().lower(key, tenant, charge, remaining, now);
    }

    /// Removes a counter or a penalty record, by the key of
    /// [`Limiter::discard_fallback`](crate::Limiter::discard_fallback).
    pub(super) fn discard(&self, key: u128) {
        let key = Key::of(key);
        let mut shard = self.shards[key.shard()].lock();
        shard.remove(key);
        shard.penalties.remove(key);
    }

    #[inline]
    fn charge_single(&self, charge: &Charge<'_>, tenant: Option<Tenant<'_>>, now: Timestamp) -> Verdicts {
        let single = |verdict| Verdicts { verdicts: smallvec![verdict], ..Verdicts::default() };
        let key = Key::new(charge.subject, charge.counter);
        let mut shard = self.shards[key.shard()].lock();
        match shard.charge_known_bucket(key, charge, now) {
            Some(verdict) => single(verdict),
            None => single(shard.charge(key, tenant, charge, now)),
        }
    }

    /// Never inlined, so that a single charge does not reserve its stack space.
    #[inline(never)]
    fn charge_several(&self, charges: &Charges<'_>, now: Timestamp) -> Verdicts {
        let mut locked = self.lock_ascending(charges);
        let cooldown = charges.penalty.and_then(|penalty| {
            let key = Key::of(penalty.subject.0);
            locked.shard(key).penalties.cooldown_remaining(key, &penalty, now)
        });
        let tenant = TenantSlot::of(charges.tenant);
        let evaluated: SmallVec<[Evaluated; 4]> = (charges.charges.iter())
            .map(|charge| {
                let key = Key::new(charge.subject, charge.counter);
                locked.shard(key).evaluate(key, tenant, charge, now)
            })
            .collect();
        let mut verdicts = Verdicts {
            verdicts: evaluated.iter().map(|evaluated| evaluated.verdict).collect(),
            cooldown,
            in_cooldown: cooldown.is_some(),
            ..Verdicts::default()
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
        if admitted {
            verdicts.marks = locked.marks(charges, &evaluated, now);
            return verdicts;
        }
        let cooldown = locked.record_refusal(charges, &verdicts, now);
        Verdicts { cooldown, ..verdicts }
    }

    /// Locks each shard of the charges once, in ascending order, which cannot deadlock.
    fn lock_ascending(&self, charges: &Charges<'_>) -> Locked<'_> {
        let keys = charges.charges.iter().map(|charge| Key::new(charge.subject, charge.counter));
        let penalty = charges.penalty.map(|penalty| Key::of(penalty.subject.0));
        let mut numbers: SmallVec<[usize; 8]> = keys.chain(penalty).map(Key::shard).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Locked(numbers.into_iter().map(|number| (number, self.shards[number].lock())).collect())
    }
}

/// The locked shards of one decision.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl Locked<'_> {
    /// The shard of a key. All keys of the decision are locked.
    fn shard(&mut self, key: Key) -> &mut Shard {
        let position = self.0.iter().position(|(number, _)| *number == key.shard()).unwrap_or(0);
        &mut self.0[position].1
    }

    /// The marks of the refundable charges, once they are committed.
    fn marks(
        &mut self,
        charges: &Charges<'_>,
        evaluated: &[Evaluated],
        now: Timestamp,
    ) -> Option<Box<ChargeMarks>> {
        charges.charges.iter().find(|charge| charge.refundable)?;
        let marks = charges.charges.iter().zip(evaluated).map(|(charge, evaluated)| {
            let key = Key::new(charge.subject, charge.counter);
            self.shard(key).mark(key, evaluated, charge, now)
        });
        Some(Box::new(marks.collect()))
    }

    /// Records the refusal in the client's penalty record, once per episode. Returns the cooldown, if any.
    fn record_refusal(&mut self, charges: &Charges<'_>, verdicts: &Verdicts, now: Timestamp) -> Option<Span> {
        let penalty = charges.penalty?;
        let episode = verdicts.episode(charges)?;
        let key = Key::of(penalty.subject.0);
        self.shard(key).penalties.record_refusal(key, TenantSlot::of(charges.tenant), &penalty, episode, now)
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

    fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> impl Future<Output = RefundOutcomes> + Send {
        ready(self.refund_now(refunds, now))
    }
}

impl CounterAdmin for MemoryCounters {
    fn reset(&self, charges: &Charges<'_>) -> impl Future<Output = Result<usize, StoreError>> + Send {
        let mut locked = self.lock_ascending(charges);
        let keys = charges.charges.iter().map(|charge| Key::new(charge.subject, charge.counter));
        let cleared = keys.filter(|key| locked.shard(*key).remove(*key)).count();
        if let Some(penalty) = charges.penalty {
            locked.shard(Key::of(penalty.subject.0)).penalties.remove(Key::of(penalty.subject.0));
        }
        ready(Ok(cleared))
    }

    fn pardon(&self, client: &str) -> impl Future<Output = Result<bool, StoreError>> + Send {
        // Records are keyed by another hash than the one an API key prints as, so all of them are compared.
        let found = self.shards.iter().any(|shard| shard.lock().penalties.remove_client(client));
        ready(Ok(found))
    }

    fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<PenalizedClient>, StoreError>> + Send {
        let mut found: Vec<PenalizedClient> =
            self.shards.iter().flat_map(|shard| shard.lock().penalties.penalized_clients(now)).collect();
        found.sort_unstable_by(|a, b| {
            b.cooldown_until.cmp(&a.cooldown_until).then_with(|| a.client.cmp(&b.client))
        });
        found.truncate(count_max);
        ready(Ok(found))
    }
}
