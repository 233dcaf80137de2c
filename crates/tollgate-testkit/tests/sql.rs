//! The SQL servers of the kit, asked with their own clients.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use tollgate_testkit::{MariaDbServer, PostgresServer};

#[test]
fn postgres_serves_until_it_is_killed_and_again_afterwards() {
    let server = PostgresServer::start();
    let url = server.create_database();
    assert!(url.ends_with("/test_0") && url.contains(server.password()));
    server.execute("test_0", "CREATE TABLE kept (number BIGINT); INSERT INTO kept VALUES (7)");
    server.kill9();
    server.restart();
    assert_eq!(server.execute("test_0", "SELECT number FROM kept").trim(), "7");
}

#[test]
fn mariadb_serves_until_it_is_killed_and_again_afterwards() {
    let server = MariaDbServer::start();
    let url = server.create_database();
    assert!(url.ends_with("/test_0") && url.contains(server.password()));
    server.execute("test_0", "CREATE TABLE kept (number BIGINT); INSERT INTO kept VALUES (7)");
    server.kill9();
    server.restart();
    assert_eq!(server.execute("test_0", "SELECT number FROM kept").trim(), "7");
}

#[test]
fn nothing_is_left_behind() {
    let server = PostgresServer::start();
    let data = server.execute("postgres", "SHOW data_directory");
    let folder = Path::new(data.trim()).parent().unwrap().to_owned();
    assert!(folder.exists());
    drop(server);
    assert!(!folder.exists());
}
