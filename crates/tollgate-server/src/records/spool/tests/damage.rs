//! Segments that are damaged while the spool is in use.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use tempfile::TempDir;

use super::*;

/// Three segments of two frames, each frame of two rows of 1.5 MB.
fn fill(writer: &mut SpoolWriter) {
    for frame in 0..6 {
        append(writer, frame * 2, 2, 3 << 19);
    }
}

fn overwrite(path: &Path, offset: u64) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0xff; 64], offset).unwrap();
}

/// Reads and releases everything.
fn drain(reader: &mut SpoolReader) -> Vec<u64> {
    let mut rows = Vec::new();
    while let Some(batch) = reader.next(3, usize::MAX).unwrap() {
        rows.extend(check_batch(&batch).into_iter().map(|(_, number)| number));
        reader.release(&batch.range);
    }
    rows
}

#[test]
fn damaged_payload_loses_one_frame() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    fill(&mut writer);
    overwrite(&log_files(&dir)[1], 1 << 20);
    assert_eq!(drain(&mut reader), [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]);
    assert_eq!((writer.stats().rows_damaged.get(), writer.stats().backlog_rows.get()), (2, 0));
    assert_eq!(log_files(&dir).len(), 1);
}

#[test]
fn gap_ends_a_batch() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    fill(&mut writer);
    overwrite(&log_files(&dir)[1], 1 << 20);
    let mut next = || reader.next(100, usize::MAX).unwrap().map(|batch| (batch.range.first, batch.range.end));
    assert_eq!([next(), next(), next()], [Some((0, 4)), Some((6, 12)), None]);
}

#[test]
fn damaged_length_loses_the_rest_of_the_segment() {
    let dir = TempDir::new().unwrap();
    let (mut writer, _, _) = open_in(&dir);
    fill(&mut writer);
    drop(writer);
    overwrite(&log_files(&dir)[1], 40);
    let (writer, mut reader, recovery) = open_in(&dir);
    assert_eq!((recovery.rows, recovery.torn_bytes), (12, 0));
    assert_eq!(drain(&mut reader), [0, 1, 2, 3, 8, 9, 10, 11]);
    assert_eq!((writer.stats().rows_damaged.get(), log_files(&dir).len()), (4, 0));
}

#[test]
fn truncated_segment_loses_its_missing_frames() {
    let dir = TempDir::new().unwrap();
    let (mut writer, _, _) = open_in(&dir);
    fill(&mut writer);
    drop(writer);
    let second = OpenOptions::new().write(true).open(&log_files(&dir)[1]).unwrap();
    second.set_len(second.metadata().unwrap().len() / 2 + 20).unwrap();
    let (writer, mut reader, _) = open_in(&dir);
    assert_eq!(drain(&mut reader), [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]);
    assert_eq!((writer.stats().rows_damaged.get(), writer.stats().backlog_rows.get()), (2, 0));
    assert!(log_files(&dir).is_empty());
}

#[test]
fn removed_segments_are_skipped() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    fill(&mut writer);
    let files = log_files(&dir);
    fs::remove_file(&files[0]).unwrap();
    fs::remove_file(&files[2]).unwrap();
    assert_eq!(drain(&mut reader), [4, 5, 6, 7]);
    assert_eq!((writer.stats().rows_damaged.get(), writer.stats().backlog_rows.get()), (8, 0));
    // The writer does not go on in a removed file.
    append(&mut writer, 12, 2, 20);
    assert_eq!(drain(&mut reader), [12, 13]);
    assert_eq!(log_files(&dir).len(), 1);
}

#[test]
fn damage_in_the_newest_segment_starts_another() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    append(&mut writer, 0, 2, 20);
    assert_eq!(drain(&mut reader), [0, 1]);
    append(&mut writer, 2, 3, 20);
    overwrite(&log_files(&dir)[0], writer.stats().bytes.get() - 64);
    assert_eq!(drain(&mut reader), [0_u64; 0]);
    append(&mut writer, 5, 1, 20);
    assert_eq!(drain(&mut reader), [5]);
    assert_eq!((writer.stats().rows_damaged.get(), writer.stats().backlog_rows.get()), (3, 0));
    assert_eq!(log_files(&dir).len(), 1);
}

#[test]
fn unreadable_segment_can_be_skipped() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    fill(&mut writer);
    let first = log_files(&dir).remove(0);
    fs::remove_file(&first).unwrap();
    // A directory can be opened but not read.
    fs::create_dir(&first).unwrap();
    assert!(reader.next(10, usize::MAX).is_err());
    assert!(reader.next(10, usize::MAX).is_err());
    assert_eq!(writer.stats().rows_damaged.get(), 0);
    reader.skip_segment();
    assert_eq!(drain(&mut reader), (4..12).collect::<Vec<_>>());
    assert_eq!((writer.stats().rows_damaged.get(), writer.stats().backlog_rows.get()), (4, 0));
}
