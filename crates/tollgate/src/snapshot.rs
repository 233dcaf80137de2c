//! Checksummed streams: the common part of the counter and account snapshots.

use std::hash::Hasher;
use std::io::{self, Read, Write};

use siphasher::sip::SipHasher13;

/// Why a snapshot cannot be read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Reading failed, or the file is truncated.
    #[error("cannot read the snapshot")]
    Io(#[from] io::Error),
    /// Not a snapshot of this kind, or written by another version.
    #[error("not a snapshot of this version")]
    UnknownFormat,
    /// The content is invalid or does not match its checksum.
    #[error("the snapshot is corrupt")]
    Corrupt,
}

/// A reader or writer that computes a checksum of everything that passes through it.
///
/// Lengths that are read only say how often to read on; they never reserve memory, because nothing is trusted before
/// the checksum at the end is verified.
pub(crate) struct Checksummed<T> {
    inner: T,
    checksum: SipHasher13,
}

impl<T> Checksummed<T> {
    pub(crate) fn new(inner: T) -> Self {
        Checksummed { inner, checksum: SipHasher13::new() }
    }
}

impl<W: Write> Checksummed<W> {
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.write(bytes);
        self.inner.write_all(bytes)
    }

    pub(crate) fn write_length(&mut self, length: usize) -> io::Result<()> {
        self.write_all(&(length as u64).to_le_bytes())
    }

    pub(crate) fn write_text(&mut self, text: &str) -> io::Result<()> {
        self.write_length(text.len())?;
        self.write_all(text.as_bytes())
    }

    /// Writes the checksum and flushes.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.inner.write_all(&self.checksum.finish().to_le_bytes())?;
        self.inner.flush()
    }
}

impl<R: Read> Checksummed<R> {
    pub(crate) fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        self.inner.read_exact(bytes)?;
        self.checksum.write(bytes);
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn word(&mut self) -> Result<u64, SnapshotError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Result<String, SnapshotError> {
        let length = self.word()?;
        let mut bytes = Vec::new();
        // Reads at most what is there, whatever the length says.
        if self.inner.by_ref().take(length).read_to_end(&mut bytes)? as u64 != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.checksum.write(&bytes);
        String::from_utf8(bytes).map_err(|_| SnapshotError::Corrupt)
    }

    /// Verifies the checksum that follows, and returns the reader.
    pub(crate) fn verify(mut self) -> Result<R, SnapshotError> {
        let mut expected = [0; 8];
        self.inner.read_exact(&mut expected)?;
        if self.checksum.finish() == u64::from_le_bytes(expected) {
            Ok(self.inner)
        } else {
            Err(SnapshotError::Corrupt)
        }
    }
}
