//! A table of counters that finds one with a single miss of the cache.
//!
//! The entries themselves are probed, one after another from a key's home: no bytes beside them say what is where, so
//! nothing else has to be fetched. Keys are keyed hashes, so nobody can crowd a place on purpose. The home is
//! the hash as a fraction of the table, for which any length will do: a table grows by a quarter, not to twice
//! itself. It lies in memory in pieces of one size, because the pieces that one table leaves are just what
//! the next one needs; tables in one piece leave holes that fit nobody. A counter takes at most 51 bytes in all.

use super::entry::Entry;
use super::{Key, SHARDS};

/// Slots of a piece: four kilobytes.
const PIECE: usize = 128;

#[derive(Default)]
pub(super) struct Table {
    /// Never full: a search ends at the first empty slot.
    pieces: Vec<Box<[Entry; PIECE]>>,
    len: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots() * size_of::<Entry>() + self.pieces.capacity() * size_of::<Box<[Entry; PIECE]>>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.pieces.iter().flat_map(|piece| piece.iter()).filter(|entry| !entry.is_empty())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.pieces.iter_mut().flat_map(|piece| piece.iter_mut()).filter(|entry| !entry.is_empty())
    }

    #[inline]
    pub(super) fn find_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.position(key).map(|position| self.slot(position))
    }

    pub(super) fn find(&self, key: Key) -> Option<&Entry> {
        self.position(key).map(|position| &self.pieces[position / PIECE][position % PIECE])
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.position(key).is_some()
    }

    /// Adds an entry whose key is not there yet.
    pub(super) fn insert(&mut self, entry: Entry) {
        if self.len >= self.slots() / 5 * 4 {
            self.rebuild(self.pieces.len() + self.pieces.len() / 4 + 1);
        }
        self.place(entry);
        self.len += 1;
    }

    /// Takes an entry out, if it is there.
    pub(super) fn remove(&mut self, key: Key) -> Option<Entry> {
        let mut position = self.position(key)?;
        let removed = std::mem::take(self.slot(position));
        self.len -= 1;
        // Those behind it may have been pushed there by it, and must be found from their homes again.
        loop {
            position = self.behind(position);
            let entry = std::mem::take(self.slot(position));
            if entry.is_empty() {
                return Some(removed);
            }
            self.place(entry);
        }
    }

    /// Keeps only some entries.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        // From an empty slot around to it: whoever is met has its home behind that slot, and all those
        // before it have been placed.
        let mut slots = self.pieces.iter().flat_map(|piece| piece.iter());
        let Some(start) = slots.position(Entry::is_empty) else { return };
        let mut position = self.behind(start);
        while position != start {
            let entry = std::mem::take(self.slot(position));
            if !entry.is_empty() && keep(&entry) {
                self.place(entry);
            } else if !entry.is_empty() {
                self.len -= 1;
            }
            position = self.behind(position);
        }
    }

    /// Gives back memory if most of it is unused.
    pub(super) fn shrink(&mut self) {
        if self.len < self.slots() / 4 {
            self.rebuild((self.len * 2).div_ceil(PIECE));
        }
    }

    fn rebuild(&mut self, pieces: usize) {
        let pieces = (0..pieces).map(|_| Box::new([Entry::EMPTY; PIECE])).collect();
        for piece in std::mem::replace(&mut self.pieces, pieces) {
            piece.into_iter().filter(|entry| !entry.is_empty()).for_each(|entry| self.place(entry));
        }
    }

    /// Puts an entry into the first empty slot from its home.
    fn place(&mut self, entry: Entry) {
        let mut position = self.home(entry.key());
        while !self.slot(position).is_empty() {
            position = self.behind(position);
        }
        *self.slot(position) = entry;
    }

    #[inline]
    fn position(&self, key: Key) -> Option<usize> {
        let mut position = self.home(key);
        loop {
            let piece = self.pieces.get(position / PIECE)?; // missing only from a table without any
            let entry = &piece[position % PIECE];
            if entry.is(key) {
                return Some(position);
            }
            if entry.is_empty() {
                return None;
            }
            position = self.behind(position);
        }
    }

    #[inline]
    fn slots(&self) -> usize {
        self.pieces.len() * PIECE
    }

    #[inline]
    fn slot(&mut self, position: usize) -> &mut Entry {
        &mut self.pieces[position / PIECE][position % PIECE]
    }

    /// By the half of the key that a hash has first, so that the search need not wait for the other. Its lowest bits have
    /// chosen the shard, and in an entry are something else; the highest say where in it.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of slots")]
    fn home(&self, key: Key) -> usize {
        let place = key.halves()[0] & !(SHARDS as u64 - 1);
        ((u128::from(place) * self.slots() as u128) >> 64) as usize
    }

    #[inline]
    fn behind(&self, position: usize) -> usize {
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
        let cell = CounterState { at: Timestamp::from_micros(1), value };
        Entry::new(key, TenantSlot::COMMON, &NextState { cell, restored_at: Timestamp::from_micros(2) })
    }

    /// Keys that crowd: few homes, at the end of the table too, where a search goes around.
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
                table.retain(|entry| entry.cell().value > least);
            }
            Step::Shrink => table.shrink(),
        }
    }

    proptest! {
        #[test]
        fn a_table_holds_what_a_map_would(steps in prop::collection::vec(step(), 0..400)) {
            let (mut table, mut model) = (Table::default(), HashMap::new());
            for step in &steps {
                apply(step, &mut table, &mut model);
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.iter().count(), model.len());
                for (key, value) in &model {
                    let found = table.find_mut(Key::from_halves(*key)).map(|entry| entry.cell().value);
                    prop_assert_eq!(found, Some(*value));
                }
            }
        }
    }

    #[test]
    fn a_counter_takes_at_most_51_bytes_once_there_are_some() {
        let mut table = Table::default();
        for number in 1..100_000_u64 {
            table.insert(entry(Key::from_halves([number.wrapping_mul(0x9E37_79B9_7F4A_7C15), 1]), number));
            let per_counter = table.bytes() / table.len();
            assert!(number < 10_000 || per_counter <= 51, "{per_counter} bytes for each of {number}");
        }
    }
}
