//! Rows and a migrated database of records.

use tollgate_stores::sql::records::{
    DecisionKind, DecisionRow, LatencyHistogram, RecordsDatabase, RollupRow, RowRange, SourceId, WindowRow,
};

use crate::harness::{NOW, TestDatabase};

/// The start of the minute of [`NOW`].
pub(crate) const MINUTE: u64 = NOW - NOW % 60_000_000;

pub(crate) const NODE_A: SourceId = SourceId([0xa; 16]);
pub(crate) const NODE_B: SourceId = SourceId([0xb; 16]);

/// Opened and migrated.
pub(crate) async fn records(empty: &TestDatabase) -> RecordsDatabase {
    let database = RecordsDatabase::connect(empty.settings()).await.unwrap();
    database.migrate().await.unwrap();
    database
}

/// Opened and migrated, with two sources at position 0.
pub(crate) async fn records_with_sources(empty: &TestDatabase) -> RecordsDatabase {
    let database = records(empty).await;
    for source in [NODE_A, NODE_B] {
        assert_eq!(database.position(&source).await.unwrap(), 0);
    }
    database
}

pub(crate) fn range(source: SourceId, first: u64, end: u64) -> RowRange {
    RowRange { source, first, end }
}

pub(crate) fn decision(user: &str, decision: DecisionKind) -> DecisionRow {
    DecisionRow {
        at_micros: NOW,
        identifier: format!("user:{user}"),
        tenant: None,
        user_id: Some(user.to_owned()),
        api_key_id: None,
        ip_address: Some("192.0.2.1".to_owned()),
        endpoint: "/projects".to_owned(),
        http_method: Some("GET".to_owned()),
        rule: Some("per-user".to_owned()),
        decision,
        current_count: Some(3),
        limit_value: Some(100),
        remaining: Some(97),
        cost: 1,
        response_status: 200,
        retry_after_seconds: None,
        latency_micros: 12,
        request_id: Some("r-1".to_owned()),
        degraded: false,
        region: "eu-1".to_owned(),
        server_id: "node-a".to_owned(),
    }
}

/// Distinct decisions.
pub(crate) fn decisions(count: usize) -> Vec<DecisionRow> {
    (0..count)
        .map(|number| {
            let mut row = decision(&format!("u{number}"), DecisionKind::ALL[number % 4]);
            row.at_micros += number as u64;
            row
        })
        .collect()
}

pub(crate) fn window(user: &str, route: &str, allowed: u64, refused: u64) -> WindowRow {
    WindowRow {
        start_micros: MINUTE,
        identifier: format!("user:{user}"),
        tenant: None,
        route: route.to_owned(),
        allowed,
        refused,
        limit_value: Some(100),
    }
}

/// A rollup with as many latencies of 7 µs as requests.
pub(crate) fn rollup(server: &str, endpoint: &str, allowed: u64, throttled: u64) -> RollupRow {
    let mut latency = LatencyHistogram::default();
    (0..allowed + throttled).for_each(|_| latency.record(7));
    RollupRow {
        start_micros: MINUTE,
        tenant: None,
        user_id: None,
        endpoint: endpoint.to_owned(),
        rule: Some("per-user".to_owned()),
        region: "eu-1".to_owned(),
        server_id: server.to_owned(),
        allowed,
        throttled,
        blocked: 0,
        cache_hits: allowed,
        cache_misses: throttled,
        latency,
    }
}
