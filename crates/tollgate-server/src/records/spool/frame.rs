//! The bytes of a segment: its header and its frames.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tollgate_stores::sql::records::SourceId;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The last byte is the version of the format.
const MAGIC: [u8; 8] = *b"TGSPOOL\x01";
/// Bytes of a segment header.
pub(super) const SEGMENT_HEADER_BYTES: usize = 40;
/// Bytes of a frame header.
pub(super) const FRAME_HEADER_BYTES: usize = 24;

/// The beginning of a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) source: SourceId,
    pub(super) first_row: u64,
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.source.0);
        bytes[24..32].copy_from_slice(&self.first_row.to_le_bytes());
        let checksum = xxh3_64(&bytes[..32]);
        bytes[32..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header of a file; `None` if it has no valid one.
    pub(super) fn read(file: &File) -> io::Result<Option<Self>> {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        if !fills(file, &mut bytes, 0)? || bytes[..8] != MAGIC {
            return Ok(None);
        }
        let (source, first_row) = (array(&bytes[8..24]), u64::from_le_bytes(array(&bytes[24..32])));
        let is_valid = u64::from_le_bytes(array(&bytes[32..])) == xxh3_64(&bytes[..32]);
        Ok(is_valid.then_some(SegmentHeader { source: SourceId(source), first_row }))
    }
}

/// The beginning of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) length: u32,
    pub(super) rows: u32,
    pub(super) first_row: u64,
    checksum: u64,
}

impl FrameHeader {
    /// `None` if the payload is too long for a frame.
    pub(super) fn new(first_row: u64, rows: u32, payload: &[u8]) -> Option<Self> {
        let length = u32::try_from(payload.len()).ok()?;
        let mut header = FrameHeader { length, rows, first_row, checksum: 0 };
        header.checksum = header.checksum_of(payload);
        Some(header)
    }

    pub(super) fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.rows.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first_row.to_le_bytes());
        bytes[16..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Self {
        FrameHeader {
            length: u32::from_le_bytes(array(&bytes[..4])),
            rows: u32::from_le_bytes(array(&bytes[4..8])),
            first_row: u64::from_le_bytes(array(&bytes[8..16])),
            checksum: u64::from_le_bytes(array(&bytes[16..])),
        }
    }

    /// The seed covers the header too.
    fn checksum_of(&self, payload: &[u8]) -> u64 {
        let seed = self.first_row.rotate_left(24) ^ (u64::from(self.rows) << 32 | u64::from(self.length));
        xxh3_64_with_seed(payload, seed)
    }

    /// Bytes of the frame with its header.
    pub(super) fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + u64::from(self.length)
    }

    /// The number after its last row.
    pub(super) fn end_row(&self) -> u64 {
        self.first_row.saturating_add(u64::from(self.rows))
    }
}

/// What is at an offset of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameRead {
    /// A valid frame.
    Frame(FrameHeader, Vec<u8>),
    /// Not a valid frame, but there is one at this offset.
    CorruptUntil(u64),
    /// Not a valid frame, and the beginning of the next one is unknown.
    Corrupt,
}

/// Reads the frame at an offset, in a segment that ends at `end`. Its rows must not be before `row_min`.
pub(super) fn read_frame(file: &File, offset: u64, end: u64, row_min: u64) -> io::Result<FrameRead> {
    let Some(header) = read_header(file, offset, end)? else { return Ok(FrameRead::Corrupt) };
    if let Some(payload) = read_payload(file, offset, &header, row_min)? {
        return Ok(FrameRead::Frame(header, payload));
    }
    let next_offset = offset + header.frame_bytes();
    let Some(next) = read_header(file, next_offset, end)? else { return Ok(FrameRead::Corrupt) };
    let is_valid = read_payload(file, next_offset, &next, row_min)?.is_some();
    Ok(if is_valid { FrameRead::CorruptUntil(next_offset) } else { FrameRead::Corrupt })
}

/// The header at an offset, if the frame fits into the segment.
fn read_header(file: &File, offset: u64, end: u64) -> io::Result<Option<FrameHeader>> {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    if end.saturating_sub(offset) < bytes.len() as u64 || !fills(file, &mut bytes, offset)? {
        return Ok(None);
    }
    let header = FrameHeader::decode(&bytes);
    Ok((header.frame_bytes() <= end - offset).then_some(header))
}

/// The payload, if it is intact.
fn read_payload(file: &File, offset: u64, header: &FrameHeader, row_min: u64) -> io::Result<Option<Vec<u8>>> {
    let mut payload = vec![0; usize::try_from(header.length).unwrap_or(usize::MAX)];
    let is_read = fills(file, &mut payload, offset + FRAME_HEADER_BYTES as u64)?;
    let is_valid = is_read
        && header.rows > 0
        && header.first_row >= row_min
        && header.checksum_of(&payload) == header.checksum
        && count_rows(&payload) == Some(header.rows);
    Ok(is_valid.then_some(payload))
}

/// Fills the buffer from an offset. `false` if the file ends before.
fn fills(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// How many rows a payload has; `None` if its last one is incomplete.
pub(super) fn count_rows(payload: &[u8]) -> Option<u32> {
    let (mut rest, mut rows) = (payload, 0_u32);
    while !rest.is_empty() {
        (_, rest) = split_row(rest)?;
        rows += 1;
    }
    Some(rows)
}

/// The first row of a payload without its length, and what follows it.
pub(in crate::records) fn split_row(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = payload.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// `bytes` must be `N` bytes long.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}
