//! Partitions, retention, hour and day rows.

use std::time::Duration;

use tollgate_stores::sql::Engine;
use tollgate_stores::sql::records::{
    DecisionKind, Maintenance, RecordsDatabase, Retention, RollupRow, SourceId, Stored,
};

use crate::harness::{NOW, TestDatabase};
use crate::records_harness::{
    MINUTE, NODE_A, NODE_B, decision, decisions, range, records_with_sources, rollup, window,
};

const DAY: u64 = 86_400_000_000;
const HOUR: u64 = DAY / 24;

const RETENTION: Retention = Retention {
    log: Duration::from_hours(90 * 24),
    windows: Duration::from_hours(30 * 24),
    rollups: Duration::from_hours(90 * 24),
    sqlite_bytes_max: None,
    is_archived: false,
};

async fn maintain(database: &RecordsDatabase, now: u64) -> Maintenance {
    let done = database.maintain("node-a", now, &RETENTION).await.unwrap();
    assert!(!done.held_by_other);
    done
}

/// Stores one row of each kind at a time. `number` counts the calls.
async fn store_at(database: &RecordsDatabase, number: u64, micros: u64) {
    let mut row = decision("alice", DecisionKind::Allowed);
    row.at_micros = micros;
    database.store_decisions(&range(NODE_A, number, number + 1), &[row]).await.unwrap();
    let (mut window, mut rollup) = (window("alice", "/", 1, 0), rollup("node-a", "/", 1, 0));
    window.start_micros = micros - micros % 60_000_000;
    rollup.start_micros = window.start_micros;
    database.store_aggregates(&range(NODE_B, number, number + 1), &[window], &[rollup]).await.unwrap();
}

/// Rows of the three tables, without hours and days.
async fn counts(empty: &TestDatabase) -> [i64; 3] {
    let mut client = empty.client().await;
    [
        client.number("SELECT COUNT(*) FROM rate_limit_audit_logs").await,
        client.number("SELECT COUNT(*) FROM rate_limit_records").await,
        client.number("SELECT COUNT(*) FROM rate_limit_metrics WHERE granularity = 'minute'").await,
    ]
}

pub(crate) async fn partitions_follow_the_calendar(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let is_partitioned = empty.engine() != Engine::Sqlite;
    let first = maintain(&database, NOW).await;
    // This month, this week and two more of each.
    assert_eq!(first.partitions_created, if is_partitioned { 9 } else { 0 }, "{first:?}");
    assert_eq!(maintain(&database, NOW).await.partitions_created, 0, "nothing to do");
    assert!(first.bytes.is_some_and(|bytes| bytes > 0));

    // Over half a year, with a row each day and maintenance every few days, no row is without a partition.
    for day in 0..200 {
        store_at(&database, day, NOW + day * DAY).await;
        if day % 4 == 0 {
            let done = maintain(&database, NOW + day * DAY).await;
            assert_eq!(done.rows_in_default_partition, 0, "day {day}: {done:?}");
        }
    }
    let [log, windows, rollups] = counts(&empty).await;
    // Whole months or weeks are dropped; SQLite deletes single rows.
    let (month, week) = if is_partitioned { (31, 7) } else { (0, 0) };
    for (rows, kept, period) in [(log, 90, month), (windows, 30, week), (rollups, 90, month)] {
        assert!((kept..=kept + 5 + period).contains(&rows), "{rows} rows of {kept} days");
    }
}

/// A node with a wrong clock.
pub(crate) async fn rows_without_partition_are_counted(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    maintain(&database, NOW).await;
    store_at(&database, 0, NOW + 400 * DAY).await;
    store_at(&database, 1, NOW).await;
    let done = maintain(&database, NOW).await;
    assert_eq!(done.rows_in_default_partition, if empty.engine() == Engine::Sqlite { 0 } else { 3 });
    // Rows of 1970 are older than the retention.
    store_at(&database, 2, 0).await;
    let done = maintain(&database, NOW).await;
    match empty.engine() {
        // Deleted; the hour and day of 1970 are computed first.
        Engine::Sqlite | Engine::Postgres => assert_eq!(done.rows_removed, 5, "{done:?}"),
        // In the oldest partition, which is dropped later.
        Engine::MySql => assert_eq!(done.rows_removed, 0, "{done:?}"),
    }
    assert_eq!(done.rows_in_default_partition, if empty.engine() == Engine::Sqlite { 0 } else { 3 });
}

/// Rows that were stored before their partition existed.
pub(crate) async fn rows_move_to_new_partitions(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    for day in 0..5 {
        store_at(&database, day, NOW + day * 10 * DAY).await;
    }
    let done = maintain(&database, NOW).await;
    // Three windows start after the partitions of three weeks.
    let expected = if empty.engine() == Engine::Sqlite { 0 } else { 3 };
    assert_eq!(done.rows_in_default_partition, expected, "{done:?}");
    assert_eq!(counts(&empty).await, [5, 5, 5]);
    let done = maintain(&database, NOW + 28 * DAY).await;
    assert_eq!(done.rows_in_default_partition, 0, "{done:?}");
    assert_eq!(counts(&empty).await, [5, 5, 5]);
    // They are dropped with their partitions.
    let done = maintain(&database, NOW + 200 * DAY).await;
    assert_eq!(done.partitions_dropped > 0, empty.engine() != Engine::Sqlite);
    assert_eq!(counts(&empty).await, [0, 0, 0]);
}

pub(crate) async fn old_rows_are_removed(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    maintain(&database, NOW).await;
    let mut rows = decisions(12_000);
    for row in &mut rows {
        row.at_micros = NOW;
    }
    for (number, piece) in (0..).zip(rows.chunks(4_000)) {
        let range = range(NODE_A, number * 4_000, (number + 1) * 4_000);
        assert_eq!(database.store_decisions(&range, piece).await.unwrap(), Stored::Now);
    }
    let before = maintain(&database, NOW + 60 * DAY).await;
    assert_eq!((before.rows_removed, before.partitions_dropped > 0), (0, empty.engine() != Engine::Sqlite));
    assert_eq!(counts(&empty).await[0], 12_000);
    let after = maintain(&database, NOW + 120 * DAY).await;
    assert_eq!(after.rows_removed, if empty.engine() == Engine::Sqlite { 12_000 } else { 0 });
    assert_eq!(counts(&empty).await[0], 0);
}

pub(crate) async fn one_node_maintains_at_a_time(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    maintain(&database, NOW).await;
    let other = database.maintain("node-b", NOW, &RETENTION).await.unwrap();
    assert_eq!(other, Maintenance { held_by_other: true, ..Maintenance::default() });
    maintain(&database, NOW).await;
    // The lease expires by the clock of the database.
    empty.client().await.execute("UPDATE record_maintenance SET expires_at_micros = 1").await;
    assert!(!database.maintain("node-b", NOW, &RETENTION).await.unwrap().held_by_other);
    assert!(database.maintain("node-a", NOW, &RETENTION).await.unwrap().held_by_other);
}

/// Sums over rows of a granularity.
async fn totals(empty: &TestDatabase, granularity: &str) -> (i64, i64) {
    let mut client = empty.client().await;
    let integer = if empty.engine() == Engine::MySql { "SIGNED" } else { "BIGINT" };
    let of = format!("FROM rate_limit_metrics WHERE granularity = '{granularity}'");
    let sum = format!("SELECT CAST(COALESCE(SUM(total_requests), 0) AS {integer}) {of}");
    (client.number(&format!("SELECT COUNT(*) {of}")).await, client.number(&sum).await)
}

async fn store_rollups(database: &RecordsDatabase, source: SourceId, number: u64, rows: &[RollupRow]) {
    let range = range(source, number, number + 1);
    assert_eq!(database.store_aggregates(&range, &[], rows).await.unwrap(), Stored::Now);
}

pub(crate) async fn hours_and_days_are_computed(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let hour = MINUTE - MINUTE % HOUR; // 22:00
    let mut rows = Vec::new();
    for minute in 0..180 {
        for server in ["node-a", "node-b"] {
            let mut row = rollup(server, "/projects", 2, 1);
            row.start_micros = hour + minute * 60_000_000;
            rows.push(row);
        }
    }
    store_rollups(&database, NODE_A, 0, &rows).await;
    // 22:00 and 23:00 are complete, 00:00 of the next day is not.
    let done = maintain(&database, hour + 3 * HOUR).await;
    assert_eq!(done.hours_computed, 2);
    assert_eq!(totals(&empty, "minute").await, (360, 1080));
    assert_eq!(totals(&empty, "hour").await, (2, 720));
    assert_eq!(totals(&empty, "day").await, (1, 720));
    assert_eq!(maintain(&database, hour + 3 * HOUR).await.hours_computed, 0);
    let done = maintain(&database, hour + 3 * HOUR + HOUR / 2).await;
    assert_eq!(done.hours_computed, 1);
    assert_eq!(totals(&empty, "hour").await, (3, 1080));
    assert_eq!(totals(&empty, "day").await, (2, 1080));
    let mut client = empty.client().await;
    let hours = "SELECT COUNT(*) FROM rate_limit_metrics WHERE granularity = 'hour' AND server_id = '' AND region = 'eu-1' \
                 AND allowed_requests = 240 AND throttled_requests = 120 AND latency_histogram = '7:360' AND latency_p99_us = 7";
    assert_eq!(client.number(hours).await, 3);
}

pub(crate) async fn late_minutes_are_added_to_their_hour(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    store_rollups(&database, NODE_A, 0, &[rollup("node-a", "/", 5, 0)]).await;
    assert_eq!(maintain(&database, NOW + 2 * HOUR).await.hours_computed, 1);
    assert_eq!(totals(&empty, "hour").await, (1, 5));
    // Another node was cut off for two days.
    store_rollups(&database, NODE_B, 0, &[rollup("node-b", "/", 7, 0), rollup("node-b", "/tasks", 1, 0)])
        .await;
    store_rollups(&database, NODE_B, 1, &[rollup("node-b", "/", 1, 0)]).await;
    assert_eq!(maintain(&database, NOW + 2 * DAY).await.hours_computed, 1);
    assert_eq!(totals(&empty, "hour").await, (2, 14));
    assert_eq!(totals(&empty, "day").await, (2, 14));
    assert_eq!(empty.client().await.number("SELECT COUNT(*) FROM record_changed_hours").await, 0);
}

pub(crate) async fn maintenance_does_not_disturb_writers(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let writer = tokio::spawn({
        let database = database.clone();
        async move {
            for number in 0..60 {
                store_at(&database, number, NOW + number * DAY).await;
            }
        }
    });
    let mut day = 0;
    while !writer.is_finished() {
        // The creation of a partition may give up waiting for a writer; the next run succeeds.
        let _ = database.maintain("node-a", NOW + day % 20 * DAY, &RETENTION).await;
        day += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writer.await.unwrap();
    assert_eq!(counts(&empty).await, [60, 60, 60]);
    assert_eq!(maintain(&database, NOW + 46 * DAY).await.rows_in_default_partition, 0);
    let [log, _, rollups] = counts(&empty).await;
    assert_eq!((log, rollups), (60, 60));
}

#[tokio::test]
async fn sqlite_stays_below_its_size() {
    let empty = TestDatabase::sqlite();
    let database = records_with_sources(&empty).await;
    let retention = Retention { sqlite_bytes_max: Some(3_000_000), ..RETENTION };
    let rows = decisions(5_000);
    let mut removed = 0;
    for number in 0..8 {
        database.store_decisions(&range(NODE_A, number * 5_000, (number + 1) * 5_000), &rows).await.unwrap();
        let done = database.maintain("node-a", NOW, &retention).await.unwrap();
        assert!(done.bytes.unwrap() <= 3_000_000, "{done:?}");
        removed += done.rows_removed_for_size;
    }
    let [log, ..] = counts(&empty).await;
    assert!(log > 0, "only as many rows as needed are removed");
    assert_eq!(u64::try_from(log).unwrap() + removed, 40_000);
    // Nothing is left to delete.
    let tiny = Retention { sqlite_bytes_max: Some(1), ..RETENTION };
    let done = database.maintain("node-a", NOW, &tiny).await.unwrap();
    assert_eq!(done.rows_removed_for_size, u64::try_from(log).unwrap());
}
