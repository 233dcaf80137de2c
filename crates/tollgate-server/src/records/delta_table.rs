//! Counts per key and minute that requests add to and the flusher takes, once a second.
//!
//! A shard has two tables. Requests use one; the flusher exchanges it for the other, which is empty of counts, and reads the first one
//! outside the lock. Both keep their keys, so a request of a known client allocates nothing and waits for no writer.

use std::collections::{HashMap, hash_map};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Keys without counts stay this many flushes of their table.
const IDLE_MAX: u8 = 30;

/// A keyed 128-bit hash that stands for a key: nobody can construct two keys with the same one.
pub(crate) type Fingerprint = u128;

/// Counts of one key in one minute.
pub(crate) trait Counts: Default {
    fn is_empty(&self) -> bool;
}

/// The counts since the last flush.
pub(crate) struct DeltaTable<C> {
    shards: Box<[Mutex<Entries<C>>]>,
    /// Entries of a shard at most.
    entries_max: usize,
    /// Requests that were not counted because the table was full.
    dropped: AtomicU64,
}

type Entries<C> = HashMap<Fingerprint, Entry<C>, BuildHasherDefault<FingerprintHasher>>;

/// One key: its fields as they are written, and its counts in two minutes, because a flush interval may contain the end of one.
struct Entry<C> {
    fields: Box<[u8]>,
    idle: u8,
    minutes: [(u64, C); 2],
}

/// The table that the flusher exchanges with that of a shard.
pub(crate) struct Spare<C>(Entries<C>);

impl<C> Default for Spare<C> {
    fn default() -> Self {
        Spare(HashMap::default())
    }
}

impl<C: Counts> DeltaTable<C> {
    pub(crate) fn new(shards: usize, entries_max: usize) -> Self {
        let shards = (0..shards).map(|_| Mutex::new(HashMap::default())).collect();
        DeltaTable { shards, entries_max, dropped: AtomicU64::new(0) }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Adds to the counts of a key in a minute. `fields` writes the key if it is new. False, and nothing is added, if the shard is full.
    pub(crate) fn add(
        &self,
        shard: usize,
        key: Fingerprint,
        minute: u64,
        fields: impl FnOnce(&mut Vec<u8>),
        add: impl FnOnce(&mut C),
    ) -> bool {
        self.add_below(shard, self.entries_max, key, minute, fields, add)
    }

    /// As [`add`](Self::add), but a new key needs a shard with fewer than `entries_max` entries.
    pub(crate) fn add_below(
        &self,
        shard: usize,
        entries_max: usize,
        key: Fingerprint,
        minute: u64,
        fields: impl FnOnce(&mut Vec<u8>),
        add: impl FnOnce(&mut C),
    ) -> bool {
        let mut entries = self.shards[shard % self.shards.len()].lock();
        let is_full = entries.len() >= entries_max;
        let entry = match entries.entry(key) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(_) if is_full => return false,
            hash_map::Entry::Vacant(entry) => entry.insert(Entry::new(fields)),
        };
        entry.add(minute, add);
        true
    }

    /// Counts a request that has no place in the table.
    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Takes the counts of a shard: passes minute, fields and counts to `each`.
    pub(crate) fn take(&self, shard: usize, spare: &mut Spare<C>, mut each: impl FnMut(u64, &[u8], &C)) {
        std::mem::swap(&mut *self.shards[shard].lock(), &mut spare.0);
        let entries = &mut spare.0;
        // So many keys seldom return within a second: remembering them costs more than it saves.
        let keeps_keys = entries.len() <= self.entries_max / 4;
        entries.retain(|_, entry| {
            entry.idle = entry.idle.saturating_add(1);
            for (minute, counts) in &mut entry.minutes {
                if !counts.is_empty() {
                    each(*minute, &entry.fields, counts);
                    *counts = C::default();
                    entry.idle = 0;
                }
            }
            keeps_keys && entry.idle <= IDLE_MAX
        });
        if !keeps_keys {
            entries.shrink_to(self.entries_max / 4);
        }
    }
}

impl<C: Counts> Entry<C> {
    fn new(fields: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut written = Vec::with_capacity(64);
        fields(&mut written);
        Entry { fields: written.into(), idle: 0, minutes: [(0, C::default()), (0, C::default())] }
    }

    fn add(&mut self, minute: u64, add: impl FnOnce(&mut C)) {
        let (of, counts) = &mut self.minutes[usize::from(minute % 2 == 1)];
        // A flush that is a minute late counts older requests in this minute: they are not lost.
        *of = minute;
        add(counts);
    }
}

/// Takes the lower half of a fingerprint, which is a hash already.
#[derive(Default)]
pub(crate) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write(&mut self, _: &[u8]) {}

    #[expect(clippy::cast_possible_truncation, reason = "any 64 bits of a fingerprint will do")]
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Counts for u64 {
        fn is_empty(&self) -> bool {
            *self == 0
        }
    }

    fn taken(table: &DeltaTable<u64>, spare: &mut Spare<u64>) -> Vec<(u64, Vec<u8>, u64)> {
        let mut all = Vec::new();
        for shard in 0..table.shards() {
            table.take(shard, spare, |minute, fields, count| all.push((minute, fields.to_vec(), *count)));
        }
        all.sort();
        all
    }

    fn add(table: &DeltaTable<u64>, key: u8, minute: u64) -> bool {
        table.add(0, u128::from(key), minute, |out| out.push(key), |count| *count += 1)
    }

    #[test]
    fn counts_are_taken_once_per_key_and_minute() {
        let (table, mut spare) = (DeltaTable::new(1, 10), Spare::default());
        for (key, minute) in [(1, 7), (1, 7), (2, 7), (1, 8)] {
            assert!(add(&table, key, minute));
        }
        assert_eq!(taken(&table, &mut spare), [(7, vec![1], 2), (7, vec![2], 1), (8, vec![1], 1)]);
        assert!(taken(&table, &mut spare).is_empty());
        assert!(add(&table, 1, 9));
        assert_eq!(taken(&table, &mut spare), [(9, vec![1], 1)]);
    }

    #[test]
    fn full_table_takes_known_keys_only() {
        let table = DeltaTable::new(1, 2);
        assert!(add(&table, 1, 7) && add(&table, 2, 7));
        assert!(!add(&table, 3, 7));
        assert!(add(&table, 1, 7));
    }

    #[test]
    fn idle_keys_are_forgotten() {
        let (table, mut spare) = (DeltaTable::new(1, 10), Spare::default());
        add(&table, 1, 7);
        for _ in 0..2 * usize::from(IDLE_MAX) + 4 {
            taken(&table, &mut spare);
        }
        assert!(table.shards[0].lock().is_empty() && spare.0.is_empty());
    }

    #[test]
    fn late_flush_loses_nothing() {
        let (table, mut spare) = (DeltaTable::new(1, 10), Spare::default());
        (0..6).for_each(|minute| assert!(add(&table, 1, minute)));
        let total: u64 = taken(&table, &mut spare).iter().map(|(_, _, count)| count).sum();
        assert_eq!(total, 6);
    }
}
