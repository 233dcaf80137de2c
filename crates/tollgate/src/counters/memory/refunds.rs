//! Refunds to the counters of one shard.
//!
//! A counter of 32 bytes has no space for what happened to it since a charge, so a ledger beside the table keeps that, for
//! counters that were refunded or reset only. It is bounded: when it is full, all charges made so far in the shard stay
//! counted.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as Slot;
use smallvec::SmallVec;

use super::Key;
use super::shard::{Evaluated, Shard, Write, is_log};
use crate::algorithms::{self, AdmittedCharge, bucket};
use crate::counters::{Charge, ChargeMark};
use crate::time::Timestamp;

/// Entries per shard.
const LEDGER_MAX: usize = 1_024;
/// Refunds to one bucket that are kept apart. Beyond it the oldest count as refunds of still older charges.
const REFUNDS_MAX: usize = 32;
/// The total of a bucket without refunds. A mark is lower by what its instant was rounded up by, less than one tick's refill.
const TOTAL_START: u64 = 1 << 32;

/// What happened to counters since they were charged.
#[derive(Default)]
pub(super) struct Ledger {
    entries: HashMap<u128, LedgerEntry>,
    /// The number of refundable charges.
    charges: u64,
    /// The number of resets.
    resets: u64,
    /// Charges up to this number of resets are not refunded, because entries were dropped.
    forgotten: Option<u64>,
}

struct LedgerEntry {
    /// The number of the last reset of the counter.
    reset: u64,
    refunds: BucketRefunds,
    /// No charge so far counts after this instant.
    until: Timestamp,
}

/// What was refunded to a bucket. The refill of a charge comes earlier by the refunds of charges before it, not by those of
/// charges after it.
struct BucketRefunds {
    /// The sum of the oldest.
    oldest: u64,
    /// The numbers of the refunded charges, ascending, and what was refunded of each.
    latest: SmallVec<[(u64, u64); 2]>,
}

impl BucketRefunds {
    fn new() -> Self {
        BucketRefunds { oldest: TOTAL_START, latest: SmallVec::new() }
    }

    fn add(&mut self, order: u64, debt: u64) {
        let position = self.latest.partition_point(|(other, _)| *other < order);
        self.latest.insert(position, (order, debt));
        if self.latest.len() > REFUNDS_MAX {
            let (_, debt) = self.latest.remove(0);
            self.oldest = self.oldest.saturating_add(debt);
        }
    }

    /// The sum of the refunds of charges before this one.
    fn before(&self, order: u64) -> u64 {
        let before = self.latest.iter().take_while(|(other, _)| *other < order);
        before.fold(self.oldest, |sum, (_, debt)| sum.saturating_add(*debt))
    }
}

impl Ledger {
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(u128, LedgerEntry)>()
    }

    /// Drops entries of counters whose charges are all restored.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.entries.retain(|_, entry| entry.until > now);
        if self.entries.is_empty() {
            self.entries.shrink_to_fit();
        }
    }

    /// Notes that a counter that would have been restored at `until` was removed.
    pub(super) fn note_removal(&mut self, key: Key, until: Timestamp) {
        self.resets += 1;
        let reset = self.resets;
        if let Some(entry) = self.entry(key) {
            (entry.reset, entry.until) = (reset, entry.until.max(until));
        }
    }

    /// Notes a refund to a bucket whose charges so far are all restored by `until`.
    fn note_refund(&mut self, key: Key, (order, debt): (u64, u64), until: Timestamp, now: Timestamp) {
        if self.entries.len() >= LEDGER_MAX {
            self.sweep(now);
        }
        if let Some(entry) = self.entry(key) {
            entry.refunds.add(order, debt);
            entry.until = entry.until.max(until);
        }
    }

    /// The mark of a charge after which the counter is restored at `until`.
    fn mark(&mut self, key: Key, until: Timestamp) -> ChargeMark {
        self.charges += 1;
        let (order, generation) = (self.charges, self.resets);
        let refunded = self.entries.get_mut(&key.0).map_or(TOTAL_START, |entry| {
            entry.until = entry.until.max(until);
            entry.refunds.before(order)
        });
        ChargeMark { position: until.as_micros(), generation, order, refunded }
    }

    /// What refunds have brought the refill of a charge forward by. `None` if its counter was reset.
    fn not_owed(&self, key: Key, mark: ChargeMark) -> Option<u64> {
        if self.forgotten.is_some_and(|forgotten| mark.generation <= forgotten) {
            return None;
        }
        let Some(entry) = self.entries.get(&key.0) else {
            return Some(TOTAL_START.saturating_sub(mark.refunded));
        };
        (entry.reset <= mark.generation)
            .then(|| entry.refunds.before(mark.order).saturating_sub(mark.refunded))
    }

    /// The entry of a counter. A full ledger is emptied, and then only later charges are refunded.
    fn entry(&mut self, key: Key) -> Option<&mut LedgerEntry> {
        if self.entries.len() >= LEDGER_MAX && !self.entries.contains_key(&key.0) {
            self.entries.clear();
            self.forgotten = Some(self.resets);
            self.resets += 1;
            return None;
        }
        Some(match self.entries.entry(key.0) {
            Slot::Occupied(found) => found.into_mut(),
            Slot::Vacant(free) => free.insert(LedgerEntry {
                reset: 0,
                refunds: BucketRefunds::new(),
                until: Timestamp::default(),
            }),
        })
    }
}

impl Shard {
    /// The mark of a charge that was just committed, if it is refundable. A charge to an overflow counter stays: the counter
    /// has other clients.
    pub(super) fn mark(
        &mut self,
        key: Key,
        evaluated: &Evaluated,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Option<ChargeMark> {
        let is_taken = charge.refundable && charge.cost > 0 && evaluated.verdict.admits();
        if !is_taken || evaluated.key != key {
            return None;
        }
        let rounded_up = match &evaluated.next {
            Write::State(next) if charge.limit.algorithm().has_burst() => {
                bucket::rounded_up(charge.limit, next.state)
            }
            _ => 0,
        };
        let mark = self.ledger.mark(key, now + evaluated.verdict.reset_after);
        Some(ChargeMark { refunded: mark.refunded.saturating_sub(rounded_up), ..mark })
    }

    /// Takes back a charge. Returns whether it still counted.
    pub(super) fn refund(&mut self, key: Key, charge: &Charge<'_>, mark: ChargeMark, now: Timestamp) -> bool {
        let Some(not_owed) = self.ledger.not_owed(key, mark) else { return false };
        let restored_at = Timestamp::from_micros(mark.position);
        let admitted = AdmittedCharge { cost: charge.cost, restored_at, not_owed };
        if is_log(charge) {
            let found = self.logs.find_mut(key.hash(), |entry| entry.key == key);
            return found.is_some_and(|entry| entry.log.refund(charge.limit, admitted, now));
        }
        let Some(entry) = self.counters.find_mut(key) else { return false };
        let Some(refunded) = algorithms::refund(charge.limit, entry.state(), admitted, now) else {
            return false;
        };
        // The retention stays: the counter is dropped a little later than it could be.
        entry.move_to(refunded.state);
        if refunded.debt > 0 {
            let until = now.max(refunded.state.at) + bucket::full_refill(charge.limit);
            self.ledger.note_refund(key, (mark.order, refunded.debt), until, now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);
    const LATER: Timestamp = Timestamp::from_secs(1_000_060);

    fn key(number: usize) -> Key {
        Key::of(number as u128)
    }

    #[test]
    fn removal_ends_earlier_charges_of_its_counter_only() {
        let mut ledger = Ledger::default();
        let (one, other) = (ledger.mark(key(1), LATER), ledger.mark(key(2), LATER));
        ledger.note_removal(key(1), LATER);
        assert_eq!((ledger.not_owed(key(1), one), ledger.not_owed(key(2), other)), (None, Some(0)));
        let after = ledger.mark(key(1), LATER);
        assert_eq!(ledger.not_owed(key(1), after), Some(0));
    }

    #[test]
    fn only_refunds_of_earlier_charges_bring_a_refill_forward() {
        let mut ledger = Ledger::default();
        let [first, second, third] = [(); 3].map(|()| ledger.mark(key(1), LATER));
        ledger.note_refund(key(1), (second.order, 5), LATER, NOW);
        let owed = |ledger: &Ledger| [first, third].map(|mark| ledger.not_owed(key(1), mark));
        assert_eq!(owed(&ledger), [Some(0), Some(5)]);
        let fourth = ledger.mark(key(1), LATER);
        assert_eq!(ledger.not_owed(key(1), fourth), Some(0), "its mark was made after the refund");
        (0..REFUNDS_MAX as u64).for_each(|n| ledger.note_refund(key(1), (100 + n, 1), LATER, NOW));
        assert_eq!(owed(&ledger), [Some(5), Some(5)], "the oldest refund is not kept apart any more");
    }

    #[test]
    fn full_ledger_ends_all_earlier_charges() {
        let mut ledger = Ledger::default();
        let before = ledger.mark(key(LEDGER_MAX + 5), LATER);
        (0..LEDGER_MAX).for_each(|number| ledger.note_removal(key(number), LATER));
        assert_eq!(ledger.not_owed(key(LEDGER_MAX + 5), before), Some(0));
        ledger.note_removal(key(LEDGER_MAX), LATER);
        assert_eq!(ledger.not_owed(key(LEDGER_MAX + 5), before), None);
        let after = ledger.mark(key(LEDGER_MAX), LATER);
        assert_eq!(ledger.not_owed(key(LEDGER_MAX), after), Some(0));
        assert!(ledger.entries.len() <= LEDGER_MAX);
        ledger.sweep(LATER);
        assert_eq!(ledger.bytes(), 0);
    }
}
