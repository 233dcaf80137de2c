//! Values that many share, each kept once and known by a number.
//!
//! A million users have a handful of plans and of numbers. Values that nobody has any more are found by looking through
//! everybody, which is done when the pool has doubled since the last time, so that it never holds more than twice what
//! is in use (or a small number), however often values change.

use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Which value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolId(NonZeroU32);

impl PoolId {
    pub(super) fn new(slot: usize) -> Option<Self> {
        u32::try_from(slot).ok()?.checked_add(1).and_then(NonZeroU32::new).map(PoolId)
    }

    pub(super) fn slot(self) -> usize {
        self.0.get() as usize - 1
    }

    /// None is zero.
    pub(super) fn to_word(id: Option<Self>) -> u32 {
        id.map_or(0, |id| id.0.get())
    }

    pub(super) fn from_word(word: u32) -> Option<Self> {
        NonZeroU32::new(word).map(PoolId)
    }
}

/// Below this many values there is nothing to gain from looking for unused ones.
const SWEPT_MIN: usize = 256;

pub(super) struct Pool<T> {
    slots: Vec<Option<Arc<T>>>,
    free: Vec<u32>,
    by_value: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// How many there are before unused ones are looked for.
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

/// The values themselves are shared.
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

    /// How many values there are, used or not.
    pub(super) fn len(&self) -> usize {
        self.by_value.len()
    }

    /// Every slot in its order, free ones too.
    pub(super) fn slots(&self) -> impl ExactSizeIterator<Item = Option<&T>> {
        self.slots.iter().map(Option::as_deref)
    }

    /// The number of the value that is made of `key`, which hashes as the value does.
    pub(super) fn find<K: Hash + ?Sized>(&self, key: &K, is: impl Fn(&T) -> bool) -> Option<PoolId> {
        let is = |slot: &u32| self.slots[*slot as usize].as_deref().is_some_and(&is);
        let slot = self.by_value.find(self.hasher.hash_one(key), is)?;
        PoolId::new(*slot as usize)
    }

    /// Adds a value that is not there yet. Only for that is a pool that others see copied. None if there are four billion
    /// already.
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

    /// Adds a slot at the end, free or not, as [`Pool::slots`] told of it. False if the value is there already.
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
        // Of the value, not of the slot that holds it: the two hash differently.
        let rehash = |slot: &u32| slots[*slot as usize].as_deref().map_or(0, |value| hasher.hash_one(value));
        by_value.insert_unique(hash, slot, rehash);
    }

    /// Whether so many have come since the last time that unused ones should be looked for.
    pub(super) fn should_sweep(&self) -> bool {
        self.len() >= self.sweep_at
    }

    /// Keeps those that are in use.
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
        fn each_value_is_kept_once_and_those_in_use_keep_their_number(
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
                prop_assert!(before.slots().map(Option::<&u32>::cloned).eq(seen), "what others see is as it was");
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
