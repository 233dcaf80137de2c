//! One real MariaDB server.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::process::StopSignal;
use crate::sql_server::{SqlEngine, SqlInstance, SqlServer, USER, find, finish};

const SOCKET: &str = "mariadb.sock";

/// A MariaDB server.
pub type MariaDbServer = SqlServer<MariaDb>;

/// What MariaDB does its own way.
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
        finish(install.args(["--innodb-log-file-size=8M", "--skip-log-bin"]));
    }

    fn server(instance: &SqlInstance) -> Command {
        let mut mariadbd = instance.command(find("mariadbd", &[PathBuf::from("/usr/sbin")]));
        mariadbd
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"])
            .args(folders(instance));
        mariadbd.args(["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M"]);
        mariadbd.args(["--innodb-log-file-size=8M", "--skip-log-bin", "--pid-file=mariadb.pid"]);
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

    /// Its collation is the one that is wrong for names, so that tables must say their own.
    fn database(name: &str) -> (String, &'static str) {
        (format!("CREATE DATABASE {name} COLLATE utf8mb4_unicode_ci"), "mysql")
    }

    /// A tab between columns.
    fn client(instance: &SqlInstance, database: &str, sql: &str) -> Command {
        let mut client = instance.command(find("mariadb", &[]));
        client.args(["--no-defaults", "-N", "-B", "-S", SOCKET, "-u", "root", "-e", sql, database]);
        client
    }

    /// The first word is the server's. Nobody else has a socket in our folder.
    fn is_ready(instance: &SqlInstance, _: u32) -> bool {
        let Ok(mut stream) = UnixStream::connect(instance.path(SOCKET)) else { return false };
        let timeout = stream.set_read_timeout(Some(Duration::from_secs(1)));
        timeout.is_ok() && stream.read_exact(&mut [0]).is_ok()
    }
}

/// Whole paths: a part of one would be looked for under `/usr`. Temporary tables apart too, for each server that starts
/// removes what another has left in a common folder, and also what it still uses.
fn folders(instance: &SqlInstance) -> [String; 2] {
    [
        format!("--datadir={}", instance.path("data").display()),
        format!("--tmpdir={}", instance.path("").display()),
    ]
}
