//! Rows that cannot be stored, kept for inspection.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use tollgate_stores::sql::records::SourceId;
use tracing::warn;

/// A file of JSON lines, one for each row, up to a size. Shared by all drains.
#[derive(Debug)]
pub(crate) struct Quarantine {
    path: PathBuf,
    bytes_max: u64,
    /// Held while a line is written.
    writing: Mutex<()>,
}

/// A row that cannot be stored.
#[derive(Clone, Debug)]
pub(in crate::records) struct QuarantinedRow {
    pub(in crate::records) source: SourceId,
    pub(in crate::records) number: u64,
    pub(in crate::records) error: String,
    /// Its fields, or its bytes if they could not be decoded.
    pub(in crate::records) content: String,
}

impl Quarantine {
    /// Rows beyond 10 MB are not kept.
    const BYTES_MAX: u64 = 10 << 20;

    pub(crate) fn new(path: PathBuf) -> Self {
        Quarantine { path, bytes_max: Self::BYTES_MAX, writing: Mutex::new(()) }
    }

    #[cfg(test)]
    pub(super) fn with_bytes_max(self, bytes_max: u64) -> Self {
        Quarantine { bytes_max, ..self }
    }

    /// Appends a row. Blocks on the disk. A row that cannot be kept is lost.
    pub(in crate::records) fn add(&self, row: &QuarantinedRow) {
        if let Err(error) = self.append(&row.to_line()) {
            warn!(%error, file = %self.path.display(), "cannot write to the quarantine of records");
        }
    }

    fn append(&self, line: &str) -> io::Result<()> {
        let _guard = self.writing.lock();
        let mut file = OpenOptions::new().mode(0o600).append(true).create(true).open(&self.path)?;
        if file.metadata()?.len() + line.len() as u64 > self.bytes_max {
            return Ok(());
        }
        file.write_all(line.as_bytes())
    }
}

impl QuarantinedRow {
    /// A row that could not be decoded.
    pub(in crate::records) fn of_bytes(source: SourceId, number: u64, error: String, row: &[u8]) -> Self {
        QuarantinedRow { source, number, error, content: BASE64_STANDARD.encode(row) }
    }

    fn to_line(&self) -> String {
        let line = serde_json::json!({
            "source": self.source.to_hex(), "row": self.number, "error": self.error, "content": self.content,
        });
        format!("{line}\n")
    }
}
