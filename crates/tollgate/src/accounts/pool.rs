//! An interning pool: values that many accounts share, each stored once.
//!
//! Millions of users share a handful of tiers and limits. Unused values are found by a sweep over all accounts. It runs
//! when the pool has doubled since the last sweep, so the pool never holds more than twice what is in use.

use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

/// The id of a pooled value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolId(NonZeroU32);

impl PoolId {
    pub(super) fn new(slot: usize) -> Option<Self> {
        u32::try_from(slot).ok()?.checked_add(1).and_then(NonZeroU32::new).map(PoolId)
    }

    pub(super) fn slot(self) -> usize {
        self.0.get() as usize - 1
    }

    /// `None` is zero.
    pub(super) fn to_word(id: Option<Self>) -> u32 {
        id.map_or(0, |id| id.0.get())
    }

    pub(super) fn from_word(word: u32) -> Option<Self> {
        NonZeroU32::new(word).map(PoolId)
    }
}

/// Pools with fewer values are not swept.
const SWEPT_MIN: usize = 256;

pub(super) struct Pool<T> {
    slots: Vec<Option<Arc<T>>>,
    free: Vec<u32>,
    by_value: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// The number of values at which the next sweep is due.
    sweep_at: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Pool {
            slots: Vec::new(),
            free: Vec::new(),
            by_value: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            sweep_at: SWEPT_MIN,
        }
    }
}

/// Shares the values.
impl<T> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Pool {
            slots: self.slots.clone(),
            free: self.free.clone(),
            by_value: self.by_value.clone(),
            hasher: self.hasher.clone(),
            sweep_at: self.sweep_at,
        }
    }
}

impl<T: Eq + Hash> Pool<T> {
    pub(super) fn get(&self, id: PoolId) -> Option<&T> {
        self.slots.get(id.slot())?.as_deref()
    }

    /// The number of values, used or not.
    pub(super) fn len(&self) -> usize {
        self.by_value.len()
    }

    /// All slots in order, free ones included.
    pub(super) fn slots(&self) -> impl ExactSizeIterator<Item = Option<&T>> {
        self.slots.iter().map(Option::as_deref)
    }

    /// The id of a value by a key that hashes like the value.
    pub(super) fn find<K: Hash + ?Sized>(&self, key: &K, is: impl Fn(&T) -> bool) -> Option<PoolId> {
        let is = |slot: &u32| self.slots[*slot as usize].as_deref().is_some_and(&is);
        let slot = self.by_value.find(self.hasher.hash_one(key), is)?;
        PoolId::new(*slot as usize)
    }

    /// Adds a new value, copying the pool if it is shared. `None` if the pool is full.
    pub(super) fn add(this: &mut Arc<Self>, value: T) -> Option<PoolId> {
        let pool = Arc::make_mut(this);
        let slot = pool.free.pop().or_else(|| {
            let slot = PoolId::new(pool.slots.len())?.slot();
            pool.slots.push(None);
            u32::try_from(slot).ok()
        })?;
        pool.put(slot, value);
        PoolId::new(slot as usize)
    }

    /// Appends a slot as returned by [`Pool::slots`]. False if the value is already in the pool.
    pub(super) fn push_slot(&mut self, value: Option<T>) -> bool {
        let Some(slot) = PoolId::new(self.slots.len()).and_then(|id| u32::try_from(id.slot()).ok()) else {
            return false;
        };
        if value.as_ref().is_some_and(|value| self.find(value, |known| known == value).is_some()) {
            return false;
        }
        self.slots.push(None);
        match value {
            Some(value) => self.put(slot, value),
            None => self.free.push(slot),
        }
        true
    }

    fn put(&mut self, slot: u32, value: T) {
        let hash = self.hasher.hash_one(&value);
        self.slots[slot as usize] = Some(Arc::new(value));
        let Pool { slots, by_value, hasher, .. } = self;
        // The hash of the value, not of the `Option` around it.
        let rehash = |slot: &u32| slots[*slot as usize].as_deref().map_or(0, |value| hasher.hash_one(value));
        by_value.insert_unique(hash, slot, rehash);
    }

    /// Whether a sweep is due.
    pub(super) fn should_sweep(&self) -> bool {
        self.len() >= self.sweep_at
    }

    /// Removes unused values.
    pub(super) fn sweep(this: &mut Arc<Self>, used: &[bool]) {
        let pool = Arc::make_mut(this);
        for (slot, is_used) in (0u32..).zip(used) {
            let Some(value) = pool.slots.get_mut(slot as usize) else { break };
            if !is_used && let Some(gone) = value.take() {
                let hash = pool.hasher.hash_one(&gone);
                if let Ok(entry) = pool.by_value.find_entry(hash, |known| *known == slot) {
                    entry.remove();
                }
                pool.free.push(slot);
            }
        }
        pool.sweep_at = (pool.len() * 2).max(SWEPT_MIN);
    }

    pub(super) fn heap_bytes(&self, of_value: impl Fn(&T) -> usize) -> usize {
        let values = self.slots().flatten().map(|value| size_of::<T>() + 16 + of_value(value));
        let slots = self.slots.capacity() * size_of::<Option<Arc<T>>>() + self.free.capacity() * 4;
        values.sum::<usize>() + slots + self.by_value.capacity() * 8 / 7 * 5
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn intern(pool: &mut Arc<Pool<u32>>, value: u32) -> PoolId {
        let known = pool.find(&value, |known| *known == value);
        known.or_else(|| Pool::add(pool, value)).unwrap()
    }

    proptest! {
        #[test]
        fn values_are_stored_once_and_ids_survive_sweeps(
            rounds in prop::collection::vec(prop::collection::vec(0_u32..400, 0..200), 1..6),
        ) {
            let mut pool = Arc::new(Pool::default());
            let mut in_use: BTreeMap<u32, PoolId> = BTreeMap::new();
            for values in rounds {
                let before = Arc::clone(&pool);
                let seen: Vec<Option<u32>> = before.slots().map(Option::<&u32>::cloned).collect();
                let interned: BTreeMap<u32, PoolId> =
                    values.iter().map(|value| (*value, intern(&mut pool, *value))).collect();
                for (value, id) in interned.iter().chain(&in_use) {
                    prop_assert_eq!(pool.get(*id), Some(value));
                    prop_assert_eq!(intern(&mut pool, *value), *id, "known already");
                }
                let distinct: BTreeSet<&u32> = pool.slots().flatten().collect();
                prop_assert_eq!(distinct.len(), pool.len(), "each once");
                prop_assert!(before.slots().map(Option::<&u32>::cloned).eq(seen), "earlier generations are unchanged");
                in_use = interned.into_iter().filter(|(value, _)| value % 3 != 0).collect();
                let mut used = vec![false; pool.slots().len()];
                for id in in_use.values() {
                    used[id.slot()] = true;
                }
                Pool::sweep(&mut pool, &used);
                prop_assert_eq!(pool.len(), in_use.len());
            }
        }
    }
}
