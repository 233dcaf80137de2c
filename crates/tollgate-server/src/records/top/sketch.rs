//! Space-Saving (Metwally et al. 2005): the most frequent keys of a stream in a fixed number of counters.
//!
//! A key without a counter takes over the smallest one, whose count becomes the error of the new key. For every counter
//! `count - error <= true count <= count`, a key without a counter occurred at most as often as the smallest count, and that is at most
//! the number of all keys divided by the number of counters.

use super::summary::{TopEntry, TopList};

/// What a sketch counts: compared by hash first, and stored as text when it gets a counter.
pub(super) trait SketchKey {
    /// Whether this is the key that the text was written from.
    fn is(&self, text: &KeyText) -> bool;

    /// Overwrites the text.
    fn write(&self, text: &mut KeyText);
}

/// A key as text. The buffers are reused when a counter changes hands.
#[derive(Debug, Default)]
pub(super) struct KeyText {
    /// Empty without a tenant.
    pub(super) tenant: String,
    pub(super) name: String,
}

/// The counters: `counts`, `tags` and `places` are sorted by count, the largest first. They are short, so that a search reads a few cache
/// lines.
#[derive(Debug)]
pub(super) struct Sketch {
    counters_max: usize,
    counts: Vec<u64>,
    /// A part of each key's hash.
    tags: Vec<u32>,
    /// Where the details of each counter are.
    places: Vec<u16>,
    details: Vec<Detail>,
}

#[derive(Debug, Default)]
struct Detail {
    error: u64,
    /// Refused requests since the key got its counter.
    refused: u64,
    text: KeyText,
}

/// Tags compared at a time, in vector registers.
const TAGS_AT_A_TIME: usize = 16;

impl Sketch {
    pub(super) const fn new(counters_max: u16) -> Self {
        Sketch {
            counters_max: counters_max as usize,
            counts: Vec::new(),
            tags: Vec::new(),
            places: Vec::new(),
            details: Vec::new(),
        }
    }

    /// Counts one request of a key.
    pub(super) fn add(&mut self, hash: u64, key: &impl SketchKey, is_refused: bool) {
        let tag = tag_of(hash);
        let position = self.find(tag, key).unwrap_or_else(|| self.take_counter(tag, key));
        self.details[usize::from(self.places[position])].refused += u64::from(is_refused);
        self.increment(position);
    }

    /// Forgets all keys. The memory stays for the next ones.
    pub(super) fn clear(&mut self) {
        self.counts.clear();
        self.tags.clear();
    }

    /// The counters as they are.
    pub(super) fn list(&self) -> TopList {
        let is_full = self.counts.len() == self.counters_max;
        let absent_max = self.counts.last().copied().filter(|_| is_full).unwrap_or(0);
        let entry = |(count, place): (&u64, &u16)| {
            let Detail { error, refused, text } = &self.details[usize::from(*place)];
            let tenant = Some(&text.tenant).filter(|tenant| !tenant.is_empty()).cloned();
            TopEntry { tenant, name: text.name.clone(), count: *count, error: *error, refused: *refused }
        };
        TopList { entries: self.counts.iter().zip(&self.places).map(entry).collect(), absent_max }
    }

    fn find(&self, tag: u32, key: &impl SketchKey) -> Option<usize> {
        for (number, tags) in self.tags.chunks(TAGS_AT_A_TIME).enumerate() {
            // Without an early exit, so that the compiler vectorizes it.
            if tags.iter().map(|each| u32::from(*each == tag)).sum::<u32>() == 0 {
                continue;
            }
            let is_key = |position: &usize| {
                let place = self.places[number * TAGS_AT_A_TIME + position];
                tags[*position] == tag && key.is(&self.details[usize::from(place)].text)
            };
            if let Some(position) = (0..tags.len()).find(is_key) {
                return Some(number * TAGS_AT_A_TIME + position);
            }
        }
        None
    }

    /// The position of an unused counter, or of the smallest one, for a new key.
    fn take_counter(&mut self, tag: u32, key: &impl SketchKey) -> usize {
        if self.counts.len() < self.counters_max {
            self.counts.push(0);
            self.tags.push(tag);
            // After `clear` the places and details are still there.
            if self.places.len() < self.counts.len() {
                self.places.push(u16::try_from(self.details.len()).unwrap_or(0));
                self.details.push(Detail::default());
            }
        }
        let last = self.counts.len() - 1;
        let detail = &mut self.details[usize::from(self.places[last])];
        (detail.error, detail.refused) = (self.counts[last], 0);
        key.write(&mut detail.text);
        self.tags[last] = tag;
        last
    }

    /// Adds one, and moves the counter before all that had the same count.
    fn increment(&mut self, position: usize) {
        let count = self.counts[position];
        let first = self.counts[..position].partition_point(|each| *each > count);
        self.tags.swap(first, position);
        self.places.swap(first, position);
        self.counts[first] += 1;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a part of the hash")]
const fn tag_of(hash: u64) -> u32 {
    hash as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    impl SketchKey for u32 {
        fn is(&self, text: &KeyText) -> bool {
            text.name == self.to_string()
        }

        fn write(&self, text: &mut KeyText) {
            text.name = self.to_string();
        }
    }

    /// Some keys are frequent and many are rare; hashes collide.
    fn keys() -> impl Strategy<Value = Vec<(u32, bool)>> {
        let key = prop_oneof![0..4_u32, 0..40_u32, 0..1_000_u32];
        prop::collection::vec((key, any::<bool>()), 0..2_000)
    }

    fn sketch_of(keys: &[(u32, bool)], counters_max: u16) -> Sketch {
        let mut sketch = Sketch::new(counters_max);
        for (key, is_refused) in keys {
            sketch.add(u64::from(key / 2), key, *is_refused);
        }
        sketch
    }

    fn assert_bounds(list: &TopList, keys: &[(u32, bool)], counters_max: u16) {
        let mut exact: HashMap<String, (u64, u64)> = HashMap::new();
        for (key, is_refused) in keys {
            let (count, refused) = exact.entry(key.to_string()).or_default();
            (*count, *refused) = (*count + 1, *refused + u64::from(*is_refused));
        }
        for entry in &list.entries {
            let (count, refused) = exact.remove(&entry.name).unwrap_or_default();
            assert!(entry.count - entry.error <= count && count <= entry.count, "{entry:?}, counted {count}");
            assert!(entry.refused <= refused, "{entry:?}");
            assert!(refused <= entry.refused + entry.error, "{entry:?}, {refused} refused");
        }
        assert!(exact.values().all(|(count, _)| *count <= list.absent_max), "{list:?} lacks {exact:?}");
        assert!(list.absent_max <= (keys.len() / usize::from(counters_max)) as u64, "{list:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn counts_are_within_the_error(keys in keys(), counters_max in 1..40_u16) {
            let list = sketch_of(&keys, counters_max).list();
            assert!(list.entries.len() <= usize::from(counters_max));
            assert!(list.entries.is_sorted_by(|one, next| one.count >= next.count), "{list:?}");
            assert_eq!(list.entries.iter().map(|entry| entry.count).sum::<u64>(), keys.len() as u64);
            assert_bounds(&list, &keys, counters_max);
        }

        #[test]
        fn merged_counts_are_within_the_error(
            parts in prop::collection::vec(keys(), 1..4),
            counters_max in 4..40_u16,
            entries_max in 1..40_u16,
        ) {
            let lists = parts.iter().map(|keys| sketch_of(keys, counters_max).list());
            let merged = TopList::merge(lists);
            assert_bounds(&merged, &parts.concat(), counters_max);
            // A shortened list knows less about absent keys.
            let shortened = parts.iter().map(|keys| sketch_of(keys, counters_max).list().shortened(entries_max.into()));
            assert_bounds(&TopList::merge(shortened), &parts.concat(), counters_max.min(entries_max + 1));
        }
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let keys: Vec<(u32, bool)> = (0..1_000).map(|number| (number % 7, number % 2 == 0)).collect();
        let list = sketch_of(&keys, 8).list();
        assert_eq!((list.entries.len(), list.absent_max), (7, 0));
        assert!(list.entries.iter().all(|entry| entry.error == 0 && entry.count >= 142), "{list:?}");
    }

    #[test]
    fn cleared_sketch_counts_from_zero() {
        let mut sketch = sketch_of(&[(1, false); 9], 4);
        sketch.clear();
        sketch.add(0, &1, true);
        let list = sketch.list();
        assert_eq!((list.entries[0].count, list.entries[0].refused, list.entries.len()), (1, 1, 1));
    }
}
