//! JSON Web Tokens of clients: verified with the algorithms and keys of the settings, never with those that a token names.
//!
//! The unverified `iss` claim only selects the settings; everything is then verified against them. Verification never
//! waits: key sets are fetched in the background.

mod cache;
mod claims;
pub(crate) mod jwks;
pub(crate) mod keys;
mod stats;
mod token;

use std::sync::Arc;

use jsonwebtoken::Algorithm;
use thiserror::Error;
use tollgate::{Span, Timestamp};

use self::cache::{CacheEntry, TokenCache, TokenHash};
use self::claims::ValidityPeriod;
use self::jwks::RemoteKeys;
use self::keys::KeySet;
pub(crate) use self::stats::JwtStats;
pub(crate) use self::token::TOKEN_BYTES_MAX;
use self::token::{Header, Members, UnverifiedToken};
use crate::config::settings::{JwtIssuer, JwtKeys};

/// What a verified token says about its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedToken {
    pub(crate) user: Box<str>,
    pub(crate) tenant: Option<Box<str>>,
    pub(crate) tier: Option<Box<str>>,
}

/// Why a token is not accepted. Messages do not repeat the token.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum JwtError {
    #[error("the token is larger than {TOKEN_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the token is encrypted (JWE); only signed tokens are supported")]
    Encrypted,
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    #[error("the token is not from a configured issuer")]
    UnknownIssuer,
    #[error("the token does not use an algorithm that is configured for its issuer")]
    WrongAlgorithm,
    /// The key set has no such key. It may have one after the next fetch.
    #[error("the token is signed with an unknown key")]
    UnknownKey,
    /// The key set was never fetched.
    #[error("the keys of the token's issuer are not available yet")]
    KeysUnavailable,
    #[error("the signature of the token is invalid")]
    InvalidSignature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token is meant for another audience")]
    WrongAudience,
    #[error("the claim {claim:?} of the token {reason}")]
    InvalidClaim { claim: Box<str>, reason: &'static str },
    /// The address of the client is in backoff after invalid tokens; the token was not read.
    #[error("too many invalid tokens from this address; retry after Retry-After")]
    Throttled { wait: Span },
}

impl JwtError {
    /// All reasons, as metrics show them.
    pub(crate) const REASONS: [&'static str; 13] = [
        "too_large",
        "encrypted",
        "malformed",
        "unknown_issuer",
        "wrong_algorithm",
        "unknown_key",
        "keys_unavailable",
        "invalid_signature",
        "expired",
        "not_yet_valid",
        "wrong_audience",
        "invalid_claim",
        "throttled",
    ];

    /// The index of its reason.
    fn index(&self) -> usize {
        match self {
            JwtError::TooLarge => 0,
            JwtError::Encrypted => 1,
            JwtError::Malformed(_) => 2,
            JwtError::UnknownIssuer => 3,
            JwtError::WrongAlgorithm => 4,
            JwtError::UnknownKey => 5,
            JwtError::KeysUnavailable => 6,
            JwtError::InvalidSignature => 7,
            JwtError::Expired => 8,
            JwtError::NotYetValid => 9,
            JwtError::WrongAudience => 10,
            JwtError::InvalidClaim { .. } => 11,
            JwtError::Throttled { .. } => 12,
        }
    }

    /// Whether the token is not one of a configured issuer, but may be one of another system.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(
            self,
            JwtError::TooLarge | JwtError::Encrypted | JwtError::Malformed(_) | JwtError::UnknownIssuer
        )
    }

    /// Whether the token claims to be from a configured issuer, which did not sign it.
    pub(crate) fn is_forgery(&self) -> bool {
        matches!(self, JwtError::WrongAlgorithm | JwtError::UnknownKey | JwtError::InvalidSignature)
    }
}

/// Verifies tokens of the configured issuers (`[[identity.jwt]]`).
#[derive(Debug)]
pub(crate) struct JwtVerifier {
    issuers: Vec<Issuer>,
    cache: TokenCache,
    stats: Arc<JwtStats>,
}

#[derive(Debug)]
struct Issuer {
    settings: JwtIssuer,
    keys: KeySource,
}

#[derive(Debug)]
enum KeySource {
    Configured(Arc<KeySet>),
    Remote(Arc<RemoteKeys>),
}

impl JwtVerifier {
    /// `None` without issuers. Fetched keys of `before` are kept for issuers whose keys have the same settings.
    pub(crate) fn new(
        issuers: &[JwtIssuer],
        stats: &Arc<JwtStats>,
        before: Option<&JwtVerifier>,
    ) -> Option<Self> {
        if issuers.is_empty() {
            return None;
        }
        let issuers = issuers.iter().map(|issuer| Issuer::new(issuer, stats, before)).collect();
        Some(JwtVerifier { issuers, cache: TokenCache::default(), stats: Arc::clone(stats) })
    }

    /// Starts to fetch key sets from URLs, in tasks that end with this verifier. Needs a tokio runtime.
    pub(crate) fn start_fetching(&self) {
        self.remote_keys().for_each(RemoteKeys::start);
    }

    /// Verifies a token without the cache.
    #[cfg(feature = "bench")]
    pub(crate) fn verify_uncached(&self, token: &str, now: Timestamp) -> Result<VerifiedToken, JwtError> {
        Ok(self.verify_whole(token, now)?.token)
    }

    /// Verifies a token as a client's is, without backoff.
    #[cfg(any(test, feature = "bench", feature = "fuzzing"))]
    pub(crate) fn verify(&self, token: &str, now: Timestamp) -> Result<VerifiedToken, JwtError> {
        self.verified_before(token, now).map_or_else(|| self.verify_anew(token, now), Ok)
    }

    /// The token, if it was verified before and is still valid.
    pub(crate) fn verified_before(&self, token: &str, now: Timestamp) -> Option<VerifiedToken> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let is_current = |entry: &CacheEntry| {
            entry.period.check(now).is_ok() && self.issuers[entry.issuer].has_keys(&entry.keys)
        };
        let token = self.cache.get(&TokenHash::of(token), is_current)?;
        self.stats.count_accepted();
        Some(token)
    }

    /// Verifies a token that was not verified before, without waiting for anything.
    pub(crate) fn verify_anew(&self, token: &str, now: Timestamp) -> Result<VerifiedToken, JwtError> {
        match self.verify_whole(token, now) {
            Ok(entry) => {
                self.stats.count_accepted();
                let verified = entry.token.clone();
                self.cache.insert(TokenHash::of(token), entry);
                Ok(verified)
            }
            Err(error) => Err(self.refuse(error)),
        }
    }

    /// Counts a refused token.
    pub(crate) fn refuse(&self, error: JwtError) -> JwtError {
        self.stats.count_refused(&error);
        error
    }

    /// The steps of verification, in order.
    fn verify_whole(&self, token: &str, now: Timestamp) -> Result<CacheEntry, JwtError> {
        let token = UnverifiedToken::parse(token)?;
        let (header, claims) = (token.header()?, token.claims()?);
        let number = self.find_issuer(&claims)?;
        let issuer = &self.issuers[number];
        let algorithm = issuer.algorithm(&header)?;
        let keys = issuer.keys().ok_or(JwtError::KeysUnavailable)?;
        let Some(key) = keys.find(header.key_id.as_deref()) else {
            issuer.request_refresh();
            return Err(JwtError::UnknownKey);
        };
        if !key.verifies(algorithm, token.message, token.signature) {
            return Err(JwtError::InvalidSignature);
        }
        let period = ValidityPeriod::new(&claims, Span::from(issuer.settings.leeway))?;
        period.check(now)?;
        claims::check_audience(&claims, &issuer.settings.audiences)?;
        let token = claims::identity(&claims, &issuer.settings)?;
        Ok(CacheEntry { token, period, issuer: number, keys })
    }

    fn find_issuer(&self, claims: &Members<'_>) -> Result<usize, JwtError> {
        let name = claims.text("iss").ok().flatten().ok_or(JwtError::UnknownIssuer)?;
        let is_named = |issuer: &Issuer| *issuer.settings.issuer == *name;
        self.issuers.iter().position(is_named).ok_or(JwtError::UnknownIssuer)
    }

    fn remote_keys(&self) -> impl Iterator<Item = &RemoteKeys> {
        self.issuers.iter().filter_map(|issuer| match &issuer.keys {
            KeySource::Remote(keys) => Some(&**keys),
            KeySource::Configured(_) => None,
        })
    }

    /// The fetched keys of an issuer whose keys have the same settings.
    fn same_keys(&self, settings: &JwtIssuer) -> Option<Arc<RemoteKeys>> {
        self.issuers.iter().find_map(|issuer| match &issuer.keys {
            KeySource::Remote(keys) if keys.is_for(settings) => Some(Arc::clone(keys)),
            _ => None,
        })
    }

    /// Why tokens of an issuer cannot be verified: its keys were never fetched.
    pub(crate) fn problem(&self) -> Option<String> {
        self.remote_keys().find_map(RemoteKeys::problem)
    }

    /// The age of the oldest fetched keys, in seconds; 0 without any.
    pub(crate) fn keys_age_secs(&self) -> u64 {
        self.remote_keys().map(|keys| keys.age().as_secs()).max().unwrap_or(0)
    }
}

impl Issuer {
    fn new(settings: &JwtIssuer, stats: &Arc<JwtStats>, before: Option<&JwtVerifier>) -> Self {
        let keys = match &settings.keys {
            JwtKeys::Configured { keys, .. } => KeySource::Configured(Arc::clone(keys)),
            JwtKeys::Remote(source) => {
                let same = before.and_then(|before| before.same_keys(settings));
                KeySource::Remote(same.unwrap_or_else(|| {
                    Arc::new(RemoteKeys::new(settings, source.clone(), Arc::clone(stats)))
                }))
            }
        };
        Issuer { settings: settings.clone(), keys }
    }

    /// The algorithm of the token, which must be one of this issuer.
    fn algorithm(&self, header: &Header) -> Result<Algorithm, JwtError> {
        let is_named = |algorithm: &&Algorithm| keys::name(**algorithm) == header.algorithm;
        self.settings.algorithms.iter().find(is_named).copied().ok_or(JwtError::WrongAlgorithm)
    }

    /// `None` if they were never fetched.
    fn keys(&self) -> Option<Arc<KeySet>> {
        match &self.keys {
            KeySource::Configured(keys) => Some(Arc::clone(keys)),
            KeySource::Remote(keys) => keys.current(),
        }
    }

    /// Whether these keys are still in force.
    fn has_keys(&self, keys: &Arc<KeySet>) -> bool {
        self.keys().is_some_and(|current| Arc::ptr_eq(&current, keys))
    }

    fn request_refresh(&self) {
        if let KeySource::Remote(keys) = &self.keys {
            keys.request_refresh();
        }
    }
}

#[cfg(test)]
mod tests;
