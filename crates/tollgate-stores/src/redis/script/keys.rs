//! Key names: `rl:<schema><algorithm>{<group>}:<rule>:<window>`, a hash with one field per subject.
//!
//! The group is the first three letters of the encoded subject, a hash in a fixed alphabet, so no byte chosen by a client
//! reaches a key name. It is the cluster hash tag: all counters of a subject share a slot. Rule and window come from the
//! operator's configuration.

use std::fmt::Write as _;

use tollgate::counters::Charge;
use tollgate::identity::Subject;
use tollgate::limit::Algorithm;

/// Prefix of all keys, for Redis ACL rules.
pub(crate) const PREFIX: &str = "rl:";
/// Version of key names and of the packed state.
pub(crate) const SCHEMA: u8 = 1;

/// Lowercase base32.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const TAG_BYTES: usize = 26;
/// Three letters make 32,768 groups. With a few to a hundred counters each, Redis stores the hash compactly.
const GROUP_BYTES: usize = 3;

/// A subject in base32, most significant bits first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tag([u8; TAG_BYTES]);

impl Tag {
    pub(crate) fn new(subject: Subject) -> Self {
        let mut tag = [0; TAG_BYTES];
        let mut rest = subject.0;
        for letter in &mut tag {
            *letter = ALPHABET[(rest >> 123) as usize];
            rest <<= 5;
        }
        Tag(tag)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let tag = Tag(text.as_bytes().try_into().ok()?);
        (Tag::new(tag.subject()) == tag).then_some(tag)
    }

    pub(crate) fn subject(&self) -> Subject {
        let digit = |byte: u8| ALPHABET.iter().position(|letter| *letter == byte).unwrap_or(0) as u128;
        // 26 letters hold 130 bits: the last one has only three of the subject's.
        let [first @ .., last] = self.0;
        let first = first.into_iter().fold(0, |subject, letter| subject << 5 | digit(letter));
        Subject(first << 3 | digit(last) >> 2)
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The cluster hash tag.
    pub(crate) fn group(&self) -> &[u8] {
        &self.0[..GROUP_BYTES]
    }

    fn parts(&self) -> (&str, &str) {
        self.as_str().split_at(GROUP_BYTES)
    }
}

/// Where a counter is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CounterKey {
    pub(crate) name: String,
    /// Whether it is a field of a hash that other subjects share.
    pub(crate) is_hash: bool,
}

/// The key of a charge's counter.
pub(crate) fn counter(charge: &Charge<'_>) -> CounterKey {
    let tag = Tag::new(charge.subject);
    let (group, rest) = tag.parts();
    let algorithm = charge.limit.algorithm();
    // A sliding log is a list, which needs a key per subject.
    let is_hash = algorithm != Algorithm::SlidingWindowLog;
    let rest = if is_hash { "" } else { rest };
    let mut name = String::with_capacity(48);
    let (letter, rule, window) = (letter(algorithm), charge.rule, charge.limit.window());
    // Writing to a string does not fail.
    let _ = write!(name, "{PREFIX}{SCHEMA}{letter}{{{group}}}{rest}:{rule}:{window}");
    CounterKey { name, is_hash }
}

/// The hash field of a subject.
pub(crate) fn field(subject: Subject) -> [u8; 16] {
    subject.0.to_be_bytes()
}

/// The key of a client's penalty record.
pub(crate) fn record(tag: &Tag) -> String {
    let (group, rest) = tag.parts();
    format!("{PREFIX}{SCHEMA}p{{{group}}}{rest}")
}

/// The key of an idempotency lock.
pub(crate) fn idempotency(tag: &Tag) -> String {
    let (group, rest) = tag.parts();
    format!("{PREFIX}{SCHEMA}i{{{group}}}{rest}")
}

/// The hash tag of keys that the whole fleet shares. Groups have three letters, so none collides.
pub(crate) const FLEET: &str = "fleet";

/// The seed of the fleet, by which subjects are hashed.
pub(crate) const SEED: &str = "seed";

/// A key that the whole fleet shares.
pub(crate) fn shared(name: &str) -> String {
    format!("{PREFIX}{{{FLEET}}}:{name}")
}

/// The key that a health probe writes; in a cluster, one in this slot.
pub(crate) fn probe(slot: Option<u32>) -> String {
    let group =
        |index: usize| [index >> 10, index >> 5, index].map(|letter| ALPHABET[letter % ALPHABET.len()]);
    let mut groups = (0..ALPHABET.len().pow(3)).map(group);
    let of_slot = |slot: u32| groups.find(|group| u32::from(self::slot(group)) == slot);
    // A slot that no group maps to holds no counters, so it is the fleet's.
    let group = slot.and_then(of_slot);
    let tag = group.as_ref().and_then(|group| std::str::from_utf8(group).ok()).unwrap_or(FLEET);
    format!("{PREFIX}{{{tag}}}:probe")
}

/// A key that is never written, beside the counters of a subject.
pub(crate) fn unused(subject: Subject) -> String {
    format!("{PREFIX}{{{}}}:unused", Tag::new(subject).parts().0)
}

/// Changing the algorithm of a limit starts a new counter: the states are incompatible.
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

/// Slots of a Redis cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The cluster slot of a hash tag.
pub(crate) fn slot(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS
}

/// CRC-16/XMODEM, as Redis Cluster uses.
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
    fn slot_is_the_one_redis_computes() {
        assert_eq!(slot(b"123456789"), 0x31c3 % SLOTS);
        assert_eq!((slot(b"foo"), slot(b"")), (12_182, 0));
    }

    #[test]
    fn probe_key_is_in_the_requested_slot() {
        assert_eq!(probe(None), "rl:{fleet}:probe");
        let tag = Tag::new(Subject(u128::MAX / 3));
        let name = probe(Some(slot(tag.group()).into()));
        let group = name.strip_prefix("rl:{").and_then(|rest| rest.strip_suffix("}:probe")).unwrap();
        assert_eq!((group.len(), slot(group.as_bytes())), (GROUP_BYTES, slot(tag.group())));
    }

    #[test]
    fn tag_has_fixed_length_and_alphabet() {
        for subject in [0, 1, u128::MAX, 0x7b7d_3a0d_0a00] {
            let tag = Tag::new(Subject(subject));
            assert!(tag.as_str().bytes().all(|byte| ALPHABET.contains(&byte)), "{}", tag.as_str());
            assert_eq!(Tag::parse(tag.as_str()).map(|tag| tag.subject()), Some(Subject(subject)));
        }
        assert_ne!(Tag::new(Subject(u128::MAX)), Tag::new(Subject(u128::MAX >> 1)));
    }

    #[test]
    fn invalid_tag_is_not_parsed() {
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
