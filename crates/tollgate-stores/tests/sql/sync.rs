//! Changes since a version, and notifications.

use std::time::Duration;

use serde_json::json;
use tollgate_stores::sql::{
    AuditEntry, AuditEvent, Changes, Database, DatabaseError, Engine, Item, ItemId, StoredItem,
};

use crate::harness::{NOW, TestDatabase, change, delete, key, limit, put, quota, rule};

fn reset(subject: &str) -> AuditEvent {
    AuditEvent {
        tenant: None,
        action: "reset".to_owned(),
        kind: "counters".to_owned(),
        subject: subject.to_owned(),
        before: Some(json!({"used": 5})),
        after: None,
    }
}

/// Version, items with their versions, and events.
async fn changes(database: &Database, since: u64) -> (u64, Vec<(String, Option<u64>)>, Vec<AuditEntry>) {
    match database.changes_since(since).await.unwrap() {
        Changes::Changed { version, items, events } => {
            let summary = |(id, stored): (ItemId, Option<StoredItem>)| {
                (format!("{} {id}", id.kind().as_str()), stored.map(|stored| stored.version))
            };
            let mut items: Vec<_> = items.into_iter().map(summary).collect();
            items.sort();
            (version, items, events)
        }
        other => panic!("since {since}: {other:?}"),
    }
}

pub(crate) async fn changes_since_returns_current_items(empty: TestDatabase) {
    let database = empty.migrated().await;
    assert_eq!(database.changes_since(0).await.unwrap(), Changes::Unchanged);
    change(&database, &[put(quota("alice", None)), put(Item::Key(key("k")))]).await;
    change(&database, &[put(quota("alice", Some("gold"))), put(Item::Limit(limit("alice", "/", 1)))]).await;
    change(&database, &[delete(ItemId::Key("k".to_owned()))]).await;

    let item = |name: &str, version| (name.to_owned(), version);
    let (alice, gone) = (item("quota alice", Some(2)), item("key k", None));
    let limit = item(r#"user_endpoint_limit ["alice","/"]"#, Some(2));
    assert_eq!(changes(&database, 0).await, (3, vec![gone.clone(), alice.clone(), limit.clone()], vec![]));
    assert_eq!(changes(&database, 1).await, (3, vec![gone.clone(), alice, limit], vec![]));
    assert_eq!(changes(&database, 2).await, (3, vec![gone], vec![]));
    assert_eq!(database.changes_since(3).await.unwrap(), Changes::Unchanged);
}

pub(crate) async fn events_reach_all_nodes(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(rule("r", json!({})))]).await;
    assert_eq!(database.record_event("ops", NOW, &reset("user:alice")).await.unwrap(), 2);
    assert_eq!(database.record_event("ops", NOW + 1, &reset("user:bob")).await.unwrap(), 3);
    let (version, items, events) = changes(&database, 1).await;
    assert_eq!((version, items), (3, vec![]));
    let summary: Vec<_> =
        events.iter().map(|event| (event.version, event.at_micros, &*event.subject)).collect();
    assert_eq!(summary, [(2, NOW, "user:alice"), (3, NOW + 1, "user:bob")]);
    assert_eq!((&*events[0].by, &*events[0].action, &*events[0].kind), ("ops", "reset", "counters"));
    assert_eq!((&events[0].before, &events[0].after), (&Some(json!({"used": 5})), &None));

    let invalid = [
        AuditEvent { kind: "rule".to_owned(), ..reset("r") },
        AuditEvent { kind: String::new(), ..reset("r") },
        AuditEvent { action: String::new(), ..reset("r") },
        AuditEvent { subject: "a\0".to_owned(), ..reset("r") },
    ];
    for event in invalid {
        let error = database.record_event("ops", NOW, &event).await.unwrap_err();
        assert!(matches!(error, DatabaseError::Value { .. }), "{error:?}");
    }
    assert_eq!(database.version().await.unwrap(), 3);
}

pub(crate) async fn gap_in_audit_log_requires_reload(empty: TestDatabase) {
    let database = empty.migrated().await;
    for number in 1..=4 {
        change(&database, &[put(quota(&format!("user {number}"), None))]).await;
    }
    let mut client = empty.client().await;
    assert_eq!(database.changes_since(5).await.unwrap(), Changes::ReloadRequired, "the database is behind");
    client.execute("UPDATE config_version SET version = 2 WHERE id = 1").await;
    assert_eq!(database.changes_since(4).await.unwrap(), Changes::ReloadRequired, "a backup was restored");
    client.execute("UPDATE config_version SET version = 4 WHERE id = 1").await;

    client.execute("DELETE FROM admin_audit WHERE version <= 2").await;
    assert_eq!(database.changes_since(0).await.unwrap(), Changes::ReloadRequired, "the log was truncated");
    assert_eq!(database.changes_since(1).await.unwrap(), Changes::ReloadRequired);
    assert_eq!(changes(&database, 2).await.1.len(), 2, "complete from here");
    client.execute("DELETE FROM admin_audit WHERE version = 4").await;
    assert_eq!(database.changes_since(2).await.unwrap(), Changes::ReloadRequired, "a version is missing");
}

pub(crate) async fn too_many_changes_require_reload(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None))]).await;
    let row = "(1, 0, 'root', 'update', 'quota', 'alice', '{}', '{}')";
    let columns = "version, at_micros, made_by, action, kind, subject, state_before, state_after";
    let mut client = empty.client().await;
    let mut fill = async |count: usize| {
        let rows = vec![row; count].join(", ");
        client.execute(&format!("INSERT INTO admin_audit ({columns}) VALUES {rows}")).await;
    };
    for _ in 0..9 {
        fill(1000).await;
    }
    fill(999).await;
    assert_eq!(changes(&database, 0).await.1.len(), 1, "10,000 entries of one item");
    fill(1).await;
    assert_eq!(database.changes_since(0).await.unwrap(), Changes::ReloadRequired);
}

pub(crate) async fn polling_misses_no_change(empty: TestDatabase) {
    const CHANGES: u64 = 30;
    let database = empty.migrated().await;
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let database = database.clone();
            tokio::spawn(async move {
                for number in 0..CHANGES / 2 {
                    change(&database, &[put(quota(&format!("{writer}/{number}"), None))]).await;
                }
            })
        })
        .collect();
    let reader = empty.open().await;
    let (mut version, mut known) = (0, std::collections::BTreeMap::new());
    while version < CHANGES {
        match reader.changes_since(version).await.unwrap() {
            Changes::Unchanged => tokio::task::yield_now().await,
            Changes::Changed { version: now, items, .. } => {
                assert!(now > version);
                version = now;
                for (id, stored) in items {
                    let stored = stored.unwrap();
                    assert!(stored.version <= now);
                    known.insert(id, stored);
                }
            }
            Changes::ReloadRequired => panic!("reload required"),
        }
    }
    let mut loaded = Vec::new();
    reader.load(|stored| loaded.push(stored)).await.unwrap();
    assert_eq!(known.into_values().collect::<Vec<_>>(), loaded);
    for writer in writers {
        writer.await.unwrap();
    }
}

pub(crate) async fn only_postgres_notifies_listeners(empty: TestDatabase) {
    let database = empty.migrated().await;
    let mut listener = empty.open().await.change_listener();
    let patience = Duration::from_secs(30);
    if empty.engine() != Engine::Postgres {
        change(&database, &[put(quota("alice", None))]).await;
        let moment = Duration::from_millis(50);
        assert!(tokio::time::timeout(moment, listener.changed()).await.is_err(), "resolved");
        return;
    }
    tokio::time::timeout(patience, listener.changed()).await.expect("after connecting");
    change(&database, &[put(quota("alice", None))]).await;
    tokio::time::timeout(patience, listener.changed()).await.expect("after a change");
    database.record_event("ops", NOW, &reset("user:alice")).await.unwrap();
    tokio::time::timeout(patience, listener.changed()).await.expect("after an event");
    for number in 0..3 {
        change(&database, &[put(quota(&format!("user {number}"), None))]).await;
    }
    // Cancel safe. Notifications are coalesced.
    if tokio::time::timeout(Duration::from_micros(1), listener.changed()).await.is_err() {
        tokio::time::timeout(patience, listener.changed()).await.expect("at least one");
    }
    empty
        .client()
        .await
        .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        .await;
    // Resolves after reconnecting, because notifications may have been missed.
    let mut number = 10;
    while tokio::time::timeout(Duration::from_secs(2), listener.changed()).await.is_err() {
        number += 1;
        assert!(number < 25, "did not reconnect");
    }
    assert!(!format!("{listener:?}").contains("canary"));
}
