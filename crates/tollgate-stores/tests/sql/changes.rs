//! Changes: whole, one after another, each with its entry in the audit trail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tollgate_stores::sql::{AUDIT_COUNT_MAX, AuditEntry, Database, DatabaseError, UserEndpointLimit};

use crate::harness::{TestDatabase, limit};

pub(crate) async fn numbers_are_set_replaced_and_removed(empty: TestDatabase) {
    let database = empty.migrated().await;
    assert_eq!(database.limits().await.unwrap(), (0, vec![]));

    let first = limit("alice", "/search", 10);
    let second = UserEndpointLimit { burst: Some(5), ..limit("alice", "/search", 20) };
    let other = limit("alice", "/", 30);
    assert_eq!(database.put_limit("root", &first).await.unwrap(), 1);
    assert_eq!(database.limits().await.unwrap(), (1, vec![first.clone()]));
    assert_eq!(database.put_limit("ops@example", &second).await.unwrap(), 2);
    assert_eq!(database.put_limit("root", &other).await.unwrap(), 3);
    assert_eq!(database.limits().await.unwrap(), (3, vec![other.clone(), second.clone()]));
    assert_eq!(database.delete_limit("root", "alice", "/search", 77).await.unwrap(), Some(4));
    assert_eq!(database.delete_limit("root", "alice", "/search", 78).await.unwrap(), None);
    assert_eq!(database.limits().await.unwrap(), (4, vec![other]));
    assert_eq!(database.version().await.unwrap(), 4, "what was not there was not removed");

    let trail = database.audit(0, 10).await.unwrap();
    let told: Vec<_> = trail.iter().map(|entry| (entry.version, &*entry.by, &*entry.action)).collect();
    assert_eq!(
        told,
        [(1, "root", "put"), (2, "ops@example", "put"), (3, "root", "put"), (4, "root", "delete")]
    );
    assert!(trail.iter().all(|entry| entry.kind == "user_endpoint_limit"));
    assert_eq!(trail[1].subject, r#"["alice","/search"]"#);
    assert_eq!(trail[1].at_micros, second.updated_at_micros);
    assert_eq!(trail[3].at_micros, 77);
    assert_eq!((trail[0].before.as_deref(), trail[3].after.as_deref()), (None, None));
    assert_eq!(trail[1].before, trail[0].after);
    assert_eq!(
        trail[3].before.as_deref(),
        Some(
            r#"{"user":"alice","endpoint":"/search","requests":20,"window_micros":60000000,"algorithm":"token_bucket","burst":5,"updated_at_micros":1700000000000020}"#
        )
    );
}

pub(crate) async fn the_largest_numbers_come_back_as_they_went(empty: TestDatabase) {
    let database = empty.migrated().await;
    let largest = UserEndpointLimit {
        requests: u32::MAX,
        window_micros: u64::from(u32::MAX) * 1_000_000,
        burst: Some(u32::MAX),
        updated_at_micros: (1 << 52) - 1,
        ..limit("largest", "/", 0)
    };
    let smallest = UserEndpointLimit {
        requests: 0,
        window_micros: 1000,
        algorithm: "sliding_window_log".to_owned(),
        updated_at_micros: 0,
        ..limit("smallest", "/", 0)
    };
    database.put_limit("root", &largest).await.unwrap();
    database.put_limit("root", &smallest).await.unwrap();
    assert_eq!(database.limits().await.unwrap(), (2, vec![largest, smallest]));
}

pub(crate) async fn numbers_that_make_no_limit_leave_nothing(empty: TestDatabase) {
    let database = empty.migrated().await;
    let good = limit("alice", "/", 10);
    let refused_by_a_constraint = [
        UserEndpointLimit { algorithm: "lottery".to_owned(), ..good.clone() },
        UserEndpointLimit { algorithm: "TOKEN_BUCKET".to_owned(), ..good.clone() },
        UserEndpointLimit { algorithm: "token_bucket ".to_owned(), ..good.clone() },
        UserEndpointLimit { window_micros: 0, ..good.clone() },
        UserEndpointLimit { window_micros: 999, ..good.clone() },
        UserEndpointLimit { window_micros: u64::from(u32::MAX) * 1_000_000 + 1, ..good.clone() },
        UserEndpointLimit { burst: Some(0), ..good.clone() },
        UserEndpointLimit { burst: Some(5), algorithm: "fixed_window".to_owned(), ..good.clone() },
    ];
    for limit in refused_by_a_constraint {
        let error = database.put_limit("root", &limit).await.unwrap_err();
        assert!(matches!(error, DatabaseError::Constraint { .. }), "{limit:?}: {error:?}");
        assert!(error.to_string().contains("user_endpoint_limits"), "the constraint is named: {error}");
    }
    let beyond_any_database = [
        UserEndpointLimit { window_micros: u64::MAX, ..good.clone() },
        UserEndpointLimit { updated_at_micros: u64::MAX, ..good.clone() },
    ];
    for limit in beyond_any_database {
        let error = database.put_limit("root", &limit).await.unwrap_err();
        assert!(matches!(error, DatabaseError::Value { .. }), "{limit:?}: {error:?}");
    }
    assert_eq!(database.limits().await.unwrap(), (0, vec![]));
    assert_eq!(database.audit(0, 10).await.unwrap(), []);

    database.put_limit("root", &good).await.unwrap();
    let worse = UserEndpointLimit { window_micros: 0, ..good.clone() };
    database.put_limit("root", &worse).await.unwrap_err();
    assert_eq!(database.limits().await.unwrap(), (1, vec![good]), "what was there is there");
}

pub(crate) async fn a_change_without_its_entry_is_undone(empty: TestDatabase) {
    let database = empty.migrated().await;
    let kept = limit("alice", "/", 10);
    database.put_limit("root", &kept).await.unwrap();
    empty.client().await.execute("DROP TABLE admin_audit").await;
    database.put_limit("root", &limit("alice", "/", 20)).await.unwrap_err();
    database.put_limit("root", &limit("bob", "/", 20)).await.unwrap_err();
    database.delete_limit("root", "alice", "/", 1).await.unwrap_err();
    assert_eq!(database.limits().await.unwrap(), (1, vec![kept]));
}

pub(crate) async fn changes_at_once_follow_each_other(empty: TestDatabase) {
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
                    versions.push(database.put_limit(&by, &limit(&user, "/", number)).await.unwrap());
                }
                versions
            })
        })
        .collect();
    let mut all = Vec::new();
    for node in nodes {
        let versions = node.await.unwrap();
        assert!(versions.is_sorted_by(|one, next| one < next), "strictly: {versions:?}");
        all.extend(versions);
    }
    all.sort_unstable();
    let count = u64::from(NODES * CHANGES);
    assert_eq!(all, (1..=count).collect::<Vec<_>>(), "every version once");

    let trail = first.audit(0, 1000).await.unwrap();
    assert_eq!(trail.iter().map(|entry| entry.version).collect::<Vec<_>>(), all, "one entry each, in order");
    assert_unbroken(&trail);
    let (version, limits) = second.limits().await.unwrap();
    assert_eq!((version, limits.len()), (count, 3));
}

/// What an entry tells as the state before is what the last one told as the state after.
fn assert_unbroken(trail: &[AuditEntry]) {
    let mut states: BTreeMap<&str, &Option<String>> = BTreeMap::new();
    for entry in trail {
        let before = states.insert(&entry.subject, &entry.after).unwrap_or(&None);
        assert_eq!(&entry.before, before, "a change was lost: {entry:?}");
    }
}

pub(crate) async fn a_reader_sees_one_version_whole(empty: TestDatabase) {
    const CHANGES: u32 = 40;
    let database = empty.migrated().await;
    let writer = tokio::spawn({
        let database = database.clone();
        async move {
            for number in 0..CHANGES {
                database.put_limit("root", &limit(&format!("user {number}"), "/", number)).await.unwrap();
            }
        }
    });
    let reader = empty.open().await;
    loop {
        let (version, limits) = reader.limits().await.unwrap();
        assert_eq!(limits.len() as u64, version, "each change adds one");
        if version == u64::from(CHANGES) {
            break;
        }
    }
    writer.await.unwrap();
}

pub(crate) async fn an_abandoned_change_is_made_whole_or_not_at_all(empty: TestDatabase) {
    let database = empty.migrated().await;
    for number in 0..60 {
        let change = limit(&format!("user {number}"), "/", number);
        // Given up wherever it happens to be.
        let patience = Duration::from_micros(u64::from(number) * 50);
        let _ = tokio::time::timeout(patience, database.put_limit("root", &change)).await;
    }
    let (version, limits) = database.limits().await.unwrap();
    let trail = database.audit(0, 1000).await.unwrap();
    assert_eq!(version, trail.len() as u64);
    let stored: BTreeSet<String> = limits.iter().map(|limit| format!(r#"["{}","/"]"#, limit.user)).collect();
    assert_eq!(stored, trail.into_iter().map(|entry| entry.subject).collect());
    assert_eq!(database.put_limit("root", &limit("last", "/", 1)).await.unwrap(), version + 1);
}

pub(crate) async fn a_change_waits_for_another_only_so_long(empty: TestDatabase) {
    empty.migrated().await.close().await;
    let mut other = empty.client().await;
    other.execute("BEGIN; UPDATE config_version SET version = version WHERE id = 1").await;
    let mut settings = empty.settings();
    settings.statement_timeout = Duration::from_millis(200);
    let database = Database::connect(settings).await.unwrap();
    let change = limit("alice", "/", 1);
    let refused = tokio::time::timeout(Duration::from_secs(10), database.put_limit("root", &change)).await;
    let error = refused.expect("it gave up by itself").unwrap_err();
    assert!(matches!(error, DatabaseError::Query { .. }), "{error:?}");
    assert_eq!(database.limits().await.unwrap(), (0, vec![]), "who reads does not wait");

    other.execute("ROLLBACK").await;
    assert_eq!(database.put_limit("root", &change).await.unwrap(), 1);
}

pub(crate) async fn the_trail_is_read_page_by_page(empty: TestDatabase) {
    let database = empty.migrated().await;
    for number in 1..=5 {
        database.put_limit("root", &limit("alice", "/", number)).await.unwrap();
    }
    let mut pages = Vec::new();
    let mut after = 0;
    loop {
        let page = database.audit(after, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.id;
        pages.push(page.iter().map(|entry| entry.version).collect::<Vec<_>>());
    }
    assert_eq!(pages, [vec![1, 2], vec![3, 4], vec![5]]);
    assert_eq!(database.audit(0, 0).await.unwrap(), []);
    assert!(database.audit(u64::MAX, 1).await.is_err());

    let row = "(6, 0, 'root', 'put', 'filler', '[]', '', '{}')";
    let rows = vec![row; AUDIT_COUNT_MAX as usize].join(", ");
    let columns = "version, at_micros, made_by, action, kind, subject, state_before, state_after";
    empty.client().await.execute(&format!("INSERT INTO admin_audit ({columns}) VALUES {rows}")).await;
    let page = database.audit(0, u32::MAX).await.unwrap();
    assert_eq!(page.len(), AUDIT_COUNT_MAX as usize, "never more, whatever is asked for");
}
