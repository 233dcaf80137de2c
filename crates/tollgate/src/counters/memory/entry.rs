//! A counter in 32 bytes: key, state and retention.
//!
//! An instant takes 52 bits. The twelve bits above it hold the retention, how long after that instant the counter is
//! restored in full, as a small floating-point number rounded up (at most 1.6 % late). So a sweep needs neither limit nor
//! algorithm to know what it may drop.

use super::fair_share::TenantSlot;
use super::{Key, SHARDS};
use crate::algorithms::{CounterState, NextState};
use crate::time::{Span, Timestamp};

const AT_BITS: u32 = 52;
const AT_MASK: u64 = (1 << AT_BITS) - 1;

/// One counter in a table. It never crosses a cache line.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
pub(super) struct Entry {
    /// The key of the counter, with the tenant slot in the bits that select the shard.
    key: [u64; 2],
    word: u64,
    value: u64,
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    /// An empty slot. No key is equal to it.
    pub(super) const EMPTY: Entry = Entry { key: [0, 0], word: 0, value: 0 };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.key == [0, 0]
    }

    pub(super) fn new(key: Key, tenant: TenantSlot, next: &NextState) -> Self {
        let [low, high] = key.halves();
        let low = low / SHARDS as u64 * SHARDS as u64 + tenant.number();
        let mut entry = Entry { key: [low, high], word: 0, value: 0 };
        entry.set(next);
        entry
    }

    #[inline]
    pub(super) fn set(&mut self, next: &NextState) {
        let retention = next.restored_at.since(next.state.at);
        self.word = encode(retention) << AT_BITS | (next.state.at.as_micros() & AT_MASK);
        self.value = next.state.value;
    }

    /// Moves the state to another instant and keeps its retention.
    pub(super) fn move_to(&mut self, state: CounterState) {
        self.word = (self.word & !AT_MASK) | (state.at.as_micros() & AT_MASK);
        self.value = state.value;
    }

    /// The key without the bits that select the shard.
    pub(super) fn key(&self) -> Key {
        Key::from_halves(self.key)
    }

    pub(super) fn tenant(&self) -> TenantSlot {
        TenantSlot::from_number(self.key[0])
    }

    #[inline]
    pub(super) fn is(&self, key: Key) -> bool {
        let [low, high] = key.halves();
        (self.key[0] ^ low) < SHARDS as u64 && self.key[1] == high
    }

    #[inline]
    pub(super) fn state(&self) -> CounterState {
        CounterState { at: Timestamp::from_micros(self.word & AT_MASK), value: self.value }
    }

    /// How long after the instant of its state the counter is restored in full.
    pub(super) fn retention(&self) -> Span {
        decode(self.word >> AT_BITS)
    }

    pub(super) fn restored_at(&self) -> Timestamp {
        Timestamp::from_micros(self.word & AT_MASK) + self.retention()
    }

    pub(super) fn to_words(self) -> [u64; 4] {
        [self.key[0], self.key[1], self.word, self.value]
    }

    pub(super) fn from_words([low, high, word, value]: [u64; 4]) -> Self {
        Entry { key: [low, high], word, value }
    }
}

/// A span in twelve bits, rounded up: six bits of exponent, six of mantissa.
fn encode(span: Span) -> u64 {
    let micros = span.as_micros().min(AT_MASK);
    if micros < 64 {
        return micros;
    }
    let shift = u64::from(57 - micros.leading_zeros());
    let mantissa = (micros + (1 << shift) - 1) >> shift;
    if mantissa == 128 { (shift + 2) << 6 } else { (shift + 1) << 6 | (mantissa - 64) }
}

fn decode(code: u64) -> Span {
    let (exponent, mantissa) = (code >> 6, code & 63);
    Span::from_micros(if exponent == 0 { mantissa } else { (64 + mantissa) << (exponent - 1) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn encoded_span_is_rounded_up_by_at_most_a_64th(micros in 0..=AT_MASK) {
            let span = Span::from_micros(micros);
            let read = decode(encode(span)).as_micros();
            prop_assert!(encode(span) < 4_096);
            prop_assert!(read >= micros && read - micros <= micros / 64);
        }
    }

    #[test]
    fn extreme_spans_survive_encoding() {
        for micros in [0, 1, 63, 64, 65, 127, 128, 129, (1 << 20) - 1, 1 << 51, AT_MASK] {
            let read = decode(encode(Span::from_micros(micros))).as_micros();
            assert!(read >= micros && read - micros <= micros / 64, "{micros} came back as {read}");
        }
    }
}
