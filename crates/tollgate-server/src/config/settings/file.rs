//! Reads the settings file, and detects changes of it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use super::SettingsError;

/// A larger file is not a settings file.
const BYTES_MAX: u64 = 16 << 20;

pub(super) fn read_file(path: &Path) -> Result<String, SettingsError> {
    match File::open(path) {
        Ok(file) => read_text(path, file),
        Err(source) => Err(SettingsError::Unreadable { path: path.to_owned(), source }),
    }
}

/// Reads the text of an open file; `path` is its name in errors.
///
/// # Errors
/// When it cannot be read, is too large, or is not UTF-8.
pub fn read_text(path: &Path, from: impl Read) -> Result<String, SettingsError> {
    let mut text = String::new();
    // Limits the read, not the length before it: the file may grow, or be a pipe.
    let read = from.take(BYTES_MAX + 1).read_to_string(&mut text);
    let read = read.and_then(|_| {
        let too_large =
            || io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {BYTES_MAX} bytes"));
        if text.len() as u64 > BYTES_MAX { Err(too_large()) } else { Ok(()) }
    });
    read.map(|()| text).map_err(|source| SettingsError::Unreadable { path: path.to_owned(), source })
}

/// Identifies the state of a file, with symbolic links resolved.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    modified: SystemTime,
    bytes: u64,
    /// Device and inode number: a replaced file may have the same time and length.
    inode: (u64, u64),
}

impl FileStamp {
    /// The current state of a file, if it exists.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let inode = (metadata.dev(), metadata.ino());
        Some(FileStamp { modified: metadata.modified().ok()?, bytes: metadata.len(), inode })
    }
}
