//! Compaction in a folder, also after runs that ended in between.

use std::collections::BTreeSet;
use std::fs;
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;

use super::*;
use crate::archive::{ArchivePlace, ArchiveSettings, ArchivedTable};
use crate::record_files::{RangeEncoder, RecordFiles};
use crate::sql::records::{DecisionKind, DecisionRow};

const SOURCE: SourceId = SourceId([7; 16]);
const OTHER: SourceId = SourceId([8; 16]);
const HOUR_START: u64 = 1_795_003_200_000_000;

struct TestFiles {
    folder: tempfile::TempDir,
    files: RecordFiles,
}

fn hour() -> Partition {
    Partition::of(ArchivedTable::Log, HOUR_START).unwrap()
}

fn decision(number: u64) -> DecisionRow {
    DecisionRow {
        at_micros: HOUR_START + number,
        identifier: format!("user:u{}", number % 5),
        tenant: None,
        user_id: None,
        api_key_id: None,
        ip_address: Some("192.0.2.1".to_owned()),
        endpoint: "/projects".to_owned(),
        http_method: None,
        rule: None,
        decision: DecisionKind::Allowed,
        current_count: Some(number),
        limit_value: None,
        remaining: None,
        cost: 1,
        response_status: 200,
        retry_after_seconds: None,
        latency_micros: 9,
        request_id: Some(format!("r{number}")),
        degraded: false,
        region: String::new(),
        server_id: "node".to_owned(),
    }
}

impl TestFiles {
    /// Four files of a source with ten rows each, and one of another source.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = ArchivePlace::parse(&format!("file://{}", folder.path().display())).unwrap();
        let files = RecordFiles::open(&ArchiveSettings::new(place)).unwrap();
        let test = TestFiles { folder, files };
        for first in [0, 10, 20, 30] {
            test.write(SOURCE, first).await;
        }
        test.write(OTHER, 0).await;
        test
    }

    async fn write(&self, source: SourceId, first: u64) {
        let mut encoder = RangeEncoder::new(source, HOUR_START);
        for number in first..first + 10 {
            encoder.add_decision(number, decision(number)).unwrap();
        }
        let files = encoder.finish(RowRange { source, first, end: first + 10 }).unwrap();
        assert_eq!((files.len(), files[0].rows), (1, 10));
        self.files.write(&files[0]).await.unwrap();
    }

    fn path(&self, source: SourceId, first: u64, end: u64) -> PathBuf {
        let file = RecordFile { partition: hour(), range: RowRange { source, first, end } };
        self.folder.path().join(file.path().as_ref())
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.folder.path().join(hour().to_string())).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The `current_count` of all rows of the source, in order.
    async fn rows(&self, source: SourceId) -> Vec<i64> {
        let mut rows = Vec::new();
        for object in self.files.store.objects(Some(&hour().to_string())).await.unwrap() {
            let file = RecordFile::of_path(&object.location).unwrap();
            if file.range.source == source {
                let reader = FileCompactor(&self.files.store).open(&file).await.unwrap();
                for group in reader.groups() {
                    let batch = reader.read(group).await.unwrap();
                    rows.extend((0..batch.rows()).map(|row| batch.columns[11].int(row).unwrap()));
                }
            }
        }
        rows.sort_unstable();
        rows
    }

    async fn compact(&self, stored_to: u64) -> Result<Compaction, ArchiveError> {
        self.files.compact(hour(), SOURCE, stored_to).await
    }
}

#[tokio::test]
async fn small_files_of_an_hour_become_one() {
    let test = TestFiles::new().await;
    let done = test.compact(30).await.unwrap();
    assert_eq!(done, Compaction { written: 1, deleted: 3 });
    assert!(test.path(SOURCE, 0, 30).exists() && test.path(SOURCE, 30, 40).exists());
    assert_eq!(test.names().len(), 3, "{:?}", test.names());
    assert_eq!(test.rows(SOURCE).await, (0..40).collect::<Vec<_>>());
    assert_eq!(test.rows(OTHER).await.len(), 10, "files of other nodes stay");
    assert_eq!(test.compact(40).await.unwrap(), Compaction { written: 1, deleted: 2 });
    assert_eq!(test.compact(40).await.unwrap(), Compaction::default());
    assert_eq!(test.rows(SOURCE).await, (0..40).collect::<Vec<_>>());
}

/// Whichever files a run had deleted when it ended, the next one finishes its work.
#[tokio::test]
async fn interrupted_compaction_keeps_every_row_once() {
    let done = TestFiles::new().await;
    done.compact(40).await.unwrap();
    let combined = done.path(SOURCE, 0, 40);
    for deleted in 0..=4 {
        let test = TestFiles::new().await;
        fs::copy(&combined, test.path(SOURCE, 0, 40)).unwrap();
        for first in (0..deleted).map(|number| number * 10) {
            fs::remove_file(test.path(SOURCE, first, first + 10)).unwrap();
        }
        // What an upload that did not finish leaves.
        fs::write(test.path(SOURCE, 0, 40).with_extension("parquet#1"), b"PAR1").unwrap();
        let finished = test.compact(40).await.unwrap();
        assert_eq!(finished, Compaction { written: 0, deleted: 4 - deleted }, "{deleted}");
        assert_eq!(test.rows(SOURCE).await, (0..40).collect::<Vec<_>>(), "{deleted}");
    }
}

/// Compacts until it has waited so often for the disk, where its process dies. Returns whether it ended before.
fn compact_until(test: &TestFiles, waits: usize) -> bool {
    // Dropped at the end, which waits for an operation of the disk that has begun.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut running, mut left) = (pin!(test.compact(40)), waits);
    runtime.block_on(poll_fn(|cx| match running.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done.is_ok()),
        Poll::Pending if left == 0 => Poll::Ready(false),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    }))
}

#[test]
fn compaction_that_dies_anywhere_keeps_every_row() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut waits = 0;
    loop {
        let test = runtime.block_on(TestFiles::new());
        let is_done = compact_until(&test, waits);
        let rows: BTreeSet<i64> = runtime.block_on(test.rows(SOURCE)).into_iter().collect();
        assert_eq!(rows, (0..40).collect(), "readable after {waits} waits");
        runtime.block_on(test.compact(40)).unwrap();
        assert_eq!(runtime.block_on(test.rows(SOURCE)), (0..40).collect::<Vec<_>>(), "{waits}");
        assert!(test.path(SOURCE, 0, 40).exists(), "{waits}");
        if is_done {
            break;
        }
        waits += 1;
    }
    assert!(waits > 10, "{waits}");
}

#[tokio::test]
async fn damaged_combined_file_deletes_nothing() {
    let done = TestFiles::new().await;
    done.compact(40).await.unwrap();
    let mut bytes = fs::read(done.path(SOURCE, 0, 40)).unwrap();
    bytes[40..200].iter_mut().for_each(|byte| *byte ^= 0x55);
    let test = TestFiles::new().await;
    fs::write(test.path(SOURCE, 0, 40), bytes).unwrap();
    let error = test.compact(40).await.unwrap_err();
    assert!(matches!(error, ArchiveError::Damaged { .. }), "{error}");
    assert_eq!(test.names().len(), 6);
}

#[tokio::test]
async fn damaged_small_file_deletes_nothing() {
    let test = TestFiles::new().await;
    let path = test.path(SOURCE, 10, 20);
    let mut bytes = fs::read(&path).unwrap();
    bytes[40..200].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&path, bytes).unwrap();
    let error = test.compact(40).await.unwrap_err();
    assert!(matches!(error, ArchiveError::Damaged { .. }), "{error}");
    assert!(!test.path(SOURCE, 0, 40).exists());
    assert_eq!(test.names().len(), 5);
}

#[test]
fn large_files_are_not_combined() {
    let file = |first, size| {
        let range = RowRange { source: SOURCE, first, end: first + 10 };
        (RecordFile { partition: hour(), range }, size)
    };
    let (small, large) = (1 << 20, SMALL_BYTES);
    let groups = group_small(&[file(0, small), file(10, large), file(20, small), file(30, small)]);
    assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [2]);
    let many: Vec<_> = (0..20).map(|number| file(number * 10, SMALL_BYTES - 1)).collect();
    assert!(group_small(&many).iter().all(|group| group.len() <= 8));
}

/// The same rows give the same names, whatever was written before.
#[tokio::test]
async fn repeated_write_replaces_the_same_files() {
    let test = TestFiles::new().await;
    let names = test.names();
    test.write(SOURCE, 10).await;
    assert_eq!(test.names(), names);
    assert_eq!(test.rows(SOURCE).await, (0..40).collect::<Vec<_>>());
}
