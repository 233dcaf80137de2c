//! An empty database for one test, and a second way into it.

use std::sync::LazyLock;

use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use tempfile::TempDir;
use tollgate_stores::sql::{Database, Engine, SqlSettings, UserEndpointLimit};
use tollgate_testkit::{MariaDbServer, PostgresServer};

// One server for all tests, each with a database of its own. The kit ends it when the tests have ended.
static POSTGRES: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);
static MARIADB: LazyLock<MariaDbServer> = LazyLock::new(MariaDbServer::start);

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

    /// As a node opens it.
    pub(crate) async fn open(&self) -> Database {
        Database::open(&self.url).await.unwrap()
    }

    /// As a node that has started opens it.
    pub(crate) async fn migrated(&self) -> Database {
        let database = self.open().await;
        database.migrate().await.unwrap();
        database
    }

    /// As somebody with a client of their own opens it.
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

/// A connection that knows nothing of tollgate.
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

    /// The number that a query answers.
    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql);
        match self {
            Client::Sqlite(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
            Client::Postgres(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
            Client::MySql(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
        }
    }
}

/// Numbers for a user on an endpoint.
pub(crate) fn limit(user: &str, endpoint: &str, requests: u32) -> UserEndpointLimit {
    UserEndpointLimit {
        user: user.to_owned(),
        endpoint: endpoint.to_owned(),
        requests,
        window_micros: 60_000_000,
        algorithm: "token_bucket".to_owned(),
        burst: None,
        updated_at_micros: 1_700_000_000_000_000 + u64::from(requests),
    }
}
