//! A hash table that finds a counter with one cache miss.
//!
//! Open addressing with linear probing over the entries themselves; there is no separate metadata to fetch. Keys are
//! keyed hashes, so a client cannot provoke collisions. The home slot is the hash as a fraction of the table's length,
//! which works for any length: the table grows by a quarter instead of doubling. It is allocated in chunks of one size,
//! so that the memory of an old table is reused by the next. A counter takes at most 51 bytes in total.

use super::entry::Entry;
use super::{Key, SHARDS};

/// Slots of a chunk: four kilobytes.
const CHUNK: usize = 128;

#[derive(Default)]
pub(super) struct Table {
    /// Never full, because a search ends at the first empty slot.
    chunks: Vec<Box<[Entry; CHUNK]>>,
    len: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots() * size_of::<Entry>() + self.chunks.capacity() * size_of::<Box<[Entry; CHUNK]>>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).filter(|entry| !entry.is_empty())
    }

    #[inline]
    pub(super) fn find_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.position(key).map(|position| self.slot(position))
    }

    pub(super) fn find(&self, key: Key) -> Option<&Entry> {
        self.position(key).map(|position| &self.chunks[position / CHUNK][position % CHUNK])
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.position(key).is_some()
    }

    /// Adds an entry whose key does not exist yet.
    pub(super) fn insert(&mut self, entry: Entry) {
        if self.len >= self.slots() / 5 * 4 {
            self.rebuild(self.chunks.len() + self.chunks.len() / 4 + 1);
        }
        self.place(entry);
        self.len += 1;
    }

    /// Removes an entry, if it exists.
    pub(super) fn remove(&mut self, key: Key) -> Option<Entry> {
        let mut position = self.position(key)?;
        let removed = std::mem::take(self.slot(position));
        self.len -= 1;
        // The entries that follow may have been displaced by it and are placed again.
        loop {
            position = self.after(position);
            let entry = std::mem::take(self.slot(position));
            if entry.is_empty() {
                return Some(removed);
            }
            self.place(entry);
        }
    }

    /// Keeps the entries for which `keep` returns true.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        // Starts after an empty slot and wraps around: no entry is displaced across it, so entries are placed in order.
        let mut slots = self.chunks.iter().flat_map(|chunk| chunk.iter());
        let Some(start) = slots.position(Entry::is_empty) else { return };
        let mut position = self.after(start);
        while position != start {
            let entry = std::mem::take(self.slot(position));
            if !entry.is_empty() && keep(&entry) {
                self.place(entry);
            } else if !entry.is_empty() {
                self.len -= 1;
            }
            position = self.after(position);
        }
    }

    /// Releases memory if most of it is unused.
    pub(super) fn shrink(&mut self) {
        if self.len < self.slots() / 4 {
            self.rebuild((self.len * 2).div_ceil(CHUNK));
        }
    }

    fn rebuild(&mut self, chunks: usize) {
        let chunks = (0..chunks).map(|_| Box::new([Entry::EMPTY; CHUNK])).collect();
        for chunk in std::mem::replace(&mut self.chunks, chunks) {
            chunk.into_iter().filter(|entry| !entry.is_empty()).for_each(|entry| self.place(entry));
        }
    }

    /// Puts an entry into the first empty slot at or after its home.
    fn place(&mut self, entry: Entry) {
        let mut position = self.home(entry.key());
        while !self.slot(position).is_empty() {
            position = self.after(position);
        }
        *self.slot(position) = entry;
    }

    #[inline]
    fn position(&self, key: Key) -> Option<usize> {
        let mut position = self.home(key);
        loop {
            let chunk = self.chunks.get(position / CHUNK)?; // `None` only if the table is empty
            let entry = &chunk[position % CHUNK];
            if entry.is(key) {
                return Some(position);
            }
            if entry.is_empty() {
                return None;
            }
            position = self.after(position);
        }
    }

    #[inline]
    fn slots(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    #[inline]
    fn slot(&mut self, position: usize) -> &mut Entry {
        &mut self.chunks[position / CHUNK][position % CHUNK]
    }

    /// The home slot, from the half of the key that is available first. Its lowest bits select the shard, and hold the
    /// tenant slot in an entry; they are masked.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of slots")]
    fn home(&self, key: Key) -> usize {
        let place = key.halves()[0] & !(SHARDS as u64 - 1);
        ((u128::from(place) * self.slots() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, position: usize) -> usize {
        if position + 1 < self.slots() { position + 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithms::{CounterState, NextState};
    use crate::counters::memory::fair_share::TenantSlot;
    use crate::time::Timestamp;

    fn entry(key: Key, value: u64) -> Entry {
        let state = CounterState { at: Timestamp::from_micros(1), value };
        Entry::new(key, TenantSlot::NONE, &NextState { state, restored_at: Timestamp::from_micros(2) })
    }

    /// Keys with few homes, also at the end of the table, where a search wraps around.
    fn key() -> impl Strategy<Value = Key> {
        (0..4_u64, 1..40_u64).prop_map(|(home, high)| Key::from_halves([u64::MAX / 3 * home, high]))
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(Key, u64),
        Remove(Key),
        RetainAbove(u64),
        Shrink,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (key(), 0..100_u64).prop_map(|(key, value)| Step::Put(key, value)),
            3 => key().prop_map(Step::Remove),
            1 => (0..100_u64).prop_map(Step::RetainAbove),
            1 => Just(Step::Shrink),
        ]
    }

    fn apply(step: &Step, table: &mut Table, model: &mut HashMap<[u64; 2], u64>) {
        match *step {
            Step::Put(key, value) => {
                model.insert(key.halves(), value);
                match table.find_mut(key) {
                    Some(known) => *known = entry(key, value),
                    None => table.insert(entry(key, value)),
                }
            }
            Step::Remove(key) => {
                assert_eq!(table.remove(key).is_some(), model.remove(&key.halves()).is_some());
            }
            Step::RetainAbove(least) => {
                model.retain(|_, value| *value > least);
                table.retain(|entry| entry.state().value > least);
            }
            Step::Shrink => table.shrink(),
        }
    }

    proptest! {
        #[test]
        fn table_equals_a_hash_map(steps in prop::collection::vec(step(), 0..400)) {
            let (mut table, mut model) = (Table::default(), HashMap::new());
            for step in &steps {
                apply(step, &mut table, &mut model);
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.iter().count(), model.len());
                for (key, value) in &model {
                    let found = table.find_mut(Key::from_halves(*key)).map(|entry| entry.state().value);
                    prop_assert_eq!(found, Some(*value));
                }
            }
        }
    }

    #[test]
    fn counter_takes_at_most_51_bytes() {
        let mut table = Table::default();
        for number in 1..100_000_u64 {
            table.insert(entry(Key::from_halves([number.wrapping_mul(0x9E37_79B9_7F4A_7C15), 1]), number));
            let per_counter = table.bytes() / table.len();
            assert!(number < 10_000 || per_counter <= 51, "{per_counter} bytes for each of {number}");
        }
    }
}
