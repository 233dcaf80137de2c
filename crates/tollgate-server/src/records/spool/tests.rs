//! The spool on a real file system.

mod crash;
mod damage;
mod full;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tollgate_stores::sql::records::SourceId;

use super::*;

const BYTES_MAX: u64 = 1 << 30;

fn open_in(dir: &TempDir) -> (SpoolWriter, SpoolReader, Recovery) {
    open(&dir.path().join("log"), BYTES_MAX).unwrap()
}

/// A payload of rows that start with their number.
fn payload(first: u64, rows: u32, row_bytes: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    for number in first..first + u64::from(rows) {
        payload.extend_from_slice(&u32::try_from(row_bytes).unwrap().to_le_bytes());
        let mut row = vec![b'.'; row_bytes];
        row[..8].copy_from_slice(&number.to_le_bytes());
        payload.extend_from_slice(&row);
    }
    payload
}

fn append(writer: &mut SpoolWriter<impl Disk>, first: u64, rows: u32, row_bytes: usize) {
    writer.append(rows, &payload(first, rows, row_bytes));
}

/// Reads everything. Returns the source and the number of each row, after comparing it with the one written into the row.
fn read_all(reader: &mut SpoolReader) -> Vec<(SourceId, u64)> {
    let mut read = Vec::new();
    while let Some(batch) = reader.next(100, 1 << 20).unwrap() {
        read.extend(check_batch(&batch));
    }
    read
}

fn check_batch(batch: &Batch) -> Vec<(SourceId, u64)> {
    let rows: Vec<u64> =
        batch.rows().map(|row| u64::from_le_bytes(row.first_chunk().copied().unwrap())).collect();
    assert_eq!(rows, (batch.range.first..batch.range.end).collect::<Vec<_>>());
    rows.into_iter().map(|row| (batch.range.source, row)).collect()
}

fn read_numbers(reader: &mut SpoolReader) -> Vec<u64> {
    read_all(reader).into_iter().map(|(_, number)| number).collect()
}

fn segment_files(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<PathBuf> = names.filter(|path| path.extension().is_some()).collect();
    names.sort();
    names
}

fn log_files(dir: &TempDir) -> Vec<PathBuf> {
    segment_files(&dir.path().join("log"))
}

#[test]
fn rows_are_read_in_the_order_appended() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, recovery) = open_in(&dir);
    assert_eq!(recovery, Recovery { rows: 0, torn_bytes: 0, was_clean: true });
    assert_eq!(reader.next(10, 1_000).unwrap(), None);
    append(&mut writer, 0, 3, 20);
    append(&mut writer, 3, 1, 8);
    writer.sync();
    let batch = reader.next(10, 1_000).unwrap().unwrap();
    assert_eq!((batch.range.first, batch.range.end), (0, 4));
    check_batch(&batch);
    assert_eq!(reader.next(10, 1_000).unwrap(), None);
    append(&mut writer, 4, 2, 9);
    assert_eq!(read_numbers(&mut reader), [4, 5]);
}

#[test]
fn batches_respect_rows_and_bytes() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    append(&mut writer, 0, 7, 8);
    append(&mut writer, 7, 5, 96);
    let mut sizes = |rows_max, bytes_max| {
        let batch = reader.next(rows_max, bytes_max).unwrap().unwrap();
        check_batch(&batch);
        batch.range.end - batch.range.first
    };
    assert_eq!(sizes(5, 1_000), 5);
    // Two rows of 12 bytes and one of 100.
    assert_eq!(sizes(10, 124), 3);
    assert_eq!(sizes(10, 250), 2);
    // A row that is larger than the limit is returned alone.
    assert_eq!(sizes(10, 50), 1);
    assert_eq!(sizes(10, 1_000), 1);
}

#[test]
fn released_segments_are_removed() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    for frame in 0..5 {
        append(&mut writer, frame * 2, 2, 2 << 20);
    }
    // Two frames of 4 MB do not fit into one segment.
    assert_eq!(log_files(&dir).len(), 5);
    let stats = writer.stats().clone();
    assert_eq!((stats.rows_appended.get(), stats.backlog_rows.get(), stats.segments.get()), (10, 10, 5));
    let batch = reader.next(3, usize::MAX).unwrap().unwrap();
    assert_eq!(log_files(&dir).len(), 5);
    reader.release(&batch.range);
    assert_eq!((log_files(&dir).len(), stats.backlog_rows.get()), (4, 7));
    let batch = reader.next(100, usize::MAX).unwrap().unwrap();
    reader.release(&batch.range);
    // The one that is written to stays.
    assert_eq!((log_files(&dir).len(), stats.backlog_rows.get()), (1, 0));
    writer.close();
    assert!(log_files(&dir).is_empty());
    assert_eq!((stats.segments.get(), stats.bytes.get()), (0, 0));
}

#[test]
fn every_start_has_its_own_source() {
    let dir = TempDir::new().unwrap();
    for start in 0_u32..4 {
        let (mut writer, _reader, recovery) = open_in(&dir);
        let expected =
            Recovery { rows: u64::from(start) * 3, torn_bytes: 0, was_clean: start == 0 || start == 2 };
        assert_eq!(recovery, expected);
        append(&mut writer, 0, 2, 30);
        append(&mut writer, 2, 1, 30);
        if start == 1 {
            writer.close();
        }
    }
    let (mut writer, mut reader, _) = open_in(&dir);
    append(&mut writer, 0, 3, 30);
    let mut sources = Vec::new();
    while let Some(batch) = reader.next(100, 1_000).unwrap() {
        assert_eq!((batch.range.first, batch.range.end), (0, 3));
        check_batch(&batch);
        assert!(!sources.contains(&batch.range.source));
        sources.push(batch.range.source);
        reader.release(&batch.range);
        assert_eq!(log_files(&dir).len(), (5 - sources.len()).max(1));
    }
    assert_eq!(sources.len(), 5);
}

#[test]
fn unreleased_rows_are_read_again_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    append(&mut writer, 0, 10, 40);
    let batch = reader.next(4, 10_000).unwrap().unwrap();
    reader.release(&batch.range);
    writer.close();
    drop(reader);
    let (_writer, mut reader, recovery) = open_in(&dir);
    assert_eq!(recovery, Recovery { rows: 10, torn_bytes: 0, was_clean: true });
    assert_eq!(read_numbers(&mut reader), (0..10).collect::<Vec<_>>());
}

#[test]
fn empty_spool_leaves_no_segment() {
    let dir = TempDir::new().unwrap();
    for _ in 0..3 {
        let (mut writer, _, recovery) = open_in(&dir);
        writer.append(0, &[]);
        writer.sync();
        writer.close();
        assert!(recovery.was_clean);
    }
    assert!(log_files(&dir).is_empty());
}

#[test]
fn reader_follows_a_concurrent_writer() {
    const FRAMES: u64 = 400;
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    let (stats, watch) = (writer.stats().clone(), reader.watch());
    let writing = std::thread::spawn(move || {
        for frame in 0..FRAMES {
            append(&mut writer, frame * 50, 50, 1_000);
        }
        writer.close();
    });
    let mut rows = 0;
    loop {
        let is_closed = watch.is_closed();
        while let Some(batch) = reader.next(77, 50_000).unwrap() {
            assert_eq!(batch.range.first, rows);
            rows += check_batch(&batch).len() as u64;
            reader.release(&batch.range);
        }
        if is_closed {
            break;
        }
    }
    writing.join().unwrap();
    assert_eq!((rows, stats.rows_appended.get()), (FRAMES * 50, FRAMES * 50));
    assert_eq!((stats.backlog_rows.get(), stats.rows_damaged.get(), log_files(&dir).len()), (0, 0, 0));
}

#[tokio::test]
async fn append_and_close_wake_the_reader() {
    let dir = TempDir::new().unwrap();
    let (mut writer, reader, _) = open_in(&dir);
    let watch = reader.watch();
    append(&mut writer, 0, 1, 8);
    watch.changed().await;
    assert!(!watch.is_closed());
    drop(writer);
    watch.changed().await;
    assert!(watch.is_closed());
}
