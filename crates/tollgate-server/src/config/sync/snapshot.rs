//! The last valid configuration on disk: `config.snap`.
//!
//! Format: magic with the format version, configuration version, hash of the database name, length, JSON head, its SHA-256, then
//! the accounts, which have their own checksum. A file that does not match is not used.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tollgate::accounts::Accounts;
use tollgate::identity::Normalization;
use tollgate::rules::overrides::{Override, Overrides};
use tollgate_stores::sql::{Item, RuleItem, TierItem};

use super::database_rules::DatabaseRules;

const MAGIC: &[u8; 8] = b"tgconf\0\x01";
/// Far more than rules and overrides need.
const HEAD_BYTES_MAX: u64 = 1 << 30;

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Written by another version, or not a snapshot.
    #[error("unknown file format")]
    Format,
    /// A checksum does not match.
    #[error("the file is corrupt")]
    Corrupt,
}

/// The configuration at one version.
#[derive(Debug, Default)]
pub(crate) struct Configuration {
    pub(crate) version: u64,
    pub(super) rules: DatabaseRules,
    pub(super) overrides: Overrides,
    pub(crate) accounts: Accounts,
    /// Whether some ids were not normalized.
    pub(super) has_other_ids: bool,
    /// The normalization that the ids were loaded with.
    pub(super) normalization: Normalization,
}

/// Everything except the accounts, which have a binary format.
#[derive(Serialize, Deserialize)]
struct Head {
    /// The database, as [`SqlSettings::describe`](tollgate_stores::sql::SqlSettings::describe) prints it.
    #[serde(rename = "place")]
    database: String,
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

/// Writes the configuration of a database.
pub(super) fn write(
    database: &str,
    version: u64,
    rules: &DatabaseRules,
    overrides: &Overrides,
    accounts: &Accounts,
    file: &mut impl Write,
) -> io::Result<()> {
    let head = serde_json::to_vec(&Head::new(database, version, rules, overrides))?;
    file.write_all(MAGIC)?;
    file.write_all(&version.to_le_bytes())?;
    file.write_all(&database_hash(database))?;
    file.write_all(&(head.len() as u64).to_le_bytes())?;
    file.write_all(&head)?;
    file.write_all(&Sha256::digest(&head))?;
    accounts.write_to(file)
}

/// Reads a configuration and the name of its database.
pub(crate) fn read(file: File) -> Result<(String, Configuration), SnapshotError> {
    let length = file.metadata()?.len();
    let mut file = BufReader::with_capacity(1 << 20, file);
    let (version, database) = read_start(&mut file)?;
    let head_bytes = u64::from_le_bytes(read_eight(&mut file)?);
    if head_bytes > HEAD_BYTES_MAX.min(length) {
        return Err(SnapshotError::Corrupt);
    }
    let mut head = Vec::new();
    (&mut file).take(head_bytes).read_to_end(&mut head)?;
    let mut checksum = [0; 32];
    file.read_exact(&mut checksum)?;
    if checksum != *Sha256::digest(&head) {
        return Err(SnapshotError::Corrupt);
    }
    let head: Head = serde_json::from_slice(&head).map_err(|_| SnapshotError::Format)?;
    if head.version != version || database_hash(&head.database) != database {
        return Err(SnapshotError::Corrupt);
    }
    let accounts = Accounts::read_from(&mut file).map_err(|_| SnapshotError::Corrupt)?;
    Ok(head.into_configuration(accounts))
}

/// Reads only the version of a configuration; `None` if it is of another database.
pub(crate) fn read_version(mut file: File, database: &str) -> Option<u64> {
    let (version, hash) = read_start(&mut file).ok()?;
    (hash == database_hash(database)).then_some(version)
}

fn read_start(file: &mut impl Read) -> Result<(u64, [u8; 8]), SnapshotError> {
    if read_eight(file)? != *MAGIC {
        return Err(SnapshotError::Format);
    }
    Ok((u64::from_le_bytes(read_eight(file)?), read_eight(file)?))
}

fn read_eight(file: &mut impl Read) -> io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Identifies the database in the first bytes of the file.
fn database_hash(database: &str) -> [u8; 8] {
    let mut hash = [0; 8];
    hash.copy_from_slice(&Sha256::digest(database.as_bytes())[..8]);
    hash
}

impl Head {
    fn new(database: &str, version: u64, stored: &DatabaseRules, overrides: &Overrides) -> Self {
        let (mut rules, mut tiers) = (Vec::new(), Vec::new());
        for item in stored.items() {
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
        Head { database: database.to_owned(), version, rules, tiers, limits }
    }

    fn into_configuration(self, accounts: Accounts) -> (String, Configuration) {
        let mut rules = DatabaseRules::default();
        for RuleEntry { name, body } in self.rules {
            rules.put(&Item::Rule(RuleItem { name, body }));
        }
        for TierEntry { name, description, body } in self.tiers {
            rules.put(&Item::Tier(TierItem { name, description, body }));
        }
        let overrides = self.limits.into_iter().collect();
        (
            self.database,
            Configuration { version: self.version, rules, overrides, accounts, ..Configuration::default() },
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tollgate::accounts::Key;
    use tollgate::{Endpoint, Id, Limit, Timestamp};

    use super::*;

    fn written(database: &str) -> Vec<u8> {
        let mut rules = DatabaseRules::default();
        let body = json!({ "limits": [{ "requests": 4, "window": "1s" }] }).as_object().unwrap().clone();
        rules.put(&Item::Rule(RuleItem { name: "burst".to_owned(), body }));
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
        accounts.put_key(&Key::new("abcdefghijklmn27", [7; 32])).unwrap();
        let mut bytes = Vec::new();
        write(database, 42, &rules, &overrides, &accounts.finish(), &mut bytes).unwrap();
        bytes
    }

    fn read_bytes(bytes: &[u8]) -> Result<(String, Configuration), SnapshotError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        read(file)
    }

    #[test]
    fn configuration_survives_a_round_trip() {
        let (database, read) = read_bytes(&written("here")).unwrap();
        assert_eq!((database.as_str(), read.version), ("here", 42));
        assert!(read.rules.contains("burst"));
        let set = read.overrides.get("alice", "/x").unwrap();
        assert_eq!((set.limit.limit.requests(), set.updated_at), (7, Timestamp::from_secs(9)));
        assert_eq!(read.accounts.key("abcdefghijklmn27").unwrap().verifier, [7; 32]);
    }

    #[test]
    fn truncated_or_corrupt_snapshot_is_rejected() {
        let bytes = written("here");
        for length in 0..bytes.len() {
            assert!(read_bytes(&bytes[..length]).is_err(), "{length}");
        }
        for position in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone();
            changed[position] ^= 0x10;
            assert!(read_bytes(&changed).is_err(), "{position}");
        }
    }
}
