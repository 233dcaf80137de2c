//! Tokens that were verified before. Verifying a signature costs up to a hundred times the lookup.
//!
//! An entry is used only within the validity period of its token and while the keys that verified it are in force.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::VerifiedToken;
use super::claims::ValidityPeriod;
use super::keys::KeySet;

/// Maximum number of entries in each of the two generations.
const ENTRIES_MAX: usize = 5_000;

/// SHA-256 of a whole token, with its signature.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub(super) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(super) fn of(token: &str) -> Self {
        TokenHash(Sha256::digest(token.as_bytes()).into())
    }
}

/// A verified token.
#[derive(Clone)]
pub(super) struct CacheEntry {
    pub(super) token: VerifiedToken,
    pub(super) period: ValidityPeriod,
    /// The index of its issuer.
    pub(super) issuer: usize,
    /// The keys that verified it.
    pub(super) keys: Arc<KeySet>,
}

/// A bounded cache of verified tokens.
#[derive(Default)]
pub(super) struct TokenCache(Mutex<Generations>);

/// When `young` is full it becomes `old`, and the entries of `old` that were not used meanwhile are dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<TokenHash, CacheEntry>,
    old: HashMap<TokenHash, CacheEntry>,
}

impl TokenCache {
    /// The token, if it is cached and its entry is current.
    pub(super) fn get(
        &self,
        hash: &TokenHash,
        is_current: impl FnOnce(&CacheEntry) -> bool,
    ) -> Option<VerifiedToken> {
        self.0.lock().get(hash, is_current)
    }

    pub(super) fn insert(&self, hash: TokenHash, entry: CacheEntry) {
        self.0.lock().insert(hash, entry);
    }
}

impl Generations {
    fn get(
        &mut self,
        hash: &TokenHash,
        is_current: impl FnOnce(&CacheEntry) -> bool,
    ) -> Option<VerifiedToken> {
        if let Some(entry) = self.young.get(hash) {
            return is_current(entry).then(|| entry.token.clone());
        }
        let entry = self.old.remove(hash).filter(is_current)?;
        let token = entry.token.clone();
        self.insert(*hash, entry);
        Some(token)
    }

    fn insert(&mut self, hash: TokenHash, entry: CacheEntry) {
        if self.young.len() >= ENTRIES_MAX {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(hash, entry);
    }
}

impl fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generations = self.0.lock();
        write!(f, "TokenCache({} entries)", generations.young.len() + generations.old.len())
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::Algorithm;
    use tollgate::{Span, Timestamp};

    use super::super::token::Members;
    use super::*;

    fn entry(keys: &Arc<KeySet>) -> CacheEntry {
        let claims = Members::parse(br#"{"exp":100}"#).unwrap();
        let period = ValidityPeriod::new(&claims, Span::ZERO).unwrap();
        let token = VerifiedToken { user: "u".into(), tenant: None, tier: None };
        CacheEntry { token, period, issuer: 0, keys: Arc::clone(keys) }
    }

    #[test]
    fn token_cache_is_bounded_and_keeps_used_entries() {
        let keys = Arc::new(KeySet::from_secret(&"s".repeat(32), &[Algorithm::HS256]).unwrap());
        let cache = TokenCache::default();
        let used = TokenHash::of("used");
        cache.insert(used, entry(&keys));
        for number in 0..50_000 {
            cache.insert(TokenHash::of(&number.to_string()), entry(&keys));
            assert!(cache.get(&used, |_| true).is_some(), "{number}");
        }
        let generations = cache.0.lock();
        assert!(generations.young.len() <= ENTRIES_MAX && generations.old.len() <= ENTRIES_MAX);
    }

    #[test]
    fn entry_that_is_not_current_is_not_used() {
        let keys = Arc::new(KeySet::from_secret(&"s".repeat(32), &[Algorithm::HS256]).unwrap());
        let (cache, hash) = (TokenCache::default(), TokenHash::of("token"));
        cache.insert(hash, entry(&keys));
        let at = |secs| cache.get(&hash, |entry| entry.period.check(Timestamp::from_secs(secs)).is_ok());
        assert!(at(99).is_some());
        assert!(at(100).is_none());
    }
}
