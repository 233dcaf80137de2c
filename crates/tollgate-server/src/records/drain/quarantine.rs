//! Rows that cannot be stored, kept for inspection.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

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
pub(super) struct QuarantinedRow {
    pub(super) source: SourceId,
    pub(super) number: u64,
    pub(super) error: String,
    /// Its fields, or its bytes if they could not be decoded.
    pub(super) content: String,
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
    pub(super) fn add(&self, row: &QuarantinedRow) {
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
    fn to_line(&self) -> String {
        let source = self.source.0.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}"); // a String does not fail
            hex
        });
        let line = serde_json::json!({
            "source": source, "row": self.number, "error": self.error, "content": self.content,
        });
        format!("{line}\n")
    }
}
