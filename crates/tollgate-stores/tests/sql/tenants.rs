//! Items live inside their tenant.

use tollgate::identity::InTenant;
use tollgate_stores::sql::{
    AccountLimits, AuditFilter, BlockItem, BlockKind, Changes, Engine, Item, ItemFilter, ItemId, ItemKind,
    QuotaItem, UsageBatch, UserEndpointLimit, UserUsageDelta,
};

use crate::harness::{NOW, TestDatabase, change, delete, everything, limit, put, rule};

const TENANTS: [Option<&str>; 3] = [None, Some("acme"), Some("beta")];

fn owned(tenant: Option<&str>) -> Option<String> {
    tenant.map(str::to_owned)
}

fn quota(tenant: Option<&str>, user: &str, per_hour: u32) -> Item {
    let limits = AccountLimits { requests_per_hour: Some(per_hour), ..AccountLimits::default() };
    Item::Quota(QuotaItem { tenant: owned(tenant), user: user.to_owned(), tier: None, limits })
}

fn block(tenant: Option<&str>, kind: BlockKind, subject: &str) -> Item {
    let (subject, reason) = (subject.to_owned(), format!("{tenant:?}"));
    Item::Block(BlockItem { tenant: owned(tenant), kind, subject, reason, until_micros: None })
}

fn limit_in(tenant: Option<&str>, requests: u32) -> Item {
    Item::Limit(UserEndpointLimit { tenant: owned(tenant), ..limit("bob", "/search", requests) })
}

/// One quota, block and limit of bob in each tenant.
fn items() -> Vec<Item> {
    let of = |(number, tenant)| {
        [quota(tenant, "bob", number), block(tenant, BlockKind::User, "bob"), limit_in(tenant, number)]
    };
    (1..).zip(TENANTS).flat_map(of).collect()
}

pub(crate) async fn items_of_tenants_are_independent(empty: TestDatabase) {
    let database = empty.migrated().await;
    let all = items();
    let version = change(&database, &all.iter().cloned().map(put).collect::<Vec<_>>()).await;
    for item in &all {
        assert_eq!(database.get(&item.id()).await.unwrap().unwrap().item, *item);
    }
    for kind in [ItemKind::Quota, ItemKind::Block, ItemKind::Limit] {
        let filter = ItemFilter { tenants: vec!["acme".to_owned()], ..ItemFilter::default() };
        let listed = database.list(kind, &filter, None, 10).await.unwrap();
        let tenants: Vec<Option<String>> =
            listed.iter().map(|stored| stored.item.id().tenant().map(str::to_owned)).collect();
        assert_eq!(tenants, [owned(Some("acme"))], "{kind:?}");
        // Page by page, in the order of the ids.
        let (mut after, mut seen) = (None, Vec::new());
        while let Some(next) =
            database.list(kind, &ItemFilter::default(), after.as_ref(), 1).await.unwrap().pop()
        {
            seen.push(next.item.id());
            after = Some(next.item.id());
        }
        assert!(seen.len() == 3 && seen.is_sorted(), "{seen:?}");
    }
    let bob = ItemId::Quota { tenant: owned(Some("acme")), user: "bob".to_owned() };
    change(&database, &[delete(bob.clone())]).await;
    let (_, left) = everything(&database).await;
    assert_eq!(left.len(), all.len() - 1);
    assert!(left.iter().all(|item| item.id() != bob));
    let Changes::Changed { items, .. } = database.changes_since(version).await.unwrap() else {
        panic!("changed")
    };
    assert_eq!(items, [(bob, None)], "other nodes learn the tenant");
    let filter = AuditFilter { tenant: owned(Some("acme")), ..AuditFilter::default() };
    let entries = database.audit(&filter, 0, 10).await.unwrap();
    assert!(entries.len() == 4 && entries.iter().all(|entry| entry.tenant.as_deref() == Some("acme")));
}

pub(crate) async fn usage_of_tenants_is_independent(empty: TestDatabase) {
    let database = empty.migrated().await;
    // No quota in beta.
    change(&database, &[put(quota(None, "bob", 1)), put(quota(Some("acme"), "bob", 1))]).await;
    let users = (1..).zip(TENANTS).map(|(requests, tenant)| UserUsageDelta {
        tenant: owned(tenant),
        user: "bob".to_owned(),
        day: 20_000,
        requests,
        exceeded: 0,
        last_micros: NOW,
    });
    let batch =
        UsageBatch { node: "n".to_owned(), number: 1, users: users.collect(), ..UsageBatch::default() };
    assert!(database.add_usage(&batch).await.unwrap());
    let bobs = TENANTS.map(|tenant| InTenant::new(tenant, "bob"));
    let mut found = database.users_usage(&bobs).await.unwrap();
    found.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    let found: Vec<_> = found.into_iter().map(|usage| (usage.tenant, usage.requests_of_day)).collect();
    assert_eq!(found, [(None, 1), (owned(Some("acme")), 2)]);
    change(&database, &[delete(quota(Some("acme"), "bob", 1).id())]).await;
    let left = database.users_usage(&bobs).await.unwrap();
    assert_eq!(left.iter().map(|usage| usage.requests_of_day).collect::<Vec<_>>(), [1]);
}

pub(crate) async fn invalid_tenants_are_rejected(empty: TestDatabase) {
    let database = empty.migrated().await;
    for item in [
        quota(Some(""), "bob", 1),
        quota(Some("a\0"), "bob", 1),
        quota(Some(&"x".repeat(257)), "bob", 1),
        block(Some("acme"), BlockKind::ApiKey, "k"),
        block(Some("acme"), BlockKind::Tenant, "acme"),
    ] {
        assert!(database.change("root", NOW, &[put(item.clone())]).await.is_err(), "{item:?}");
    }
    assert_eq!(database.version().await.unwrap(), 0);
}

/// The schema before tenants.
fn first_migration(engine: Engine) -> &'static str {
    match engine {
        Engine::Sqlite => include_str!("../../migrations/sqlite/0001_configuration.sql"),
        Engine::Postgres => include_str!("../../migrations/postgres/0001_configuration.sql"),
        Engine::MySql => include_str!("../../migrations/mysql/0001_configuration.sql"),
    }
}

pub(crate) async fn migration_keeps_items_without_tenant(empty: TestDatabase) {
    let database = empty.open().await;
    let mut client = empty.client().await;
    client.execute(first_migration(empty.engine())).await;
    for sql in [
        "CREATE TABLE tollgate_migrations (number BIGINT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL, \
         applied_at_micros BIGINT NOT NULL)",
        "INSERT INTO tollgate_migrations (number, name, applied_at_micros) VALUES (1, 'configuration', 0)",
        "INSERT INTO rate_limit_rules (name, created_by, created_at_micros, updated_at_micros, version) \
         VALUES ('r', 'root', 1, 2, 3)",
        "INSERT INTO user_quotas (user_id, requests_per_hour, created_by, created_at_micros, updated_at_micros, version) \
         VALUES ('bob', 1, 'root', 1, 2, 3)",
        "INSERT INTO user_usage (user_id, day, requests_of_day, month, requests_of_month, last_request_at_micros, \
         exceeded_count) VALUES ('bob', 20000, 7, 24297, 9, 5, 2)",
        "INSERT INTO blocks (kind, subject, reason, created_by, created_at_micros, updated_at_micros, version) \
         VALUES ('user', 'bob', 'None', 'root', 1, 2, 3)",
        "INSERT INTO user_endpoint_limits (user_id, endpoint, requests, window_micros, algorithm, created_by, \
         created_at_micros, updated_at_micros, version) VALUES ('bob', '/search', 1, 60000000, 'token_bucket', 'root', 1, 2, 3)",
        "INSERT INTO admin_audit (version, at_micros, made_by, action, kind, subject, state_before, state_after) \
         VALUES (1, 1, 'root', 'create', 'quota', 'bob', '', '{}')",
        "UPDATE config_version SET version = 1",
    ] {
        client.execute(sql).await;
    }
    drop(client);
    let applied = database.migrate().await.unwrap();
    assert_eq!(applied.iter().map(|migration| migration.number).collect::<Vec<_>>(), [2]);
    let (_, kept) = everything(&database).await;
    let expected = [
        rule("r", serde_json::json!({})),
        quota(None, "bob", 1),
        block(None, BlockKind::User, "bob"),
        limit_in(None, 1),
    ];
    assert_eq!(kept, expected);
    let stored = database.get(&quota(None, "bob", 1).id()).await.unwrap().unwrap();
    assert_eq!((&*stored.created_by, stored.created_at_micros, stored.version), ("root", 1, 3));
    let usage = database.users_usage(&["bob".into()]).await.unwrap().pop().unwrap();
    assert_eq!((usage.requests_of_day, usage.requests_of_month, usage.exceeded_count), (7, 9, 2));
    let entries = database.audit(&AuditFilter::default(), 0, 10).await.unwrap();
    assert_eq!((entries.len(), &entries[0].tenant), (1, &None));
    let Changes::Changed { items, .. } = database.changes_since(0).await.unwrap() else { panic!("changed") };
    assert_eq!(items[0].1.as_ref().unwrap().item, quota(None, "bob", 1));
    // The tables work as new ones do: tenants, upserts and cascades.
    change(&database, &items_of_all_tenants()).await;
    change(&database, &[delete(quota(None, "bob", 1).id())]).await;
    assert_eq!(database.users_usage(&["bob".into()]).await.unwrap(), []);
}

fn items_of_all_tenants() -> Vec<tollgate_stores::sql::ItemEdit> {
    items().into_iter().map(put).collect()
}
