//! API keys: their format, generation and verification.
//!
//! A key is `tg_<id>_<secret>`. The id is public; the secret is 32 random bytes, shown once. Stored is the HMAC-SHA-256 of the
//! whole key under `auth.key_secret`, so a copy of the database allows neither using a key nor testing a guess. A random secret of
//! that length needs no slow hash.

#[cfg(test)]
mod timing;

use std::fmt;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
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
        self.digest(b"key", text)
    }

    /// Identifies the secret without revealing it, so that nodes can compare theirs.
    pub(crate) fn fingerprint(&self) -> Verifier {
        self.digest(b"fingerprint", "")
    }

    fn digest(&self, purpose: &[u8], text: &str) -> Verifier {
        let mut mac = self.0.clone();
        if purpose != b"key" {
            // No API key starts with NUL.
            mac.update(b"\0");
            mac.update(purpose);
        }
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().into()
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
    /// The reason as shown in responses and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            KeyRefusal::Unknown => "api_key_unknown",
            KeyRefusal::Expired => "api_key_expired",
            KeyRefusal::Revoked => "api_key_revoked",
        }
    }
}

/// The key with this text and id, if its secret matches.
///
/// For an unknown id the verifier of another key is looked up and compared, so that the duration does not reveal which ids exist
/// (`timing.rs` measures it). Only a caller with the right secret learns that a key has expired or was revoked.
pub(crate) fn verify<'a>(
    accounts: &'a Accounts,
    secret: &KeySecret,
    text: &str,
    id: &str,
    now: Timestamp,
) -> Result<Key<'a>, KeyRefusal> {
    const NO_PREVIOUS: Verifier = [0; 32];
    let presented = secret.verifier(text);
    let (key, is_known) = accounts.key_or_decoy(id);
    let previous = key.previous_verifier(now).unwrap_or(&NO_PREVIOUS);
    let fits = presented.ct_eq(&key.verifier) | presented.ct_eq(previous);
    if bool::from(fits & Choice::from(u8::from(is_known))) {
        require_valid(key, now)
    } else {
        Err(KeyRefusal::Unknown)
    }
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
mod tests {
    use tollgate::accounts::Key as Record;

    use super::*;

    pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    pub(crate) fn secret() -> KeySecret {
        KeySecret::new("0123456789abcdef0123456789abcdef")
    }

    /// Accounts with one key, modified by `change`.
    fn known(change: impl Fn(&mut Record<'_>)) -> (Accounts, String) {
        let key = NewKey::random().unwrap();
        let mut record = Record::new(key.id(), secret().verifier(key.reveal()));
        change(&mut record);
        let mut accounts = Accounts::default().edit();
        accounts.put_key(&record).unwrap();
        (accounts.finish(), key.reveal().to_owned())
    }

    fn outcome(accounts: &Accounts, text: &str) -> Result<String, KeyRefusal> {
        let id = id_of(text).unwrap();
        verify(accounts, &secret(), text, id, NOW).map(|key| key.id.to_owned())
    }

    /// The same key with another secret.
    fn with_wrong_secret(text: &str) -> String {
        format!("tg_{}_{}", id_of(text).unwrap(), "A".repeat(SECRET_CHARACTERS))
    }

    #[test]
    fn new_keys_are_well_formed_and_unique() {
        let (first, second) = (NewKey::random().unwrap(), NewKey::random().unwrap());
        assert_eq!(id_of(first.reveal()), Some(first.id()));
        assert_eq!(first.reveal().len(), 3 + 16 + 1 + 43);
        assert_ne!(first.id(), second.id());
        let rotated = NewKey::with_id(first.id()).unwrap();
        assert_eq!(rotated.id(), first.id());
        assert_ne!(rotated.reveal(), first.reveal());
    }

    #[test]
    fn text_of_another_form_is_opaque() {
        let (id, secret) = ("abcdefghijklmn27", "A".repeat(43));
        assert_eq!(id_of(&format!("tg_{id}_{secret}")), Some(id));
        for text in [
            format!("tg_{id}_{secret}A"),
            format!("tg_{id}_{}", &secret[1..]),
            format!("tg_{}_{secret}", id.to_uppercase()),
            format!("tg_abcdefghijklmn18_{secret}"),
            format!("TG_{id}_{secret}"),
            format!("tg_{id}-{secret}"),
            format!("tg_{id}_{}+", &secret[1..]),
            format!("tg_admin_{secret}"),
            format!("tg_äbcdefghijklm27_{secret}"),
            String::new(),
        ] {
            assert_eq!(id_of(&text), None, "{text}");
        }
    }

    #[test]
    fn key_with_its_secret_is_verified() {
        let (accounts, text) = known(|_| {});
        assert_eq!(outcome(&accounts, &text).as_deref(), Ok(id_of(&text).unwrap()));
    }

    #[test]
    fn wrong_secret_and_unknown_id_are_refused_alike() {
        let (accounts, text) = known(|key| key.is_revoked = true);
        let unknown = NewKey::random().unwrap();
        assert_eq!(outcome(&accounts, &with_wrong_secret(&text)), Err(KeyRefusal::Unknown));
        assert_eq!(outcome(&accounts, unknown.reveal()), Err(KeyRefusal::Unknown));
        // The verifier compared in place of an unknown key matches nothing.
        assert_eq!(accounts.key(unknown.id()).map(|_| ()), None);
        assert_ne!(secret().verifier(unknown.reveal()), [0; 32]);
    }

    #[test]
    fn expiry_is_revealed_only_with_the_right_secret() {
        let (expired, text) = known(|key| key.expires_at = Some(NOW));
        assert_eq!(outcome(&expired, &text), Err(KeyRefusal::Expired));
        assert_eq!(outcome(&expired, &with_wrong_secret(&text)), Err(KeyRefusal::Unknown));
        let (revoked, text) = known(|key| key.is_revoked = true);
        assert_eq!(outcome(&revoked, &text), Err(KeyRefusal::Revoked));
        let (later, text) = known(|key| key.expires_at = Some(NOW + tollgate::Span::from_secs(1)));
        assert!(outcome(&later, &text).is_ok());
    }

    #[test]
    fn rotation_accepts_both_secrets_until_the_overlap_ends() {
        let old = NewKey::random().unwrap();
        let new = NewKey::with_id(old.id()).unwrap();
        let with_overlap = |until| {
            let mut record = Record::new(old.id(), secret().verifier(new.reveal()));
            record.previous = Some((secret().verifier(old.reveal()), until));
            let mut accounts = Accounts::default().edit();
            accounts.put_key(&record).unwrap();
            accounts.finish()
        };
        let during = with_overlap(NOW + tollgate::Span::from_secs(1));
        assert!(outcome(&during, old.reveal()).is_ok() && outcome(&during, new.reveal()).is_ok());
        let after = with_overlap(NOW);
        assert_eq!(outcome(&after, old.reveal()), Err(KeyRefusal::Unknown));
        assert!(outcome(&after, new.reveal()).is_ok());
    }

    #[test]
    fn verifiers_depend_on_the_key_secret() {
        let key = NewKey::random().unwrap();
        let other = KeySecret::new("fedcba9876543210fedcba9876543210");
        assert_ne!(secret().verifier(key.reveal()), other.verifier(key.reveal()));
        assert_ne!(secret().fingerprint(), other.fingerprint());
        // RFC 4231, test case 2.
        let known = KeySecret::new("Jefe").verifier("what do ya want for nothing?");
        assert_eq!(known[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
    }

    #[test]
    fn debug_shows_neither_key_nor_secret() {
        let key = NewKey::random().unwrap();
        let shown = format!("{key:?} {:?}", secret());
        assert!(!shown.contains(&key.reveal()[20..]) && !shown.contains("0123456789"), "{shown}");
    }
}
