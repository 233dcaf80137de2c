//! A table cut into shards that several generations of it share.
//!
//! Readers hold one generation while the next is made. Only the shards that an edit touches are copied, a thousandth of
//! the table each; the rest is the same memory in both.

use std::sync::Arc;

/// The first bits of a hash say which shard.
pub(super) const SHARD_BITS: u32 = 10;
const SHARDS: usize = 1 << SHARD_BITS;

/// One part of a table.
pub(super) trait Shard: Clone + Default {
    /// Gives back the room that nothing stands in.
    fn shrink(&mut self);
    /// What it takes beside its own size.
    fn heap_bytes(&self) -> usize;
}

#[derive(Clone)]
pub(super) struct Shards<S> {
    /// None at all while the table is empty.
    shards: Arc<Vec<Arc<S>>>,
    count: usize,
}

impl<S> Default for Shards<S> {
    fn default() -> Self {
        Shards { shards: Arc::default(), count: 0 }
    }
}

impl<S: Shard> Shards<S> {
    /// How many entries there are in all.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Which shard a hash belongs to.
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

    /// Changes the shard of a hash, a copy of it if others see it. `change` says how many entries it has more or less.
    pub(super) fn change<T>(&mut self, hash: u128, change: impl FnOnce(&mut S) -> (isize, T)) -> T {
        let shards = Arc::make_mut(&mut self.shards);
        if shards.is_empty() {
            *shards = vec![Arc::default(); SHARDS];
        }
        let (more, result) = change(Arc::make_mut(&mut shards[Self::number_of(hash)]));
        self.count = self.count.saturating_add_signed(more);
        result
    }

    /// Gives back the room that an edit left over.
    pub(super) fn shrink(&mut self) {
        if self.count == 0 {
            self.shards = Arc::default();
        }
        // What others see too was not edited, or was shrunk after that.
        if let Some(shards) = Arc::get_mut(&mut self.shards) {
            shards.iter_mut().filter_map(Arc::get_mut).for_each(Shard::shrink);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let each = |shard: &S| match shard.heap_bytes() {
            // All that are empty are one.
            0 => 0,
            bytes => size_of::<S>() + 16 + bytes,
        };
        self.shards.len() * size_of::<Arc<S>>() + self.iter().map(each).sum::<usize>()
    }
}

/// The first of so many sorted entries that is not below the one looked for.
///
/// Hashes are spread evenly, so where one would stand is a good guess, and the search begins there: two or three lines of
/// memory are read instead of ten. A bad guess costs as much as no guess.
pub(super) fn lower_bound(count: usize, guess: usize, is_below: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high, mut step) = (guess.min(count), guess.min(count), 4);
    // All before `low` are below; none from `high` on is, once the loops are done.
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

/// Where an entry of so many would stand if they were spread evenly; `fraction` is its hash without the bits that say
/// which shard.
pub(super) fn guess(count: usize, fraction: u64) -> usize {
    usize::try_from((u128::from(fraction) * count as u128) >> 64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_the_guess_the_bound_is_that_of_a_plain_search(
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
