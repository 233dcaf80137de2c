//! API keys: their format, generation and verification.
//!
//! A key is `tg_<id>_<secret>`. The id is public; the secret is 32 random bytes, shown once. Stored is the HMAC-SHA-256 of the
//! whole key under `auth.key_secret`, so a copy of the database allows neither using a key nor testing a guess. A random secret of
//! that length needs no slow hash.
//!
//! Keys of another system can be imported, as text or as SHA-256. Their id is derived from the stored hash, because the text has none.

use std::fmt;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};
use tollgate::Timestamp;
use tollgate::accounts::{Accounts, Key};

const PREFIX: &str = "tg_";
const ID_CHARACTERS: usize = 16;
const SECRET_CHARACTERS: usize = 43;
const ID_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// What is stored of a key.
pub(crate) type Verifier = [u8; 32];

/// The HMAC key of verifiers, as the state of the hash after it.
#[derive(Clone)]
pub(crate) struct KeySecret(Hmac<Sha256>);

impl KeySecret {
    pub(crate) fn new(secret: &str) -> Self {
        // HMAC accepts keys of any length.
        let keyed = Hmac::new_from_slice(secret.as_bytes());
        KeySecret(keyed.unwrap_or_else(|_| Hmac::new(&hmac::digest::Key::<Hmac<Sha256>>::default())))
    }

    /// What is stored of this key.
    pub(crate) fn verifier(&self, text: &str) -> Verifier {
        self.digest(text.as_bytes())
    }

    /// Identifies the secret without revealing it, so that nodes can compare theirs.
    pub(crate) fn fingerprint(&self) -> Verifier {
        // No API key starts with NUL.
        self.digest(b"\0fingerprint")
    }

    /// What is stored of an imported key with this SHA-256.
    fn imported_verifier(&self, sha256: &[u8; 32]) -> Verifier {
        // No API key starts with NUL.
        let keyed = self.0.clone().chain_update(b"\0imported").chain_update(sha256);
        keyed.finalize().into_bytes().into()
    }

    fn digest(&self, text: &[u8]) -> Verifier {
        self.0.clone().chain_update(text).finalize().into_bytes().into()
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(***)")
    }
}

/// The id in a text of the form of an API key, whether or not the key exists.
pub(crate) fn id_of(text: &str) -> Option<&str> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_at_checked(ID_CHARACTERS)?;
    let secret = secret.strip_prefix('_')?;
    let fits = secret.len() == SECRET_CHARACTERS
        && is_id(id)
        && secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    fits.then_some(id)
}

/// Why text with a whole key is refused where an id is expected. It is never repeated.
pub(crate) const KEY_INSTEAD_OF_ID: &str =
    "must not contain an API key; send its id, the 16 characters between `tg_` and the second `_`";

/// Characters of a secret that make text a key: a key may be truncated when it is pasted.
const SECRET_CHARACTERS_MIN: usize = 20;

/// Whether text contains a key of this service, whether or not it exists: `tg_<id>_<secret>` or the admin key.
pub(crate) fn contains_key(text: &str) -> bool {
    // Most ids are shorter than a key, or have no underscore.
    if text.len() < PREFIX.len() + SECRET_CHARACTERS_MIN || !text.contains('_') {
        return false;
    }
    let is_secret = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.match_indices(PREFIX).any(|(at, prefix)| {
        let Some((id, secret)) = text[at + prefix.len()..].split_once('_') else { return false };
        let characters = secret.bytes().take_while(is_secret).count();
        (is_id(id) || id == "admin") && characters >= SECRET_CHARACTERS_MIN
    })
}

/// Whether a text has the form of a key id.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == ID_CHARACTERS && text.bytes().all(|byte| ID_ALPHABET.contains(&byte))
}

/// A newly generated key; `Debug` does not show its secret.
pub(crate) struct NewKey {
    id: String,
    text: String,
}

impl NewKey {
    /// Generates a key.
    ///
    /// # Errors
    /// When the system provides no randomness.
    pub(crate) fn random() -> io::Result<Self> {
        let mut bits = [0; ID_CHARACTERS];
        getrandom::fill(&mut bits).map_err(io::Error::other)?;
        let id: String = bits.iter().map(|byte| char::from(ID_ALPHABET[usize::from(byte & 31)])).collect();
        NewKey::with_id(&id)
    }

    /// Generates another secret for an existing key.
    ///
    /// # Errors
    /// When the system provides no randomness.
    pub(crate) fn with_id(id: &str) -> io::Result<Self> {
        Ok(NewKey { id: id.to_owned(), text: format!("{PREFIX}{id}_{}", random_secret()?) })
    }

    /// The id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The whole key.
    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewKey({}, ***)", self.id)
    }
}

/// 32 random bytes in URL-safe base64: 43 characters.
///
/// # Errors
/// When the system provides no randomness.
pub(crate) fn random_secret() -> io::Result<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(URL_SAFE_NO_PAD.encode(random))
}

/// A key of another system.
pub(crate) struct ImportedKey {
    pub(crate) id: String,
    pub(crate) verifier: Verifier,
}

impl ImportedKey {
    /// The id consists of bits of the verifier: it reveals nothing about the key.
    pub(crate) fn new(secret: &KeySecret, sha256: &[u8; 32]) -> Self {
        let verifier = secret.imported_verifier(sha256);
        let bits = verifier.iter().take(ID_CHARACTERS);
        let id = bits.map(|byte| char::from(ID_ALPHABET[usize::from(byte & 31)])).collect();
        ImportedKey { id, verifier }
    }
}

/// The SHA-256 of a key.
pub(crate) fn sha256_of(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// What [`parse_sha256`] expects.
pub(crate) const INVALID_SHA256: &str = "must be the SHA-256 of the key as 64 hexadecimal digits";

/// Parses a SHA-256 in hexadecimal.
pub(crate) fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// The account of a presented key: one of this service, or an imported one. `None` if the text is neither.
pub(crate) fn find<'a>(
    accounts: &'a Accounts,
    secret: &KeySecret,
    text: &str,
    now: Timestamp,
) -> Option<Result<Key<'a>, KeyRefusal>> {
    if let Some(id) = id_of(text) {
        return Some(verify(accounts, secret, text, id, now));
    }
    if accounts.keys() == 0 {
        return None;
    }
    let presented = ImportedKey::new(secret, &sha256_of(text));
    let key = accounts.key(&presented.id)?;
    bool::from(fits(&presented.verifier, &key, now)).then(|| require_valid(key, now))
}

/// Why a key is refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyRefusal {
    /// The id is unknown or the secret is wrong; both look the same.
    Unknown,
    /// It has expired.
    Expired,
    /// It was revoked.
    Revoked,
}

impl KeyRefusal {
    pub(crate) const ALL: [KeyRefusal; 3] = [KeyRefusal::Unknown, KeyRefusal::Expired, KeyRefusal::Revoked];

    /// The reason as shown in responses and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            KeyRefusal::Unknown => "api_key_unknown",
            KeyRefusal::Expired => "api_key_expired",
            KeyRefusal::Revoked => "api_key_revoked",
        }
    }
}

/// The status of the key with this id, for operators: `active`, `expired`, `revoked`, or `unknown` if this server has no such key.
pub(crate) fn status(accounts: &Accounts, id: &str, now: Timestamp) -> &'static str {
    match accounts.key(id).map(|key| require_valid(key, now)) {
        Some(Ok(_)) => "active",
        Some(Err(KeyRefusal::Revoked)) => "revoked",
        Some(Err(KeyRefusal::Expired)) => "expired",
        Some(Err(KeyRefusal::Unknown)) | None => "unknown",
    }
}

/// The key with this text and id, if its secret matches.
///
/// For an unknown id the verifier of another key is looked up and compared, so that the duration does not reveal which ids exist
/// (`tests/timing.rs` measures it). Only a caller with the right secret learns that a key has expired or was revoked.
pub(crate) fn verify<'a>(
    accounts: &'a Accounts,
    secret: &KeySecret,
    text: &str,
    id: &str,
    now: Timestamp,
) -> Result<Key<'a>, KeyRefusal> {
    let presented = secret.verifier(text);
    let (key, is_known) = accounts.key_or_decoy(id);
    if bool::from(fits(&presented, &key, now) & Choice::from(u8::from(is_known))) {
        require_valid(key, now)
    } else {
        Err(KeyRefusal::Unknown)
    }
}

/// Compares with the secret of a key and the one before, in constant time.
fn fits(presented: &Verifier, key: &Key<'_>, now: Timestamp) -> Choice {
    const NO_PREVIOUS: Verifier = [0; 32];
    let previous = key.previous_verifier(now).unwrap_or(&NO_PREVIOUS);
    presented.ct_eq(&key.verifier) | presented.ct_eq(previous)
}

fn require_valid(key: Key<'_>, now: Timestamp) -> Result<Key<'_>, KeyRefusal> {
    if key.is_revoked {
        Err(KeyRefusal::Revoked)
    } else if key.is_expired(now) {
        Err(KeyRefusal::Expired)
    } else {
        Ok(key)
    }
}

#[cfg(test)]
mod tests;
