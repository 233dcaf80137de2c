//! The manifest: what a backup contains, written when everything else is complete.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::BackupError;

pub(super) const MANIFEST: &str = "manifest.json";
/// The settings file in a backup.
pub(super) const SETTINGS: &str = "settings.toml";
pub(super) const DATABASE: &str = "tollgate.db";
pub(super) const RECORDS: &str = "records.db";
pub(super) const ADMIN_KEY: &str = "admin.key";
pub(super) const KEY_SECRET: &str = "keys.secret";
/// Files of the data directory that are copied as they are.
pub(super) const DATA_FILES: [&str; 5] =
    ["counters.snap", "config.snap", "usage.spool", "fleet.seed", "fleet.nodes"];
const FORMAT: u32 = 1;

/// What a backup contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format.
    format: u32,
    /// The version of tollgate that made the backup.
    pub tollgate: String,
    /// When it was made, such as `2027-01-31T12:00:00Z`.
    pub created_at: String,
    /// The node.
    pub node: String,
    /// The engine of the configuration database: `sqlite`, `postgres` or `mysql`.
    pub engine: String,
    /// Whether it contains `admin.key` and the key secret.
    pub has_secrets: bool,
    /// The files.
    pub files: Vec<BackupFile>,
    /// What must be backed up in another way, or is lost.
    pub not_included: Vec<String>,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupFile {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub sha256: String,
}

impl Manifest {
    pub(super) fn new(created_at: String, node: &str, engine: &str, has_secrets: bool) -> Self {
        Manifest {
            format: FORMAT,
            tollgate: env!("CARGO_PKG_VERSION").to_owned(),
            created_at,
            node: node.to_owned(),
            engine: engine.to_owned(),
            has_secrets,
            files: Vec::new(),
            not_included: Vec::new(),
        }
    }

    pub(super) fn to_json(&self) -> String {
        // Strings and numbers can always be written.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Reads a manifest and checks that this version can restore it.
    pub(super) fn from_json(json: &[u8]) -> Result<Self, BackupError> {
        let damaged = |reason: String| BackupError::Damaged { file: MANIFEST.to_owned(), reason };
        let manifest: Manifest = serde_json::from_slice(json).map_err(|error| damaged(error.to_string()))?;
        // A name that is not known could be a path outside the data directory.
        if manifest.format > FORMAT || manifest.files.iter().any(|file| !is_known(&file.name)) {
            return Err(BackupError::TooNew { version: manifest.tollgate });
        }
        Ok(manifest)
    }

    /// Whether it has a file.
    pub fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.name == name)
    }
}

fn is_known(name: &str) -> bool {
    [SETTINGS, DATABASE, RECORDS, ADMIN_KEY, KEY_SECRET].contains(&name) || DATA_FILES.contains(&name)
}

impl BackupFile {
    /// Compares the file with what was written.
    pub(super) fn compare(&self, found: &BackupFile) -> Result<(), BackupError> {
        let reason = if self.bytes != found.bytes {
            format!("it has {} bytes instead of {}", found.bytes, self.bytes)
        } else if self.sha256 != found.sha256 {
            "its SHA-256 differs from the manifest".to_owned()
        } else {
            return Ok(());
        };
        Err(BackupError::Damaged { file: self.name.clone(), reason })
    }
}

/// Counts and hashes what is written through it.
pub(super) struct HashingWriter<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> HashingWriter<W> {
    pub(super) fn new(inner: W) -> Self {
        HashingWriter { inner, hash: Sha256::new(), bytes: 0 }
    }

    /// What was written, and the inner writer.
    pub(super) fn finish(self, name: &str) -> (BackupFile, W) {
        let mut sha256 = String::with_capacity(64);
        for byte in self.hash.finalize() {
            let _ = write!(sha256, "{byte:02x}"); // a string can always be written
        }
        (BackupFile { name: name.to_owned(), bytes: self.bytes, sha256 }, self.inner)
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str) -> Manifest {
        let mut manifest = Manifest::new("2027-01-31T12:00:00Z".to_owned(), "gate-1", "sqlite", false);
        let mut writer = HashingWriter::new(Vec::new());
        writer.write_all(b"abc").unwrap();
        manifest.files.push(writer.finish(name).0);
        manifest
    }

    #[test]
    fn manifest_survives_a_round_trip() {
        let written = manifest(DATABASE);
        assert_eq!(Manifest::from_json(written.to_json().as_bytes()).unwrap(), written);
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((written.files[0].bytes, &*written.files[0].sha256), (3, sha256));
    }

    #[test]
    fn unknown_names_and_formats_are_rejected() {
        for name in ["../admin.key", "/etc/passwd", "other.db", "manifest.json", ""] {
            let error = Manifest::from_json(manifest(name).to_json().as_bytes()).unwrap_err();
            assert!(matches!(error, BackupError::TooNew { .. }), "{name}: {error}");
        }
        let newer = Manifest { format: FORMAT + 1, ..manifest(DATABASE) };
        assert!(Manifest::from_json(newer.to_json().as_bytes()).is_err());
        let error = Manifest::from_json(b"{\"format\":").unwrap_err();
        assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
    }

    #[test]
    fn changed_files_are_noticed() {
        let file = manifest(DATABASE).files.remove(0);
        assert!(file.compare(&file).is_ok());
        let shorter = BackupFile { bytes: 2, ..file.clone() };
        let error = file.compare(&shorter).unwrap_err().to_string();
        assert!(error.contains("it has 2 bytes instead of 3"), "{error}");
        let other = BackupFile { sha256: "00".to_owned(), ..file.clone() };
        assert!(file.compare(&other).unwrap_err().to_string().contains("SHA-256"));
    }
}
