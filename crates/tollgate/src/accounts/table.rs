//! Small records by hash, in two dense sorted columns.

use super::shards::{SHARD_BITS, Shard, guess, lower_bound};

/// A shard of records that are identified by the hash of their id.
#[derive(Clone)]
pub(super) struct Table<R> {
    hashes: Vec<u128>,
    records: Vec<R>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Table { hashes: Vec::new(), records: Vec::new() }
    }
}

impl<R> Table<R> {
    /// The position of a record.
    pub(super) fn find(&self, hash: u128) -> Option<usize> {
        let position = self.place(hash);
        (self.hashes.get(position) == Some(&hash)).then_some(position)
    }

    pub(super) fn at(&self, position: usize) -> Option<&R> {
        self.records.get(position)
    }

    pub(super) fn get(&self, hash: u128) -> Option<&R> {
        self.at(self.find(hash)?)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u128, &R)> {
        self.hashes.iter().copied().zip(&self.records)
    }

    /// Adds or replaces a record; returns the previous one.
    pub(super) fn put(&mut self, hash: u128, record: R) -> Option<R> {
        let position = self.place(hash);
        if self.hashes.get(position) == Some(&hash) {
            return Some(std::mem::replace(&mut self.records[position], record));
        }
        self.hashes.insert(position, hash);
        self.records.insert(position, record);
        None
    }

    pub(super) fn remove(&mut self, hash: u128) -> Option<R> {
        let position = self.find(hash)?;
        self.hashes.remove(position);
        Some(self.records.remove(position))
    }

    fn place(&self, hash: u128) -> usize {
        let fraction = u64::try_from((hash << SHARD_BITS) >> 64).unwrap_or(0);
        lower_bound(self.hashes.len(), guess(self.hashes.len(), fraction), |at| self.hashes[at] < hash)
    }
}

impl<R: Clone> Shard for Table<R> {
    fn shrink(&mut self) {
        self.hashes.shrink_to_fit();
        self.records.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn table_agrees_with_a_model(
            edits in prop::collection::vec((0_u128..60, any::<bool>(), any::<u8>()), 0..200),
            spread in 0_u32..118,
        ) {
            let (mut table, mut model) = (Table::default(), BTreeMap::new());
            for (number, is_put, record) in edits {
                let hash = number << spread;
                if is_put {
                    prop_assert_eq!(table.put(hash, record), model.insert(hash, record));
                } else {
                    prop_assert_eq!(table.remove(hash), model.remove(&hash));
                }
            }
            for hash in (0..61).map(|number: u128| number << spread) {
                prop_assert_eq!(table.get(hash), model.get(&hash));
            }
            prop_assert!(table.iter().eq(model.iter().map(|(hash, record)| (*hash, record))));
        }
    }
}
