//! The names of counters: `rl:<version><algorithm>{<group>}:<rule>:<window>`, and in it a field for each subject.
//!
//! The group is the beginning of the subject, which is a hash in a fixed alphabet, so no byte of a client reaches a name;
//! it stands in braces, so that all counters of one subject share a cluster slot. What follows is the operator's own words.

use std::fmt::Write as _;

use tollgate::counters::Charge;
use tollgate::identity::Subject;
use tollgate::limit::Algorithm;

/// What every name begins with; access rules can be limited to it.
pub(crate) const PREFIX: &str = "rl:";
/// The version of the names and of what is stored under them.
pub const SCHEMA: u8 = 1;

/// Letters and digits that nobody mistakes for each other.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const TAG_BYTES: usize = 26;
/// Letters of a group: 32,768 groups. A hash of Redis is as small as can be with a few to a hundred counters in it, and
/// still half of what keys of their own would take with more.
const GROUP_BYTES: usize = 3;

/// A subject as it stands in names: its bits five by five, the highest first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tag([u8; TAG_BYTES]);

impl Tag {
    pub(crate) fn new(subject: Subject) -> Self {
        let mut tag = [0; TAG_BYTES];
        let mut rest = subject.0;
        for place in &mut tag {
            *place = ALPHABET[(rest >> 123) as usize];
            rest <<= 5;
        }
        Tag(tag)
    }

    /// The tag that a text is, if it is one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let tag = Tag(text.as_bytes().try_into().ok()?);
        (Tag::new(tag.subject()) == tag).then_some(tag)
    }

    /// The subject that it stands for.
    pub(crate) fn subject(&self) -> Subject {
        let digit = |byte: u8| ALPHABET.iter().position(|letter| *letter == byte).unwrap_or(0) as u128;
        // The last letter has three bits left to say.
        let [first @ .., last] = self.0;
        let first = first.into_iter().fold(0, |subject, letter| subject << 5 | digit(letter));
        Subject(first << 3 | digit(last) >> 2)
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// What all counters of the subject have in braces.
    pub(crate) fn group(&self) -> &[u8] {
        &self.0[..GROUP_BYTES]
    }

    /// Group and rest, as they stand in the name of something that is the subject's alone.
    fn parts(&self) -> (&str, &str) {
        self.as_str().split_at(GROUP_BYTES)
    }
}

/// Where the counter of a charge is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) key: String,
    /// Whether it shares the key with the counters of other subjects, in a hash.
    pub(crate) shared: bool,
}

/// The name of a counter.
pub(crate) fn counter(schema: u8, charge: &Charge<'_>) -> Counter {
    let tag = Tag::new(charge.subject);
    let (group, rest) = tag.parts();
    let algorithm = charge.limit.algorithm();
    // A log is a list of its own.
    let shared = algorithm != Algorithm::SlidingWindowLog;
    let rest = if shared { "" } else { rest };
    let mut key = String::with_capacity(48);
    let (letter, rule, window) = (letter(algorithm), charge.rule, charge.limit.window());
    // Writing to a string does not fail.
    let _ = write!(key, "{PREFIX}{schema}{letter}{{{group}}}{rest}:{rule}:{window}");
    Counter { key, shared }
}

/// The field of a subject in the hashes of its group.
pub(crate) fn field(subject: Subject) -> [u8; 16] {
    subject.0.to_be_bytes()
}

/// The name of a client's record.
pub(crate) fn record(tag: &Tag) -> String {
    let (group, rest) = tag.parts();
    format!("{PREFIX}{SCHEMA}p{{{group}}}{rest}")
}

/// The hash tag of what the nodes of a fleet share: no group has so long a one.
pub(crate) const FLEET: &str = "fleet";

/// The name of what is written to find out whether a server can write; in a cluster, to one that holds this slot.
pub(crate) fn probe(slot: Option<u32>) -> String {
    let group = |index: usize| [index >> 10, index >> 5, index].map(|place| ALPHABET[place % ALPHABET.len()]);
    let mut groups = (0..ALPHABET.len().pow(3)).map(group);
    let of_slot = |slot: u32| groups.find(|group| u32::from(self::slot(group)) == slot);
    // Every counter has a group: what has none belongs to the fleet.
    let group = slot.and_then(of_slot);
    let tag = group.as_ref().and_then(|group| std::str::from_utf8(group).ok()).unwrap_or(FLEET);
    format!("{PREFIX}{{{tag}}}:probe")
}

/// The name of something a fleet has one of.
pub(crate) fn shared(name: &str) -> String {
    format!("{PREFIX}{{{FLEET}}}:{name}")
}

/// The name of a claim on a batch.
pub(crate) fn idempotency(tag: &Tag) -> String {
    let (group, rest) = tag.parts();
    format!("{PREFIX}{SCHEMA}i{{{group}}}{rest}")
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
pub(crate) fn slot(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS
}

/// Slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

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
    fn a_server_is_probed_in_a_slot_that_it_holds() {
        assert_eq!(probe(None), "rl:{fleet}:probe");
        let tag = Tag::new(Subject(u128::MAX / 3));
        let name = probe(Some(slot(tag.group()).into()));
        let group = name.strip_prefix("rl:{").and_then(|rest| rest.strip_suffix("}:probe")).unwrap();
        assert_eq!((group.len(), slot(group.as_bytes())), (GROUP_BYTES, slot(tag.group())));
    }

    #[test]
    fn t09_a_tag_has_one_length_and_one_alphabet() {
        for subject in [0, 1, u128::MAX, 0x7b7d_3a0d_0a00] {
            let tag = Tag::new(Subject(subject));
            assert!(tag.as_str().bytes().all(|byte| ALPHABET.contains(&byte)), "{}", tag.as_str());
            assert_eq!(Tag::parse(tag.as_str()).map(|tag| tag.subject()), Some(Subject(subject)));
        }
        assert_ne!(Tag::new(Subject(u128::MAX)), Tag::new(Subject(u128::MAX >> 1)));
    }

    #[test]
    fn a_text_that_is_no_tag_is_not_taken_for_one() {
        for text in [
            "",
            "abc",
            "aaaaaaaaaaaaaaaaaaaaaaaaab",
            "aaaaaaaaaaaaaaaaaaaaaaaaa:",
            "ÿaaaaaaaaaaaaaaaaaaaaaaaa",
        ] {
            assert_eq!(Tag::parse(text), None, "{text}");
        }
    }
}
