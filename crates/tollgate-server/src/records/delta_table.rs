//! Counts per key and minute that requests add to and the flusher takes, once a second.
//!
//! A shard has two sets of tables. Requests use one; the flusher exchanges it for the other, which is empty of counts, and reads the
//! first one outside the lock. Both keep their keys during a minute, so a request of a known client allocates nothing and waits for no
//! writer.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use parking_lot::Mutex;

use super::row_buffer::Rows;

/// Bytes per key that a cleared table keeps allocated.
const KEPT_BYTES_PER_KEY: usize = 64;

/// A hash that stands for a key. Only the first half chooses the place in a table.
pub(crate) type Fingerprint = u128;

/// Counts of one key in one minute, as they are kept: the smaller, the fewer cache misses.
pub(crate) trait Counts: Default {
    /// What the flusher gets.
    type Taken;

    /// Takes what was counted, if anything.
    fn take(&mut self) -> Option<Self::Taken>;
}

/// A key to add to.
pub(crate) struct DeltaKey<M, W> {
    pub(crate) fingerprint: Fingerprint,
    /// Whether fields with the same fingerprint are those of this key. Constant if nobody can construct two keys with one.
    pub(crate) has_fields: M,
    /// Writes the fields of a new key.
    pub(crate) write_fields: W,
}

/// The counts since the last flush.
pub(crate) struct DeltaTable<C> {
    shards: Box<[Mutex<Shard<C>>]>,
    /// Entries of a shard in one minute at most.
    entries_max: usize,
    /// Requests that were not counted because the table was full.
    dropped: AtomicU64,
}

/// The counts of the last even and the last odd minute: a flush interval may contain the end of one.
struct Shard<C>([MinuteTable<C>; 2]);

/// The keys and counts of one minute.
struct MinuteTable<C> {
    minute: u64,
    entries: HashTable<Entry<C>>,
    /// The fields of the keys as they are written, for the flusher.
    fields: Rows,
}

/// What a request reads and changes. Small: with many clients, each of them is in another cache line.
struct Entry<C> {
    fingerprint: [u8; 16],
    /// Where the fields begin.
    fields: u32,
    counts: C,
}

/// The tables that the flusher exchanges with those of a shard.
pub(crate) struct Spare<C>(Shard<C>);

impl<C> Default for Spare<C> {
    fn default() -> Self {
        Spare(Shard::default())
    }
}

impl<C> Default for Shard<C> {
    fn default() -> Self {
        Shard([0, 1].map(|minute| MinuteTable { minute, entries: HashTable::new(), fields: Rows::default() }))
    }
}

impl<C: Counts> DeltaTable<C> {
    pub(crate) fn new(shards: usize, entries_max: usize) -> Self {
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        DeltaTable { shards, entries_max, dropped: AtomicU64::new(0) }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Adds to the counts of several keys of a shard.
    pub(crate) fn add_all(&self, shard: usize, add: impl FnOnce(&mut LockedShard<'_, C>)) {
        let shard = &mut *self.shards[shard % self.shards.len()].lock();
        let mut locked = LockedShard { shard, entries_max: self.entries_max, dropped: 0 };
        add(&mut locked);
        if locked.dropped > 0 {
            self.dropped.fetch_add(locked.dropped, Ordering::Relaxed);
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Takes the counts of a shard: passes minute, fields and counts to `each`.
    pub(crate) fn take(
        &self,
        shard: usize,
        spare: &mut Spare<C>,
        mut each: impl FnMut(u64, &[u8], &C::Taken),
    ) {
        std::mem::swap(&mut *self.shards[shard].lock(), &mut spare.0);
        for table in &mut spare.0.0 {
            table.take(self.entries_max / 4, &mut each);
        }
    }
}

/// A shard while several keys are added to.
pub(crate) struct LockedShard<'a, C> {
    shard: &'a mut Shard<C>,
    entries_max: usize,
    dropped: u64,
}

impl<C: Counts> LockedShard<'_, C> {
    /// Adds to the counts of a key in a minute. False if the key is new and the shard is full, or if `add` returns false because it
    /// added nothing.
    pub(crate) fn add(
        &mut self,
        key: DeltaKey<impl Fn(&[u8]) -> bool, impl FnOnce(&mut Vec<u8>)>,
        minute: u64,
        add: impl FnOnce(&mut C) -> bool,
    ) -> bool {
        self.add_below(self.entries_max, key, minute, add)
    }

    /// Like [`LockedShard::add`], with a lower bound on the entries.
    pub(crate) fn add_below(
        &mut self,
        entries_max: usize,
        key: DeltaKey<impl Fn(&[u8]) -> bool, impl FnOnce(&mut Vec<u8>)>,
        minute: u64,
        add: impl FnOnce(&mut C) -> bool,
    ) -> bool {
        let table = self.shard.table(minute);
        // A flush that is two minutes late counts older requests in this minute: they are not lost.
        table.minute = table.minute.max(minute);
        table.counts(entries_max, key).is_some_and(add)
    }

    /// Brings the entries of keys in their minutes into the caches: looked up before any is changed, their cache misses overlap.
    pub(crate) fn prefetch(&mut self, keys: impl Iterator<Item = (Fingerprint, u64)>) {
        let is_known = |(fingerprint, minute): &(Fingerprint, u64)| {
            let fingerprint = fingerprint.to_le_bytes();
            let is_key = |entry: &Entry<C>| entry.fingerprint == fingerprint;
            self.shard.table(*minute).entries.find(table_hash(&fingerprint), is_key).is_some()
        };
        std::hint::black_box(keys.filter(is_known).count());
    }

    /// Counts a request that has no place in the table.
    pub(crate) fn count_dropped(&mut self) {
        self.dropped += 1;
    }
}

impl<C> Shard<C> {
    fn table(&mut self, minute: u64) -> &mut MinuteTable<C> {
        &mut self.0[usize::from(minute % 2 == 1)]
    }
}

impl<C: Counts> MinuteTable<C> {
    /// The counts of a key; `None` if the key is new and the table has `entries_max` entries.
    fn counts(
        &mut self,
        entries_max: usize,
        key: DeltaKey<impl Fn(&[u8]) -> bool, impl FnOnce(&mut Vec<u8>)>,
    ) -> Option<&mut C> {
        let fingerprint = key.fingerprint.to_le_bytes();
        let MinuteTable { entries, fields, .. } = self;
        let is_full = entries.len() >= entries_max;
        let is_key =
            |entry: &Entry<C>| entry.fingerprint == fingerprint && (key.has_fields)(fields.at(entry.fields));
        let entry = match entries.entry(table_hash(&fingerprint), is_key, Entry::table_hash) {
            TableEntry::Occupied(entry) => entry.into_mut(),
            TableEntry::Vacant(_) if is_full => return None,
            TableEntry::Vacant(vacant) => {
                let start = u32::try_from(fields.bytes.len()).ok()?;
                fields.push(key.write_fields);
                vacant.insert(Entry { fingerprint, fields: start, counts: C::default() }).into_mut()
            }
        };
        Some(&mut entry.counts)
    }

    /// Takes the counts. Keeps the keys, up to `keys_max`, unless all are idle: the minute has ended, or nobody sends requests.
    fn take(&mut self, keys_max: usize, each: &mut impl FnMut(u64, &[u8], &C::Taken)) {
        let mut is_idle = true;
        for entry in &mut self.entries {
            if let Some(taken) = entry.counts.take() {
                is_idle = false;
                each(self.minute, self.fields.at(entry.fields), &taken);
            }
        }
        // More keys seldom return within a second: remembering them costs more than it saves.
        if is_idle || self.entries.len() > keys_max {
            self.entries.clear();
            self.entries.shrink_to(keys_max, Entry::table_hash);
            self.fields.clear();
            self.fields.bytes.shrink_to(keys_max * KEPT_BYTES_PER_KEY);
        }
    }
}

impl<C> Entry<C> {
    fn table_hash(&self) -> u64 {
        table_hash(&self.fingerprint)
    }
}

/// The first half of a fingerprint, which is a hash already.
fn table_hash(fingerprint: &[u8; 16]) -> u64 {
    u64::from_le_bytes(*fingerprint.first_chunk().unwrap_or(&[0; 8]))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Counts for u64 {
        type Taken = u64;

        fn take(&mut self) -> Option<u64> {
            Some(std::mem::take(self)).filter(|count| *count > 0)
        }
    }

    impl Spare<u64> {
        fn is_empty(&self) -> bool {
            self.0.0.iter().all(|table| table.entries.is_empty() && table.fields.bytes.is_empty())
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
        let key = DeltaKey {
            fingerprint: u128::from(key % 4),
            has_fields: |fields: &[u8]| fields == [key],
            write_fields: |out: &mut Vec<u8>| out.push(key),
        };
        let mut is_added = false;
        table.add_all(0, |shard| {
            is_added = shard.add(key, minute, |count| {
                *count += 1;
                true
            });
        });
        is_added
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
    fn keys_with_one_fingerprint_are_counted_apart() {
        let (table, mut spare) = (DeltaTable::new(1, 10), Spare::default());
        assert!(add(&table, 1, 7) && add(&table, 5, 7) && add(&table, 5, 7));
        assert_eq!(taken(&table, &mut spare), [(7, vec![1], 1), (7, vec![5], 2)]);
    }

    #[test]
    fn too_many_keys_are_forgotten_at_once() {
        let (table, mut spare) = (DeltaTable::new(1, 8), Spare::default());
        for keys in [2, 4, 4] {
            (0..keys).for_each(|key| assert!(add(&table, key, 7)));
            assert_eq!(taken(&table, &mut spare).len(), usize::from(keys));
            // More than a quarter of the entries.
            assert_eq!(spare.is_empty(), keys > 2);
        }
    }

    #[test]
    fn full_table_takes_known_keys_only() {
        let table = DeltaTable::new(1, 2);
        assert!(add(&table, 1, 7) && add(&table, 2, 7));
        assert!(!add(&table, 3, 7));
        assert!(add(&table, 1, 7));
    }

    #[test]
    fn keys_are_known_until_their_minute_is_over() {
        let (table, mut spare) = (DeltaTable::new(1, 10), Spare::default());
        for _ in 0..2 {
            add(&table, 1, 7);
            assert_eq!(taken(&table, &mut spare).len(), 1);
            assert!(!spare.is_empty());
        }
        for _ in 0..2 {
            add(&table, 2, 8);
            assert_eq!(taken(&table, &mut spare), [(8, vec![2], 1)]);
        }
        assert!(spare.0.0[1].entries.is_empty() && !spare.0.0[0].entries.is_empty());
        for _ in 0..2 {
            assert!(taken(&table, &mut spare).is_empty() && spare.is_empty());
        }
    }

    #[test]
    fn late_flush_loses_nothing() {
        let (table, mut spare) = (DeltaTable::new(1, 10), Spare::default());
        (0..6).for_each(|minute| assert!(add(&table, 1, minute)));
        let total: u64 = taken(&table, &mut spare).iter().map(|(_, _, count)| count).sum();
        assert_eq!(total, 6);
    }
}
