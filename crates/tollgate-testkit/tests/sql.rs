//! The SQL servers, queried with their own clients.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

use tollgate_testkit::{MariaDbServer, PostgresServer};

macro_rules! keeps_data_after_kill_and_restart {
    ($($name:ident: $server:ty,)+) => {
        $(
            #[test]
            fn $name() {
                let server = <$server>::start();
                let url = server.create_database();
                assert!(url.ends_with("/test_0") && url.contains(<$server>::PASSWORD));
                server.execute("test_0", "CREATE TABLE kept (number BIGINT); INSERT INTO kept VALUES (7)");
                server.kill9();
                server.restart();
                assert_eq!(server.execute("test_0", "SELECT number FROM kept").trim(), "7");
            }
        )+
    };
}

keeps_data_after_kill_and_restart! {
    postgres_keeps_data_after_kill_and_restart: PostgresServer,
    mariadb_keeps_data_after_kill_and_restart: MariaDbServer,
}

#[test]
fn drop_removes_the_folder() {
    let server = PostgresServer::start();
    let data = server.execute("postgres", "SHOW data_directory");
    let folder = Path::new(data.trim()).parent().unwrap().to_owned();
    assert!(folder.exists());
    drop(server);
    assert!(!folder.exists());
}
