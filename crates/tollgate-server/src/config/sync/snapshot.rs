//! The last valid configuration on disk: `config.snap`.
//!
//! Format: magic with the format version, length, JSON head, its SHA-256, then the accounts, which have their own checksum. A file
//! that does not match is not used.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tollgate::accounts::Accounts;
use tollgate::identity::Normalization;
use tollgate::rules::overrides::{Override, Overrides};
use tollgate_stores::sql::{Item, RuleItem, TierItem};
use tracing::warn;

use super::apply::Configuration;
use super::database_rules::DatabaseRules;
use crate::runtime::data_dir::DataDir;

const MAGIC: &[u8; 8] = b"tgconf\0\x03";

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Written by another version, or not a snapshot.
    #[error("unknown file format")]
    Format,
    /// A checksum does not match.
    #[error("the file is corrupt")]
    Corrupt,
}

/// Everything except the accounts, which have a binary format.
#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    /// The database, as [`SqlSettings::describe`](tollgate_stores::sql::SqlSettings::describe) prints it.
    database: String,
    version: u64,
    rules: Vec<RuleItem>,
    tiers: Vec<TierItem>,
    limits: Vec<Override>,
    normalization: Normalization,
}

impl Head {
    pub(super) fn new(
        database: String,
        version: u64,
        stored: &DatabaseRules,
        overrides: &Overrides,
        normalization: Normalization,
    ) -> Self {
        let (mut rules, mut tiers) = (Vec::new(), Vec::new());
        for item in stored.items() {
            match item {
                Item::Rule(rule) => rules.push(rule.clone()),
                Item::Tier(tier) => tiers.push(tier.clone()),
                _ => {}
            }
        }
        Head { database, version, rules, tiers, limits: overrides.iter().cloned().collect(), normalization }
    }

    fn into_configuration(self, accounts: Accounts) -> Configuration {
        let mut rules = DatabaseRules::default();
        let items = self.rules.into_iter().map(Item::Rule).chain(self.tiers.into_iter().map(Item::Tier));
        for item in items {
            rules.put(&item);
        }
        Configuration {
            version: self.version,
            rules,
            overrides: self.limits.into_iter().collect(),
            accounts,
            listed_blocks: None,
            has_other_ids: false,
            normalization: self.normalization,
        }
    }
}

/// The last valid configuration of this database, if it can be read. A damaged file is renamed.
pub(super) fn load(data_dir: &DataDir, database: &str) -> Option<Configuration> {
    match data_dir.configuration().map_err(SnapshotError::from).and_then(|file| file.map(read).transpose()) {
        Ok(Some((head, accounts))) if head.database == database => Some(head.into_configuration(accounts)),
        Ok(Some((head, _))) => {
            let from = head.database;
            warn!(from, database, "ignoring the configuration snapshot: it belongs to another database");
            None
        }
        Ok(None) => None,
        Err(error) => {
            data_dir.set_aside_configuration(&error);
            None
        }
    }
}

/// The version of the last valid configuration of this database.
pub(super) fn saved_version(data_dir: &DataDir, database: &str) -> Option<u64> {
    let file = data_dir.configuration().ok()??;
    let head = read_head(&mut BufReader::new(file)).ok()?;
    (head.database == database).then_some(head.version)
}

/// Writes a configuration.
pub(super) fn write(head: &Head, accounts: &Accounts, file: &mut impl Write) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    file.write_all(MAGIC)?;
    file.write_all(&(head.len() as u64).to_le_bytes())?;
    file.write_all(&head)?;
    file.write_all(&Sha256::digest(&head))?;
    accounts.write_to(file)
}

fn read(file: File) -> Result<(Head, Accounts), SnapshotError> {
    let mut file = BufReader::with_capacity(1 << 20, file);
    let head = read_head(&mut file)?;
    let accounts = Accounts::read_from(&mut file).map_err(|_| SnapshotError::Corrupt)?;
    Ok((head, accounts))
}

fn read_head(file: &mut impl Read) -> Result<Head, SnapshotError> {
    let (mut magic, mut length, mut checksum) = ([0; 8], [0; 8], [0; 32]);
    file.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(SnapshotError::Format);
    }
    file.read_exact(&mut length)?;
    let mut head = Vec::new();
    // Reads no more than the file has, whatever its length field says.
    file.by_ref().take(u64::from_le_bytes(length)).read_to_end(&mut head)?;
    file.read_exact(&mut checksum)?;
    if checksum != *Sha256::digest(&head) {
        return Err(SnapshotError::Corrupt);
    }
    serde_json::from_slice(&head).map_err(|_| SnapshotError::Format)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tollgate::accounts::Key;
    use tollgate::{Endpoint, Id, Limit, Timestamp};

    use super::*;

    fn written() -> Vec<u8> {
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
        let normalization = Normalization { ignore_path_case: true, ..Normalization::EXACT };
        let head = Head::new("here".to_owned(), 42, &rules, &overrides, normalization);
        write(&head, &accounts.finish(), &mut bytes).unwrap();
        bytes
    }

    fn read_bytes(bytes: &[u8]) -> Result<(Head, Accounts), SnapshotError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        read(file)
    }

    #[test]
    fn configuration_survives_a_round_trip() {
        let (head, accounts) = read_bytes(&written()).unwrap();
        assert_eq!((head.database.as_str(), head.version), ("here", 42));
        let read = head.into_configuration(accounts);
        assert!(read.rules.contains("burst") && read.normalization.ignore_path_case);
        let set = read.overrides.get("alice", "/x").unwrap();
        assert_eq!((set.limit.limit.requests(), set.updated_at), (7, Timestamp::from_secs(9)));
        assert_eq!(read.accounts.key("abcdefghijklmn27").unwrap().verifier, [7; 32]);
    }

    #[test]
    fn truncated_or_corrupt_snapshot_is_rejected() {
        let bytes = written();
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
