//! Opening the directory: finds the segments of earlier starts and cuts what a crash left incomplete.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::disk::sync_directory;
use super::frame::{FrameRead, SEGMENT_HEADER_BYTES, SegmentHeader, read_frame};
use super::segments::{self, Segment};

/// Written at an orderly shutdown, removed at the next start.
const CLEAN: &str = "clean";

/// What was found in the directory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Rows of earlier starts. The database may already have some of them.
    pub(crate) rows: u64,
    /// Bytes that were removed because they were incomplete or damaged.
    pub(crate) torn_bytes: u64,
    /// Whether the last process shut down in order, so that no row was lost.
    pub(crate) was_clean: bool,
}

/// Leaves the mark of an orderly shutdown.
pub(super) fn mark_clean(dir: &Path) -> io::Result<()> {
    File::create(dir.join(CLEAN))?.sync_all()?;
    sync_directory(dir)
}

/// Creates the directory or repairs it.
pub(super) fn recover(dir: &Path) -> io::Result<(VecDeque<Segment>, Recovery)> {
    let is_new = !dir.try_exists()?;
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let was_clean = take_clean_mark(dir)? || is_new;
    let mut recovery = Recovery { rows: 0, torn_bytes: 0, was_clean };
    let found = find_segments(dir, &mut recovery)?;
    let mut recovered = VecDeque::new();
    let nexts = found.iter().skip(1).map(Some).chain([None]);
    for ((number, header), next) in found.iter().zip(nexts) {
        let next_header = next.map(|(_, header)| header);
        if let Some(segment) = recover_segment(dir, *number, header, next_header, &mut recovery)? {
            recovery.rows += segment.end_row - segment.first_row;
            recovered.push_back(segment);
        }
    }
    sync_directory(dir)?;
    Ok((recovered, recovery))
}

fn take_clean_mark(dir: &Path) -> io::Result<bool> {
    match fs::remove_file(dir.join(CLEAN)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The segments with a valid header, in order. Others are removed.
fn find_segments(dir: &Path, recovery: &mut Recovery) -> io::Result<Vec<(u64, SegmentHeader)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        let Some(number) = number.filter(|number| path == segments::path(dir, *number)) else { continue };
        let file = File::open(&path)?;
        if let Some(header) = SegmentHeader::read(&file)? {
            found.push((number, header));
        } else {
            recovery.torn_bytes += file.metadata()?.len();
            segments::remove(&path);
        }
    }
    found.sort_unstable_by_key(|(number, _)| *number);
    Ok(found)
}

/// Only the last segment of a start can be torn, because the writer syncs a segment before it begins the next one. It is read as
/// a whole; the others are not, so that a start with a long backlog is quick. The reader verifies every frame anyway.
fn recover_segment(
    dir: &Path,
    number: u64,
    header: &SegmentHeader,
    next: Option<&SegmentHeader>,
    recovery: &mut Recovery,
) -> io::Result<Option<Segment>> {
    let path = segments::path(dir, number);
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let length = file.metadata()?.len();
    let mut segment = Segment::new(number, header.source, header.first_row);
    let next = next.filter(|next| next.source == header.source && next.first_row >= header.first_row);
    (segment.bytes, segment.end_row) = match next {
        Some(next) => (length, next.first_row),
        None => find_end(&file, header, length)?,
    };
    if segment.bytes < length {
        recovery.torn_bytes += length - segment.bytes;
        file.set_len(segment.bytes)?;
        file.sync_all()?;
    }
    if segment.end_row == segment.first_row {
        segments::remove(&path);
        return Ok(None);
    }
    Ok(Some(segment))
}

/// Where the last valid frame ends, and the number after its last row.
fn find_end(file: &File, header: &SegmentHeader, length: u64) -> io::Result<(u64, u64)> {
    let (mut offset, mut row) = (SEGMENT_HEADER_BYTES as u64, header.first_row);
    while offset < length {
        match read_frame(file, offset, length, row)? {
            FrameRead::Frame(frame, _) => (offset, row) = (offset + frame.frame_bytes(), frame.end_row()),
            FrameRead::CorruptUntil(next) => offset = next,
            FrameRead::Corrupt => break,
        }
    }
    Ok((offset, row))
}
