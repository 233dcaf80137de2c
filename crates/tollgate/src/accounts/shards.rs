//! A sharded table whose generations share unchanged shards.
//!
//! Readers keep one generation while the next is made. An edit copies only the shards that it touches.

use std::sync::Arc;

/// The number of leading hash bits that select the shard.
pub(super) const SHARD_BITS: u32 = 10;
const SHARDS: usize = 1 << SHARD_BITS;

/// One shard of a table.
pub(super) trait Shard: Clone + Default {
    /// Releases unused capacity.
    fn shrink(&mut self);
}

#[derive(Clone)]
pub(super) struct Shards<S> {
    /// Empty while the table is empty.
    shards: Arc<Vec<Arc<S>>>,
    count: usize,
}

impl<S> Default for Shards<S> {
    fn default() -> Self {
        Shards { shards: Arc::default(), count: 0 }
    }
}

impl<S: Shard> Shards<S> {
    /// The number of entries.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The shard number of a hash.
    pub(super) fn number_of(hash: u128) -> usize {
        usize::try_from(hash >> (128 - SHARD_BITS)).unwrap_or(0)
    }

    pub(super) fn of(&self, hash: u128) -> Option<&S> {
        self.at(Self::number_of(hash))
    }

    pub(super) fn at(&self, number: usize) -> Option<&S> {
        self.shards.get(number).map(|shard| &**shard)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &S> {
        self.shards.iter().map(|shard| &**shard)
    }

    /// Changes the shard of a hash, copying it if it is shared. `change` returns the change in the number of entries.
    pub(super) fn change<T>(&mut self, hash: u128, change: impl FnOnce(&mut S) -> (isize, T)) -> T {
        let shards = Arc::make_mut(&mut self.shards);
        if shards.is_empty() {
            *shards = vec![Arc::default(); SHARDS];
        }
        let (more, result) = change(Arc::make_mut(&mut shards[Self::number_of(hash)]));
        self.count = self.count.saturating_add_signed(more);
        result
    }

    /// Releases the capacity that an edit left over.
    pub(super) fn shrink(&mut self) {
        if self.count == 0 {
            self.shards = Arc::default();
        }
        // Shared shards were not edited.
        if let Some(shards) = Arc::get_mut(&mut self.shards) {
            shards.iter_mut().filter_map(Arc::get_mut).for_each(Shard::shrink);
        }
    }
}

/// The first of `count` sorted entries that is not below the wanted one, searching outwards from `guess`.
///
/// Hashes are evenly distributed, so interpolation gives a good guess and the search reads two or three cache lines
/// instead of ten. A bad guess costs no more than a binary search.
pub(super) fn lower_bound(count: usize, guess: usize, is_below: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high, mut step) = (guess.min(count), guess.min(count), 4);
    // Invariant after the loops: entries before `low` are below, entries from `high` on are not.
    if high < count && is_below(high) {
        while high < count && is_below(high) {
            low = high + 1;
            high = (high + step).min(count);
            step *= 2;
        }
    } else {
        while low > 0 && !is_below(low - 1) {
            high = low - 1;
            low = low.saturating_sub(step);
            step *= 2;
        }
    }
    while low < high {
        let middle = low.midpoint(high);
        if is_below(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// The expected position among `count` evenly distributed entries; `fraction` is the hash without the shard bits.
pub(super) fn guess(count: usize, fraction: u64) -> usize {
    usize::try_from((u128::from(fraction) * count as u128) >> 64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lower_bound_is_right_for_any_guess(
            mut entries in prop::collection::vec(0_u64..1_000, 0..200),
            wanted in 0_u64..1_000,
            guess in 0_usize..300,
        ) {
            entries.sort_unstable();
            let expected = entries.partition_point(|entry| *entry < wanted);
            prop_assert_eq!(lower_bound(entries.len(), guess, |at| entries[at] < wanted), expected);
        }
    }
}
