//! A full spool and a failing disk.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use tempfile::TempDir;

use super::*;

#[test]
fn full_spool_drops_and_counts_until_released() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open(&dir.path().join("log"), 100_000).unwrap();
    for frame in 0..20 {
        append(&mut writer, frame * 10, 10, 996);
    }
    let stats = writer.stats().clone();
    // Nine frames of 10,024 bytes, each in a segment of its own.
    assert_eq!((stats.rows_appended.get(), stats.rows_dropped_full.get()), (90, 110));
    assert!(stats.bytes.get() <= 100_000);
    let on_disk: u64 = log_files(&dir).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert_eq!(on_disk, stats.bytes.get());
    assert!(stats.last_error.lock().as_ref().is_some_and(|error| error.contains("full")));
    let batch = reader.next(20, usize::MAX).unwrap().unwrap();
    reader.release(&batch.range);
    // Dropped rows use up no numbers.
    append(&mut writer, 90, 10, 996);
    assert_eq!((stats.rows_appended.get(), stats.rows_dropped_full.get()), (100, 110));
    assert_eq!(*stats.last_error.lock(), None);
    assert_eq!(read_numbers(&mut reader), (20..100).collect::<Vec<_>>());
}

#[test]
fn released_rows_never_keep_a_small_spool_full() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open(&dir.path().join("log"), 2_000).unwrap();
    for frame in 0..50 {
        append(&mut writer, frame, 1, 1_500);
        let batch = reader.next(10, usize::MAX).unwrap().unwrap();
        assert_eq!(check_batch(&batch).len(), 1);
        reader.release(&batch.range);
    }
    assert_eq!(writer.stats().rows_dropped_full.get(), 0);
    writer.append(1, &payload(0, 1, 3_000));
    assert_eq!(writer.stats().rows_dropped_full.get(), 1);
}

/// A disk with limited space whose sync can fail.
#[derive(Clone, Default)]
struct SmallDisk {
    space: Rc<Cell<usize>>,
    fails_sync: Rc<Cell<bool>>,
}

impl Disk for SmallDisk {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        RealDisk.create(path)
    }

    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let fitting = bytes.len().min(self.space.get());
        file.write_all_at(&bytes[..fitting], offset)?;
        self.space.set(self.space.get() - fitting);
        if fitting < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        if self.fails_sync.get() { Err(io::Error::other("EIO")) } else { RealDisk.sync(file) }
    }
}

#[test]
fn full_disk_leaves_only_whole_frames() {
    // Segment header 40, frame 24 + 3 × 24.
    for space in 0..40 + 3 * 96 {
        let dir = TempDir::new().unwrap();
        let disk = SmallDisk::default();
        let (mut writer, mut reader, _) = open_on(disk.clone(), &dir.path().join("log"), BYTES_MAX).unwrap();
        disk.space.set(space);
        let mut number = 0;
        let mut try_append = |writer: &mut SpoolWriter<SmallDisk>| {
            let before = writer.stats().rows_appended.get();
            append(writer, number, 3, 20);
            number += writer.stats().rows_appended.get() - before;
        };
        (0..4).for_each(|_| try_append(&mut writer));
        let stats = writer.stats().clone();
        assert_eq!(stats.rows_appended.get() + stats.rows_dropped_disk.get(), 12, "{space}");
        assert!(stats.last_error.lock().is_some(), "{space}");
        // Failed writes leave nothing behind that a crash would show.
        let on_disk: u64 = log_files(&dir).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert_eq!(on_disk, stats.bytes.get(), "{space}");
        disk.space.set(usize::MAX);
        try_append(&mut writer);
        assert_eq!(*stats.last_error.lock(), None, "{space}");
        let expected: Vec<u64> = (0..stats.rows_appended.get()).collect();
        assert_eq!(read_numbers(&mut reader), expected, "{space}");
        drop(writer);
        let (_, mut reader, recovery) = open_in(&dir);
        assert_eq!(recovery.torn_bytes, 0, "{space}");
        assert_eq!(read_numbers(&mut reader), expected, "{space}");
    }
}

#[test]
fn failed_sync_starts_another_segment() {
    let dir = TempDir::new().unwrap();
    let disk = SmallDisk::default();
    disk.space.set(usize::MAX);
    let (mut writer, mut reader, _) = open_on(disk.clone(), &dir.path().join("log"), BYTES_MAX).unwrap();
    append(&mut writer, 0, 2, 20);
    assert!(writer.sync());
    append(&mut writer, 2, 1, 20);
    disk.fails_sync.set(true);
    assert!(!writer.sync());
    assert_eq!(writer.stats().sync_errors.get(), 1);
    disk.fails_sync.set(false);
    append(&mut writer, 3, 1, 20);
    assert!(writer.sync());
    assert_eq!(log_files(&dir).len(), 2);
    assert_eq!(read_numbers(&mut reader), [0, 1, 2, 3]);
    append(&mut writer, 4, 1, 20);
    disk.fails_sync.set(true);
    writer.close();
    let (_, _, recovery) = open_in(&dir);
    assert!(!recovery.was_clean);
}

#[test]
fn unusable_directory_drops_rows_until_it_returns() {
    let dir = TempDir::new().unwrap();
    let (mut writer, mut reader, _) = open_in(&dir);
    fs::remove_dir(dir.path().join("log")).unwrap();
    append(&mut writer, 0, 2, 20);
    assert_eq!(writer.stats().rows_dropped_disk.get(), 2);
    fs::create_dir(dir.path().join("log")).unwrap();
    append(&mut writer, 0, 3, 20);
    assert_eq!((writer.stats().rows_dropped_disk.get(), writer.stats().rows_appended.get()), (2, 3));
    assert_eq!(read_numbers(&mut reader), [0, 1, 2]);
}
