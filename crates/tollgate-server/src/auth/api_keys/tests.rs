mod timing;

use tollgate::accounts::Key as Record;

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn secret() -> KeySecret {
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
