//! Names are opaque: compared byte by byte, and never interpreted as SQL.

use serde_json::json;
use tollgate::identity::InTenant;
use tollgate_stores::sql::{
    AuditEvent, AuditFilter, BlockKind, Changes, DatabaseError, Item, ItemEdit, ItemFilter, ItemId, ItemKind,
    KeyItem, KeyUsageDelta, UsageBatch, UserUsageDelta, ValueError,
};

use crate::harness::{
    NOW, TestDatabase, block, change, delete, everything, key, limit, put, quota, rule, tier,
};

/// Names that some collation, comparison or Unicode normalization treats as equal.
const TWINS: [&str; 26] = [
    "alice",
    "Alice",
    "ALICE",
    "alice ",
    " alice",
    "alice  ",
    "alice\t",
    "alice\n",
    "alicé",
    "alice\u{301}",
    "ａlice",
    "al\u{ad}ice",
    "alice\u{200b}",
    "strasse",
    "straße",
    "ı",
    "i",
    "I",
    "İ",
    "ſ",
    "s",
    "K",
    "\u{212a}",
    "1",
    "01",
    "1.0",
];

/// SQL injection strings and other special characters.
const HOSTILE: [&str; 24] = [
    "'",
    "\"",
    "`",
    "\\",
    "\\'",
    "''",
    "'; DROP TABLE user_endpoint_limits; --",
    "' OR '1'='1",
    "\" OR \"\"=\"",
    "') ON CONFLICT DO NOTHING; --",
    "1; SELECT pg_sleep(10)",
    "' UNION SELECT version, 1, 1, 1, 1, 1, 1 FROM config_version --",
    "admin'--",
    "admin'#",
    "admin'/*",
    "/*!50000 OR 1=1 */",
    "$1",
    "?",
    "%",
    "_",
    "{{7*7}}",
    "\u{1b}[31m",
    "\r\nSET x 1",
    "🦀\u{feff}\u{202e}\u{10ffff}",
];

pub(crate) async fn names_are_compared_byte_by_byte(empty: TestDatabase) {
    let database = empty.migrated().await;
    let longest = ["x".repeat(256), format!("{}y", "x".repeat(255)), "é".repeat(128)];
    let users: Vec<&str> = TWINS.into_iter().chain(longest.iter().map(String::as_str)).collect();
    let mut all = Vec::new();
    for (number, user) in (0_u8..).zip(&users) {
        all.push(Item::Limit(limit(user, &format!("/{user}"), number.into())));
        all.push(quota(user, Some(user)));
        all.push(tier(user, "", json!({})));
        all.push(block(BlockKind::Login, user));
        if user.len() <= 64 {
            all.push(Item::Key(KeyItem { hash: [number; 32], ..key(user) }));
            all.push(rule(user, json!({})));
        }
    }
    let ends = ["a", "A"].map(|end| Item::Limit(limit("alice", &format!("/{}{end}", "x".repeat(2046)), 1)));
    all.extend(ends);
    let edits: Vec<ItemEdit> = all.iter().cloned().map(put).collect();
    assert_eq!(change(&database, &edits).await, 1);
    all.sort_by_key(Item::id);
    let (_, stored) = everything(&database).await;
    assert_eq!(stored, all, "byte order on every engine");
    for user in &users {
        let filter = ItemFilter { tier: Some((*user).to_owned()), ..ItemFilter::default() };
        let page = database.list(ItemKind::Quota, &filter, None, 10).await.unwrap();
        assert_eq!(page.len(), 1, "a similar tier matched {user:?}");
    }

    let absent = ItemId::Limit { tenant: None, user: "ALICE ".to_owned(), endpoint: "/alice".to_owned() };
    assert_eq!(change(&database, &[delete(absent)]).await, 1);
    let there = ItemId::Limit { tenant: None, user: "alice ".to_owned(), endpoint: "/alice ".to_owned() };
    assert_eq!(change(&database, &[delete(there.clone())]).await, 2);
    all.retain(|item| item.id() != there);
    assert_eq!(everything(&database).await.1, all, "a similar item was deleted");
}

pub(crate) async fn unstorable_names_are_rejected(empty: TestDatabase) {
    let database = empty.migrated().await;
    let (long_user, long_endpoint) = ("é".repeat(129), "x".repeat(2049));
    let rejected = [
        ("root", "", "/", "user_id", ValueError::Empty),
        ("root", &long_user, "/", "user_id", ValueError::TooLong { max: 256 }),
        ("root", "a\0b", "/", "user_id", ValueError::ContainsNul),
        ("root", "alice", "", "endpoint", ValueError::Empty),
        ("root", "alice", &long_endpoint, "endpoint", ValueError::TooLong { max: 2048 }),
        ("root", "alice", "/\0", "endpoint", ValueError::ContainsNul),
        ("", "alice", "/", "by", ValueError::Empty),
        (&long_user, "alice", "/", "by", ValueError::TooLong { max: 256 }),
        ("ro\0ot", "alice", "/", "by", ValueError::ContainsNul),
    ];
    for (by, user, endpoint, field, reason) in rejected {
        let item = Item::Limit(limit(user, endpoint, 1));
        let id = item.id();
        let results = [
            database.change(by, 1, &[put(item)]).await.map(drop),
            database.change(by, 1, &[delete(id.clone())]).await.map(drop),
        ];
        for error in results.map(Result::unwrap_err) {
            assert_eq!(error.to_string(), format!("{field} {reason}"));
            assert!(matches!(error, DatabaseError::Value { .. }));
        }
        if field != "by" {
            database.get(&id).await.unwrap_err();
            database.list(ItemKind::Limit, &ItemFilter::default(), Some(&id), 1).await.unwrap_err();
        }
    }
    assert_eq!(database.version().await.unwrap(), 0);
}

pub(crate) async fn sql_injection_in_values_is_inert(empty: TestDatabase) {
    let database = empty.migrated().await;
    for (number, text) in (0_u8..).zip(HOSTILE) {
        let all = hostile_items(number, text);
        let edits: Vec<ItemEdit> = all.iter().cloned().map(put).collect();
        let changed = database.change(text, NOW, &edits).await.unwrap();
        assert_eq!(changed.items.len(), edits.len(), "{text}");
        for item in &all {
            let stored = database.get(&item.id()).await.unwrap().expect(text);
            assert_eq!((&stored.item, &*stored.created_by), (item, text));
        }
        let event = AuditEvent {
            tenant: None,
            action: text.chars().take(16).collect(),
            kind: format!("x{}", text.chars().take(15).collect::<String>()),
            subject: text.to_owned(),
            before: Some(json!(text)),
            after: Some(json!({text: text})),
        };
        database.record_event(text, NOW, &event).await.unwrap();
        let filter = AuditFilter {
            kind: Some(event.kind.clone()),
            by: Some(text.to_owned()),
            subject: Some(text.to_owned()),
            ..AuditFilter::default()
        };
        let found = database.audit(&filter, 0, 10).await.unwrap();
        assert_eq!(found.len(), 1, "{text}");
        assert_eq!((&found[0].before, &found[0].after), (&event.before, &event.after));
        let batch = usage_of(text);
        assert!(database.add_usage(&batch).await.unwrap());
        assert!(!database.add_usage(&batch).await.unwrap());
        assert_eq!(
            database
                .users_usage(&[InTenant::new(Some(text), text)])
                .await
                .unwrap()
                .pop()
                .expect(text)
                .requests_of_day,
            3
        );
        assert_eq!(database.keys_usage(&[text]).await.unwrap().pop().expect(text).requests, 4);
    }
    let (version, items) = everything(&database).await;
    assert_eq!((version, items.len()), (2 * HOSTILE.len() as u64, 6 * HOSTILE.len()));
    let Changes::Changed { items, .. } = database.changes_since(0).await.unwrap() else {
        panic!("no changes")
    };
    assert_eq!(items.len(), 6 * HOSTILE.len());
    assert!(items.iter().all(|(_, stored)| stored.is_some()));

    let edits: Vec<ItemEdit> = items.into_iter().map(|(id, _)| delete(id)).collect();
    change(&database, &edits).await;
    assert_eq!(everything(&database).await.1, []);
}

pub(crate) async fn sql_injection_in_filters_and_cursors_is_inert(empty: TestDatabase) {
    let database = empty.migrated().await;
    for (number, text) in (0_u8..).zip(HOSTILE) {
        let edits: Vec<ItemEdit> = hostile_items(number, text).into_iter().map(put).collect();
        change(&database, &edits).await;
    }
    for (number, text) in (0_u8..).zip(HOSTILE) {
        let given = || Some(text.to_owned());
        let only = ItemFilter {
            tier: given(),
            users: given().into_iter().collect(),
            tenants: given().into_iter().collect(),
            ..ItemFilter::default()
        };
        for (kind, name) in [(ItemKind::Quota, text), (ItemKind::Key, text), (ItemKind::Limit, text)] {
            let page = database.list(kind, &only, None, 10).await.unwrap();
            assert_eq!(page.len(), 1, "{kind:?} {name}");
        }
        let no_action = ItemFilter { action: given(), ..ItemFilter::default() };
        assert_eq!(database.list(ItemKind::Rule, &no_action, None, 10).await.unwrap(), []);
        for item in hostile_items(number, text) {
            let kind = item.id().kind();
            let prefix = ItemFilter { prefix: given(), ..ItemFilter::default() };
            let page = database.list(kind, &prefix, None, 100).await.unwrap();
            let expected = HOSTILE.iter().filter(|other| other.starts_with(text)).count();
            assert_eq!(page.len(), expected, "{kind:?} {text}");
            let following = database.list(kind, &ItemFilter::default(), Some(&item.id()), 100).await.unwrap();
            assert_eq!(
                following.len(),
                HOSTILE.iter().filter(|other| **other > text).count(),
                "{kind:?} {text}"
            );
        }
    }
    let nul = || Some("a\0b".to_owned());
    let filters = [
        ItemFilter { prefix: nul(), ..ItemFilter::default() },
        ItemFilter { tier: nul(), ..ItemFilter::default() },
        ItemFilter { users: nul().into_iter().collect(), ..ItemFilter::default() },
        ItemFilter { tenants: nul().into_iter().collect(), ..ItemFilter::default() },
        ItemFilter { action: nul(), ..ItemFilter::default() },
    ];
    for filter in filters {
        let error = database.list(ItemKind::Key, &filter, None, 1).await.unwrap_err();
        assert!(error.to_string().ends_with("must not contain a NUL character"), "{error}");
    }
    let by = AuditFilter { by: nul(), ..AuditFilter::default() };
    assert!(matches!(database.audit(&by, 0, 1).await.unwrap_err(), DatabaseError::Value { .. }));
    assert!(database.users_usage(&["a\0b".into()]).await.is_err());
}

/// An item of each kind, with this text in every text field.
fn hostile_items(number: u8, text: &str) -> Vec<Item> {
    let words = json!({
        "when": {"tiers": [text], "descriptors": {text: [text]}}, "per": [text], "layer": text,
        "limits": [{"window": text}], "max_delay": text, "requests_per_day": text,
        "response": {"message": text, "retry_after_floor": text}
    });
    let given = || Some(text.to_owned());
    vec![
        rule(text, words),
        tier(text, text, json!({"limits": [{text: text}], "window": text, "max_delay": text})),
        in_tenant(quota(text, Some(text)), text),
        Item::Key(KeyItem {
            hash: [number; 32],
            name: text.to_owned(),
            user: given(),
            tenant: given(),
            tier: given(),
            scopes: vec![text.to_owned()],
            revoked_at_micros: Some(1),
            revoked_by: given(),
            ..key(text)
        }),
        in_tenant(block(BlockKind::User, text), text),
        in_tenant(Item::Limit(limit(text, text, 1)), text),
    ]
}

fn in_tenant(mut item: Item, name: &str) -> Item {
    match &mut item {
        Item::Quota(quota) => quota.tenant = Some(name.to_owned()),
        Item::Block(block) => block.tenant = Some(name.to_owned()),
        Item::Limit(limit) => limit.tenant = Some(name.to_owned()),
        _ => {}
    }
    item
}

fn usage_of(text: &str) -> UsageBatch {
    let text = || text.to_owned();
    UsageBatch {
        node: text(),
        number: 1,
        users: vec![UserUsageDelta {
            tenant: Some(text()),
            user: text(),
            day: 1,
            requests: 3,
            exceeded: 0,
            last_micros: 0,
        }],
        keys: vec![KeyUsageDelta { id: text(), requests: 4, last_micros: 0 }],
    }
}
