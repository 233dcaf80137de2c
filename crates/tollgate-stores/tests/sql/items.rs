//! Items of every kind: create, read, replace, delete, list and filter.

use std::collections::BTreeSet;

use serde_json::json;
use tollgate_stores::sql::{
    AccountLimits, BlockItem, BlockKind, Database, DatabaseError, ITEM_COUNT_MAX, Item, ItemEdit, ItemFilter,
    ItemId, ItemKind, ItemWrite, KeyItem, KeySecretCheck, Precondition, QuotaItem, StoredItem,
    UserEndpointLimit,
};

use crate::harness::{
    NOW, TestDatabase, audit_log, block, change, delete, everything, key, limit, put, quota, rule, tier,
};

/// A key with every field set.
fn full_key() -> KeyItem {
    KeyItem {
        previous_hash: Some([9; 32]),
        previous_until_micros: Some(NOW + 1),
        name: "billing".to_owned(),
        user: Some("alice".to_owned()),
        tenant: Some("acme".to_owned()),
        tier: Some("gold".to_owned()),
        scopes: vec!["check".to_owned(), "read \"all\"".to_owned()],
        limits: AccountLimits {
            requests_per_second: Some(0),
            requests_per_hour: Some(1),
            requests_per_day: Some(u32::MAX),
            burst: Some(3),
        },
        expires_at_micros: Some(NOW + 2),
        revoked_at_micros: Some(NOW + 3),
        revoked_by: Some("root".to_owned()),
        ..key("full")
    }
}

/// Two states of an item of each kind.
fn pairs() -> Vec<(Item, Item)> {
    let largest = UserEndpointLimit {
        tenant: None,
        window_micros: u64::from(u32::MAX) * 1_000_000,
        burst: Some(u32::MAX),
        ..limit("alice", "/", u32::MAX)
    };
    let full_rule = json!({
        "priority": 5, "when": {"tiers": ["free"], "descriptors": {"plan": ["eu"]}}, "per": ["ip", "user"],
        "layer": "l", "algorithm": "gcra", "limits": [{"requests": 1, "window": "1m", "burst": 3}],
        "action": "throttle", "max_delay": "1s", "on_store_failure": "closed", "leases": false,
        "response": {"status": 503, "message": "später", "retry_after_floor": 5}, "enabled": false
    });
    let per_unit = json!({"per": ["user"], "requests_per_second": 5, "burst_size": 7});
    let full_quota = QuotaItem {
        tenant: None,
        user: "bob".to_owned(),
        tier: Some("gold".to_owned()),
        limits: AccountLimits {
            requests_per_hour: Some(0),
            requests_per_day: Some(u32::MAX),
            burst: Some(1),
            requests_per_second: None,
        },
    };
    let until = BlockItem {
        tenant: None,
        kind: BlockKind::Ip,
        subject: "192.0.2.0/24".to_owned(),
        reason: String::new(),
        until_micros: Some(NOW),
    };
    vec![
        (rule("free", full_rule), rule("free", per_unit)),
        (rule("bare", json!({})), rule("bare", json!({"algorithm": "sliding_window"}))),
        (
            tier("gold", "for friends", json!({"limit": 10, "window": "1h", "burst": 2})),
            tier(
                "gold",
                "",
                json!({"algorithm": "leaky_bucket", "limits": [{"requests": 1, "window": 60}], "max_delay": "2s"}),
            ),
        ),
        (quota("bob", None), Item::Quota(full_quota)),
        (Item::Key(key("full")), Item::Key(full_key())),
        (block(BlockKind::Ip, "192.0.2.0/24"), Item::Block(until)),
        (Item::Limit(limit("alice", "/", 0)), Item::Limit(largest)),
    ]
}

pub(crate) async fn items_of_every_kind_are_created_replaced_deleted(empty: TestDatabase) {
    let database = empty.migrated().await;
    for (first, second) in pairs() {
        let id = first.id();
        assert_eq!(database.get(&id).await.unwrap(), None);
        let created = database.change("maker", NOW, &[put(first.clone())]).await.unwrap().version;
        let stored = database.get(&id).await.unwrap().unwrap();
        let expected = StoredItem {
            item: first,
            version: created,
            created_by: "maker".to_owned(),
            created_at_micros: NOW,
            updated_at_micros: NOW,
        };
        assert_eq!(stored, expected);

        let changed = database.change("other", NOW + 5, &[put(second.clone())]).await.unwrap();
        assert_eq!(changed.items[0].before.as_ref(), Some(&expected));
        assert_eq!(changed.items[0].after.as_ref(), Some(&second));
        let expected =
            StoredItem { item: second, version: created + 1, updated_at_micros: NOW + 5, ..expected };
        assert_eq!(database.get(&id).await.unwrap(), Some(expected.clone()));
        let listed = database.list(id.kind(), &ItemFilter::default(), None, 10).await.unwrap();
        assert!(listed.contains(&expected));

        let removed = ItemEdit {
            write: ItemWrite::Delete(id.clone()),
            precondition: Precondition::Version(created + 1),
        };
        assert_eq!(change(&database, &[removed]).await, created + 2);
        assert_eq!(database.get(&id).await.unwrap(), None);
    }
    let all: Vec<ItemEdit> = pairs().into_iter().map(|(first, _)| put(first)).collect();
    change(&database, &all).await;
    let (_, items) = everything(&database).await;
    let ids = |items: &[Item]| items.iter().map(Item::id).collect::<BTreeSet<_>>();
    assert_eq!(ids(&items), pairs().iter().map(|(first, _)| first.id()).collect());
    for entry in audit_log(&database).await {
        let kind = ItemKind::parse(&entry.kind).unwrap();
        let id = ItemId::parse(kind, entry.tenant.as_deref(), &entry.subject).unwrap();
        assert!(pairs().iter().any(|(first, _)| first.id() == id), "{entry:?}");
    }
}

pub(crate) async fn invalid_items_are_rejected(empty: TestDatabase) {
    let database = empty.migrated().await;
    let good = limit("alice", "/", 10);
    let violating_a_constraint = [
        Item::Limit(UserEndpointLimit { algorithm: "lottery".to_owned(), ..good.clone() }),
        Item::Limit(UserEndpointLimit { algorithm: "TOKEN_BUCKET".to_owned(), ..good.clone() }),
        Item::Limit(UserEndpointLimit { algorithm: "token_bucket ".to_owned(), ..good.clone() }),
        Item::Limit(UserEndpointLimit { window_micros: 999, ..good.clone() }),
        Item::Limit(UserEndpointLimit { burst: Some(0), ..good.clone() }),
        Item::Limit(UserEndpointLimit {
            burst: Some(5),
            algorithm: "fixed_window".to_owned(),
            ..good.clone()
        }),
        rule("r", json!({"action": "explode"})),
        rule("r", json!({"priority": -1})),
        rule("r", json!({"response": {"status": 200}})),
        tier("t", "", json!({"algorithm": "lottery"})),
        Item::Key(KeyItem { revoked_by: Some("root".to_owned()), ..key("k") }),
        Item::Key(KeyItem { previous_hash: Some([1; 32]), ..key("k") }),
    ];
    for item in violating_a_constraint {
        let error = database.change("root", NOW, &[put(item.clone())]).await.unwrap_err();
        let DatabaseError::Constraint { constraint } = &error else { panic!("{item:?}: {error:?}") };
        let table = ["user_endpoint_limits_", "rate_limit_rules_", "tiers_", "api_keys_"];
        assert!(table.iter().any(|table| constraint.starts_with(table)), "no constraint in {error}");
    }
    let second = AccountLimits { requests_per_second: Some(1), ..AccountLimits::default() };
    let rejected_before_the_database = [
        (Item::Limit(UserEndpointLimit { window_micros: u64::MAX, ..good }), "window_micros"),
        (rule("r", json!({"colour": "red"})), "colour"),
        (rule("r", json!({"limits": 5})), "limits"),
        (tier("t", "", json!({"per": ["user"]})), "per"),
        (
            Item::Quota(QuotaItem { tenant: None, user: "u".to_owned(), tier: None, limits: second }),
            "requests_per_second",
        ),
        (quota("u", Some("")), "tier"),
        (Item::Key(KeyItem { user: Some(String::new()), ..key("k") }), "user_id"),
    ];
    for (item, expected) in rejected_before_the_database {
        let error = database.change("root", NOW, &[put(item.clone())]).await.unwrap_err();
        assert!(
            matches!(&error, DatabaseError::Value { field, .. } if field == expected),
            "{item:?}: {error:?}"
        );
    }
    assert_eq!(everything(&database).await, (0, vec![]));
    assert_eq!(audit_log(&database).await, []);
}

pub(crate) async fn key_hashes_never_appear_in_audit_or_debug(empty: TestDatabase) {
    let database = empty.migrated().await;
    let hash = *b"canary-canary-canary-canary-can1";
    let canary = |last: u8| {
        let mut hash = hash;
        hash[31] = last;
        hash
    };
    let first = KeyItem { hash: canary(b'1'), ..key("k") };
    let rotated = KeyItem {
        hash: canary(b'2'),
        previous_hash: Some(canary(b'1')),
        previous_until_micros: Some(NOW),
        ..key("k")
    };
    let replaced = KeyItem { hash: canary(b'3'), ..rotated.clone() };
    let twin = KeyItem { hash: canary(b'3'), ..key("twin") };
    let mut shown = vec![format!("{first:?} {rotated:?}")];
    for state in [&first, &rotated, &replaced] {
        let changed = database.change("root", NOW, &[put(Item::Key(state.clone()))]).await.unwrap();
        shown.push(format!("{changed:?}"));
    }
    let error = database.change("root", NOW, &[put(Item::Key(twin))]).await.unwrap_err();
    shown.push(format!("{error} {error:?}"));
    change(&database, &[delete(ItemId::Key("k".to_owned()))]).await;
    let log = audit_log(&database).await;
    let secret = |entry: usize| log[entry].after.as_ref().and_then(|after| after.get("secret").cloned());
    assert_eq!((secret(0), secret(1), secret(2)), (None, Some(json!("changed")), Some(json!("changed"))));
    shown.push(format!("{log:?}"));
    let shown = shown.join("\n");
    let hex = "63616e617279"; // "canary"
    let listed = format!("{:?}", &hash[..6]);
    for trace in ["canary", hex, &hex.to_uppercase(), listed.trim_matches(['[', ']'])] {
        assert!(!shown.contains(trace), "{trace}: {shown}");
    }
}

pub(crate) async fn pages_are_complete_under_concurrent_writes(empty: TestDatabase) {
    let database = empty.migrated().await;
    let block_id = |number: usize| {
        let kind = BlockKind::ALL[number % BlockKind::ALL.len()];
        (kind, format!("{:03}", number * 2))
    };
    let edits: Vec<ItemEdit> = (0..60)
        .flat_map(|number| {
            let (kind, subject) = block_id(number);
            [put(block(kind, &subject)), put(rule(&format!("rule {:03}", number * 2), json!({})))]
        })
        .collect();
    change(&database, &edits).await;
    for kind in [ItemKind::Rule, ItemKind::Block] {
        let stable: BTreeSet<ItemId> =
            edits.iter().map(ItemEdit::id).filter(|id| id.kind() == kind).collect();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = database.list(kind, &ItemFilter::default(), after.as_ref(), 7).await.unwrap();
            assert!(page.len() <= 7);
            let Some(last) = page.last() else { break };
            after = Some(last.item.id());
            seen.extend(page.iter().map(|stored| stored.item.id()));
            // Another writer adds items before and after the cursor.
            let beside = seen.len();
            let more = [
                put(rule(&format!("rule {:03}", beside * 2 + 1), json!({}))),
                put(block(BlockKind::Login, &format!("{:03}", beside * 2 + 1))),
                put(block(BlockKind::ApiKey, &format!("new {beside}"))),
            ];
            change(&database, &more).await;
        }
        let once: BTreeSet<ItemId> = seen.iter().cloned().collect();
        assert_eq!(once.len(), seen.len(), "duplicates");
        assert!(seen.is_sorted(), "not in byte order");
        assert!(stable.is_subset(&once), "items are missing");
    }
    let other_kind = ItemId::Tier("t".to_owned());
    assert!(database.list(ItemKind::Rule, &ItemFilter::default(), Some(&other_kind), 7).await.is_err());
    assert_eq!(database.list(ItemKind::Rule, &ItemFilter::default(), None, 0).await.unwrap(), []);
}

pub(crate) async fn page_size_is_capped(empty: TestDatabase) {
    let database = empty.migrated().await;
    let count = ITEM_COUNT_MAX as usize + 5;
    let edits: Vec<ItemEdit> = (0..count).map(|number| put(quota(&format!("{number:05}"), None))).collect();
    change(&database, &edits).await;
    let page = database.list(ItemKind::Quota, &ItemFilter::default(), None, u32::MAX).await.unwrap();
    assert_eq!(page.len(), ITEM_COUNT_MAX as usize);
    let after = page.last().unwrap().item.id();
    let rest = database.list(ItemKind::Quota, &ItemFilter::default(), Some(&after), u32::MAX).await.unwrap();
    assert_eq!(rest.len(), 5);
}

pub(crate) async fn load_reads_all_pages(empty: TestDatabase) {
    let database = empty.migrated().await;
    // More than one page of a table with a key of two columns.
    let count = 4001;
    let rows: Vec<String> =
        (0..count).map(|number| format!("('user', '{number}', '', 'root', 0, 0, 1)")).collect();
    let columns = "kind, subject, reason, created_by, created_at_micros, updated_at_micros, version";
    for rows in rows.chunks(1000) {
        empty
            .client()
            .await
            .execute(&format!("INSERT INTO blocks ({columns}) VALUES {}", rows.join(", ")))
            .await;
    }
    change(&database, &[put(block(BlockKind::ApiKey, "k")), put(quota("alice", None))]).await;
    let mut ids = BTreeSet::new();
    let mut calls = 0;
    let version = database
        .load(|stored| {
            calls += 1;
            ids.insert(stored.item.id());
        })
        .await
        .unwrap();
    assert_eq!((version, calls, ids.len()), (1, count + 2, count + 2));
}

async fn names(database: &Database, kind: ItemKind, filter: ItemFilter) -> Vec<String> {
    let page = database.list(kind, &filter, None, 100).await.unwrap();
    page.iter().map(|stored| stored.item.id().to_string()).collect()
}

pub(crate) async fn lists_are_filtered(empty: TestDatabase) {
    let database = empty.migrated().await;
    let revoked = KeyItem { revoked_at_micros: Some(5), revoked_by: Some("root".to_owned()), ..key("c") };
    let ending = KeyItem { expires_at_micros: Some(100), tier: Some("gold".to_owned()), ..key("b") };
    let owned = KeyItem { user: Some("alice".to_owned()), tenant: Some("acme".to_owned()), ..key("a") };
    let ends = BlockItem {
        tenant: None,
        kind: BlockKind::User,
        subject: "ends".to_owned(),
        reason: String::new(),
        until_micros: Some(100),
    };
    let edits = [
        put(rule("a", json!({}))),
        put(rule("b", json!({"action": "block", "enabled": false}))),
        put(rule("c", json!({"action": "reject", "enabled": true}))),
        put(quota("alice", Some("gold"))),
        put(quota("bob", None)),
        put(Item::Key(owned)),
        put(Item::Key(ending)),
        put(Item::Key(revoked)),
        put(block(BlockKind::User, "alice")),
        put(block(BlockKind::Tenant, "alice")),
        put(Item::Block(ends)),
        put(Item::Limit(limit("alice", "/a", 1))),
        put(Item::Limit(limit("alice", "/b", 1))),
        put(Item::Limit(limit("bob", "/a", 1))),
    ];
    change(&database, &edits).await;
    let text = |text: &str| Some(text.to_owned());
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let filter = ItemFilter::default;
    assert_eq!(
        names(&database, ItemKind::Rule, ItemFilter { action: text("reject"), ..filter() }).await,
        ["a", "c"]
    );
    assert_eq!(
        names(&database, ItemKind::Rule, ItemFilter { enabled: Some(true), ..filter() }).await,
        ["a", "c"]
    );
    assert_eq!(
        names(&database, ItemKind::Rule, ItemFilter { enabled: Some(false), ..filter() }).await,
        ["b"]
    );
    assert_eq!(
        names(&database, ItemKind::Quota, ItemFilter { tier: text("gold"), ..filter() }).await,
        ["alice"]
    );
    assert_eq!(
        names(&database, ItemKind::Quota, ItemFilter { tier: text("GOLD"), ..filter() }).await,
        [""; 0]
    );
    assert_eq!(names(&database, ItemKind::Key, ItemFilter { tier: text("gold"), ..filter() }).await, ["b"]);
    assert_eq!(
        names(&database, ItemKind::Key, ItemFilter { users: texts(&["alice"]), ..filter() }).await,
        ["a"]
    );
    assert_eq!(
        names(&database, ItemKind::Key, ItemFilter { users: texts(&["Alice", "alice"]), ..filter() }).await,
        ["a"]
    );
    assert_eq!(
        names(&database, ItemKind::Key, ItemFilter { tenants: texts(&["acme", "other"]), ..filter() }).await,
        ["a"]
    );
    let active = |at| ItemFilter { active_at_micros: Some(at), ..ItemFilter::default() };
    assert_eq!(names(&database, ItemKind::Key, active(99)).await, ["a", "b"]);
    assert_eq!(names(&database, ItemKind::Key, active(100)).await, ["a"]);
    let expiring = |before| ItemFilter { expires_before_micros: Some(before), ..ItemFilter::default() };
    assert_eq!(names(&database, ItemKind::Key, expiring(100)).await, [""; 0], "a does not expire");
    assert_eq!(names(&database, ItemKind::Key, expiring(101)).await, ["b"]);
    assert_eq!(names(&database, ItemKind::Block, active(100)).await, ["tenant:alice", "user:alice"]);
    let tenants = ItemFilter { block_kind: Some(BlockKind::Tenant), ..filter() };
    assert_eq!(names(&database, ItemKind::Block, tenants).await, ["tenant:alice"]);
    let alice = ItemFilter { users: texts(&["alice"]), ..filter() };
    assert_eq!(
        names(&database, ItemKind::Limit, alice.clone()).await,
        [r#"["alice","/a"]"#, r#"["alice","/b"]"#]
    );
    assert_eq!(names(&database, ItemKind::Tier, alice.clone()).await, [""; 0]);
    assert_eq!(names(&database, ItemKind::Rule, alice).await, ["a", "b", "c"], "rules have no user");
}

pub(crate) async fn prefix_filter_compares_bytes(empty: TestDatabase) {
    let database = empty.migrated().await;
    let names_of_tiers = [
        "a",
        "a%",
        "a%b",
        "a_b",
        "A",
        "ab",
        "á",
        "a\u{10ffff}",
        "a\u{10ffff}x",
        "b",
        "\u{10ffff}",
        "\u{10ffff}z",
        "%",
    ];
    let edits: Vec<ItemEdit> = names_of_tiers.iter().map(|name| put(tier(name, "", json!({})))).collect();
    change(&database, &edits).await;
    for prefix in
        ["", "a", "A", "a%", "a_", "%", "_", "á", "a\u{10ffff}", "\u{10ffff}", "\u{d7ff}", "c", "\\"]
    {
        let mut expected: Vec<&str> =
            names_of_tiers.iter().copied().filter(|name| name.starts_with(prefix)).collect();
        expected.sort_unstable();
        let filter = ItemFilter { prefix: Some(prefix.to_owned()), ..ItemFilter::default() };
        assert_eq!(names(&database, ItemKind::Tier, filter).await, expected, "{prefix}");
    }
}

pub(crate) async fn first_key_secret_fingerprint_wins(empty: TestDatabase) {
    let database = empty.migrated().await;
    let nodes = [1, 2, 1, 2].map(|value| {
        let database = database.clone();
        tokio::spawn(async move { (value, database.check_key_secret(&[value; 32]).await.unwrap()) })
    });
    let mut results = BTreeSet::new();
    for node in nodes {
        let (value, result) = node.await.unwrap();
        results.insert((value, result == KeySecretCheck::Matches));
    }
    assert_eq!(results.len(), 2, "inconsistent: {results:?}");
    assert_eq!(results.iter().filter(|(_, same)| *same).count(), 1);
    let first = results.iter().find(|(_, same)| *same).unwrap().0;
    assert_eq!(empty.open().await.check_key_secret(&[first; 32]).await.unwrap(), KeySecretCheck::Matches);
    assert_eq!(database.check_key_secret(&[7; 32]).await.unwrap(), KeySecretCheck::Differs);
    assert_eq!(database.version().await.unwrap(), 0, "not a configuration change");
}
