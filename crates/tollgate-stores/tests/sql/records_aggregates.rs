//! Windows and rollups.

use tollgate_stores::sql::Engine;
use tollgate_stores::sql::records::{RecordsDatabase, SourceId, Stored, WindowRow};

use crate::harness::{Client, TestDatabase};
use crate::records_harness::{MINUTE, NODE_A, NODE_B, range, records_with_sources, rollup, window};

/// Sums of a table, as text: engines have different types for them.
async fn sum(client: &mut Client, column: &str, rest: &str) -> i64 {
    let integer = if matches!(client, Client::MySql(_)) { "SIGNED" } else { "BIGINT" };
    client.number(&format!("SELECT CAST(COALESCE(SUM({column}), 0) AS {integer}) FROM {rest}")).await
}

pub(crate) async fn window_deltas_add_up(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let mut unlimited = window("alice", "/projects", 1, 0);
    unlimited.limit_value = None;
    let mut of_tenant = window("alice", "/projects", 5, 0);
    of_tenant.tenant = Some("acme".to_owned());
    let first = [window("alice", "/projects", 2, 1), window("alice", "/projects", 3, 0), of_tenant];
    assert_eq!(database.store_aggregates(&range(NODE_A, 0, 3), &first, &[]).await.unwrap(), Stored::Now);
    assert_eq!(database.store_aggregates(&range(NODE_A, 0, 3), &first, &[]).await.unwrap(), Stored::Before);
    let second = [unlimited, window("bob", "/projects", 0, 4)];
    database.store_aggregates(&range(NODE_A, 3, 5), &second, &[]).await.unwrap();
    let mut client = empty.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_records").await, 3);
    let (start, end) = match empty.engine() {
        Engine::Postgres => ("TIMESTAMPTZ '2023-11-14 22:13:00+00'", "TIMESTAMPTZ '2023-11-14 22:14:00+00'"),
        Engine::MySql | Engine::Sqlite => ("'2023-11-14 22:13:00.000000'", "'2023-11-14 22:14:00.000000'"),
    };
    let alice = format!(
        "SELECT COUNT(*) FROM rate_limit_records WHERE identifier = 'user:alice' AND tenant IS NULL AND route_path = '/projects' \
         AND window_type = 'minute' AND allowed = 6 AND refused = 1 AND request_count = 7 AND limit_value = 100 \
         AND window_start = {start} AND window_end = {end} AND created_at <= updated_at"
    );
    assert_eq!(client.number(&alice).await, 1);
}

pub(crate) async fn rollup_deltas_add_up_and_merge_latencies(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let fast = rollup("node-a", "/projects", 3, 1);
    let mut slow = rollup("node-a", "/projects", 0, 0);
    (slow.blocked, slow.cache_hits) = (4, 2);
    (0..4).for_each(|_| slow.latency.record(3_000));
    let others = [rollup("node-b", "/projects", 1, 0), rollup("node-a", "/tasks", 1, 0)];
    let rows = [&[fast.clone(), fast][..], &others].concat();
    database.store_aggregates(&range(NODE_A, 0, 1), &[], &rows).await.unwrap();
    assert_eq!(database.store_aggregates(&range(NODE_A, 0, 1), &[], &rows).await.unwrap(), Stored::Before);
    database.store_aggregates(&range(NODE_A, 1, 2), &[], &[slow]).await.unwrap();
    let mut client = empty.client().await;
    assert_eq!(
        client.number("SELECT COUNT(*) FROM rate_limit_metrics WHERE granularity = 'minute'").await,
        3
    );
    let merged = "SELECT COUNT(*) FROM rate_limit_metrics WHERE endpoint = '/projects' AND server_id = 'node-a' \
                  AND total_requests = 12 AND allowed_requests = 6 AND throttled_requests = 2 AND blocked_requests = 4 \
                  AND cache_hits = 8 AND cache_misses = 2 AND latency_p50_us = 7 AND latency_p99_us BETWEEN 3000 AND 3750 \
                  AND rule_id = 'per-user' AND region = 'eu-1' AND user_id IS NULL";
    assert_eq!(client.number(merged).await, 1);
    assert_eq!(client.number("SELECT COUNT(*) FROM record_changed_hours WHERE changes = 2").await, 1);
}

/// Both nodes send the same windows in opposite orders, in small ranges.
pub(crate) async fn two_nodes_add_to_the_same_windows(empty: TestDatabase) {
    const ROUNDS: u64 = 20;
    const WINDOWS: u64 = 50;
    let database = records_with_sources(&empty).await;
    let rows: Vec<WindowRow> = (0..WINDOWS).map(|n| window(&format!("u{n}"), "/projects", 2, 1)).collect();
    let node = |database: RecordsDatabase, source: SourceId, rows: Vec<WindowRow>, server: &'static str| async move {
        for round in 0..ROUNDS {
            let rollups = [rollup(server, "/projects", WINDOWS, 0)];
            let stored = database.store_aggregates(&range(source, round, round + 1), &rows, &rollups).await;
            assert_eq!(stored.unwrap(), Stored::Now);
        }
    };
    let reversed: Vec<WindowRow> = rows.iter().rev().cloned().collect();
    let a = tokio::spawn(node(database.clone(), NODE_A, rows, "node-a"));
    let b = tokio::spawn(node(database.clone(), NODE_B, reversed, "node-b"));
    a.await.unwrap();
    b.await.unwrap();
    let mut client = empty.client().await;
    let sums = ["allowed", "refused", "request_count"];
    let expected = [2, 1, 3].map(|each| i64::try_from(each * 2 * ROUNDS * WINDOWS).unwrap());
    for (column, expected) in sums.iter().zip(expected) {
        assert_eq!(sum(&mut client, column, "rate_limit_records").await, expected, "{column}");
    }
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_records").await, 50);
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_metrics").await, 2);
    assert_eq!(sum(&mut client, "total_requests", "rate_limit_metrics").await, 2000);
}

/// Two processes with the same `server.id` create the same rows at once.
pub(crate) async fn same_server_id_twice_loses_no_latency(empty: TestDatabase) {
    const ROUNDS: u64 = 10;
    let database = records_with_sources(&empty).await;
    let node = |database: RecordsDatabase, source: SourceId| async move {
        for round in 0..ROUNDS {
            let mut row = rollup("node-a", "/projects", 1, 0);
            row.start_micros = MINUTE + round * 60_000_000;
            database.store_aggregates(&range(source, round, round + 1), &[], &[row]).await.unwrap();
        }
    };
    let nodes = [NODE_A, NODE_B].map(|source| tokio::spawn(node(database.clone(), source)));
    for node in nodes {
        node.await.unwrap();
    }
    let mut client = empty.client().await;
    // Bucket 7 holds latencies of 7 µs.
    let merged =
        "SELECT COUNT(*) FROM rate_limit_metrics WHERE total_requests = 2 AND latency_histogram = '7:2'";
    assert_eq!(client.number(merged).await, 10);
}

pub(crate) async fn long_routes_are_different_windows(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let long = "/x".repeat(300);
    let rows = ["a", "b"].map(|end| window("alice", &format!("{long}{end}"), 1, 0));
    let rollups = ["a", "b"].map(|end| rollup("node-a", &format!("{long}{end}"), 1, 0));
    database.store_aggregates(&range(NODE_A, 0, 1), &rows, &rollups).await.unwrap();
    let mut client = empty.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_records").await, 2);
    assert_eq!(client.number("SELECT COUNT(DISTINCT route_path) FROM rate_limit_records").await, 1);
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_metrics").await, 2);
}
