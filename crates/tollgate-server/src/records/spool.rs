//! The spool: rows on disk between the recorder and one of its targets, the database of records or Parquet files.
//!
//! A directory of segments, `0000000001.rows` and so on, of up to 8 MB. A segment is a header and frames:
//!
//! | part | content |
//! |---|---|
//! | header | magic and version, source id, number of its first row, checksum |
//! | frame | payload length `u32`, rows `u32`, number of the first row `u64`, checksum `u64`, payload |
//! | payload | rows, each a length `u32` and its bytes; all numbers are little-endian |
//!
//! One writer (the flusher thread) appends, one reader (the drain) follows it. Every start of the process writes under a new
//! random source id: after a power loss the database may have rows that the disk lost, and their numbers must not be used
//! again. Rows are numbered without gaps, except where the disk damaged some.
//!
//! Nothing here fails a request: a frame that does not fit or cannot be written is dropped, and its rows are counted.

mod disk;
mod frame;
mod reader;
mod recovery;
mod segments;
mod stats;
mod writer;

use std::io;
use std::path::Path;

use self::disk::{Disk, RealDisk};
pub(in crate::records) use self::frame::split_row;
pub(crate) use self::reader::{Batch, SpoolReader};
pub(crate) use self::recovery::Recovery;
use self::segments::Segments;
pub(crate) use self::segments::SpoolWatch;
pub(crate) use self::stats::{Counter, SpoolStats};
pub(crate) use self::writer::SpoolWriter;

/// Opens the spool in a directory, creates it if needed, and repairs what a crash left. Blocks on the disk.
///
/// # Errors
/// When the directory or one of its files cannot be read or written.
pub(crate) fn open(dir: &Path, bytes_max: u64) -> io::Result<(SpoolWriter, SpoolReader, Recovery)> {
    open_on(RealDisk, dir, bytes_max)
}

/// Whether the spool in a directory has rows.
pub(crate) fn has_rows(dir: &Path) -> bool {
    let is_segment = |path: &Path| path.extension().is_some_and(|extension| extension == "rows");
    let mut entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.any(|entry| is_segment(&entry.path()))
}

fn open_on<D: Disk>(
    disk: D,
    dir: &Path,
    bytes_max: u64,
) -> io::Result<(SpoolWriter<D>, SpoolReader, Recovery)> {
    let (found, recovery) = recovery::recover(dir)?;
    let number = found.back().map_or(1, |segment| segment.number + 1);
    let segments = Segments::new(dir, found);
    let writer = SpoolWriter::new(disk, segments.clone(), number, bytes_max)?;
    Ok((writer, SpoolReader::new(segments), recovery))
}

#[cfg(test)]
mod tests;
