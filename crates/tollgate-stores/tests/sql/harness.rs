//! An empty database per test, and a raw client for it.

use std::sync::LazyLock;

use serde_json::Value as Json;
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use tempfile::TempDir;
use tollgate_stores::sql::{
    AccountLimits, AuditEntry, AuditFilter, BlockItem, BlockKind, Database, DatabaseError, Engine, Item,
    ItemEdit, ItemId, ItemWrite, KeyItem, Precondition, QuotaItem, RuleItem, SqlSettings, TierItem,
    UserEndpointLimit,
};
use tollgate_testkit::{SharedMariaDb, SharedPostgres};

// Each test creates a database of its own on the shared server.
static POSTGRES: LazyLock<SharedPostgres> = LazyLock::new(SharedPostgres::get);
static MARIADB: LazyLock<SharedMariaDb> = LazyLock::new(SharedMariaDb::get);

/// An empty database.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    _folder: Option<TempDir>,
}

impl TestDatabase {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/tollgate.db", folder.path().display());
        Self { url, _folder: Some(folder) }
    }

    pub(crate) fn postgres() -> Self {
        Self { url: POSTGRES.create_database(), _folder: None }
    }

    pub(crate) fn mariadb() -> Self {
        Self { url: MARIADB.create_database(), _folder: None }
    }

    pub(crate) fn settings(&self) -> SqlSettings {
        SqlSettings::from_url(&self.url).unwrap()
    }

    pub(crate) fn engine(&self) -> Engine {
        self.settings().engine()
    }

    /// Opened without migrations.
    pub(crate) async fn open(&self) -> Database {
        Database::open(&self.url).await.unwrap()
    }

    /// Opened and migrated.
    pub(crate) async fn migrated(&self) -> Database {
        let database = self.open().await;
        database.migrate().await.unwrap();
        database
    }

    /// A raw client.
    pub(crate) async fn client(&self) -> Client {
        match self.engine() {
            Engine::Sqlite => {
                let url = &self.url;
                Client::Sqlite(SqliteConnection::connect(url).await.unwrap())
            }
            Engine::Postgres => Client::Postgres(PgConnection::connect(&self.url).await.unwrap()),
            Engine::MySql => Client::MySql(MySqlConnection::connect(&self.url).await.unwrap()),
        }
    }
}

/// A connection that bypasses tollgate.
pub(crate) enum Client {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl Client {
    pub(crate) async fn try_execute(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Client::Sqlite(connection) => sql.execute(connection).await.map(drop),
            Client::Postgres(connection) => sql.execute(connection).await.map(drop),
            Client::MySql(connection) => sql.execute(connection).await.map(drop),
        }
    }

    pub(crate) async fn execute(&mut self, sql: &str) {
        self.try_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// The texts that a query returns.
    pub(crate) async fn texts(&mut self, sql: &str) -> Vec<String> {
        let sql = AssertSqlSafe(sql);
        match self {
            Client::Sqlite(connection) => sqlx::query_scalar(sql).fetch_all(connection).await.unwrap(),
            Client::Postgres(connection) => sqlx::query_scalar(sql).fetch_all(connection).await.unwrap(),
            Client::MySql(connection) => sqlx::query_scalar(sql).fetch_all(connection).await.unwrap(),
        }
    }

    /// The number that a query returns.
    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql);
        match self {
            Client::Sqlite(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
            Client::Postgres(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
            Client::MySql(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
        }
    }
}

/// A limit of a user on an endpoint.
pub(crate) fn limit(user: &str, endpoint: &str, requests: u32) -> UserEndpointLimit {
    UserEndpointLimit {
        tenant: None,
        user: user.to_owned(),
        endpoint: endpoint.to_owned(),
        requests,
        window_micros: 60_000_000,
        algorithm: "token_bucket".to_owned(),
        burst: None,
    }
}

pub(crate) fn rule(name: &str, body: Json) -> Item {
    let Json::Object(body) = body else { panic!("the body must be an object") };
    Item::Rule(RuleItem { name: name.to_owned(), body })
}

pub(crate) fn tier(name: &str, description: &str, body: Json) -> Item {
    let Json::Object(body) = body else { panic!("the body must be an object") };
    Item::Tier(TierItem { name: name.to_owned(), description: description.to_owned(), body })
}

pub(crate) fn quota(user: &str, tier: Option<&str>) -> Item {
    let limits = AccountLimits { requests_per_hour: Some(7), ..AccountLimits::default() };
    Item::Quota(QuotaItem { tenant: None, user: user.to_owned(), tier: tier.map(str::to_owned), limits })
}

/// A key whose hash is derived from its id.
pub(crate) fn key(id: &str) -> KeyItem {
    let mut hash = [0xca_u8; 32];
    for (position, byte) in id.bytes().enumerate() {
        hash[position % 32] = hash[position % 32].wrapping_mul(31).wrapping_add(byte);
    }
    KeyItem {
        id: id.to_owned(),
        hash,
        previous_hash: None,
        previous_until_micros: None,
        name: String::new(),
        user: None,
        tenant: None,
        tier: None,
        scopes: vec![],
        limits: AccountLimits::default(),
        expires_at_micros: None,
        revoked_at_micros: None,
        revoked_by: None,
    }
}

pub(crate) fn block(kind: BlockKind, subject: &str) -> Item {
    let reason = format!("{subject} sent spam");
    Item::Block(BlockItem { tenant: None, kind, subject: subject.to_owned(), reason, until_micros: None })
}

pub(crate) fn put(item: impl Into<Item>) -> ItemEdit {
    ItemEdit { write: ItemWrite::Put(item.into()), precondition: Precondition::None }
}

pub(crate) fn delete(id: ItemId) -> ItemEdit {
    ItemEdit { write: ItemWrite::Delete(id), precondition: Precondition::None }
}

/// In November 2023.
pub(crate) const NOW: u64 = 1_700_000_000_000_000;

/// Applies edits as `root`; returns the version.
pub(crate) async fn change(database: &Database, edits: &[ItemEdit]) -> u64 {
    database.change("root", NOW, edits).await.unwrap().version
}

/// Sets the limit of a user on an endpoint; returns the version.
pub(crate) async fn put_limit(
    database: &Database,
    user: &str,
    endpoint: &str,
    requests: u32,
) -> Result<u64, DatabaseError> {
    let edit = put(Item::Limit(limit(user, endpoint, requests)));
    Ok(database.change("root", NOW, &[edit]).await?.version)
}

/// The version and all items.
pub(crate) async fn everything(database: &Database) -> (u64, Vec<Item>) {
    let mut items = Vec::new();
    let version = database.load(|stored| items.push(stored.item)).await.unwrap();
    (version, items)
}

/// The whole audit log.
pub(crate) async fn audit_log(database: &Database) -> Vec<AuditEntry> {
    database.audit(&AuditFilter::default(), 0, 1000).await.unwrap()
}
