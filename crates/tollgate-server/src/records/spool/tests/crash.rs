//! What a crash or a power loss leaves in the newest segment.

use std::fs;

use tempfile::TempDir;

use super::*;

/// A segment with frames of 3, 2 and 4 rows: its bytes, and where each frame ends.
fn three_frames() -> (Vec<u8>, [usize; 3]) {
    let dir = TempDir::new().unwrap();
    let (mut writer, _, _) = open_in(&dir);
    let mut ends = [0; 3];
    for (frame, (first, rows)) in [(0, 3), (3, 2), (5, 4)].into_iter().enumerate() {
        append(&mut writer, first, rows, 11);
        ends[frame] = usize::try_from(writer.stats().bytes.get()).unwrap();
    }
    (fs::read(&log_files(&dir)[0]).unwrap(), ends)
}

/// Opens a spool whose only segment has these bytes.
fn recover(bytes: &[u8]) -> (Recovery, Vec<u64>, u64) {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("log")).unwrap();
    fs::write(dir.path().join("log/0000000007.rows"), bytes).unwrap();
    let (mut writer, mut reader, recovery) = open_in(&dir);
    append(&mut writer, 0, 1, 8);
    let mut rows = read_all(&mut reader);
    // The new source begins at 0, in a segment of its own.
    assert_eq!(rows.pop().map(|(_, number)| number), Some(0));
    assert!(log_files(&dir).last().unwrap().ends_with(if recovery.rows == 0 {
        "0000000001.rows"
    } else {
        "0000000008.rows"
    }));
    (recovery, rows.into_iter().map(|(_, number)| number).collect(), writer.stats().rows_damaged.get())
}

#[test]
fn torn_tail_is_cut_at_every_length() {
    let (bytes, ends) = three_frames();
    assert_eq!(bytes.len(), ends[2]);
    for length in 0..=bytes.len() {
        let (recovery, rows, _) = recover(&bytes[..length]);
        let whole = ends.iter().rev().find(|end| **end <= length);
        let expected_rows =
            [(ends[2], 9), (ends[1], 5), (ends[0], 3)].into_iter().find(|(end, _)| *end <= length);
        let expected_rows = expected_rows.map_or(0, |(_, rows)| rows);
        assert_eq!(rows, (0..expected_rows).collect::<Vec<_>>(), "{length}");
        // A segment without a frame is removed; its header is not data.
        let torn = whole.map_or_else(|| if length < 40 { length } else { length - 40 }, |end| length - end);
        let expected = Recovery { rows: expected_rows, torn_bytes: torn as u64, was_clean: false };
        assert_eq!(recovery, expected, "{length}");
    }
}

#[test]
fn zeroed_tail_is_cut_at_every_length() {
    let (bytes, ends) = three_frames();
    for from in ends[1]..bytes.len() {
        let mut zeroed = bytes.clone();
        zeroed[from..].fill(0);
        zeroed.extend_from_slice(&[0; 100]);
        let (recovery, rows, _) = recover(&zeroed);
        assert_eq!(rows, [0, 1, 2, 3, 4], "{from}");
        assert_eq!(recovery.torn_bytes, (zeroed.len() - ends[1]) as u64, "{from}");
    }
}

#[test]
fn changed_byte_loses_at_most_its_frame() {
    let (bytes, ends) = three_frames();
    for at in 40..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        let (_, rows, damaged) = recover(&changed);
        // If the length is damaged, the beginning of the next frame is unknown.
        let is_length = |start: usize| (start..start + 4).contains(&at);
        let expected: &[u64] = match at {
            _ if is_length(40) => &[],
            _ if at < ends[0] => &[3, 4, 5, 6, 7, 8],
            _ if is_length(ends[0]) => &[0, 1, 2],
            _ if at < ends[1] => &[0, 1, 2, 5, 6, 7, 8],
            _ => &[0, 1, 2, 3, 4],
        };
        assert_eq!(rows, expected, "{at}");
        let skipped = expected.last().map_or(0, |last| last + 1 - expected.len() as u64);
        assert_eq!(damaged, skipped, "{at}");
    }
}

#[test]
fn damaged_header_removes_the_segment() {
    let (bytes, _) = three_frames();
    for at in 0..40 {
        let mut changed = bytes.clone();
        changed[at] ^= 0x01;
        let (recovery, rows, _) = recover(&changed);
        assert_eq!((rows.len(), recovery.torn_bytes), (0, bytes.len() as u64), "{at}");
    }
}

#[test]
fn torn_tail_of_an_earlier_start_is_cut() {
    let dir = TempDir::new().unwrap();
    let (mut writer, _, _) = open_in(&dir);
    append(&mut writer, 0, 3, 11);
    append(&mut writer, 3, 1, 11);
    drop(writer);
    let first = log_files(&dir).remove(0);
    let (mut writer, _, _) = open_in(&dir);
    append(&mut writer, 0, 2, 11);
    drop(writer);
    let length = fs::metadata(&first).unwrap().len();
    fs::OpenOptions::new().write(true).open(&first).unwrap().set_len(length - 1).unwrap();
    let (_writer, mut reader, recovery) = open_in(&dir);
    assert_eq!(recovery, Recovery { rows: 5, torn_bytes: 24 + 14, was_clean: false });
    assert_eq!(read_numbers(&mut reader), [0, 1, 2, 0, 1]);
}

#[test]
fn foreign_files_are_ignored() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    fs::create_dir(&log).unwrap();
    let names = ["notes.txt", "1.rows", "x.rows", "00000000001.rows"];
    for name in names {
        fs::write(log.join(name), "not a segment").unwrap();
    }
    let (_, _, recovery) = open_in(&dir);
    assert_eq!((recovery.rows, recovery.torn_bytes), (0, 0));
    assert!(names.iter().all(|name| log.join(name).exists()));
}
