//! API keys: how they are written, made and told from others.
//!
//! `tg_<id>_<secret>`: the id says which key it is and is shown everywhere; the secret is 32 random bytes, shown once. What is
//! kept is HMAC-SHA-256 of the whole text under a secret of the service, so that whoever reads the database can neither
//! use a key nor test a guess. A random secret of that length needs no slow hash.

use std::fmt;
use std::io;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};
use tollgate::accounts::{Accounts, Key};
use tollgate::identity::IdError;
use tollgate::rules::Snapshot;
use tollgate::{ApiKey, Timestamp};

const PREFIX: &str = "tg_";
const ID_CHARACTERS: usize = 16;
const SECRET_CHARACTERS: usize = 43;
const ID_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const SECRET_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// What is kept of a key in place of its text.
pub(crate) type Verifier = [u8; 32];

/// The secret that verifiers are keyed with. The state of the hash after it is kept, not the secret.
#[derive(Clone)]
pub(crate) struct KeySecret(Hmac<Sha256>);

impl KeySecret {
    pub(crate) fn new(secret: &str) -> Self {
        // HMAC takes keys of any length, so that there is no error to tell.
        KeySecret(Hmac::new_from_slice(secret.as_bytes()).unwrap_or_else(|_| Hmac::new(&Default::default())))
    }

    /// What is kept of the key with this text.
    pub(crate) fn verifier(&self, text: &str) -> Verifier {
        self.digest(b"key", text)
    }

    /// By what nodes tell whether their secrets are the same, without telling the secret.
    pub(crate) fn fingerprint(&self) -> Verifier {
        self.digest(b"fingerprint", "")
    }

    fn digest(&self, purpose: &[u8], text: &str) -> Verifier {
        let mut mac = self.0.clone();
        if purpose != b"key" {
            // No key begins like that.
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

/// The id of a text that has the form of a key, whether or not there is such a key.
pub(crate) fn id_of(text: &str) -> Option<&str> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_at_checked(ID_CHARACTERS)?;
    let secret = secret.strip_prefix('_')?;
    let fits = secret.len() == SECRET_CHARACTERS
        && id.bytes().all(|byte| ID_ALPHABET.contains(&byte))
        && secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    fits.then_some(id)
}

/// A key that was made just now. It prints itself only when asked to.
pub(crate) struct NewKey {
    id: String,
    text: String,
}

impl NewKey {
    /// A key nobody has seen.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub(crate) fn random() -> io::Result<Self> {
        let mut bits = [0; ID_CHARACTERS];
        getrandom::fill(&mut bits).map_err(io::Error::other)?;
        let id: String = bits.iter().map(|byte| char::from(ID_ALPHABET[usize::from(byte & 31)])).collect();
        NewKey::with_id(&id)
    }

    /// Another secret for a key there is.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub(crate) fn with_id(id: &str) -> io::Result<Self> {
        Ok(NewKey { id: id.to_owned(), text: format!("{PREFIX}{id}_{}", random_text()?) })
    }

    /// Which key it is.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The whole key, to be shown to whoever asked for it, once.
    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewKey({}, ***)", self.id)
    }
}

/// 32 random bytes in 43 characters that need no escaping anywhere.
///
/// # Errors
/// When the system has no randomness to give.
pub(crate) fn random_text() -> io::Result<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let mut text = String::with_capacity(SECRET_CHARACTERS);
    for group in random.chunks(3) {
        let bits = group
            .iter()
            .enumerate()
            .fold(0_usize, |bits, (n, byte)| bits | usize::from(*byte) << (16 - 8 * n));
        text.extend((0..=group.len()).map(|n| char::from(SECRET_ALPHABET[bits >> (18 - 6 * n) & 63])));
    }
    Ok(text)
}

/// Why a key is no key.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyRefusal {
    /// There is none like it: neither the id nor the secret tells more.
    Unknown,
    /// Its time is over.
    Expired,
    /// It was taken back.
    Revoked,
}

impl KeyRefusal {
    /// The word for it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            KeyRefusal::Unknown => "api_key_unknown",
            KeyRefusal::Expired => "api_key_expired",
            KeyRefusal::Revoked => "api_key_revoked",
        }
    }
}

/// The keys there are, as of one moment. Without any in hand every text is opaque.
pub(crate) struct KeyRing<'a> {
    held: Option<(Snapshot, &'a KeySecret)>,
    now: Timestamp,
}

/// Why a limited client's key is not taken.
pub(crate) enum NotTaken {
    /// It is no identifier.
    Malformed(IdError),
    /// It looks like one of ours and is none that is good.
    Refused(KeyRefusal),
}

impl<'a> KeyRing<'a> {
    pub(crate) fn new(held: Option<(Snapshot, &'a KeySecret)>, now: Timestamp) -> Self {
        KeyRing { held, now }
    }

    /// The limited client whose key this is, and the organisation it belongs to. A text that is not of our form is opaque,
    /// and stands for itself.
    pub(crate) fn client<'k>(&'k self, text: &'k str) -> Result<(ApiKey<'k>, Option<&'k str>), NotTaken> {
        match (&self.held, id_of(text)) {
            (Some((rules, secret)), Some(id)) => {
                let key = verify(rules.accounts(), secret, text, id, self.now).map_err(NotTaken::Refused)?;
                let tenant = key.tenant();
                Ok((ApiKey::known(key), tenant))
            }
            _ => ApiKey::parse(text).map(|key| (key, None)).map_err(NotTaken::Malformed),
        }
    }
}

/// The key with this text and id.
///
/// Of an id that is not known a verifier is compared too, one that no text has: how long it takes tells nothing about
/// which ids there are. Only who has the secret learns that a key has expired or was revoked.
pub(crate) fn verify<'a>(
    accounts: &'a Accounts,
    secret: &KeySecret,
    text: &str,
    id: &str,
    now: Timestamp,
) -> Result<Key<'a>, KeyRefusal> {
    const NOBODY: Verifier = [0; 32];
    let presented = secret.verifier(text);
    let found = accounts.key(id);
    let current = found.as_ref().map_or(&NOBODY, Key::verifier);
    let previous = found.as_ref().and_then(|key| key.previous(now)).unwrap_or(&NOBODY);
    let fits = presented.ct_eq(current) | presented.ct_eq(previous);
    match found {
        Some(key) if bool::from(fits & Choice::from(1)) => judge(key, now),
        _ => Err(KeyRefusal::Unknown),
    }
}

fn judge(key: Key<'_>, now: Timestamp) -> Result<Key<'_>, KeyRefusal> {
    if key.is_revoked() {
        Err(KeyRefusal::Revoked)
    } else if key.expires_at().is_some_and(|end| end <= now) {
        Err(KeyRefusal::Expired)
    } else {
        Ok(key)
    }
}
