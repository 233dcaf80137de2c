//! The decision log, and the positions of sources.

use tollgate_stores::sql::records::{DecisionKind, SourceId, Stored};
use tollgate_stores::sql::{DatabaseError, Engine};

use crate::harness::TestDatabase;
use crate::records_harness::{NODE_A, NODE_B, decision, decisions, range, records, records_with_sources};

pub(crate) async fn records_share_a_database_with_the_configuration(empty: TestDatabase) {
    empty.migrated().await;
    let database = records(&empty).await;
    assert_eq!(database.migrate().await.unwrap(), []);
    assert_eq!(empty.open().await.pending_migrations().await.unwrap(), []);
    let mut client = empty.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM tollgate_records_migrations").await, 1);
    assert_eq!(client.number("SELECT COUNT(*) FROM tollgate_migrations").await, 2);
}

pub(crate) async fn range_is_stored_once(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let rows = decisions(1200);
    for (expected, source) in [Stored::Now, Stored::Before, Stored::Now, Stored::Before]
        .iter()
        .zip([NODE_A, NODE_A, NODE_B, NODE_B])
    {
        assert_eq!(database.store_decisions(&range(source, 0, 1200), &rows).await.unwrap(), *expected);
        assert_eq!(database.position(&source).await.unwrap(), 1200);
    }
    let stored = database.store_decisions(&range(NODE_A, 1200, 1201), &rows[..1]).await.unwrap();
    assert_eq!(stored, Stored::Now);
    let mut client = empty.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_audit_logs").await, 2401);
    assert_eq!(client.number("SELECT COUNT(DISTINCT log_id) FROM rate_limit_audit_logs").await, 2401);
    assert_eq!(
        client.number("SELECT COUNT(*) FROM rate_limit_audit_logs WHERE decision = 'blocked'").await,
        600
    );
}

pub(crate) async fn decisions_are_stored_as_sent(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let mut odd = decision("o'brien\\\t\n\r\"; --", DecisionKind::Throttled);
    odd.tenant = Some("grün 🚦".to_owned());
    odd.ip_address = Some("not an address".to_owned());
    odd.rule = None;
    odd.request_id = Some("\\N".to_owned());
    odd.retry_after_seconds = Some(7);
    odd.degraded = true;
    odd.response_status = 429;
    let plain = decision("alice", DecisionKind::Allowed);
    database.store_decisions(&range(NODE_A, 0, 2), &[odd, plain]).await.unwrap();
    let mut client = empty.client().await;
    let yes = if empty.engine() == Engine::Postgres { "true" } else { "1" };
    // Character codes, because engines escape texts in different ways.
    let char = if empty.engine() == Engine::Postgres { "chr" } else { "char" };
    let join = |codes: &[&str]| match empty.engine() {
        Engine::MySql => format!("CONCAT({})", codes.join(", ")),
        _ => codes.join(" || "),
    };
    let code = |number: u32| format!("{char}({number})");
    let user = join(&["'o''brien'", &code(92), &code(9), &code(10), &code(13), "'\"; --'"]);
    let backslash_n = join(&[&code(92), "'N'"]);
    let odd = format!(
        "SELECT COUNT(*) FROM rate_limit_audit_logs WHERE user_id = {user} AND tenant = 'grün 🚦' \
         AND ip_address IS NULL AND rule_id IS NULL AND request_id = {backslash_n} AND retry_after_seconds = 7 \
         AND degraded = {yes} AND NOT truncated AND response_status = 429 AND decision = 'throttled'"
    );
    assert_eq!(client.number(&odd).await, 1);
    let plain = format!(
        "SELECT COUNT(*) FROM rate_limit_audit_logs WHERE identifier = 'user:alice' AND tenant IS NULL \
         AND ip_address = '192.0.2.1' AND rule_id = 'per-user' AND http_method = 'GET' AND NOT degraded \
         AND current_count = 3 AND limit_value = 100 AND remaining = 97 AND cost = 1 AND region = 'eu-1' \
         AND server_id = 'node-a' AND latency_us = 12 AND timestamp = {}",
        match empty.engine() {
            Engine::Postgres => "TIMESTAMPTZ '2023-11-14 22:13:20+00'",
            Engine::MySql | Engine::Sqlite => "'2023-11-14 22:13:20.000000'",
        }
    );
    assert_eq!(client.number(&plain).await, 1);
    let view = format!(
        "SELECT COUNT(*) FROM rate_limit_logs WHERE id > 0 AND user_id = 'alice' AND endpoint = '/projects' AND allowed = {yes} \
         AND limit_value = 100 AND remaining = 97 AND request_id = 'r-1' AND created_at IS NOT NULL"
    );
    assert_eq!(client.number(&view).await, 1);
}

pub(crate) async fn long_texts_are_truncated_and_flagged(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let mut long = decision("alice", DecisionKind::Allowed);
    long.endpoint = "ü".repeat(600);
    long.identifier = "🚦".repeat(10_000);
    let mut nul = decision("bob\0", DecisionKind::Allowed);
    nul.rule = Some("\0".to_owned());
    let exact = decision(&"x".repeat(256), DecisionKind::Allowed);
    database.store_decisions(&range(NODE_A, 0, 3), &[long, nul, exact]).await.unwrap();
    let mut client = empty.client().await;
    let length = if empty.engine() == Engine::Sqlite { "length" } else { "char_length" };
    let long = format!(
        "SELECT COUNT(*) FROM rate_limit_audit_logs WHERE truncated AND {length}(endpoint) = 500 AND {length}(identifier) = 300"
    );
    assert_eq!(client.number(&long).await, 1);
    let nul = "SELECT COUNT(*) FROM rate_limit_audit_logs WHERE truncated AND user_id = 'bob\u{fffd}' AND rule_id = '\u{fffd}'";
    assert_eq!(client.number(nul).await, 1);
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_audit_logs WHERE NOT truncated").await, 1);
}

pub(crate) async fn rejected_row_stores_nothing(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let mut client = empty.client().await;
    let mut rows = decisions(10);
    // Rejected before it is sent.
    rows[7].at_micros = u64::MAX;
    let error = database.store_decisions(&range(NODE_A, 0, 10), &rows).await.unwrap_err();
    assert!(error.is_rejected_row() && !error.is_unreachable(), "{error:?}");
    // Rejected by the database.
    rows[7] = decision("mallory", DecisionKind::Allowed);
    let reject = match empty.engine() {
        Engine::Sqlite => {
            "CREATE TRIGGER reject BEFORE INSERT ON rate_limit_audit_logs WHEN NEW.user_id = 'mallory' \
             BEGIN SELECT RAISE(ABORT, 'rejected'); END"
        }
        Engine::Postgres | Engine::MySql => {
            "ALTER TABLE rate_limit_audit_logs ADD CONSTRAINT reject CHECK (user_id <> 'mallory')"
        }
    };
    client.execute(reject).await;
    let error = database.store_decisions(&range(NODE_A, 0, 10), &rows).await.unwrap_err();
    assert!(error.is_rejected_row() && !error.is_unreachable(), "{error:?}");
    assert_eq!(database.position(&NODE_A).await.unwrap(), 0);
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_audit_logs").await, 0);

    // As the caller does: the rows before and after it are stored, it is skipped.
    assert_eq!(database.store_decisions(&range(NODE_A, 0, 7), &rows[..7]).await.unwrap(), Stored::Now);
    assert!(database.store_decisions(&range(NODE_A, 7, 8), &rows[7..8]).await.unwrap_err().is_rejected_row());
    assert_eq!(database.skip(&range(NODE_A, 7, 8)).await.unwrap(), Stored::Now);
    assert_eq!(database.store_decisions(&range(NODE_A, 8, 10), &rows[8..]).await.unwrap(), Stored::Now);
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_audit_logs").await, 9);
}

pub(crate) async fn ranges_that_do_not_follow_are_rejected(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    let rows = decisions(4);
    database.store_decisions(&range(NODE_A, 0, 2), &rows[..2]).await.unwrap();
    for (first, end) in [(3, 4), (1, 3)] {
        let error = database.store_decisions(&range(NODE_A, first, end), &rows[..1]).await.unwrap_err();
        assert!(matches!(error, DatabaseError::RowPosition { found: Some(2), .. }), "{error:?}");
        assert!(!error.is_rejected_row() && !error.is_unreachable());
    }
    let unknown = SourceId([7; 16]);
    let error = database.store_decisions(&range(unknown, 0, 1), &rows[..1]).await.unwrap_err();
    assert!(matches!(error, DatabaseError::RowPosition { found: None, .. }), "{error:?}");
    let mut client = empty.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_audit_logs").await, 2);
}

pub(crate) async fn skipped_rows_move_the_position(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    assert_eq!(database.skip(&range(NODE_A, 0, 5)).await.unwrap(), Stored::Now);
    assert_eq!(database.skip(&range(NODE_A, 0, 5)).await.unwrap(), Stored::Before);
    assert_eq!(database.position(&NODE_A).await.unwrap(), 5);
    assert!(database.skip(&range(NODE_A, 6, 7)).await.is_err());
}

pub(crate) async fn source_is_registered_once(empty: TestDatabase) {
    let database = records(&empty).await;
    let nodes = [(); 8].map(|()| {
        let database = database.clone();
        tokio::spawn(async move { database.position(&NODE_A).await })
    });
    for node in nodes {
        assert_eq!(node.await.unwrap().unwrap(), 0);
    }
    assert_eq!(empty.client().await.number("SELECT COUNT(*) FROM record_sources").await, 1);
}
