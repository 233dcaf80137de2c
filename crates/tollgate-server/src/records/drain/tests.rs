//! The drain against a sink in memory that fails as a database does.

mod database;
mod fake_sink;
mod outages;
mod rejected_rows;
mod timeouts;

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;

use self::fake_sink::{FakeSink, Fault};
use super::*;
use crate::records::spool::{self, SpoolWriter};

const QUICK: DrainSettings = DrainSettings {
    rows_max: 100,
    collect_for: Duration::ZERO,
    collect_many_for: Duration::ZERO,
    backoff_min: Duration::from_millis(5),
    backoff_max: Duration::from_millis(20),
    call_timeout: Duration::from_secs(30),
    shutdown_max: Duration::from_secs(30),
};

/// A spool and a database.
struct Setup {
    dir: TempDir,
    sink: FakeSink,
    settings: DrainSettings,
}

impl Setup {
    fn new() -> Self {
        Setup { dir: TempDir::new().unwrap(), sink: FakeSink::default(), settings: QUICK }
    }

    fn log(&self) -> std::path::PathBuf {
        self.dir.path().join("log")
    }

    /// Opens the spool and starts to drain it.
    fn start(&self) -> (SpoolWriter, JoinHandle<()>, Arc<DrainStats>) {
        let (writer, reader, _) = spool::open(&self.log(), 1 << 30).unwrap();
        let quarantine = Arc::new(Quarantine::new(self.quarantine()));
        let drain = Drain::new(self.sink.clone(), reader, self.settings, quarantine);
        let stats = drain.stats().clone();
        (writer, tokio::spawn(drain.run()), stats)
    }

    /// Writes rows without a drain.
    fn write_only(&self, texts: impl IntoIterator<Item = String>) {
        let (mut writer, _, _) = spool::open(&self.log(), 1 << 30).unwrap();
        append(&mut writer, texts);
    }

    fn quarantine(&self) -> std::path::PathBuf {
        self.dir.path().join("quarantine.ndjson")
    }
}

fn append(writer: &mut SpoolWriter, texts: impl IntoIterator<Item = String>) {
    let (mut payload, mut rows) = (Vec::new(), 0);
    for text in texts {
        payload.extend_from_slice(&u32::try_from(text.len()).unwrap().to_le_bytes());
        payload.extend_from_slice(text.as_bytes());
        rows += 1;
    }
    writer.append(rows, &payload);
}

fn numbered(range: std::ops::Range<u64>) -> impl Iterator<Item = String> {
    range.map(|number| format!("row {number}"))
}

fn is_empty(log: &Path) -> bool {
    std::fs::read_dir(log).unwrap().all(|entry| entry.unwrap().file_name() == "clean")
}

async fn wait_until(mut holds: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited for 30 seconds");
}

#[tokio::test]
async fn rows_are_stored_in_order_and_released() {
    let setup = Setup::new();
    let (mut writer, drain, stats) = setup.start();
    for frame in 0..10 {
        append(&mut writer, numbered(frame * 25..frame * 25 + 25));
    }
    wait_until(|| stats.rows_stored.get() == 250).await;
    assert!(stats.is_up());
    append(&mut writer, numbered(250..300));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..300).collect::<Vec<_>>());
    assert!(setup.sink.batches().iter().all(|rows| *rows <= 100));
    assert!(is_empty(&setup.log()));
}

#[tokio::test]
async fn rows_of_earlier_starts_come_first() {
    let setup = Setup::new();
    setup.write_only(numbered(0..50));
    setup.write_only(numbered(50..120));
    let (mut writer, drain, _) = setup.start();
    append(&mut writer, numbered(120..150));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..150).collect::<Vec<_>>());
    assert!(is_empty(&setup.log()));
}

#[tokio::test]
async fn rows_that_the_database_has_are_not_stored_again() {
    let setup = Setup::new();
    let (mut writer, reader, _) = spool::open(&setup.log(), 1 << 30).unwrap();
    append(&mut writer, numbered(0..250));
    // The database has the first 130, but the process died before it released any.
    let mut reader = reader;
    for rows in [100, 30] {
        let batch = reader.next(rows, usize::MAX).unwrap().unwrap();
        let texts: Vec<String> = batch.rows().map(|row| String::from_utf8(row.to_vec()).unwrap()).collect();
        setup.sink.store(&batch.range, &texts).await.unwrap();
    }
    drop((writer, reader));
    let (writer, drain, stats) = setup.start();
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..250).collect::<Vec<_>>());
    assert_eq!((stats.rows_stored_before.get(), stats.rows_stored.get()), (130, 120));
    assert!(is_empty(&setup.log()));
}

#[tokio::test]
async fn rows_lost_on_disk_are_skipped() {
    let setup = Setup::new();
    setup.write_only(numbered(0..20));
    let file = setup.log().join("0000000001.rows");
    let (mut writer, _, _) = spool::open(&setup.log(), 1 << 30).unwrap();
    for frame in 0..3 {
        append(&mut writer, numbered(20 + frame * 10..30 + frame * 10));
    }
    drop(writer);
    std::fs::remove_file(file).unwrap();
    let file = setup.log().join("0000000002.rows");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (writer, drain, stats) = setup.start();
    writer.close();
    drain.await.unwrap();
    let expected: Vec<String> = numbered(20..30).chain(numbered(40..50)).collect();
    assert_eq!(setup.sink.texts(), expected);
    assert_eq!(stats.rows_stored.get(), 20);
    assert!(is_empty(&setup.log()));
}

#[tokio::test]
async fn collected_rows_are_stored_together() {
    let mut setup = Setup::new();
    setup.settings.collect_for = Duration::from_mins(1);
    let (mut writer, drain, stats) = setup.start();
    for frame in 0..9 {
        append(&mut writer, numbered(frame * 10..frame * 10 + 10));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(stats.rows_stored.get(), 0);
    // A full batch does not wait.
    append(&mut writer, numbered(90..100));
    wait_until(|| stats.rows_stored.get() == 100).await;
    // Neither does a shutdown.
    append(&mut writer, numbered(100..110));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.batches(), [100, 10]);
}

#[tokio::test]
async fn many_rows_wait_for_more() {
    let mut setup = Setup::new();
    (setup.settings.rows_max, setup.settings.collect_many_for) = (20_000, Duration::from_mins(1));
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(1..MANY_ROWS));
    wait_until(|| stats.rows_stored.get() == MANY_ROWS - 1).await;
    append(&mut writer, numbered(0..MANY_ROWS));
    tokio::time::sleep(Duration::from_millis(2)).await;
    append(&mut writer, numbered(MANY_ROWS..20_000));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.batches(), [9_999, 20_000]);
}
