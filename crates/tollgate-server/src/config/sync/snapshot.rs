//! The last good configuration, on disk: `config.snap`.
//!
//! A mark with the version of the form, the version of what is inside, what is inside, and its SHA-256; then the accounts, which have a checksum of their own.
//! What does not match is not used: a node would rather say that it has nothing.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tollgate::accounts::Accounts;
use tollgate::rules::overrides::{Override, Overrides};
use tollgate_stores::sql::{Item, RuleItem, TierItem};

use super::database_rules::DatabaseRules;

const MARK: &[u8; 8] = b"tgconf\0\x01";
/// Rules and numbers for single users take far less.
const HEAD_BYTES_MAX: u64 = 1 << 30;

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Written by another version, or no snapshot at all.
    #[error("it is of a form that is not known here")]
    Form,
    /// Bytes were changed or lost.
    #[error("it is damaged")]
    Damaged,
}

/// A configuration as of one version.
#[derive(Debug, Default)]
pub(crate) struct Configuration {
    pub(crate) version: u64,
    pub(super) book: DatabaseRules,
    pub(super) overrides: Overrides,
    pub(crate) accounts: Accounts,
}

/// Everything but the accounts, which are many and have a form of their own.
#[derive(Serialize, Deserialize)]
struct Head {
    /// Which database it is from.
    place: String,
    version: u64,
    rules: Vec<RuleEntry>,
    tiers: Vec<TierEntry>,
    limits: Vec<Override>,
}

type Body = serde_json::Map<String, serde_json::Value>;

#[derive(Serialize, Deserialize)]
struct RuleEntry {
    name: String,
    body: Body,
}

#[derive(Serialize, Deserialize)]
struct TierEntry {
    name: String,
    description: String,
    body: Body,
}

/// Writes a configuration of the database at `place`.
pub(super) fn write(
    place: &str,
    version: u64,
    book: &DatabaseRules,
    overrides: &Overrides,
    accounts: &Accounts,
    file: &mut impl Write,
) -> io::Result<()> {
    let head = serde_json::to_vec(&Head::of(place, version, book, overrides))?;
    file.write_all(MARK)?;
    file.write_all(&version.to_le_bytes())?;
    file.write_all(&place_mark(place))?;
    file.write_all(&(head.len() as u64).to_le_bytes())?;
    file.write_all(&head)?;
    file.write_all(&Sha256::digest(&head))?;
    accounts.write_to(file)
}

/// Reads a configuration and the place it is from.
pub(crate) fn read(file: File) -> Result<(String, Configuration), SnapshotError> {
    let length = file.metadata()?.len();
    let mut file = BufReader::with_capacity(1 << 20, file);
    let (version, place) = read_start(&mut file)?;
    let head_bytes = u64::from_le_bytes(read_eight(&mut file)?);
    if head_bytes > HEAD_BYTES_MAX.min(length) {
        return Err(SnapshotError::Damaged);
    }
    let mut head = Vec::new();
    (&mut file).take(head_bytes).read_to_end(&mut head)?;
    let mut checksum = [0; 32];
    file.read_exact(&mut checksum)?;
    if checksum != *Sha256::digest(&head) {
        return Err(SnapshotError::Damaged);
    }
    let head: Head = serde_json::from_slice(&head).map_err(|_| SnapshotError::Form)?;
    if head.version != version || place_mark(&head.place) != place {
        return Err(SnapshotError::Damaged);
    }
    let accounts = Accounts::read_from(&mut file).map_err(|_| SnapshotError::Damaged)?;
    Ok(head.into_configuration(accounts))
}

/// The version of a configuration of the database at `place`, without reading the rest of it.
pub(crate) fn read_version(mut file: File, place: &str) -> Option<u64> {
    let (version, from) = read_start(&mut file).ok()?;
    (from == place_mark(place)).then_some(version)
}

fn read_start(file: &mut impl Read) -> Result<(u64, [u8; 8]), SnapshotError> {
    if read_eight(file)? != *MARK {
        return Err(SnapshotError::Form);
    }
    Ok((u64::from_le_bytes(read_eight(file)?), read_eight(file)?))
}

fn read_eight(file: &mut impl Read) -> io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// By what a snapshot of another database is told apart at first sight.
fn place_mark(place: &str) -> [u8; 8] {
    let mut mark = [0; 8];
    mark.copy_from_slice(&Sha256::digest(place.as_bytes())[..8]);
    mark
}

impl Head {
    fn of(place: &str, version: u64, book: &DatabaseRules, overrides: &Overrides) -> Self {
        let (mut rules, mut tiers) = (Vec::new(), Vec::new());
        for item in book.items() {
            match item {
                Item::Rule(RuleItem { name, body }) => {
                    rules.push(RuleEntry { name: name.clone(), body: body.clone() });
                }
                Item::Tier(TierItem { name, description, body }) => tiers.push(TierEntry {
                    name: name.clone(),
                    description: description.clone(),
                    body: body.clone(),
                }),
                _ => {}
            }
        }
        let limits = overrides.iter().cloned().collect();
        Head { place: place.to_owned(), version, rules, tiers, limits }
    }

    fn into_configuration(self, accounts: Accounts) -> (String, Configuration) {
        let mut book = DatabaseRules::default();
        for RuleEntry { name, body } in self.rules {
            book.put(&Item::Rule(RuleItem { name, body }));
        }
        for TierEntry { name, description, body } in self.tiers {
            book.put(&Item::Tier(TierItem { name, description, body }));
        }
        let overrides = self.limits.into_iter().collect();
        let configuration = Configuration { version: self.version, book, overrides, accounts };
        (self.place, configuration)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tollgate::accounts::NewKey;
    use tollgate::{Endpoint, Id, Limit, Timestamp};

    use super::*;

    fn written(place: &str) -> Vec<u8> {
        let mut book = DatabaseRules::default();
        let body = json!({ "limits": [{ "requests": 4, "window": "1s" }] }).as_object().unwrap().clone();
        book.put(&Item::Rule(RuleItem { name: "burst".to_owned(), body }));
        let limit = Limit::new(
            tollgate::Algorithm::TokenBucket,
            7,
            tollgate::Window::Length(tollgate::Span::from_secs(60)),
        )
        .unwrap();
        let (user, endpoint) = (Id::parse("alice").unwrap(), Endpoint::parse("/x").unwrap());
        let overrides =
            [Override::new(user, &endpoint, limit, Timestamp::from_secs(9))].into_iter().collect();
        let mut accounts = Accounts::default().edit();
        accounts.put_key(&NewKey::new("abcdefghijklmn27", [7; 32])).unwrap();
        let mut bytes = Vec::new();
        write(place, 42, &book, &overrides, &accounts.finish(), &mut bytes).unwrap();
        bytes
    }

    fn read_bytes(bytes: &[u8]) -> Result<(String, Configuration), SnapshotError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        read(file)
    }

    #[test]
    fn what_was_written_is_read() {
        let (place, read) = read_bytes(&written("here")).unwrap();
        assert_eq!((place.as_str(), read.version), ("here", 42));
        assert!(read.book.has("burst"));
        let set = read.overrides.get("alice", "/x").unwrap();
        assert_eq!((set.limit.limit.requests(), set.updated_at), (7, Timestamp::from_secs(9)));
        assert_eq!(read.accounts.key("abcdefghijklmn27").unwrap().verifier(), &[7; 32]);
    }

    #[test]
    fn a_snapshot_that_is_cut_off_or_changed_anywhere_is_not_used() {
        let bytes = written("here");
        for length in 0..bytes.len() {
            assert!(read_bytes(&bytes[..length]).is_err(), "{length}");
        }
        for place in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            assert!(read_bytes(&changed).is_err(), "{place}");
        }
    }
}
