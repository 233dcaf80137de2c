//! The SQL servers of the kit, asked with their own clients.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use tollgate_testkit::{MariaDbServer, PostgresServer};

macro_rules! serves_until_it_is_killed_and_again_afterwards {
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

serves_until_it_is_killed_and_again_afterwards! {
    postgres_serves_until_it_is_killed_and_again_afterwards: PostgresServer,
    mariadb_serves_until_it_is_killed_and_again_afterwards: MariaDbServer,
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
