//! A counter in 32 bytes: key, state, and when it may be forgotten.
//!
//! Instants take 52 bits; the twelve above them hold how long after that instant the counter is restored, as a
//! small floating-point number rounded up (at most 1.6 % late). So a sweep needs neither the limit nor the
//! algorithm to know what it may drop.

use super::fair_share::TenantSlot;
use super::{Key, SHARDS};
use crate::algorithms::{CounterState, NextState};
use crate::counters::RetentionExtension;
use crate::time::{Span, Timestamp};

const AT_BITS: u32 = 52;
const AT_MASK: u64 = (1 << AT_BITS) - 1;

/// One counter as it lies in a table, never across two lines of the cache.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
pub(super) struct Entry {
    /// The counter's key; where it would say which shard it is in, it says who holds it.
    key: [u64; 2],
    word: u64,
    value: u64,
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    /// A place without a counter. No key is like it.
    pub(super) const EMPTY: Entry = Entry { key: [0, 0], word: 0, value: 0 };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.key == [0, 0]
    }

    pub(super) fn new(key: Key, holder: TenantSlot, next: &NextState) -> Self {
        let [low, high] = key.halves();
        let low = low / SHARDS as u64 * SHARDS as u64 + holder.number();
        let mut entry = Entry { key: [low, high], word: 0, value: 0 };
        entry.set(next);
        entry
    }

    #[inline]
    pub(super) fn set(&mut self, next: &NextState) {
        let lasts = next.restored_at.since(next.cell.at);
        self.word = shorten(lasts) << AT_BITS | (next.cell.at.as_micros() & AT_MASK);
        self.value = next.cell.value;
    }

    /// Moves the state to another instant, keeping how long it lasts from there.
    pub(super) fn move_to(&mut self, cell: CounterState) {
        self.word = (self.word & !AT_MASK) | (cell.at.as_micros() & AT_MASK);
        self.value = cell.value;
    }

    /// Lets the state last longer than it was written for.
    pub(super) fn extend_retention(&mut self, slower: &RetentionExtension) {
        let lasts = slower.apply(lengthen(self.word >> AT_BITS));
        self.word = shorten(lasts) << AT_BITS | (self.word & AT_MASK);
    }

    /// The key, but for the shard.
    pub(super) fn key(&self) -> Key {
        Key::from_halves(self.key)
    }

    pub(super) fn holder(&self) -> TenantSlot {
        TenantSlot::numbered(self.key[0])
    }

    #[inline]
    pub(super) fn is(&self, key: Key) -> bool {
        let [low, high] = key.halves();
        (self.key[0] ^ low) < SHARDS as u64 && self.key[1] == high
    }

    #[inline]
    pub(super) fn cell(&self) -> CounterState {
        CounterState { at: Timestamp::from_micros(self.word & AT_MASK), value: self.value }
    }

    pub(super) fn restored_at(&self) -> Timestamp {
        Timestamp::from_micros(self.word & AT_MASK) + lengthen(self.word >> AT_BITS)
    }

    pub(super) fn to_words(self) -> [u64; 4] {
        [self.key[0], self.key[1], self.word, self.value]
    }

    pub(super) fn from_words([low, high, word, value]: [u64; 4]) -> Self {
        Entry { key: [low, high], word, value }
    }
}

/// Twelve bits for a span: six of exponent, six of mantissa, rounded up.
fn shorten(span: Span) -> u64 {
    let micros = span.as_micros().min(AT_MASK);
    if micros < 64 {
        return micros;
    }
    let shift = u64::from(57 - micros.leading_zeros());
    let mantissa = (micros + (1 << shift) - 1) >> shift; // rounded up, without a division
    if mantissa == 128 { (shift + 2) << 6 } else { (shift + 1) << 6 | (mantissa - 64) }
}

fn lengthen(code: u64) -> Span {
    let (exponent, mantissa) = (code >> 6, code & 63);
    Span::from_micros(if exponent == 0 { mantissa } else { (64 + mantissa) << (exponent - 1) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_shortened_span_is_never_early_and_hardly_late(micros in 0..=AT_MASK) {
            let span = Span::from_micros(micros);
            let read = lengthen(shorten(span)).as_micros();
            prop_assert!(shorten(span) < 4_096);
            prop_assert!(read >= micros && read - micros <= micros / 64);
        }
    }

    #[test]
    fn spans_at_the_edges_survive() {
        for micros in [0, 1, 63, 64, 65, 127, 128, 129, (1 << 20) - 1, 1 << 51, AT_MASK] {
            let read = lengthen(shorten(Span::from_micros(micros))).as_micros();
            assert!(read >= micros && read - micros <= micros / 64, "{micros} came back as {read}");
        }
    }
}
