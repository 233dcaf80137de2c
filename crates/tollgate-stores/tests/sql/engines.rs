//! What is special to one engine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tollgate_stores::sql::{Database, DatabaseError, SqlSettings};
use tollgate_testkit::{MariaDbServer, PostgresServer};

use crate::harness::{TestDatabase, limit};

#[tokio::test]
async fn a_sqlite_file_is_made_for_us_alone_and_written_ahead() {
    let empty = TestDatabase::sqlite();
    let database = empty.migrated().await;
    database.put_limit("root", &limit("alice", "/", 1)).await.unwrap();
    let path = empty.url.strip_prefix("sqlite://").unwrap();
    for name in [path.to_owned(), format!("{path}-wal")] {
        let mode = Path::new(&name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    database.close().await;
    assert_eq!(empty.open().await.limits().await.unwrap().0, 1, "it is there again");
}

#[tokio::test]
async fn a_sqlite_file_that_cannot_be_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/tollgate.db");
    let error = Database::open(&format!("sqlite://{}", path.display())).await.unwrap_err();
    assert!(matches!(error, DatabaseError::File { .. }));
    assert!(error.to_string().contains("missing/tollgate.db"), "{error}");

    let path = folder.path().join("letter.txt");
    std::fs::write(&path, "Dear database, ".repeat(1000)).unwrap();
    let error = Database::open(&format!("sqlite://{}", path.display())).await.unwrap_err();
    assert!(
        error.to_string().contains("letter.txt") && error.to_string().contains("not a database"),
        "{error}"
    );
}

#[tokio::test]
async fn postgres_must_keep_text_as_utf8() {
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
async fn a_migration_that_mariadb_was_cut_short_in_is_finished() {
    let empty = TestDatabase::mariadb();
    let database = empty.migrated().await;
    database.put_limit("root", &limit("alice", "/", 1)).await.unwrap();
    let mut client = empty.client().await;
    client.execute("DELETE FROM tollgate_migrations; DROP TABLE blocks; DROP TABLE api_key_usage").await;
    assert_eq!(database.pending().await.unwrap().len(), 1);
    assert_eq!(database.migrate().await.unwrap().len(), 1);
    assert_eq!(client.number("SELECT COUNT(*) FROM blocks").await, 0);
    assert_eq!(database.limits().await.unwrap().0, 1, "what was there is there");
}

#[tokio::test]
async fn mariadb_cuts_nothing_off_whatever_its_settings_are() {
    let server = MariaDbServer::start();
    server.execute("mysql", "SET GLOBAL sql_mode = '', GLOBAL tx_isolation = 'READ-UNCOMMITTED'");
    let database = Database::open(&server.create_database()).await.unwrap();
    database.migrate().await.unwrap();
    server.execute("test_0", "ALTER TABLE user_endpoint_limits MODIFY endpoint VARBINARY(4) NOT NULL");
    let short = limit("alice", "/one", 1);
    database.put_limit("root", &short).await.unwrap();
    let error = database.put_limit("root", &limit("alice", "/one/and/more", 1)).await.unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    assert_eq!(database.limits().await.unwrap(), (1, vec![short]));
}

#[tokio::test]
async fn postgres_that_was_away_is_used_again() {
    let server = PostgresServer::start();
    returns(&server.create_database(), || server.kill9(), || server.restart()).await;
}

#[tokio::test]
async fn mariadb_that_was_away_is_used_again() {
    let server = MariaDbServer::start();
    returns(&server.create_database(), || server.kill9(), || server.restart()).await;
}

#[tokio::test]
async fn mariadb_that_says_nothing_is_not_waited_for() {
    let server = MariaDbServer::start();
    let url = server.create_database();
    let mut settings = SqlSettings::from_url(&url).unwrap();
    let moment = Duration::from_millis(300);
    (settings.statement_timeout, settings.connect_timeout) = (moment, moment);
    let database = Database::connect(settings).await.unwrap();
    database.migrate().await.unwrap();
    server.freeze();
    let asked = tokio::time::timeout(Duration::from_secs(10), database.version()).await;
    asked.expect("it gave up by itself").unwrap_err();
    server.thaw();
    assert_eq!(database.put_limit("root", &limit("alice", "/", 1)).await.unwrap(), 1);
}

async fn returns(url: &str, kill: impl Fn(), restart: impl Fn()) {
    let mut settings = SqlSettings::from_url(url).unwrap();
    settings.connect_timeout = Duration::from_millis(500);
    let database = Database::connect(settings).await.unwrap();
    database.migrate().await.unwrap();
    let kept = limit("alice", "/", 1);
    database.put_limit("root", &kept).await.unwrap();
    kill();
    let asked = tokio::time::timeout(Duration::from_secs(20), database.version()).await;
    asked.expect("an answer in time").unwrap_err();
    let error = Database::open(url).await.unwrap_err();
    assert!(matches!(error, DatabaseError::Unreachable { .. }), "{error:?}");

    restart();
    assert_eq!(database.limits().await.unwrap(), (1, vec![kept]));
    assert_eq!(database.put_limit("root", &limit("alice", "/", 2)).await.unwrap(), 2);
}
