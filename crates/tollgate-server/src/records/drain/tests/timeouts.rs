//! Stores that take too long.

use super::rejected_rows::{quarantined, rows_with};
use super::*;

#[tokio::test]
async fn batch_that_times_out_is_stored_in_parts() {
    let mut setup = Setup::new();
    setup.settings.rows_max = 500;
    setup.sink.set_rows_max(Some(40));
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..1_000));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..1_000).collect::<Vec<_>>());
    assert_eq!((stats.rows_stored.get(), stats.rows_quarantined.get()), (1_000, 0));
    assert!(stats.is_up() && stats.last_error().is_none());
    assert!(is_empty(&setup.log()));
}

#[tokio::test]
async fn batches_grow_again_after_timeouts() {
    let setup = Setup::new();
    setup.sink.set_rows_max(Some(3));
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..100));
    wait_until(|| stats.rows_stored.get() == 100).await;
    setup.sink.set_rows_max(None);
    append(&mut writer, numbered(100..2_000));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..2_000).collect::<Vec<_>>());
    assert_eq!(setup.sink.batches().into_iter().max(), Some(100), "a whole batch");
}

#[tokio::test]
async fn rows_that_time_out_alone_are_set_aside() {
    let bad = [0, 1, 555, 999];
    let setup = Setup::new();
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, rows_with(&bad.map(|row| (row, "slow"))));
    writer.close();
    drain.await.unwrap();
    assert_eq!((stats.rows_stored.get(), stats.rows_quarantined.get()), (996, 4));
    assert_eq!(quarantined(&setup), bad.map(|row| (row as u64, "statement timeout".to_owned())));
    assert!(is_empty(&setup.log()));
}

#[tokio::test]
async fn timeouts_of_every_store_are_reported() {
    let setup = Setup::new();
    setup.sink.set_rows_max(Some(0));
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..300));
    wait_until(|| stats.last_error().is_some()).await;
    // Other calls succeed, which does not count as a recovery.
    let calls = setup.sink.calls();
    wait_until(|| setup.sink.calls() > calls + 10).await;
    assert_eq!((stats.is_up(), stats.last_error().as_deref()), (false, Some("statement timeout")));
    setup.sink.set_rows_max(None);
    writer.close();
    drain.await.unwrap();
    assert!(stats.is_up() && stats.last_error().is_none());
    assert_eq!(stats.rows_stored.get() + stats.rows_quarantined.get(), 300);
}

#[tokio::test]
async fn frozen_database_is_waited_for() {
    let mut setup = Setup::new();
    setup.settings.call_timeout = Duration::from_millis(5);
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..1));
    wait_until(|| stats.rows_stored.get() == 1).await;
    // More hanging calls than timeouts after which a row is set aside.
    setup.sink.fail_next([Fault::Hangs; 60]);
    append(&mut writer, numbered(1..2));
    writer.close();
    drain.await.unwrap();
    assert_eq!((stats.rows_stored.get(), stats.rows_quarantined.get()), (2, 0));
}
