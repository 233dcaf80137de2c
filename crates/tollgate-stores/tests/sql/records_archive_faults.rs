//! Runs of the archive that end early, overlap or find a damaged file.

use std::sync::{Arc, Mutex};

use tollgate_stores::archive::{Archive, ArchiveError};
use tollgate_stores::sql::records::{ArchiveStep, RecordsDatabase};

use crate::harness::TestDatabase;
use crate::records_archive::{LATER, RETENTION, TestArchive, another, dump, filled, restored, run};

async fn rows_in(archive: &Archive) -> u64 {
    archive.list().await.unwrap().iter().map(|file| file.rows).sum()
}

/// Runs the archive until a step, where the process dies. Returns whether the run got that far.
async fn run_until(database: &RecordsDatabase, archive: &Archive, steps: usize) -> bool {
    let (database, archive) = (database.clone(), archive.clone());
    let task = tokio::spawn(async move {
        let mut left = steps;
        let mut report = |step: &ArchiveStep| {
            assert!(left > 0, "the process dies after {step:?}");
            left -= 1;
        };
        database.archive(&archive, "node-a", LATER, &RETENTION, &mut report).await.unwrap();
    });
    task.await.is_err()
}

pub(crate) async fn interrupted_runs_lose_nothing(empty: TestDatabase) {
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let original = dump(&empty).await;
    let mut interruptions = 0;
    // Runs end after each of the steps in turn: read, written, read back, verified, deleted, removed.
    while run_until(&database, &to.archive, interruptions % 7).await {
        interruptions += 1;
        assert!(interruptions < 200);
        assert!(rows_in(&to.archive).await + dump(&empty).await.len() as u64 >= original.len() as u64);
    }
    assert!(interruptions > 10, "{interruptions}");
    assert!(dump(&empty).await.is_empty());
    assert_eq!(to.files(".parquet").len(), to.files(".json").len(), "unfinished files are deleted");
    assert_eq!(rows_in(&to.archive).await, original.len() as u64, "no row is archived twice");
    assert_eq!(restored(&to.archive, &another(&empty)).await, original);
}

pub(crate) async fn two_nodes_archive_every_row_once(empty: TestDatabase) {
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let original = dump(&empty).await;
    let done = Arc::new(Mutex::new(0));
    let nodes: Vec<_> = ["node-a", "node-b", "node-c"]
        .into_iter()
        .map(|node| {
            let (database, archive, done) = (database.clone(), to.archive.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                match database.archive(&archive, node, LATER, &RETENTION, &mut |_| {}).await {
                    Ok(run) => *done.lock().unwrap() += run.rows,
                    Err(ArchiveError::Busy { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            })
        })
        .collect();
    for node in nodes {
        node.await.unwrap();
    }
    assert_eq!(*done.lock().unwrap(), original.len() as u64);
    assert!(dump(&empty).await.is_empty());
    assert_eq!(restored(&to.archive, &another(&empty)).await, original);
}

/// A run that stood still for longer than its lease lasts, at every step of a file, while another node archived everything.
pub(crate) async fn run_that_lost_its_lease_stops(empty: TestDatabase) {
    let name = |step: &ArchiveStep| format!("{step:?}").split([' ', '(']).next().unwrap().to_owned();
    for stop_at in ["Read", "Written", "ReadBack", "Verified", "Deleted"] {
        let empty = another(&empty);
        let (database, to) = (filled(&empty).await, TestArchive::new());
        let original = dump(&empty).await;
        let handle = tokio::runtime::Handle::current();
        let mut has_stopped = false;
        let mut report = |step: &ArchiveStep| {
            if name(step) != stop_at || std::mem::replace(&mut has_stopped, true) {
                return;
            }
            let other = async {
                let expire = "UPDATE record_maintenance SET expires_at_micros = 0 WHERE name = 'archive'";
                empty.client().await.execute(expire).await;
                database.archive(&to.archive, "node-b", LATER, &RETENTION, &mut |_| {}).await.unwrap();
            };
            tokio::task::block_in_place(|| handle.block_on(other));
        };
        let late = database.archive(&to.archive, "node-a", LATER, &RETENTION, &mut report).await;
        assert!(matches!(late, Err(ArchiveError::Busy { .. })) || stop_at == "Deleted", "{late:?}");
        assert!(has_stopped && dump(&empty).await.is_empty(), "{stop_at}");
        assert_eq!(rows_in(&to.archive).await, original.len() as u64, "{stop_at}");
        assert_eq!(restored(&to.archive, &another(&empty)).await, original, "{stop_at}");
        // What the late run wrote in spite of that goes away.
        run(&database, &to.archive).await.unwrap();
        assert_eq!(to.files(".parquet").len(), to.files(".json").len(), "{stop_at}");
    }
}

pub(crate) async fn damaged_copy_removes_nothing(empty: TestDatabase) {
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let original = dump(&empty).await;
    let mut report = |step: &ArchiveStep| {
        let ArchiveStep::Written(_) = step else { return };
        for file in to.files(".parquet") {
            let mut bytes = std::fs::read(&file).unwrap();
            // The first column.
            bytes[4..64].iter_mut().for_each(|byte| *byte ^= 0x55);
            std::fs::write(file, bytes).unwrap();
        }
    };
    let error = database.archive(&to.archive, "node-a", LATER, &RETENTION, &mut report).await.unwrap_err();
    assert!(matches!(error, ArchiveError::Damaged { .. }), "{error}");
    assert_eq!(dump(&empty).await, original);
    assert_eq!(run(&database, &to.archive).await.unwrap().rows, original.len() as u64);
    assert_eq!(restored(&to.archive, &another(&empty)).await, original);
}

#[tokio::test]
async fn damaged_file_restores_nothing() {
    let empty = TestDatabase::sqlite();
    let (database, to) = (filled(&empty).await, TestArchive::new());
    run(&database, &to.archive).await.unwrap();
    for file in to.files(".parquet") {
        let mut bytes = std::fs::read(&file).unwrap();
        // The first column.
        bytes[4..64].iter_mut().for_each(|byte| *byte ^= 0x55);
        std::fs::write(file, bytes).unwrap();
    }
    for file in to.archive.list().await.unwrap() {
        let error = database.restore(&to.archive, &file, &mut |_| {}).await.unwrap_err();
        assert!(matches!(error, ArchiveError::Damaged { .. }), "{error}");
    }
    assert!(dump(&empty).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archive_in_use_names_its_user() {
    let empty = TestDatabase::sqlite();
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let handle = tokio::runtime::Handle::current();
    let mut message = String::new();
    let mut report = |_: &ArchiveStep| {
        let other = async { database.archive(&to.archive, "node-b", LATER, &RETENTION, &mut |_| {}).await };
        message = tokio::task::block_in_place(|| handle.block_on(other)).unwrap_err().to_string();
    };
    database.archive(&to.archive, "node-a", LATER, &RETENTION, &mut report).await.unwrap();
    assert!(message.starts_with("node-a is working on the archive"), "{message}");
}
