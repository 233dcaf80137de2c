//! The most frequent keys of a stream in a bounded number of counters: Space-Saving (Metwally et al. 2005), with weights, and with counters
//! that are freed many at a time.
//!
//! When there are twice as many keys as wanted, the smaller half is forgotten, and the largest forgotten count becomes `absent_max`. A
//! new key starts with that count as its error. So for every counter `count - error <= true count <= count`, and a key without a
//! counter occurred at most `absent_max` times. That is at most the number of all requests divided by `counters_max`.

use hashbrown::{Equivalent, HashMap};

use super::RequestCounts;
use super::summary::{TopEntry, TopList};

/// A key: a name in its tenant, which is empty without one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyRef<'a> {
    pub(super) tenant: &'a str,
    pub(super) name: &'a str,
}

/// Counts the requests of keys.
#[derive(Debug)]
pub(super) struct Sketch {
    counters: HashMap<Key, Counter>,
    /// The largest counts that are always kept.
    counters_max: usize,
    absent_max: u64,
}

/// Hashes like [`KeyRef`].
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    tenant: Box<str>,
    name: Box<str>,
}

#[derive(Debug)]
struct Counter {
    count: u64,
    error: u64,
    /// Refused requests since the key got its counter.
    refused: u64,
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.name == *key.name && *self.tenant == *key.tenant
    }
}

impl Sketch {
    pub(super) fn new(counters_max: usize) -> Self {
        Sketch { counters: HashMap::new(), counters_max, absent_max: 0 }
    }

    /// Counts requests of a key.
    pub(super) fn add(&mut self, key: KeyRef<'_>, counts: RequestCounts) {
        if let Some(counter) = self.counters.get_mut(&key) {
            counter.count += counts.requests;
            counter.refused += counts.refused;
            return;
        }
        let error = self.absent_max;
        let counter = Counter { count: error + counts.requests, error, refused: counts.refused };
        self.counters.insert(Key { tenant: key.tenant.into(), name: key.name.into() }, counter);
        if self.counters.len() >= 2 * self.counters_max {
            self.forget_smallest();
        }
    }

    /// The counters, in any order.
    pub(super) fn list(&self) -> TopList {
        let entry = |(key, counter): (&Key, &Counter)| TopEntry {
            tenant: Some(&*key.tenant).filter(|tenant| !tenant.is_empty()).map(str::to_owned),
            name: key.name.to_string(),
            count: counter.count,
            error: counter.error,
            refused: counter.refused,
        };
        TopList { entries: self.counters.iter().map(entry).collect(), absent_max: self.absent_max }
    }

    /// Keeps `counters_max` keys.
    fn forget_smallest(&mut self) {
        let mut counts: Vec<u64> = self.counters.values().map(|counter| counter.count).collect();
        let (kept, cut, _) = counts.select_nth_unstable_by(self.counters_max, |one, other| other.cmp(one));
        let mut ties = kept.iter().filter(|count| *count == cut).count();
        self.counters.retain(|_, counter| {
            let is_kept_tie = counter.count == *cut && ties > 0;
            ties -= usize::from(is_kept_tie);
            counter.count > *cut || is_kept_tie
        });
        self.absent_max = *cut;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A key, its requests and how many of them were refused.
    type Add = (u32, u64, u64);

    /// Some keys are frequent and many are rare.
    fn adds() -> impl Strategy<Value = Vec<Add>> {
        let key = prop_oneof![0..4_u32, 0..40_u32, 0..1_000_u32];
        let add =
            (key, 1..20_u64, 0..20_u64).prop_map(|(key, count, refused)| (key, count, refused.min(count)));
        prop::collection::vec(add, 0..2_000)
    }

    fn sketch_of(adds: &[Add], counters_max: usize) -> Sketch {
        let mut sketch = Sketch::new(counters_max);
        for (key, requests, refused) in adds {
            let counts = RequestCounts { requests: *requests, refused: *refused };
            sketch.add(KeyRef { tenant: "", name: &key.to_string() }, counts);
        }
        sketch
    }

    fn assert_bounds(list: &TopList, adds: &[Add], counters_max: usize) {
        let mut exact: HashMap<String, (u64, u64)> = HashMap::new();
        for (key, requests, refused) in adds {
            let known = exact.entry(key.to_string()).or_default();
            *known = (known.0 + requests, known.1 + refused);
        }
        let total: u64 = adds.iter().map(|(_, requests, _)| requests).sum();
        for entry in &list.entries {
            let (count, refused) = exact.remove(&entry.name).unwrap_or_default();
            assert!(entry.count - entry.error <= count && count <= entry.count, "{entry:?}, counted {count}");
            assert!(entry.refused <= refused, "{entry:?}");
            assert!(refused <= entry.refused + entry.error, "{entry:?}, {refused} refused");
        }
        assert!(exact.values().all(|(count, _)| *count <= list.absent_max), "{list:?} lacks {exact:?}");
        assert!(list.absent_max <= total / counters_max as u64, "{list:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn counts_are_within_the_error(adds in adds(), counters_max in 1..40_usize) {
            let list = sketch_of(&adds, counters_max).list();
            assert!(list.entries.len() < 2 * counters_max);
            assert_bounds(&list, &adds, counters_max);
        }

        #[test]
        fn merged_counts_are_within_the_error(
            parts in prop::collection::vec(adds(), 1..4),
            counters_max in 4..40_usize,
            entries_max in 1..80_usize,
        ) {
            let lists: Vec<TopList> =
                parts.iter().map(|adds| TopList::merge([sketch_of(adds, counters_max).list()])).collect();
            assert_bounds(&TopList::merge(lists.clone()), &parts.concat(), counters_max);
            // A shortened list knows less about absent keys.
            let shortened = lists.into_iter().map(|list| list.shortened(entries_max));
            assert_bounds(&TopList::merge(shortened), &parts.concat(), counters_max.min(entries_max + 1));
        }
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let adds: Vec<Add> = (0..1_000).map(|number| (number % 7, 3, 1)).collect();
        let list = sketch_of(&adds, 4).list();
        assert_eq!((list.entries.len(), list.absent_max), (7, 0));
        assert!(list.entries.iter().all(|entry| entry.error == 0 && entry.count >= 426), "{list:?}");
    }

    #[test]
    fn equal_counts_are_not_all_forgotten() {
        let adds: Vec<Add> = (0..8).map(|number| (number, 5, 0)).collect();
        let list = sketch_of(&adds, 4).list();
        assert_eq!((list.entries.len(), list.absent_max), (4, 5));
    }
}
