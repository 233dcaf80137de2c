//! Behaviour of single engines.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate_stores::sql::{Database, DatabaseError, SqlSettings};
use tollgate_testkit::{MariaDbServer, PostgresServer};

use crate::harness::{TestDatabase, change, everything, put, put_limit, quota};

#[tokio::test]
async fn sqlite_file_is_private_and_uses_wal() {
    let empty = TestDatabase::sqlite();
    let database = empty.migrated().await;
    put_limit(&database, "alice", "/", 1).await.unwrap();
    let path = empty.url.strip_prefix("sqlite://").unwrap();
    for name in [path.to_owned(), format!("{path}-wal")] {
        let mode = Path::new(&name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    database.close().await;
    assert_eq!(empty.open().await.version().await.unwrap(), 1, "the data persists");
}

#[tokio::test]
async fn invalid_sqlite_file_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/tollgate.db");
    let error = Database::open(&format!("sqlite://{}", path.display())).await.unwrap_err();
    assert!(matches!(error, DatabaseError::File { .. }));
    assert!(error.to_string().contains("missing/tollgate.db"), "{error}");

    let path = folder.path().join("not-a-database.txt");
    std::fs::write(&path, "Dear database, ".repeat(1000)).unwrap();
    let error = Database::open(&format!("sqlite://{}", path.display())).await.unwrap_err();
    assert!(
        error.to_string().contains("not-a-database.txt") && error.to_string().contains("not a database"),
        "{error}"
    );
}

#[tokio::test]
async fn postgres_must_store_utf8() {
    let empty = TestDatabase::postgres();
    let mut client = empty.client().await;
    let name = "latin_gate";
    let locale = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    client.execute(&format!("CREATE DATABASE {name} {locale}")).await;
    let (server, _) = empty.url.rsplit_once('/').unwrap();
    let error = Database::open(&format!("{server}/{name}")).await.unwrap_err();
    assert!(matches!(&error, DatabaseError::Encoding { encoding, .. } if encoding == "LATIN1"), "{error:?}");
}

#[tokio::test]
async fn migrated_schema_needs_no_ddl_rights() {
    let empty = TestDatabase::postgres();
    empty.migrated().await.close().await;
    let mut client = empty.client().await;
    let address = empty.url.rsplit_once('@').unwrap().1;
    let name = address.rsplit_once('/').unwrap().1;
    client.execute(&format!("CREATE ROLE runner_{name} LOGIN PASSWORD 'run'")).await;
    client
        .execute(&format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO runner_{name}; \
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO runner_{name}; \
             REVOKE CREATE ON SCHEMA public FROM PUBLIC"
        ))
        .await;
    let runner = Database::open(&format!("postgres://runner_{name}:run@{address}")).await.unwrap();
    assert_eq!(runner.migrate().await.unwrap(), []);
    change(&runner, &[put(quota("alice", None))]).await;
}

#[tokio::test]
async fn interrupted_mariadb_migration_is_finished() {
    let empty = TestDatabase::mariadb();
    let database = empty.open().await;
    let mut client = empty.client().await;
    client.execute(include_str!("../../migrations/mysql/0001_configuration.sql")).await;
    client.execute("DROP TABLE blocks; DROP TABLE user_usage").await;
    assert_eq!(database.migrate().await.unwrap().len(), 2);
    put_limit(&database, "alice", "/", 1).await.unwrap();
    change(&database, &[put(quota("alice", None))]).await;
    // The second one, interrupted after some of its statements.
    client
        .execute(
            "DELETE FROM tollgate_migrations WHERE number = 2; \
             ALTER TABLE user_usage DROP FOREIGN KEY user_usage_user; \
             ALTER TABLE blocks DROP CONSTRAINT blocks_kind_in_tenant, DROP PRIMARY KEY, DROP COLUMN tenant, \
             ADD PRIMARY KEY (kind, subject)",
        )
        .await;
    assert_eq!(database.migrate().await.unwrap().len(), 1);
    assert_eq!(client.number("SELECT COUNT(*) FROM blocks WHERE tenant = ''").await, 0);
    let foreign_keys = "SELECT COUNT(*) FROM information_schema.table_constraints \
                        WHERE constraint_schema = DATABASE() AND constraint_name = 'user_usage_user'";
    assert_eq!(client.number(foreign_keys).await, 1);
    assert_eq!(everything(&database).await.1.len(), 2, "existing data is kept");
}

#[tokio::test]
async fn mariadb_never_truncates_values() {
    let server = MariaDbServer::start();
    server.execute("mysql", "SET GLOBAL sql_mode = '', GLOBAL tx_isolation = 'READ-UNCOMMITTED'");
    let database = Database::open(&server.create_database()).await.unwrap();
    database.migrate().await.unwrap();
    server.execute("test_0", "ALTER TABLE user_endpoint_limits MODIFY endpoint VARBINARY(4) NOT NULL");
    put_limit(&database, "alice", "/one", 1).await.unwrap();
    let error = put_limit(&database, "alice", "/one/and/more", 1).await.unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    let (version, items) = everything(&database).await;
    assert_eq!((version, items.len()), (1, 1));
}

#[tokio::test]
async fn postgres_is_used_again_after_a_restart() {
    let server = PostgresServer::start();
    is_used_again(&server.create_database(), || server.kill9(), || server.restart()).await;
}

#[tokio::test]
async fn mariadb_is_used_again_after_a_restart() {
    let server = MariaDbServer::start();
    is_used_again(&server.create_database(), || server.kill9(), || server.restart()).await;
}

#[tokio::test]
async fn unresponsive_mariadb_times_out() {
    let server = MariaDbServer::start();
    let url = server.create_database();
    Database::open(&url).await.unwrap().migrate().await.unwrap();
    let mut settings = SqlSettings::from_url(&url).unwrap();
    let timeout = Duration::from_secs(4);
    (settings.statement_timeout, settings.connect_timeout) = (timeout, timeout);
    let database = Database::connect(settings).await.unwrap();
    server.freeze();
    let result = tokio::time::timeout(Duration::from_secs(40), database.version()).await;
    result.expect("the client timed out").unwrap_err();
    server.thaw();
    assert_eq!(put_limit(&database, "alice", "/", 1).await.unwrap(), 1);
}

async fn is_used_again(url: &str, kill: impl Fn(), restart: impl Fn()) {
    let mut settings = SqlSettings::from_url(url).unwrap();
    settings.connect_timeout = Duration::from_secs(2);
    let database = Database::connect(settings).await.unwrap();
    database.migrate().await.unwrap();
    put_limit(&database, "alice", "/", 1).await.unwrap();
    change(&database, &[put(quota("alice", None))]).await;
    let before = everything(&database).await;
    kill();
    let patience = Duration::from_secs(20);
    let result = tokio::time::timeout(patience, database.version()).await;
    let error = result.expect("timed out").unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    let result = tokio::time::timeout(patience, put_limit(&database, "alice", "/", 2)).await;
    let error = result.expect("timed out").unwrap_err();
    assert!(error.is_unreachable() && !matches!(error, DatabaseError::OutcomeUnknown { .. }), "{error:?}");
    let error = Database::open(url).await.unwrap_err();
    assert!(matches!(error, DatabaseError::Unreachable { .. }) && error.is_unreachable(), "{error:?}");

    restart();
    assert_eq!(everything(&database).await, before);
    assert_eq!(put_limit(&database, "alice", "/", 2).await.unwrap(), 3);
}

/// Kills a server repeatedly while a client writes. Confirmed changes exist, failed changes do not, and unknown outcomes are one
/// or the other.
async fn loses_no_change(url: &str, kill: impl Fn(), restart: impl Fn()) {
    let mut settings = SqlSettings::from_url(url).unwrap();
    settings.connect_timeout = Duration::from_secs(2);
    let database = Database::connect(settings).await.unwrap();
    database.migrate().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (database, stop) = (database.clone(), stop.clone());
        async move {
            let (mut done, mut unknown, mut number) = (BTreeSet::new(), BTreeSet::new(), 0);
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let user = format!("user {number}");
                match database.change("root", 1, &[put(quota(&user, None))]).await {
                    Ok(_) => assert!(done.insert(user)),
                    Err(DatabaseError::OutcomeUnknown { .. }) => assert!(unknown.insert(user)),
                    Err(error) => {
                        assert!(error.is_unreachable(), "{error:?}");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            (done, unknown)
        }
    });
    for round in 1..=3 {
        let deadline = Instant::now() + Duration::from_secs(30);
        while database.version().await.unwrap_or(0) < round * 5 {
            assert!(!writer.is_finished(), "the writer failed");
            assert!(Instant::now() < deadline, "writes have stopped");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        kill();
        restart();
    }
    stop.store(true, Ordering::Relaxed);
    let (done, unknown) = writer.await.unwrap();
    let (version, items) = everything(&Database::open(url).await.unwrap()).await;
    let stored: BTreeSet<String> = items.iter().map(|item| item.id().to_string()).collect();
    assert!(done.is_subset(&stored), "lost: {:?}", done.difference(&stored));
    let more: BTreeSet<String> = stored.difference(&done).cloned().collect();
    assert!(more.is_subset(&unknown), "applied although refused: {more:?}, unknown: {unknown:?}");
    assert_eq!(version, stored.len() as u64, "versions without gaps");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_crashes_lose_no_change() {
    let server = PostgresServer::start();
    loses_no_change(&server.create_database(), || server.kill9(), || server.restart()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_crashes_lose_no_change() {
    let server = MariaDbServer::start();
    loses_no_change(&server.create_database(), || server.kill9(), || server.restart()).await;
}
