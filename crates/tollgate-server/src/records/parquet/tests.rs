//! Files in a folder, written from a real spool.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tempfile::TempDir;
use tollgate_stores::archive::ArchivePlace;
use tollgate_stores::sql::records::{RowRange, SourceId};

use super::*;
use crate::records::codec::RowWriter;
use crate::records::row_buffer::Rows;
use crate::records::spool::{self, SpoolWriter};

const HOUR: u64 = 3_600_000_000;
/// 2023-11-14T22:00:00Z
const START: u64 = 1_699_999_200_000_000;

struct Setup {
    dir: TempDir,
    target: Arc<ParquetTarget>,
}

impl Setup {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let place = ArchivePlace::Folder(dir.path().join("files"));
        let target = ParquetTarget {
            settings: ArchiveSettings::new(place),
            files: OnceLock::new(),
            every: Duration::from_millis(20),
            buffer_bytes_max: 16_000_000,
            is_compacted: false,
        };
        Setup { dir, target: Arc::new(target) }
    }

    fn spool(&self) -> PathBuf {
        self.dir.path().join("spool")
    }

    fn open(&self, kind: RowKind) -> (SpoolWriter, ParquetDrain) {
        let (writer, reader, _) = spool::open(&self.spool(), 1 << 30).unwrap();
        let quarantine = Arc::new(Quarantine::new(self.dir.path().join("quarantine")));
        let (target, clock) = (Arc::clone(&self.target), Clock::start());
        let drain = ParquetDrain::open(target, &self.spool(), reader, kind, quarantine, clock).unwrap();
        (writer, drain)
    }

    /// Fifty rows of an earlier process. Returns its source.
    fn leave_rows(&self) -> SourceId {
        let (mut writer, _drain) = self.open(RowKind::Log);
        let rows = decisions((0..50).map(|row| START + row));
        writer.append(rows.count, &rows.bytes);
        let source = writer.source();
        writer.close();
        source
    }

    /// Writes all rows of the spool to files.
    async fn drain(&self, kind: RowKind, rows: &Rows) -> Arc<ParquetStats> {
        let (mut writer, drain) = self.open(kind);
        writer.append(rows.count, &rows.bytes);
        writer.close();
        let stats = Arc::clone(drain.stats());
        drain.run().await;
        stats
    }

    /// Hour and rows of each file: `22/0-30`.
    fn files(&self) -> Vec<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.dir.path().join("files")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let (hour, name) = (path.parent().unwrap(), path.file_stem().unwrap().to_str().unwrap());
                let hour = hour.file_name().unwrap().to_str().unwrap().trim_start_matches("hour=");
                found.insert(format!("{hour}/{}", name.split_once('-').unwrap().1));
            }
        }
        found.into_iter().collect()
    }
}

fn decisions(times: impl IntoIterator<Item = u64>) -> Rows {
    let mut rows = Rows::default();
    for at in times {
        rows.push(|out| {
            RowWriter::decision(out)
                .number(at)
                .byte(0)
                .byte(0)
                .number(200)
                .number(1)
                .number(15)
                .maybe_number(None)
                .maybe_number(None)
                .maybe_number(None)
                .maybe_number(None)
                .text("user:alice")
                .maybe_text(None)
                .maybe_text(Some("alice"))
                .maybe_text(None)
                .maybe_text(None)
                .text("/projects")
                .maybe_text(None)
                .maybe_text(None)
                .maybe_text(None)
                .text("eu")
                .text("node");
        });
    }
    rows
}

#[tokio::test]
async fn rows_of_several_hours_go_to_several_files() {
    let setup = Setup::new();
    let stats = setup.drain(RowKind::Log, &decisions((0..30).map(|row| START + row * HOUR / 10))).await;
    assert_eq!(setup.files(), ["00/0-30", "22/0-30", "23/0-30"]);
    assert_eq!((stats.files.get(), stats.file_rows.get(), stats.drain.rows_stored.get()), (3, 30, 30));
    assert!(!spool::has_rows(&setup.spool()), "stored rows leave the spool");
}

#[tokio::test]
async fn begun_write_is_repeated_with_the_same_names() {
    let setup = Setup::new();
    let source = setup.leave_rows();
    let positions = Positions::open(&setup.spool()).unwrap();
    positions.finish(&RowRange { source, first: 0, end: 10 }, std::iter::empty()).unwrap();
    positions.begin(&RowRange { source, first: 10, end: 35 }).unwrap();
    let stats = setup.drain(RowKind::Log, &Rows::default()).await;
    assert_eq!(setup.files(), ["22/10-35", "22/35-50"]);
    assert_eq!(stats.file_rows.get(), 40);
}

#[tokio::test]
async fn rows_that_a_power_loss_took_keep_the_name() {
    let setup = Setup::new();
    let source = setup.leave_rows();
    Positions::open(&setup.spool()).unwrap().begin(&RowRange { source, first: 0, end: 70 }).unwrap();
    setup.drain(RowKind::Log, &decisions([START])).await;
    assert_eq!(setup.files(), ["22/0-1", "22/0-70"], "the second is of another source");
}

#[tokio::test]
async fn deltas_of_a_window_become_one_row() {
    let setup = Setup::new();
    let mut rows = Rows::default();
    for delta in 0..60 {
        rows.push(|out| {
            RowWriter::window(out)
                .number(START)
                .number(delta)
                .number(1)
                .maybe_number(Some(100))
                .text(if delta % 2 == 0 { "user:a" } else { "user:b" })
                .maybe_text(None)
                .text("/projects");
        });
    }
    let stats = setup.drain(RowKind::Aggregates, &rows).await;
    assert_eq!((stats.file_rows.get(), stats.drain.rows_stored.get()), (2, 60));
}

#[tokio::test]
async fn rows_that_cannot_be_stored_are_set_aside() {
    let setup = Setup::new();
    let mut rows = decisions([START, 1 << 62, START + 1]);
    rows.push(|out| out.extend_from_slice(b"?"));
    let stats = setup.drain(RowKind::Log, &rows).await;
    assert_eq!((stats.file_rows.get(), stats.drain.rows_quarantined.get()), (2, 2));
    let quarantine = std::fs::read_to_string(setup.dir.path().join("quarantine")).unwrap();
    assert!(quarantine.contains("beyond the year 9999") && quarantine.contains("cannot be decoded"));
}

#[tokio::test]
async fn files_of_past_hours_are_compacted() {
    let setup = Setup::new();
    for start in 0..3 {
        let times = [START + start, START + HOUR + start];
        setup.drain(RowKind::Log, &decisions(times)).await;
    }
    let (mut writer, drain) = setup.open(RowKind::Log);
    let (positions, stats, clock) = (Arc::clone(&drain.positions), Arc::clone(drain.stats()), drain.clock);
    let running = tokio::spawn(drain.run());
    for row in 0..4 {
        let rows = decisions([START + row]);
        writer.append(rows.count, &rows.bytes);
        while stats.drain.rows_stored.get() <= row {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let target = Arc::clone(&setup.target);
    let compactor = Compactor { target, positions: Arc::clone(&positions), stats: Arc::clone(&stats), clock };
    assert_eq!(setup.files().iter().filter(|name| name.starts_with("22/")).count(), 5);
    compactor.run_once().await.unwrap();
    assert_eq!(stats.compacted.get(), 4);
    assert!(setup.files().contains(&"22/0-4".to_owned()), "{:?}", setup.files());
    assert!(positions.hours_before(u64::MAX).is_empty());
    writer.close();
    running.await.unwrap();
}
