//! Counts per key and minute that requests add to and the flusher takes, once a second.
//!
//! A shard has two tables. Requests use one; the flusher exchanges it for the other, which is empty of counts, and reads the first one
//! outside the lock. Both keep their keys, so a request of a known client allocates nothing and waits for no writer.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use parking_lot::Mutex;

/// Keys without counts stay this many flushes of their table.
const IDLE_MAX: u8 = 30;

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
    /// Entries of a shard at most.
    entries_max: usize,
    /// Requests that were not counted because the table was full.
    dropped: AtomicU64,
}

/// The keys of a shard and their counts in two minutes, because a flush interval may contain the end of one.
struct Shard<C> {
    entries: HashTable<Entry<C>>,
    /// By the `name` of an entry. Requests of known keys do not read them.
    names: Vec<Name>,
    /// Positions in `names` without an entry.
    unused: Vec<u32>,
    /// The last even and the last odd minute.
    minutes: [u64; 2],
}

/// What a request reads and changes: nothing else shares its cache line.
struct Entry<C> {
    fingerprint: [u8; 16],
    name: u32,
    minutes: [C; 2],
}

/// The fields of a key as they are written, for the flusher.
struct Name {
    fields: Box<[u8]>,
    idle: u8,
}

/// The table that the flusher exchanges with that of a shard.
pub(crate) struct Spare<C>(Shard<C>);

impl<C> Default for Spare<C> {
    fn default() -> Self {
        Spare(Shard::default())
    }
}

impl<C> Default for Shard<C> {
    fn default() -> Self {
        Shard { entries: HashTable::new(), names: Vec::new(), unused: Vec::new(), minutes: [0; 2] }
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
    pub(crate) fn take(&self, shard: usize, spare: &mut Spare<C>, each: impl FnMut(u64, &[u8], &C::Taken)) {
        std::mem::swap(&mut *self.shards[shard].lock(), &mut spare.0);
        // So many keys seldom return within a second: remembering them costs more than it saves.
        let keeps_keys = spare.0.entries.len() <= self.entries_max / 4;
        spare.0.take(keeps_keys, each);
        if !keeps_keys {
            spare.0.forget_names(self.entries_max / 4);
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
        self.shard.counts(entries_max, key, minute).is_some_and(add)
    }

    /// Brings the entries of keys into the caches: looked up before any is changed, their cache misses overlap.
    pub(crate) fn prefetch(&self, fingerprints: impl Iterator<Item = Fingerprint>) {
        let is_known = |fingerprint: &Fingerprint| {
            let fingerprint = fingerprint.to_le_bytes();
            let hash = table_hash(&fingerprint);
            self.shard.entries.find(hash, |entry| entry.fingerprint == fingerprint).is_some()
        };
        std::hint::black_box(fingerprints.filter(is_known).count());
    }

    /// Counts a request that has no place in the table.
    pub(crate) fn count_dropped(&mut self) {
        self.dropped += 1;
    }
}

impl<C: Counts> Shard<C> {
    /// The counts of a key in a minute; `None` if the key is new and the shard has `entries_max` entries.
    fn counts(
        &mut self,
        entries_max: usize,
        key: DeltaKey<impl Fn(&[u8]) -> bool, impl FnOnce(&mut Vec<u8>)>,
        minute: u64,
    ) -> Option<&mut C> {
        let fingerprint = key.fingerprint.to_le_bytes();
        let names = &mut self.names;
        let is_full = self.entries.len() >= entries_max;
        let is_key = |entry: &Entry<C>| {
            entry.fingerprint == fingerprint && (key.has_fields)(&names[entry.name as usize].fields)
        };
        let entry = match self.entries.entry(table_hash(&fingerprint), is_key, Entry::table_hash) {
            TableEntry::Occupied(entry) => entry.into_mut(),
            TableEntry::Vacant(_) if is_full => return None,
            TableEntry::Vacant(vacant) => {
                let name = add_name(names, &mut self.unused, key.write_fields)?;
                vacant.insert(Entry { fingerprint, name, minutes: [C::default(), C::default()] }).into_mut()
            }
        };
        let parity = usize::from(minute % 2 == 1);
        // A flush that is a minute late counts older requests in this minute: they are not lost.
        self.minutes[parity] = self.minutes[parity].max(minute);
        Some(&mut entry.minutes[parity])
    }

    fn take(&mut self, keeps_keys: bool, mut each: impl FnMut(u64, &[u8], &C::Taken)) {
        let Shard { entries, names, unused, minutes } = self;
        entries.retain(|entry| {
            let name = &mut names[entry.name as usize];
            name.idle = name.idle.saturating_add(1);
            for (minute, counts) in minutes.iter().zip(&mut entry.minutes) {
                if let Some(taken) = counts.take() {
                    each(*minute, &name.fields, &taken);
                    name.idle = 0;
                }
            }
            let is_kept = keeps_keys && name.idle <= IDLE_MAX;
            if !is_kept {
                name.fields = Box::default();
                unused.push(entry.name);
            }
            is_kept
        });
    }

    /// Frees memory after all keys were removed.
    fn forget_names(&mut self, capacity: usize) {
        self.names.clear();
        self.unused = Vec::new();
        self.names.shrink_to(capacity);
        self.entries.shrink_to(capacity, Entry::table_hash);
    }
}

impl<C> Entry<C> {
    fn table_hash(&self) -> u64 {
        table_hash(&self.fingerprint)
    }
}

/// Keeps the fields of a new key; returns their position.
fn add_name(
    names: &mut Vec<Name>,
    unused: &mut Vec<u32>,
    write_fields: impl FnOnce(&mut Vec<u8>),
) -> Option<u32> {
    let mut fields = Vec::with_capacity(64);
    write_fields(&mut fields);
    let name = Name { fields: fields.into(), idle: 0 };
    if let Some(position) = unused.pop() {
        names[position as usize] = name;
        return Some(position);
    }
    names.push(name);
    u32::try_from(names.len() - 1).ok()
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
    fn forgotten_keys_leave_their_place_to_others() {
        let (table, mut spare) = (DeltaTable::new(1, 8), Spare::default());
        for round in 0..200 {
            assert!(add(&table, round, 7));
            assert_eq!(taken(&table, &mut spare), [(7, vec![round], 1)]);
            for _ in 0..2 * usize::from(IDLE_MAX) + 4 {
                taken(&table, &mut spare);
            }
        }
        assert!(spare.0.names.len() <= 2);
        // More than a quarter of the entries.
        (0..4).for_each(|key| assert!(add(&table, key, 7)));
        assert_eq!(taken(&table, &mut spare).len(), 4);
        assert!(spare.0.entries.is_empty() && spare.0.names.is_empty());
        (0..4).for_each(|key| assert!(add(&table, key, 7)));
        assert_eq!(taken(&table, &mut spare).len(), 4);
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
        assert!(table.shards[0].lock().entries.is_empty() && spare.0.entries.is_empty());
    }

    #[test]
    fn late_flush_loses_nothing() {
        let (table, mut spare) = (DeltaTable::new(1, 10), Spare::default());
        (0..6).for_each(|minute| assert!(add(&table, 1, minute)));
        let total: u64 = taken(&table, &mut spare).iter().map(|(_, _, count)| count).sum();
        assert_eq!(total, 6);
    }
}
