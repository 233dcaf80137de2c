//! API keys as packed records.
//!
//! Each shard stores its records in one buffer. A sorted index of 8 bytes per key holds half of the key's hash and the
//! offset of its record. Keys with equal halves are distinguished by the id in the record.

use std::sync::LazyLock;

use super::pool::PoolId;
use super::shards::{SHARD_BITS, Shard, guess, lower_bound};
use super::{AccountLimits, Key};
use crate::time::Timestamp;

/// The content of a record.
#[derive(Copy, Clone)]
pub(super) struct KeyRecord<'a> {
    pub(super) id: &'a str,
    pub(super) verifier: &'a [u8; 32],
    pub(super) previous: Option<(&'a [u8; 32], Timestamp)>,
    pub(super) user: Option<&'a str>,
    pub(super) tenant: Option<&'a str>,
    pub(super) tier: Option<PoolId>,
    pub(super) limits: Option<PoolId>,
    pub(super) scopes: u16,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) is_revoked: bool,
}

/// The maximum record size: three texts of 256 bytes and all other fields.
pub(super) const RECORD_BYTES_MAX: usize = 1 + 2 + 3 * 257 + 32 + 40 + 8 + 8;

const HAS_PREVIOUS: u8 = 1;
const HAS_USER: u8 = 1 << 1;
const HAS_TENANT: u8 = 1 << 2;
const HAS_TIER: u8 = 1 << 3;
const HAS_LIMITS: u8 = 1 << 4;
const EXPIRES: u8 = 1 << 5;
const IS_REVOKED: u8 = 1 << 6;

impl<'a> KeyRecord<'a> {
    /// The key, with the tier and limits that the ids stand for.
    pub(super) fn into_key(self, tier: Option<&'a str>, limits: AccountLimits) -> Key<'a> {
        let KeyRecord { id, verifier, previous, user, tenant, scopes, expires_at, is_revoked, .. } = self;
        let previous = previous.map(|(verifier, until)| (*verifier, until));
        Key { id, verifier: *verifier, previous, user, tenant, tier, scopes, limits, expires_at, is_revoked }
    }

    /// Texts must be 1 to 256 bytes long, as the caller has checked; longer ones are truncated.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        to.push(
            flag(self.previous.is_some(), HAS_PREVIOUS)
                | flag(self.user.is_some(), HAS_USER)
                | flag(self.tenant.is_some(), HAS_TENANT)
                | flag(self.tier.is_some(), HAS_TIER)
                | flag(self.limits.is_some(), HAS_LIMITS)
                | flag(self.expires_at.is_some(), EXPIRES)
                | flag(self.is_revoked, IS_REVOKED),
        );
        to.extend_from_slice(&self.scopes.to_le_bytes());
        encode_text(self.id, to);
        to.extend_from_slice(self.verifier);
        if let Some((verifier, until)) = self.previous {
            to.extend_from_slice(verifier);
            to.extend_from_slice(&until.as_micros().to_le_bytes());
        }
        for text in [self.user, self.tenant].into_iter().flatten() {
            encode_text(text, to);
        }
        for id in [self.tier, self.limits].into_iter().flatten() {
            to.extend_from_slice(&id.word().to_le_bytes());
        }
        if let Some(at) = self.expires_at {
            to.extend_from_slice(&at.as_micros().to_le_bytes());
        }
    }

    /// Decodes the record at the start of `bytes`; returns its length too.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let mut rest = bytes;
        let [flags] = *take::<1>(&mut rest)?;
        let has = |flag: u8| flags & flag != 0;
        let scopes = u16::from_le_bytes(*take(&mut rest)?);
        let id = take_text(&mut rest)?;
        let verifier = take(&mut rest)?;
        let mut previous = None;
        if has(HAS_PREVIOUS) {
            previous = Some((take(&mut rest)?, take_instant(&mut rest)?));
        }
        let user = if has(HAS_USER) { Some(take_text(&mut rest)?) } else { None };
        let tenant = if has(HAS_TENANT) { Some(take_text(&mut rest)?) } else { None };
        let tier = if has(HAS_TIER) { Some(take_id(&mut rest)?) } else { None };
        let limits = if has(HAS_LIMITS) { Some(take_id(&mut rest)?) } else { None };
        let expires_at = if has(EXPIRES) { Some(take_instant(&mut rest)?) } else { None };
        let is_revoked = has(IS_REVOKED);
        let fields =
            KeyRecord { id, verifier, previous, user, tenant, tier, limits, scopes, expires_at, is_revoked };
        Some((fields, bytes.len() - rest.len()))
    }
}

fn encode_text(text: &str, to: &mut Vec<u8>) {
    let length = text.len().clamp(1, 256);
    to.push(u8::try_from(length - 1).unwrap_or(u8::MAX));
    to.extend_from_slice(&text.as_bytes()[..length.min(text.len())]);
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(taken)
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let [length] = *take::<1>(rest)?;
    let (text, behind) = rest.split_at_checked(usize::from(length) + 1)?;
    *rest = behind;
    std::str::from_utf8(text).ok()
}

fn take_instant(rest: &mut &[u8]) -> Option<Timestamp> {
    take(rest).map(|bytes| Timestamp::from_micros(u64::from_le_bytes(*bytes)))
}

fn take_id(rest: &mut &[u8]) -> Option<PoolId> {
    take(rest).and_then(|bytes| PoolId::from_word(u32::from_le_bytes(*bytes)))
}

#[derive(Clone, Default)]
pub(super) struct KeyShard {
    /// Half of the hash in the upper bits, the offset in the lower; sorted.
    index: Vec<u64>,
    records: Vec<u8>,
}

/// The decoy for empty shards. No key matches its verifier.
const DECOY: KeyRecord<'static> = KeyRecord {
    id: "................",
    verifier: &[0; 32],
    previous: None,
    user: None,
    tenant: None,
    tier: None,
    limits: None,
    scopes: 0,
    expires_at: None,
    is_revoked: true,
};

/// Stands in for empty shards.
static DECOY_SHARD: LazyLock<KeyShard> = LazyLock::new(|| {
    let mut shard = KeyShard::default();
    shard.put(0, &DECOY);
    shard
});

impl KeyShard {
    pub(super) fn get(&self, hash: u128, id: &str) -> Option<KeyRecord<'_>> {
        self.find(hash, id).map(|(_, fields, _)| fields)
    }

    /// The key with this id, or else the key at its place in the index as a decoy, and whether it is the key itself.
    pub(super) fn get_or_decoy<'a>(shard: Option<&'a Self>, hash: u128, id: &str) -> (KeyRecord<'a>, bool) {
        let shard = shard.filter(|shard| !shard.index.is_empty()).unwrap_or(&DECOY_SHARD);
        let half = half(hash);
        let at = shard.place(half).min(shard.index.len().saturating_sub(1));
        let entry = shard.index.get(at).copied().unwrap_or(0);
        let fields = shard.record(entry).map_or(DECOY, |(fields, _)| fields);
        let is_key = fields.id == id;
        if !is_key && entry & HALF == half {
            // Another key has the same half of the hash.
            return shard.get(hash, id).map_or((fields, false), |fields| (fields, true));
        }
        (fields, is_key)
    }

    /// All keys, in hash order.
    pub(super) fn iter(&self) -> impl Iterator<Item = KeyRecord<'_>> {
        self.index.iter().filter_map(|entry| self.record(*entry)).map(|(fields, _)| fields)
    }

    /// Adds or replaces a key. Returns the change in the number of keys; `None` if the shard is full.
    pub(super) fn put(&mut self, hash: u128, fields: &KeyRecord<'_>) -> Option<isize> {
        let removed = self.remove(hash, fields.id);
        let offset = u32::try_from(self.records.len()).ok()?;
        let entry = half(hash) | u64::from(offset);
        fields.encode(&mut self.records);
        self.index.insert(self.place(entry), entry);
        Some(1 + removed)
    }

    /// Removes a key. Returns the change in the number of keys.
    pub(super) fn remove(&mut self, hash: u128, id: &str) -> isize {
        let Some((position, _, length)) = self.find(hash, id) else { return 0 };
        let start = offset(self.index.remove(position));
        self.records.drain(start..start + length);
        // All later records have moved.
        for entry in &mut self.index {
            if offset(*entry) > start {
                *entry -= length as u64;
            }
        }
        -1
    }

    /// The position in the index, the record and the length of the record.
    fn find(&self, hash: u128, id: &str) -> Option<(usize, KeyRecord<'_>, usize)> {
        let half = half(hash);
        let first = self.place(half);
        for (position, entry) in self.index.iter().enumerate().skip(first) {
            if entry & HALF != half {
                return None;
            }
            if let Some((fields, length)) = self.record(*entry).filter(|(fields, _)| fields.id == id) {
                return Some((position, fields, length));
            }
        }
        None
    }

    fn record(&self, entry: u64) -> Option<(KeyRecord<'_>, usize)> {
        KeyRecord::decode(self.records.get(offset(entry)..)?)
    }

    fn place(&self, entry: u64) -> usize {
        lower_bound(self.index.len(), guess(self.index.len(), entry), |at| self.index[at] < entry)
    }
}

/// The hash bits of an index entry.
const HALF: u64 = 0xffff_ffff_0000_0000;

fn half(hash: u128) -> u64 {
    u64::try_from((hash << SHARD_BITS) >> 64).unwrap_or(0) & HALF
}

fn offset(entry: u64) -> usize {
    usize::try_from(entry & !HALF).unwrap_or(usize::MAX)
}

impl Shard for KeyShard {
    fn shrink(&mut self) {
        self.index.shrink_to_fit();
        self.records.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Few distinct hashes, so that many keys share a half.
    fn hash(id: &str) -> u128 {
        (id.len() as u128 % 3) << 90
    }

    fn fields<'a>(id: &'a str, verifier: &'a [u8; 32], text: &'a str) -> KeyRecord<'a> {
        KeyRecord {
            id,
            verifier,
            previous: verifier[0].is_multiple_of(2).then_some((verifier, Timestamp::from_secs(7))),
            user: Some(text).filter(|text| !text.is_empty()),
            tenant: Some(text).filter(|text| text.len() > 4),
            tier: PoolId::from_word(u32::from(verifier[0] % 3)),
            limits: PoolId::from_word(u32::from(verifier[0] % 5)),
            scopes: u16::from(verifier[0]) << 5,
            expires_at: verifier[0].is_multiple_of(7).then_some(Timestamp::MAX),
            is_revoked: verifier[0].is_multiple_of(11),
        }
    }

    fn describe(fields: &KeyRecord<'_>) -> String {
        let KeyRecord { id, verifier, previous, user, tenant, tier, limits, scopes, expires_at, is_revoked } =
            fields;
        format!(
            "{id} {verifier:?} {previous:?} {user:?} {tenant:?} {tier:?} {limits:?} {scopes} {expires_at:?} {is_revoked}"
        )
    }

    proptest! {
        #[test]
        fn shard_agrees_with_a_model(
            edits in prop::collection::vec((0_usize..24, any::<bool>(), any::<u8>(), "\\PC{0,9}"), 0..120),
        ) {
            let (mut shard, mut model, mut count) = (KeyShard::default(), BTreeMap::new(), 0);
            for (number, is_put, byte, text) in edits {
                let id = format!("{}{number}", "k".repeat(number % 6 + 1));
                if is_put {
                    let verifier = [byte; 32];
                    let new = fields(&id, &verifier, &text);
                    count += shard.put(hash(&id), &new).unwrap();
                    model.insert(id.clone(), describe(&new));
                } else {
                    count += shard.remove(hash(&id), &id);
                    model.remove(&id);
                }
            }
            prop_assert_eq!(usize::try_from(count).unwrap(), model.len());
            for (id, expected) in &model {
                prop_assert_eq!(&describe(&shard.get(hash(id), id).unwrap()), expected);
            }
            prop_assert!(shard.get(hash("kk"), "kk").is_none());
            prop_assert_eq!(shard.iter().count(), model.len());
            let bytes: usize = shard.index.iter().map(|entry| shard.record(*entry).unwrap().1).sum();
            prop_assert_eq!(bytes, shard.records.len(), "no bytes of removed records remain");
            prop_assert!(shard.index.is_sorted());
        }

        #[test]
        fn lookup_returns_the_key_or_a_decoy(
            put in prop::collection::vec("[a-f]{1,5}", 0..30),
            wanted in "[a-f]{1,5}",
        ) {
            let mut shard = KeyShard::default();
            for id in &put {
                shard.put(hash(id), &fields(id, &[7; 32], ""));
            }
            let (found, is_key) = KeyShard::get_or_decoy(Some(&shard), hash(&wanted), &wanted);
            prop_assert_eq!(is_key, put.contains(&wanted));
            prop_assert_eq!(found.id == wanted, is_key);
            prop_assert_eq!(found.verifier, if put.is_empty() { &[0; 32] } else { &[7; 32] });
        }

        #[test]
        fn decoding_any_bytes_stays_in_bounds(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some((_, length)) = KeyRecord::decode(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }

    #[test]
    fn longest_texts_are_kept_whole() {
        let (id, verifier) = ("x".repeat(256), [9; 32]);
        let mut shard = KeyShard::default();
        shard.put(1, &fields(&id, &verifier, &id)).unwrap();
        let found = shard.get(1, &id).unwrap();
        assert_eq!((found.id, found.user, found.tenant), (&*id, Some(&*id), Some(&*id)));
    }
}
