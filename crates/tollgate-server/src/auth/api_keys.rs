//! API keys: how they are written, made and told from others.
//!
//! `tg_<id>_<secret>`: the id says which key it is and is shown everywhere; the secret is 32 random bytes, shown once. What is
//! kept is HMAC-SHA-256 of the whole text under a secret of the service, so that whoever reads the database can neither
//! use a key nor test a guess. A random secret of that length needs no slow hash.

#[cfg(test)]
mod timing;

use std::fmt;
use std::io;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};
use tollgate::Timestamp;
use tollgate::accounts::{Accounts, Key};

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
        let keyed = Hmac::new_from_slice(secret.as_bytes());
        KeySecret(keyed.unwrap_or_else(|_| Hmac::new(&hmac::digest::Key::<Hmac<Sha256>>::default())))
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
        && is_id(id)
        && secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    fits.then_some(id)
}

/// Whether a text has the form of a key's id.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == ID_CHARACTERS && text.bytes().all(|byte| ID_ALPHABET.contains(&byte))
}

/// A key that was made just now. It prints itself only when asked to.
pub(crate) struct NewKey {
    id: String,
    text: String,
}

#[allow(dead_code, reason = "the admin routes use all of it")]
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

/// The key with this text and id.
///
/// For an id that is not known the verifier of another key is looked up and compared in its place, to no avail: how long it takes
/// tells nothing about which ids there are (`timing.rs` measures it). Only who has the secret learns that a key has expired or was revoked.
pub(crate) fn verify<'a>(
    accounts: &'a Accounts,
    secret: &KeySecret,
    text: &str,
    id: &str,
    now: Timestamp,
) -> Result<Key<'a>, KeyRefusal> {
    const NOBODY: Verifier = [0; 32];
    let presented = secret.verifier(text);
    let (key, is_it) = accounts.key_or_decoy(id);
    let previous = key.previous(now).unwrap_or(&NOBODY);
    let fits = presented.ct_eq(key.verifier()) | presented.ct_eq(previous);
    if bool::from(fits & Choice::from(u8::from(is_it))) { judge(key, now) } else { Err(KeyRefusal::Unknown) }
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

#[cfg(test)]
mod tests {
    use tollgate::accounts::NewKey as Record;

    use super::*;

    pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    pub(crate) fn secret() -> KeySecret {
        KeySecret::new("0123456789abcdef0123456789abcdef")
    }

    /// A key that is known, changed by `change` before it is.
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
        verify(accounts, &secret(), text, id, NOW).map(|key| key.id().to_owned())
    }

    /// The same key with another secret.
    fn with_wrong_secret(text: &str) -> String {
        format!("tg_{}_{}", id_of(text).unwrap(), "A".repeat(SECRET_CHARACTERS))
    }

    #[test]
    fn a_new_key_has_the_form_of_a_key_and_is_like_no_other() {
        let (first, second) = (NewKey::random().unwrap(), NewKey::random().unwrap());
        assert_eq!(id_of(first.reveal()), Some(first.id()));
        assert_eq!(first.reveal().len(), 3 + 16 + 1 + 43);
        assert_ne!(first.id(), second.id());
        let rotated = NewKey::with_id(first.id()).unwrap();
        assert_eq!(rotated.id(), first.id());
        assert_ne!(rotated.reveal(), first.reveal());
    }

    #[test]
    fn what_has_not_exactly_the_form_is_opaque() {
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
    fn a_key_with_its_secret_is_known() {
        let (accounts, text) = known(|_| {});
        assert_eq!(outcome(&accounts, &text).as_deref(), Ok(id_of(&text).unwrap()));
    }

    #[test]
    fn t28_a_wrong_secret_and_an_unknown_id_are_refused_alike_after_the_same_comparisons() {
        let (accounts, text) = known(|key| key.is_revoked = true);
        let unknown = NewKey::random().unwrap();
        assert_eq!(outcome(&accounts, &with_wrong_secret(&text)), Err(KeyRefusal::Unknown));
        assert_eq!(outcome(&accounts, unknown.reveal()), Err(KeyRefusal::Unknown));
        // Nobody has the verifier that stands in for a key that is not there.
        assert_eq!(accounts.key(unknown.id()).map(|_| ()), None);
        assert_ne!(secret().verifier(unknown.reveal()), [0; 32]);
    }

    #[test]
    fn only_who_has_the_secret_learns_that_a_key_has_expired_or_was_revoked() {
        let (expired, text) = known(|key| key.expires_at = Some(NOW));
        assert_eq!(outcome(&expired, &text), Err(KeyRefusal::Expired));
        assert_eq!(outcome(&expired, &with_wrong_secret(&text)), Err(KeyRefusal::Unknown));
        let (revoked, text) = known(|key| key.is_revoked = true);
        assert_eq!(outcome(&revoked, &text), Err(KeyRefusal::Revoked));
        let (later, text) = known(|key| key.expires_at = Some(NOW + tollgate::Span::from_secs(1)));
        assert!(outcome(&later, &text).is_ok());
    }

    #[test]
    fn after_a_rotation_both_secrets_are_good_until_the_overlap_ends() {
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
    fn t27_verifiers_are_of_no_use_without_the_secret_of_the_service() {
        let key = NewKey::random().unwrap();
        let other = KeySecret::new("fedcba9876543210fedcba9876543210");
        assert_ne!(secret().verifier(key.reveal()), other.verifier(key.reveal()));
        assert_ne!(secret().fingerprint(), other.fingerprint());
        // HMAC-SHA-256 as RFC 4231 tests it, case 2.
        let known = KeySecret::new("Jefe").verifier("what do ya want for nothing?");
        assert_eq!(known[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
    }

    #[test]
    fn t56_neither_a_new_key_nor_the_secret_prints_itself() {
        let key = NewKey::random().unwrap();
        let shown = format!("{key:?} {:?}", secret());
        assert!(!shown.contains(&key.reveal()[20..]) && !shown.contains("0123456789"), "{shown}");
    }
}
