//! The names of counters: `rl:<version><algorithm>{<subject>}:<rule>:<window>`.
//!
//! The subject is a hash in a fixed alphabet, so no byte of a client reaches a name, and it stands in braces, so that
//! all counters of one subject share a cluster slot. What follows it is the operator's own words.

use std::fmt::Write as _;

use tollgate::counters::Charge;
use tollgate::identity::Subject;
use tollgate::limit::Algorithm;

/// What every name begins with; access rules can be limited to it.
pub(super) const PREFIX: &str = "rl:";
/// The version of the names and of what is stored under them.
pub const SCHEMA: u8 = 1;

/// Letters and digits that nobody mistakes for each other.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const TAG_BYTES: usize = 26;

/// A subject as it stands in names.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag([u8; TAG_BYTES]);

impl Tag {
    pub(super) fn new(subject: Subject) -> Self {
        let mut tag = [0; TAG_BYTES];
        let mut rest = subject.0;
        for place in tag.iter_mut().rev() {
            *place = ALPHABET[(rest & 31) as usize];
            rest >>= 5;
        }
        Tag(tag)
    }

    /// The subject that a tag stands for.
    pub(super) fn parse(tag: &str) -> Option<u128> {
        let digit = |byte| ALPHABET.iter().position(|letter| *letter == byte);
        tag.bytes().try_fold(0_u128, |subject, byte| Some(subject << 5 | digit(byte)? as u128))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The name of a counter.
pub(super) fn counter(schema: u8, tag: &Tag, charge: &Charge<'_>) -> String {
    let mut key = String::with_capacity(48);
    let letter = letter(charge.limit.algorithm());
    // Writing to a string does not fail.
    let _ =
        write!(key, "{PREFIX}{schema}{letter}{{{}}}:{}:{}", tag.as_str(), charge.rule, charge.limit.window());
    key
}

/// The name of a client's record.
pub(super) fn record(tag: &Tag) -> String {
    record_of(tag.as_str())
}

/// The same, from a tag that was read.
pub(super) fn record_of(tag: &str) -> String {
    format!("{PREFIX}{SCHEMA}p{{{tag}}}")
}

/// The hash tag of what the nodes of a fleet share: no subject has so short a one.
pub(super) const FLEET: &str = "fleet";

/// The name of something a fleet has one of.
pub(super) fn shared(name: &str) -> String {
    format!("{PREFIX}{{{FLEET}}}:{name}")
}

/// The name of a claim on a batch.
pub(super) fn claim(tag: &Tag) -> String {
    format!("{PREFIX}{SCHEMA}i{{{}}}", tag.as_str())
}

/// A change of the algorithm is a new counter: their states have nothing in common.
const fn letter(algorithm: Algorithm) -> char {
    match algorithm {
        Algorithm::TokenBucket => 't',
        Algorithm::Gcra => 'g',
        Algorithm::SlidingWindowCounter => 's',
        Algorithm::SlidingWindowLog => 'l',
        Algorithm::FixedWindow => 'f',
        Algorithm::LeakyBucket => 'k',
    }
}

/// The cluster slot of a name with this tag.
pub(super) fn slot(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS
}

/// Slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// CRC-16/XMODEM, by which Redis spreads keys over slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_is_the_one_that_redis_computes() {
        assert_eq!(slot(b"123456789"), 0x31c3 % SLOTS);
        assert_eq!((slot(b"foo"), slot(b"")), (12_182, 0));
    }

    #[test]
    fn t09_a_tag_has_one_length_and_one_alphabet() {
        for subject in [0, 1, u128::MAX, 0x7b7d_3a0d_0a00] {
            let tag = Tag::new(Subject(subject));
            assert!(tag.as_str().bytes().all(|byte| ALPHABET.contains(&byte)), "{}", tag.as_str());
        }
        assert_ne!(Tag::new(Subject(u128::MAX)), Tag::new(Subject(u128::MAX >> 1)));
    }
}
