//! Usage totals: counted once, rolled over by day and month.

use std::sync::Arc;

use tollgate::identity::InTenant;
use tollgate_stores::sql::{
    BlockItem, BlockKind, Database, DatabaseError, Item, ItemFilter, ItemId, ItemKind, KeyUsage,
    KeyUsageDelta, QuotaItem, UsageBatch, UserUsage, UserUsageDelta,
};

use crate::harness::{TestDatabase, change, delete, key, put, quota};

/// 2024-01-30, and the days after it.
const DAY: u32 = 19_752;

fn users(number: u64, deltas: &[(&str, u32, u64)]) -> UsageBatch {
    let users = deltas.iter().map(|&(user, day, requests)| UserUsageDelta {
        tenant: None,
        user: user.to_owned(),
        day,
        requests,
        exceeded: 1,
        last_micros: u64::from(day) * 86_400_000_000 + requests,
    });
    UsageBatch { node: "node".to_owned(), number, users: users.collect(), keys: vec![] }
}

async fn counts(database: &Database, user: &str) -> Option<(u32, u64, u64)> {
    let usage = database.users_usage(&[user.into()]).await.unwrap().pop()?;
    Some((usage.day, usage.requests_of_day, usage.requests_of_month))
}

pub(crate) async fn totals_roll_over_by_day_and_month(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None)), put(quota("bob", None))]).await;
    assert_eq!(counts(&database, "alice").await, None);
    let add = async |number, deltas: &[(&str, u32, u64)]| {
        assert!(database.add_usage(&users(number, deltas)).await.unwrap());
        counts(&database, "alice").await.unwrap()
    };
    assert_eq!(add(1, &[("alice", DAY, 5)]).await, (DAY, 5, 5));
    assert_eq!(add(2, &[("alice", DAY, 2), ("bob", DAY, 1)]).await, (DAY, 7, 7), "same day");
    assert_eq!(add(3, &[("alice", DAY + 1, 10)]).await, (DAY + 1, 10, 17), "next day, same month");
    assert_eq!(add(4, &[("alice", DAY, 100)]).await, (DAY + 1, 10, 117), "late: counts for the month only");
    assert_eq!(add(5, &[("alice", DAY + 2, 3)]).await, (DAY + 2, 3, 3), "first of February");
    assert_eq!(add(6, &[("alice", DAY + 1, 50)]).await, (DAY + 2, 3, 3), "late: the month has ended");
    assert_eq!(
        add(7, &[("alice", DAY + 3, 2), ("alice", DAY + 2, 1), ("alice", DAY + 3, 4)]).await,
        (DAY + 3, 6, 10),
        "several deltas of one user, in any order"
    );
    let alice = database.users_usage(&["alice".into()]).await.unwrap().pop().unwrap();
    assert_eq!(alice.exceeded_count, 9, "late ones included");
    assert_eq!(alice.last_request_at_micros, u64::from(DAY + 3) * 86_400_000_000 + 4);
    assert_eq!((alice.requests_on(DAY + 3), alice.requests_on(DAY + 4)), (6, 0));
    assert_eq!((alice.requests_in_month_of(DAY + 20), alice.requests_in_month_of(DAY + 31)), (10, 0));
    assert_eq!(counts(&database, "bob").await, Some((DAY, 1, 1)));
    assert_eq!(counts(&database, "BOB").await, None);
    assert_eq!(database.version().await.unwrap(), 1, "usage does not change the configuration");
}

pub(crate) async fn quotas_are_listed_by_block_and_last_request(empty: TestDatabase) {
    let database = empty.migrated().await;
    let in_tenant = |item: Item| match item {
        Item::Quota(quota) => put(Item::Quota(QuotaItem { tenant: Some("acme".to_owned()), ..quota })),
        item => put(item),
    };
    let blocked = |subject: &str, until_micros| BlockItem {
        tenant: None,
        kind: BlockKind::User,
        subject: subject.to_owned(),
        reason: String::new(),
        until_micros,
    };
    let quotas = ["alice", "bob", "carol", "dave"].map(|user| put(quota(user, None)));
    change(&database, &quotas).await;
    change(&database, &[in_tenant(quota("alice", None))]).await;
    let ends = |until| put(Item::Block(blocked("bob", Some(until))));
    change(&database, &[put(Item::Block(blocked("alice", None))), ends(100)]).await;
    // A tenant of that name is blocked, not the user.
    let tenant = BlockItem { kind: BlockKind::Tenant, ..blocked("carol", None) };
    change(&database, &[put(Item::Block(tenant))]).await;
    let list = async |filter: ItemFilter| {
        let mut ids = Vec::new();
        let mut after = None;
        loop {
            let page = database.list(ItemKind::Quota, &filter, after.as_ref(), 1).await.unwrap();
            let Some(last) = page.last() else { return ids };
            ids.push(last.item.id().to_string());
            after = Some(last.item.id());
        }
    };
    let by_block = async |is_blocked, at| {
        list(ItemFilter { blocked: Some((is_blocked, at)), ..ItemFilter::default() }).await
    };
    assert_eq!(by_block(true, 99).await, ["alice", "bob"]);
    assert_eq!(by_block(true, 100).await, ["alice"], "the block of bob has ended");
    let others = by_block(false, 99).await;
    assert_eq!(others[..2], ["carol", "dave"]);
    assert_eq!(others.len(), 3, "alice of the tenant is another user: {others:?}");

    let request_at = |requests: u64| u64::from(DAY) * 86_400_000_000 + requests;
    assert!(database.add_usage(&users(1, &[("alice", DAY, 10), ("bob", DAY, 20)])).await.unwrap());
    let since = async |micros| {
        list(ItemFilter { requested_since_micros: Some(micros), ..ItemFilter::default() }).await
    };
    assert_eq!(since(request_at(10)).await, ["alice", "bob"]);
    assert_eq!(since(request_at(11)).await, ["bob"]);
    assert_eq!(since(request_at(21)).await, [""; 0]);
    let idle = ItemFilter { idle_since_micros: Some(request_at(11)), ..ItemFilter::default() };
    assert_eq!(list(idle).await[..3], ["alice", "carol", "dave"], "also users without any request");
    let both = ItemFilter {
        blocked: Some((true, 99)),
        requested_since_micros: Some(request_at(11)),
        ..ItemFilter::default()
    };
    assert_eq!(list(both).await, ["bob"]);
}

pub(crate) async fn batch_counts_once(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None)), put(Item::Key(key("k")))]).await;
    let used = KeyUsageDelta { id: "k".to_owned(), requests: 4, last_micros: 9 };
    let batch = UsageBatch { keys: vec![used.clone(), used], ..users(1, &[("alice", DAY, 5)]) };
    assert!(database.add_usage(&batch).await.unwrap());
    assert!(!database.add_usage(&batch).await.unwrap(), "sent again");
    assert_eq!(counts(&database, "alice").await, Some((DAY, 5, 5)));
    let expected = KeyUsage { id: "k".to_owned(), requests: 8, last_used_at_micros: 9 };
    assert_eq!(database.keys_usage(&["k"]).await.unwrap().pop(), Some(expected));

    let other_node = UsageBatch { node: "Node".to_owned(), ..batch.clone() };
    assert!(database.add_usage(&other_node).await.unwrap(), "numbers are per node");
    let next = UsageBatch { number: 2, ..batch.clone() };
    assert!(database.add_usage(&next).await.unwrap());
    assert_eq!(counts(&database, "alice").await, Some((DAY, 15, 15)));

    let at_once = Arc::new(UsageBatch { number: 3, ..batch });
    let nodes = [(); 4].map(|()| {
        let (database, batch) = (database.clone(), at_once.clone());
        tokio::spawn(async move { database.add_usage(&batch).await.unwrap() })
    });
    let mut added = 0;
    for node in nodes {
        added += u32::from(node.await.unwrap());
    }
    assert_eq!(added, 1);
    assert_eq!(counts(&database, "alice").await, Some((DAY, 20, 20)));
}

pub(crate) async fn batch_is_atomic(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None)), put(Item::Key(key("k")))]).await;
    let too_large = KeyUsageDelta { id: "k".to_owned(), requests: u64::MAX, last_micros: 0 };
    let batch = UsageBatch { keys: vec![too_large], ..users(1, &[("alice", DAY, 5)]) };
    assert!(matches!(database.add_usage(&batch).await.unwrap_err(), DatabaseError::Value { .. }));
    assert_eq!(counts(&database, "alice").await, None);
    let batch = users(1, &[("alice", DAY, 5)]);
    assert!(database.add_usage(&batch).await.unwrap(), "the number was rolled back as well");
    for invalid in
        [UsageBatch { node: String::new(), ..batch.clone() }, UsageBatch { node: "a\0".to_owned(), ..batch }]
    {
        assert!(matches!(database.add_usage(&invalid).await.unwrap_err(), DatabaseError::Value { .. }));
    }
}

pub(crate) async fn deleted_users_and_keys_have_no_totals(empty: TestDatabase) {
    let database = empty.migrated().await;
    change(&database, &[put(quota("alice", None)), put(quota("bob", None)), put(Item::Key(key("k")))]).await;
    let used = |id: &str| KeyUsageDelta { id: id.to_owned(), requests: 1, last_micros: 1 };
    let mut batch = users(1, &[("alice", DAY, 1), ("nobody", DAY, 1), ("bob", DAY, 1)]);
    batch.keys = vec![used("k"), used("none")];
    assert!(database.add_usage(&batch).await.unwrap());
    assert_eq!(counts(&database, "nobody").await, None);
    let mut all = database.users_usage(&["bob", "nobody", "alice"].map(InTenant::from)).await.unwrap();
    all.sort_by(|one, next| one.user.cmp(&next.user));
    assert_eq!(all.iter().map(|usage: &UserUsage| &*usage.user).collect::<Vec<_>>(), ["alice", "bob"]);
    assert_eq!(database.keys_usage(&["k", "none"]).await.unwrap().len(), 1);
    assert_eq!(database.keys_usage(&[]).await.unwrap(), []);

    change(&database, &[put(quota("alice", Some("gold"))), put(Item::Key(key("k")))]).await;
    assert_eq!(counts(&database, "alice").await, Some((DAY, 1, 1)), "changing the quota keeps the totals");
    change(
        &database,
        &[
            delete(ItemId::Quota { tenant: None, user: "alice".to_owned() }),
            delete(ItemId::Key("k".to_owned())),
        ],
    )
    .await;
    assert_eq!(counts(&database, "alice").await, None);
    assert_eq!(database.keys_usage(&["k"]).await.unwrap().pop(), None);
    assert!(database.add_usage(&UsageBatch { number: 2, ..batch }).await.unwrap());
    assert_eq!(counts(&database, "bob").await, Some((DAY, 2, 2)));
}

pub(crate) async fn concurrent_batches_survive_quota_changes(empty: TestDatabase) {
    const NODES: u64 = 3;
    const BATCHES: u64 = 8;
    let database = empty.migrated().await;
    let names: Vec<String> = (0..20).map(|number| format!("user {number:02}")).collect();
    let everyone: Vec<_> = names.iter().map(|user| put(quota(user, None))).collect();
    change(&database, &everyone).await;
    let nodes: Vec<_> = (0..NODES)
        .map(|node| {
            let (database, names) = (database.clone(), names.clone());
            let turn = usize::try_from(node).unwrap() * 7;
            tokio::spawn(async move {
                for number in 1..=BATCHES {
                    // Each node has another order.
                    let turned = names.iter().cycle().skip(turn).take(names.len());
                    let deltas: Vec<(&str, u32, u64)> = turned.map(|user| (&**user, DAY, 1)).collect();
                    let batch = UsageBatch { node: format!("node {node}"), ..users(number, &deltas) };
                    while let Err(error) = database.add_usage(&batch).await {
                        assert!(matches!(error, DatabaseError::Query { .. }), "{error:?}");
                    }
                }
            })
        })
        .collect();
    for _ in 0..6 {
        change(
            &database,
            &[
                delete(ItemId::Quota { tenant: None, user: names[3].clone() }),
                put(quota(&names[15], Some("a"))),
            ],
        )
        .await;
        change(&database, &[put(quota(&names[3], None)), put(quota(&names[15], Some("b")))]).await;
    }
    for node in nodes {
        node.await.unwrap();
    }
    let all: Vec<InTenant<'_, &str>> = names.iter().map(InTenant::from).collect();
    for usage in database.users_usage(&all).await.unwrap() {
        let total = NODES * BATCHES;
        let is_right = if usage.user == names[3] {
            usage.requests_of_day <= total
        } else {
            usage.requests_of_day == total
        };
        assert!(is_right, "{usage:?}");
    }
}

pub(crate) async fn old_batch_numbers_are_deleted(empty: TestDatabase) {
    let database = empty.migrated().await;
    let batch =
        |node: &str, number, day| UsageBatch { node: node.to_owned(), ..users(number, &[("x", day, 1)]) };
    for number in 1..=5 {
        assert!(database.add_usage(&batch("gone", number, DAY - 31)).await.unwrap());
        assert!(database.add_usage(&batch("node", number, DAY)).await.unwrap());
    }
    assert!(database.add_usage(&batch("other", 1, DAY - 29)).await.unwrap());
    assert!(database.add_usage(&batch("node", 200, DAY)).await.unwrap());
    let mut client = empty.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM usage_batches").await, 2);
    assert!(!database.add_usage(&batch("node", 200, DAY)).await.unwrap());
    assert!(!database.add_usage(&batch("other", 1, DAY)).await.unwrap());
}
