//! MariaDB.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::process::StopSignal;
use crate::shared_sql_server::SharedSqlServer;
use crate::sql_server::{SqlEngine, SqlInstance, SqlServer, USER, find, run_to_end};

const SOCKET: &str = "mariadb.sock";

/// A MariaDB server of one test.
pub type MariaDbServer = SqlServer<MariaDb>;

/// A MariaDB server that tests share.
pub type SharedMariaDb = SharedSqlServer<MariaDb>;

/// Runs MariaDB.
pub struct MariaDb;

impl SqlEngine for MariaDb {
    const NAME: &'static str = "mariadb";
    const STOP: StopSignal = StopSignal::Kill;
    const PASSWORD: &'static str = "canary-mariadb";
    const DEFAULT_DATABASE: &'static str = "mysql";

    fn init(instance: &SqlInstance) {
        let mut install = instance.command(find("mariadb-install-db", &[]));
        install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]).args(folders(instance));
        install.args(["--auth-root-authentication-method=normal", "--innodb-flush-log-at-trx-commit=2"]);
        run_to_end(install.args(["--innodb-log-file-size=8M", "--skip-log-bin"]));
    }

    fn server(instance: &SqlInstance) -> Command {
        let mut mariadbd = instance.command(find("mariadbd", &[PathBuf::from("/usr/sbin")]));
        mariadbd
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"])
            .args(folders(instance));
        if !instance.is_durable {
            mariadbd.args(["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M"]);
            mariadbd.arg("--innodb-log-file-size=8M");
        }
        if !instance.args.iter().any(|arg| arg.starts_with("--log-bin")) {
            mariadbd.arg("--skip-log-bin");
        }
        mariadbd.arg("--pid-file=mariadb.pid").args(&instance.args);
        mariadbd.arg(format!("--port={}", instance.port));
        mariadbd.arg(format!("--socket={}", instance.path(SOCKET).display()));
        mariadbd
    }

    fn init_sql() -> Option<String> {
        let password = Self::PASSWORD;
        Some(format!(
            "CREATE USER {USER}@'%' IDENTIFIED BY '{password}'; GRANT ALL ON *.* TO {USER}@'%'; FLUSH PRIVILEGES"
        ))
    }

    /// The default collation is deliberately one that ignores case and accents: tables must declare their own.
    fn create_database(name: &str) -> (String, &'static str) {
        (format!("CREATE DATABASE {name} COLLATE utf8mb4_unicode_ci"), "mysql")
    }

    /// Columns are separated by tabs.
    fn client(instance: &SqlInstance, database: &str, sql: &str) -> Command {
        let mut client = instance.command(find("mariadb", &[]));
        client.args(["--no-defaults", "-N", "-B", "-S", SOCKET, "-u", "root", "-e", sql, database]);
        client
    }

    /// The server speaks first, and no other server uses the socket in this folder.
    fn is_ready(instance: &SqlInstance, _: u32) -> bool {
        let Ok(mut stream) = UnixStream::connect(instance.path(SOCKET)) else { return false };
        let timeout = stream.set_read_timeout(Some(Duration::from_secs(1)));
        timeout.is_ok() && stream.read_exact(&mut [0]).is_ok()
    }
}

/// Absolute paths, because relative ones are resolved below `/usr`. A starting server deletes the temporary tables in its
/// `tmpdir`, so servers must not share one.
fn folders(instance: &SqlInstance) -> [String; 2] {
    [
        format!("--datadir={}", instance.path("data").display()),
        format!("--tmpdir={}", instance.path("").display()),
    ]
}
