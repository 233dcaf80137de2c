//! The calls by which the writer can fail. Tests replace them to fill the disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Writes segments.
pub(crate) trait Disk {
    /// Creates a file that must not exist.
    fn create(&mut self, path: &Path) -> io::Result<File>;
    /// Writes all bytes at an offset.
    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the content durable.
    fn sync(&mut self, file: &File) -> io::Result<()>;
}

/// The file system.
#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        OpenOptions::new().mode(0o600).write(true).create_new(true).open(path)
    }

    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_data()
    }
}

/// Makes created and removed files of a directory durable.
pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
