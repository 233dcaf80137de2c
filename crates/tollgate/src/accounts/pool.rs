//! An interning pool: values that many accounts share, each stored once.
//!
//! Millions of users share a handful of tiers and limits. Unused values are found by a sweep over all accounts. It runs
//! when the pool has doubled since the last sweep, so the pool never holds more than twice what is in use.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::HashMap;

use super::AccountError;

/// The id of a pooled value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolId(NonZeroU32);

impl PoolId {
    fn new(slot: usize) -> Option<Self> {
        u32::try_from(slot + 1).ok().and_then(NonZeroU32::new).map(PoolId)
    }

    pub(super) fn slot(self) -> usize {
        self.0.get() as usize - 1
    }

    pub(super) fn word(self) -> u32 {
        self.0.get()
    }

    pub(super) fn from_word(word: u32) -> Option<Self> {
        NonZeroU32::new(word).map(PoolId)
    }
}

/// Pools with fewer values are not swept.
const SWEPT_MIN: usize = 256;

/// Values by id, each stored once per key.
#[derive(Clone, Default)]
pub(super) struct Pool<K, V> {
    ids: HashMap<K, PoolId>,
    slots: Vec<Option<Arc<V>>>,
    free: Vec<PoolId>,
    /// The number of values that the last sweep left.
    kept: usize,
}

impl<K: Clone + Eq + Hash, V: Clone> Pool<K, V> {
    pub(super) fn get(&self, id: PoolId) -> Option<&V> {
        self.slots.get(id.slot())?.as_deref()
    }

    /// The number of slots, free ones included.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The id of the value with this key, made if it is new. Copies the pool if it is shared.
    pub(super) fn intern(
        this: &mut Arc<Self>,
        key: K,
        make: impl FnOnce(&K) -> Result<V, AccountError>,
    ) -> Result<PoolId, AccountError> {
        if let Some(id) = this.ids.get(&key) {
            return Ok(*id);
        }
        let value = Arc::new(make(&key)?);
        let pool = Arc::make_mut(this);
        let id = match pool.free.pop() {
            Some(id) => id,
            None => PoolId::new(pool.slots.len()).ok_or(AccountError::TooMany)?,
        };
        if id.slot() == pool.slots.len() {
            pool.slots.push(None);
        }
        pool.slots[id.slot()] = Some(value);
        pool.ids.insert(key, id);
        Ok(id)
    }

    /// Whether a sweep is due.
    pub(super) fn should_sweep(&self) -> bool {
        self.ids.len() >= SWEPT_MIN.max(self.kept * 2)
    }

    /// Removes the values whose slots are not in use.
    pub(super) fn sweep(this: &mut Arc<Self>, used: &[bool]) {
        let Pool { ids, slots, free, kept } = Arc::make_mut(this);
        ids.retain(|_, id| {
            if !used[id.slot()] {
                slots[id.slot()] = None;
                free.push(*id);
            }
            used[id.slot()]
        });
        *kept = ids.len();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn intern(pool: &mut Arc<Pool<u32, u32>>, value: u32) -> PoolId {
        Pool::intern(pool, value, |value| Ok(*value)).unwrap()
    }

    fn values(pool: &Pool<u32, u32>) -> Vec<u32> {
        pool.slots.iter().flatten().map(|value| **value).collect()
    }

    proptest! {
        #[test]
        fn values_are_stored_once_and_ids_survive_sweeps(
            rounds in prop::collection::vec(prop::collection::vec(0_u32..400, 0..200), 1..6),
        ) {
            let mut pool = Arc::new(Pool::default());
            let mut in_use: BTreeMap<u32, PoolId> = BTreeMap::new();
            for round in rounds {
                let before = Arc::clone(&pool);
                let seen = values(&before);
                let interned: BTreeMap<u32, PoolId> =
                    round.iter().map(|value| (*value, intern(&mut pool, *value))).collect();
                for (value, id) in interned.iter().chain(&in_use) {
                    prop_assert_eq!(pool.get(*id), Some(value));
                    prop_assert_eq!(intern(&mut pool, *value), *id, "known already");
                }
                let mut distinct = values(&pool);
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(distinct.len(), pool.ids.len(), "each once");
                prop_assert_eq!(values(&before), seen, "earlier generations are unchanged");
                in_use = interned.into_iter().filter(|(value, _)| value % 3 != 0).collect();
                let mut used = vec![false; pool.slots()];
                for id in in_use.values() {
                    used[id.slot()] = true;
                }
                Pool::sweep(&mut pool, &used);
                prop_assert_eq!(pool.ids.len(), in_use.len());
            }
        }
    }
}
