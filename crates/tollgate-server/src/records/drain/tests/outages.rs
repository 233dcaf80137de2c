//! The database is down, slow, or its answer is lost.

use super::*;

#[tokio::test]
async fn rows_wait_for_the_database() {
    let setup = Setup::new();
    setup.sink.set_down(true);
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..300));
    wait_until(|| setup.sink.calls() > 5).await;
    assert!(!stats.is_up());
    assert_eq!(stats.last_error().as_deref(), Some("connection lost"));
    setup.sink.set_down(false);
    wait_until(|| stats.rows_stored.get() == 300).await;
    assert!(stats.is_up() && stats.last_error().is_none());
    setup.sink.set_down(true);
    append(&mut writer, numbered(300..310));
    wait_until(|| !stats.is_up()).await;
    setup.sink.set_down(false);
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..310).collect::<Vec<_>>());
}

#[tokio::test]
async fn lost_answers_store_every_row_once() {
    let setup = Setup::new();
    // Every second call is executed but looks failed.
    let faults = [Fault::AnswerLost, Fault::Unreachable, Fault::AnswerLost];
    setup.sink.fail_next(faults.into_iter().cycle().take(60));
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..1_000));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..1_000).collect::<Vec<_>>());
    assert_eq!((stats.rows_stored.get(), stats.rows_stored_before.get()), (1_000, 0));
}

#[tokio::test]
async fn hanging_call_is_repeated() {
    let mut setup = Setup::new();
    setup.settings.call_timeout = Duration::from_millis(50);
    setup.sink.fail_next([Fault::Hangs, Fault::Unreachable, Fault::Hangs]);
    let (mut writer, drain, _) = setup.start();
    append(&mut writer, numbered(0..10));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts().len(), 10);
}

#[tokio::test]
async fn shutdown_during_an_outage_keeps_the_rest() {
    let mut setup = Setup::new();
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..100));
    wait_until(|| stats.rows_stored.get() == 100).await;
    writer.close();
    drain.await.unwrap();
    setup.settings.shutdown_max = Duration::from_millis(50);
    setup.sink.set_down(true);
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(100..200));
    writer.close();
    drain.await.unwrap();
    assert_eq!(stats.rows_stored.get(), 0);
    setup.sink.set_down(false);
    // The answer to the first batch hangs until the deadline.
    setup.sink.fail_next([Fault::Hangs]);
    let (mut writer, drain, _) = setup.start();
    append(&mut writer, numbered(200..210));
    writer.close();
    drain.await.unwrap();
    let (writer, drain, _) = setup.start();
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..210).collect::<Vec<_>>());
    assert!(is_empty(&setup.log()));
}

#[tokio::test]
async fn replaced_database_goes_on_with_the_next_row() {
    let setup = Setup::new();
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..50));
    wait_until(|| stats.rows_stored.get() == 50).await;
    setup.sink.forget_sources();
    append(&mut writer, numbered(50..70));
    writer.close();
    drain.await.unwrap();
    assert_eq!(setup.sink.texts(), numbered(0..70).collect::<Vec<_>>());
}

#[tokio::test]
async fn catch_up_leaves_the_database_half_of_the_time() {
    let setup = Setup::new();
    setup.sink.set_store_takes(Duration::from_millis(30));
    setup.sink.set_down(true);
    let (mut writer, drain, stats) = setup.start();
    append(&mut writer, numbered(0..1_000));
    wait_until(|| setup.sink.calls() > 3).await;
    setup.sink.set_down(false);
    wait_until(|| stats.rows_stored.get() == 1_000).await;
    let stores = setup.sink.stores();
    assert_eq!(stores.len(), 10);
    for pair in stores.windows(2) {
        let [(began, ended), (next_began, _)] = [pair[0], pair[1]];
        assert!(next_began - ended >= ended - began, "{:?}", next_began - ended);
    }
    writer.close();
    drain.await.unwrap();
}
