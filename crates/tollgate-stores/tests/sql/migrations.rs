//! Schema migrations.

use std::time::Duration;

use tollgate_stores::sql::{Database, DatabaseError, Engine, Migration};

use crate::harness::TestDatabase;

const ALL: [(u64, &str); 2] = [(1, "configuration"), (2, "tenants")];

fn names(migrations: &[Migration]) -> Vec<(u64, &'static str)> {
    migrations.iter().map(|migration| (migration.number, migration.name)).collect()
}

pub(crate) async fn empty_database_is_migrated_once(empty: TestDatabase) {
    let database = empty.open().await;
    let all = ALL;
    assert_eq!(names(&database.pending_migrations().await.unwrap()), all);
    assert_eq!(names(&database.pending_migrations().await.unwrap()), all, "read only");
    assert!(database.version().await.is_err(), "no tables yet");

    assert_eq!(names(&database.migrate().await.unwrap()), all);
    assert_eq!(database.pending_migrations().await.unwrap(), []);
    assert_eq!(database.migrate().await.unwrap(), []);
    assert_eq!(database.version().await.unwrap(), 0);
    let mut client = empty.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM tollgate_migrations").await, 2);
    assert_eq!(client.number("SELECT COUNT(*) FROM config_version").await, 1);
}

pub(crate) async fn concurrent_starts_migrate_once(empty: TestDatabase) {
    let nodes = [(); 16].map(|()| {
        let url = empty.url.clone();
        tokio::spawn(async move { Database::open(&url).await?.migrate().await })
    });
    let mut applied = Vec::new();
    for node in nodes {
        applied.extend(names(&node.await.unwrap().unwrap()));
    }
    assert_eq!(applied, ALL, "exactly one node migrates");
    assert_eq!(empty.open().await.version().await.unwrap(), 0);
}

pub(crate) async fn newer_schema_is_rejected(empty: TestDatabase) {
    let database = empty.migrated().await;
    let mut client = empty.client().await;
    client
        .execute(
            "INSERT INTO tollgate_migrations (number, name, applied_at_micros) VALUES (9999, 'future', 0)",
        )
        .await;
    for result in [database.migrate().await, database.pending_migrations().await] {
        let error = result.unwrap_err();
        assert!(matches!(error, DatabaseError::SchemaTooNew { found: 9999, known: 2 }), "{error:?}");
        assert!(error.to_string().contains("9999"), "{error}");
    }
    assert_eq!(client.number("SELECT COUNT(*) FROM tollgate_migrations").await, 3);
}

pub(crate) async fn migration_lock_wait_times_out(empty: TestDatabase) {
    empty.open().await.close().await; // creates the SQLite file
    let mut other = empty.client().await;
    let hold = match empty.engine() {
        Engine::Sqlite => "BEGIN IMMEDIATE",
        Engine::Postgres => "SELECT pg_advisory_lock(x'746f6c6c67617465'::bigint)",
        Engine::MySql => "SELECT GET_LOCK(CONCAT('tollgate migrate ', SHA1(DATABASE())), 0)",
    };
    other.execute(hold).await;
    // Short, but long enough for a busy machine.
    let timeout = Duration::from_secs(4);
    let mut settings = empty.settings();
    (settings.migration_timeout, settings.statement_timeout) = (timeout, timeout);
    let database = Database::connect(settings).await.unwrap();
    let error = database.migrate().await.unwrap_err();
    assert!(matches!(error, DatabaseError::MigrationLocked { waited } if waited == timeout), "{error:?}");

    drop(other);
    assert_eq!(database.migrate().await.unwrap().len(), 2, "the lock is released with its connection");
}
