//! Changes are atomic and serialized, and each has its audit entries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tollgate_stores::sql::{
    AUDIT_COUNT_MAX, AppliedChange, AuditEntry, AuditEvent, AuditFilter, Database, DatabaseError, Item,
    ItemChange, ItemEdit, ItemId, ItemWrite, Precondition, UserEndpointLimit,
};

use crate::harness::{
    NOW, TestDatabase, audit_log, change, delete, everything, key, limit, put, put_limit, quota, rule,
};

fn id(user: &str, endpoint: &str) -> ItemId {
    ItemId::Limit { tenant: None, user: user.to_owned(), endpoint: endpoint.to_owned() }
}

pub(crate) async fn audit_entry_has_state_before_and_after(empty: TestDatabase) {
    let database = empty.migrated().await;
    let wider = UserEndpointLimit { burst: Some(5), ..limit("alice", "/search", 20) };
    put_limit(&database, "alice", "/search", 10).await.unwrap();
    let edit = put(Item::Limit(wider));
    assert_eq!(database.change("ops@example", 66, &[edit]).await.unwrap().version, 2);
    assert_eq!(database.change("root", 77, &[delete(id("alice", "/search"))]).await.unwrap().version, 3);

    let log = audit_log(&database).await;
    let entries: Vec<_> =
        log.iter().map(|entry| (entry.version, entry.at_micros, &*entry.by, &*entry.action)).collect();
    assert_eq!(
        entries,
        [(1, NOW, "root", "create"), (2, 66, "ops@example", "update"), (3, 77, "root", "delete")]
    );
    assert!(log.iter().all(|entry| entry.kind == "user_endpoint_limit"));
    assert!(log.iter().all(|entry| entry.subject == r#"["alice","/search"]"#));
    assert_eq!((&log[0].before, &log[2].after), (&None, &None));
    assert_eq!(log[1].before, log[0].after);
    assert_eq!(
        log[2].before,
        Some(json!({
            "user_id": "alice", "endpoint": "/search", "requests": 20, "window_micros": 60_000_000,
            "algorithm": "token_bucket", "burst": 5
        }))
    );
}

pub(crate) async fn change_at_wrong_version_is_rejected(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None))]).await;
    let edit = [put(quota("bob", None))];
    for wrong in [0, 2, u64::MAX] {
        let result = database.change_at_version(wrong, "root", NOW, &edit).await;
        assert!(matches!(result, Err(DatabaseError::VersionConflict { found: 1 })), "{result:?}");
    }
    assert_eq!((database.version().await.unwrap(), audit_log(&database).await.len()), (1, 1));
    assert_eq!(database.change_at_version(1, "root", NOW, &edit).await.unwrap().version, 2);
}

pub(crate) async fn edits_without_effect_make_no_version(empty: TestDatabase) {
    let database = empty.migrated().await;
    let one = rule("one", json!({"per": ["user"], "response": {}}));
    change(&database, &[put(one.clone()), put(quota("alice", None))]).await;
    let nothing = AppliedChange { version: 1, items: vec![] };
    let same = [put(one), put(rule("one", json!({"per": "user", "layer": null}))), put(quota("alice", None))];
    for edit in same {
        assert_eq!(database.change("root", NOW + 9, &[edit]).await.unwrap(), nothing);
    }
    let absent = delete(ItemId::Rule("none".to_owned()));
    assert_eq!(database.change("root", NOW, &[absent]).await.unwrap(), nothing);
    assert_eq!(database.change("root", NOW, &[]).await.unwrap(), nothing);
    assert_eq!(database.version().await.unwrap(), 1);
    assert_eq!(audit_log(&database).await.len(), 2);

    let mixed = [put(quota("alice", None)), put(quota("bob", None))];
    let changed = database.change("root", NOW, &mixed).await.unwrap();
    assert_eq!((changed.version, changed.items.len()), (2, 1), "only bob changed");
    assert_eq!(audit_log(&database).await.len(), 3);
    let alice =
        database.get(&ItemId::Quota { tenant: None, user: "alice".to_owned() }).await.unwrap().unwrap();
    assert_eq!((alice.version, alice.updated_at_micros), (1, NOW), "alice was not written");
}

pub(crate) async fn failed_precondition_aborts_the_change(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None))]).await;
    change(&database, &[put(quota("bob", None))]).await;
    let alice = || quota("alice", Some("gold"));
    let there = ItemId::Quota { tenant: None, user: "alice".to_owned() };
    let missing = ItemId::Quota { tenant: None, user: "carol".to_owned() };
    let failing = [
        (ItemWrite::Put(alice()), Precondition::Absent, &there, Some(1)),
        (ItemWrite::Put(alice()), Precondition::Version(2), &there, Some(1)),
        (ItemWrite::Delete(there.clone()), Precondition::Absent, &there, Some(1)),
        (ItemWrite::Delete(there.clone()), Precondition::Version(0), &there, Some(1)),
        (ItemWrite::Put(quota("carol", None)), Precondition::Present, &missing, None),
        (ItemWrite::Put(quota("carol", None)), Precondition::Version(1), &missing, None),
        (ItemWrite::Delete(missing.clone()), Precondition::Present, &missing, None),
        (ItemWrite::Put(quota("alice", None)), Precondition::Absent, &there, Some(1)), // although it has no effect
    ];
    let before = everything(&database).await;
    for (write, precondition, about, version) in failing {
        let edits = [put(quota("dave", None)), ItemEdit { write, precondition }, put(quota("eve", None))];
        for result in
            [database.change("root", NOW, &edits).await.map(drop), database.dry_run(&edits).await.map(drop)]
        {
            let error = result.unwrap_err();
            assert!(
                matches!(&error, DatabaseError::Conflict { id, found } if id == about && *found == version),
                "{edits:?}: {error:?}"
            );
        }
    }
    assert_eq!(everything(&database).await, before);
    assert_eq!(audit_log(&database).await.len(), 2);

    let met = [
        ItemEdit { write: ItemWrite::Put(alice()), precondition: Precondition::Version(1) },
        ItemEdit {
            write: ItemWrite::Delete(ItemId::Quota { tenant: None, user: "bob".to_owned() }),
            precondition: Precondition::Present,
        },
        ItemEdit { write: ItemWrite::Put(quota("carol", None)), precondition: Precondition::Absent },
        ItemEdit {
            write: ItemWrite::Delete(ItemId::Quota { tenant: None, user: "nobody".to_owned() }),
            precondition: Precondition::Absent,
        },
    ];
    let expected = database.dry_run(&met).await.unwrap();
    assert_eq!(everything(&database).await, before, "a dry run changes nothing");
    let changed = database.change("root", NOW, &met).await.unwrap();
    assert_eq!((changed.version, changed.items), (3, expected));
}

pub(crate) async fn dry_run_lists_item_changes(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None)), put(quota("bob", None))]).await;
    let edits = [
        delete(ItemId::Quota { tenant: None, user: "bob".to_owned() }),
        put(quota("alice", Some("gold"))),
        put(quota("carol", None)),
        delete(ItemId::Quota { tenant: None, user: "dave".to_owned() }),
    ];
    let changes = database.dry_run(&edits).await.unwrap();
    let changes: Vec<_> = changes
        .iter()
        .map(|ItemChange { id, before, after }| {
            (id.to_string(), before.as_ref().map(|stored| stored.version), after.clone())
        })
        .collect();
    assert_eq!(
        changes,
        [
            ("bob".to_owned(), Some(1), None),
            ("alice".to_owned(), Some(1), Some(quota("alice", Some("gold")))),
            ("carol".to_owned(), None, Some(quota("carol", None))),
        ]
    );
    let twice = [put(quota("alice", None)), delete(ItemId::Quota { tenant: None, user: "alice".to_owned() })];
    for result in
        [database.dry_run(&twice).await.map(drop), database.change("root", 1, &twice).await.map(drop)]
    {
        assert!(matches!(result.unwrap_err(), DatabaseError::DuplicateItem { .. }));
    }
}

pub(crate) async fn constraint_violation_rolls_back_all_edits(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None)), put(Item::Key(key("k1")))]).await;
    let before = everything(&database).await;
    let twin = tollgate_stores::sql::KeyItem { hash: key("k1").hash, ..key("k2") };
    let edits = [
        delete(ItemId::Quota { tenant: None, user: "alice".to_owned() }),
        put(quota("bob", None)),
        put(Item::Key(twin)), // hashes are unique
    ];
    let error = database.change("root", NOW, &edits).await.unwrap_err();
    let DatabaseError::Constraint { constraint } = &error else { panic!("{error:?}") };
    assert!(constraint.contains("hash"), "{error}");
    assert!(!error.is_unreachable());
    assert_eq!(everything(&database).await, before);
    assert_eq!(audit_log(&database).await.len(), 2);
}

pub(crate) async fn thousands_of_edits_are_one_change(empty: TestDatabase) {
    const COUNT: usize = 1500;
    const ENTRIES: i64 = 4500;
    let database = empty.migrated().await;
    let names: Vec<String> = (0..COUNT).map(|number| format!("user {number}")).collect();
    let all =
        |tier: Option<&str>| -> Vec<ItemEdit> { names.iter().map(|user| put(quota(user, tier))).collect() };
    let changed = database.change("root", NOW, &all(None)).await.unwrap();
    assert_eq!((changed.version, changed.items.len()), (1, COUNT));
    assert_eq!(change(&database, &all(Some("gold"))).await, 2);
    let (_, items) = everything(&database).await;
    assert_eq!(items.len(), COUNT);
    assert!(items.iter().all(|item| matches!(item, Item::Quota(q) if q.tier.as_deref() == Some("gold"))));
    let gone: Vec<ItemEdit> =
        names.iter().map(|user| delete(ItemId::Quota { tenant: None, user: user.clone() })).collect();
    assert_eq!(change(&database, &gone).await, 3);
    assert_eq!(everything(&database).await, (3, vec![]));
    assert_eq!(empty.client().await.number("SELECT COUNT(*) FROM admin_audit").await, ENTRIES);
}

pub(crate) async fn change_without_audit_entry_is_rolled_back(empty: TestDatabase) {
    let database = empty.migrated().await;
    put_limit(&database, "alice", "/", 10).await.unwrap();
    let before = everything(&database).await;
    empty.client().await.execute("DROP TABLE admin_audit").await;
    put_limit(&database, "alice", "/", 20).await.unwrap_err();
    put_limit(&database, "bob", "/", 20).await.unwrap_err();
    database.change("root", 1, &[delete(id("alice", "/"))]).await.unwrap_err();
    assert_eq!(everything(&database).await, before);
}

pub(crate) async fn concurrent_changes_are_serialized(empty: TestDatabase) {
    const NODES: u32 = 4;
    const CHANGES: u32 = 12;
    let first = empty.migrated().await;
    let second = empty.open().await;
    let nodes: Vec<_> = (0..NODES)
        .map(|node| {
            let database = if node % 2 == 0 { first.clone() } else { second.clone() };
            tokio::spawn(async move {
                let mut versions = Vec::new();
                for change in 0..CHANGES {
                    let user = format!("user {}", change % 3);
                    let number = node * CHANGES + change;
                    let by = format!("node {node}");
                    let edit = put(Item::Limit(limit(&user, "/", number)));
                    versions.push(database.change(&by, NOW, &[edit]).await.unwrap().version);
                }
                versions
            })
        })
        .collect();
    let mut all = Vec::new();
    for node in nodes {
        let versions = node.await.unwrap();
        assert!(versions.is_sorted_by(|one, next| one < next), "not increasing: {versions:?}");
        all.extend(versions);
    }
    all.sort_unstable();
    let count = u64::from(NODES * CHANGES);
    assert_eq!(all, (1..=count).collect::<Vec<_>>(), "each version once");

    let log = audit_log(&first).await;
    assert_eq!(
        log.iter().map(|entry| entry.version).collect::<Vec<_>>(),
        all,
        "one entry per version, in order"
    );
    assert_unbroken(&log);
    let (version, items) = everything(&second).await;
    assert_eq!((version, items.len()), (count, 3));
}

/// Each entry's state before is the previous entry's state after.
fn assert_unbroken(log: &[AuditEntry]) {
    let mut states: BTreeMap<&str, &Option<Json>> = BTreeMap::new();
    for entry in log {
        let before = states.insert(&entry.subject, &entry.after).unwrap_or(&None);
        assert_eq!(&entry.before, before, "a change was lost: {entry:?}");
    }
}

pub(crate) async fn version_precondition_admits_one_of_many(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None))]).await;
    let nodes: Vec<_> = (0..4)
        .map(|node| {
            let database = database.clone();
            let write = ItemWrite::Put(quota("alice", Some(&format!("tier {node}"))));
            let edit = ItemEdit { write, precondition: Precondition::Version(1) };
            tokio::spawn(async move { database.change("root", NOW, &[edit]).await })
        })
        .collect();
    let mut applied = 0;
    for node in nodes {
        match node.await.unwrap() {
            Ok(changed) => {
                applied += 1;
                assert_eq!(changed.version, 2);
            }
            Err(error) => {
                assert!(matches!(error, DatabaseError::Conflict { found: Some(2), .. }), "{error:?}");
            }
        }
    }
    assert_eq!(applied, 1);
}

pub(crate) async fn load_sees_exactly_one_version(empty: TestDatabase) {
    const CHANGES: u32 = 40;
    let database = empty.migrated().await;
    let writer = tokio::spawn({
        let database = database.clone();
        async move {
            for number in 0..CHANGES {
                // Two kinds per change: a reader sees both or neither.
                let user = format!("user {number}");
                change(&database, &[put(quota(&user, None)), put(Item::Limit(limit(&user, "/", number)))])
                    .await;
            }
        }
    });
    let reader = empty.open().await;
    loop {
        let (version, items) = everything(&reader).await;
        assert_eq!(items.len() as u64, 2 * version, "each change adds two items");
        if version == u64::from(CHANGES) {
            break;
        }
    }
    writer.await.unwrap();
}

pub(crate) async fn dropped_change_is_atomic(empty: TestDatabase) {
    let database = empty.migrated().await;
    for number in 0..60 {
        // Dropped at an arbitrary point.
        let patience = Duration::from_micros(u64::from(number) * 50);
        let user = format!("user {number}");
        let _ = tokio::time::timeout(patience, put_limit(&database, &user, "/", number)).await;
    }
    // The last dropped change may still be in progress on the server: one more change waits for it.
    let last = put_limit(&database, "last", "/", 1).await.unwrap();
    let (version, items) = everything(&database).await;
    let log = audit_log(&database).await;
    assert_eq!((version, log.len() as u64), (last, last));
    let stored: BTreeSet<String> = items.iter().map(|item| item.id().to_string()).collect();
    assert_eq!(stored, log.into_iter().map(|entry| entry.subject).collect());
}

pub(crate) async fn change_lock_wait_times_out(empty: TestDatabase) {
    empty.migrated().await.close().await;
    let mut other = empty.client().await;
    other.execute("BEGIN; UPDATE config_version SET version = version WHERE id = 1").await;
    let mut settings = empty.settings();
    // Short, but long enough for a busy machine.
    settings.statement_timeout = Duration::from_secs(4);
    let database = Database::connect(settings).await.unwrap();
    let result = tokio::time::timeout(Duration::from_secs(40), put_limit(&database, "alice", "/", 1)).await;
    let error = result.expect("the server timed out first").unwrap_err();
    assert!(matches!(error, DatabaseError::Query { .. }), "{error:?}");
    assert_eq!(everything(&database).await, (0, vec![]), "readers do not wait");

    other.execute("ROLLBACK").await;
    assert_eq!(put_limit(&database, "alice", "/", 1).await.unwrap(), 1);
}

pub(crate) async fn audit_log_is_paged_from_both_ends(empty: TestDatabase) {
    let database = empty.migrated().await;
    let all = AuditFilter::default();
    for number in 1..=5 {
        put_limit(&database, "alice", "/", number).await.unwrap();
    }
    let versions = |page: &[AuditEntry]| page.iter().map(|entry| entry.version).collect::<Vec<_>>();
    let (mut pages, mut after) = (Vec::new(), 0);
    while let page = database.audit(&all, after, 2).await.unwrap()
        && let Some(last) = page.last()
    {
        after = last.id;
        pages.push(versions(&page));
    }
    assert_eq!(pages, [vec![1, 2], vec![3, 4], vec![5]]);
    let (mut pages, mut before) = (Vec::new(), None);
    while let page = database.audit_newest(&all, before, 2).await.unwrap()
        && let Some(last) = page.last()
    {
        before = Some(last.id);
        pages.push(versions(&page));
    }
    assert_eq!(pages, [vec![5, 4], vec![3, 2], vec![1]]);
    assert_eq!(database.audit(&all, 0, 0).await.unwrap(), []);
    assert!(database.audit(&all, u64::MAX, 1).await.is_err());

    let row = "(6, 0, 'root', 'put', 'filler', '[]', '', '{}')";
    let rows = vec![row; AUDIT_COUNT_MAX as usize].join(", ");
    let columns = "version, at_micros, made_by, action, kind, subject, state_before, state_after";
    empty.client().await.execute(&format!("INSERT INTO admin_audit ({columns}) VALUES {rows}")).await;
    let page = database.audit(&all, 0, u32::MAX).await.unwrap();
    assert_eq!(page.len(), AUDIT_COUNT_MAX as usize, "capped");
}

pub(crate) async fn audit_log_is_filtered(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None)), put(rule("alice", json!({})))]).await;
    database.change("ops", NOW, &[put(quota("bob", None))]).await.unwrap();
    let event = AuditEvent {
        tenant: None,
        action: "reset".to_owned(),
        kind: "counters".to_owned(),
        subject: "user:alice".to_owned(),
        before: None,
        after: None,
    };
    assert_eq!(database.record_event("ops", NOW, &event).await.unwrap(), 3);
    let found = async |kind: Option<&str>, by: Option<&str>, subject: Option<&str>| {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let filter = AuditFilter {
            kind: owned(kind),
            by: owned(by),
            subject: owned(subject),
            ..AuditFilter::default()
        };
        let oldest = database.audit(&filter, 0, 10).await.unwrap();
        let mut newest = database.audit_newest(&filter, None, 10).await.unwrap();
        newest.reverse();
        assert_eq!(oldest, newest);
        oldest.iter().map(|entry| format!("{} {}", entry.kind, entry.subject)).collect::<Vec<_>>()
    };
    assert_eq!(found(Some("quota"), None, None).await, ["quota alice", "quota bob"]);
    for (since, until, count) in [(Some(NOW), None, 4), (Some(NOW + 1), None, 0), (None, Some(NOW), 0)] {
        let filter = AuditFilter { since_micros: since, until_micros: until, ..AuditFilter::default() };
        assert_eq!(database.audit(&filter, 0, 10).await.unwrap().len(), count, "{since:?} {until:?}");
    }
    assert_eq!(found(None, Some("ops"), None).await, ["quota bob", "counters user:alice"]);
    assert_eq!(found(None, None, Some("alice")).await, ["quota alice", "rule alice"]);
    assert_eq!(found(Some("quota"), Some("root"), Some("alice")).await, ["quota alice"]);
    assert_eq!(found(Some("QUOTA"), None, None).await, [""; 0]);
    assert_eq!(found(None, None, Some("alice ")).await, [""; 0]);
}
