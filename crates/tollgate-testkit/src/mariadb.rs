//! One real MariaDB server.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::process::Stop;
use crate::sql_server::{Kind, Place, SqlServer, find, finish};

const USER: &str = "tollgate";
/// Told by nobody: a test may look for it where it must not be.
const PASSWORD: &str = "canary-mariadb";
const SOCKET: &str = "mariadb.sock";

/// A running MariaDB server, killed on drop. What was committed survives a kill, though not a power cut: no
/// write waits for the disk.
pub struct MariaDbServer {
    server: SqlServer,
    databases: AtomicU32,
}

impl MariaDbServer {
    /// Starts a server; returns when it serves, after a few seconds.
    ///
    /// # Panics
    ///
    /// With the server's log, if it does not serve within thirty seconds.
    pub fn start() -> Self {
        let server = Self { server: SqlServer::start::<MariaDb>(), databases: AtomicU32::new(0) };
        server.execute(
            "mysql",
            &format!(
                "CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO {USER}@'%'; FLUSH PRIVILEGES"
            ),
        );
        server
    }

    /// Makes an empty database; its URL, with user and password. Its collation is the one that is wrong for names, so that
    /// tables must say their own.
    pub fn create_database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.execute("mysql", &format!("CREATE DATABASE {name} COLLATE utf8mb4_unicode_ci"));
        format!("mysql://{USER}:{PASSWORD}@{}/{name}", self.server.place.address())
    }

    /// Runs statements with `mariadb`; what they answer, a line for each row and a tab between columns.
    ///
    /// # Panics
    ///
    /// If one fails.
    pub fn execute(&self, database: &str, sql: &str) -> String {
        let mut client = self.server.place.command(find("mariadb", &[]));
        client.args(["--no-defaults", "-N", "-B", "-S", SOCKET, "-u", "root", "-e", sql, database]);
        finish(&mut client)
    }

    /// The password in every URL.
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.server.place.port
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        self.server.place.log()
    }

    /// Stops the process where it stands (`SIGSTOP`): connections stay open, nothing is answered.
    pub fn freeze(&self) {
        self.server.freeze();
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.server.thaw();
    }

    /// Kills the process (`SIGKILL`). Its port refuses connections afterwards.
    pub fn kill9(&self) {
        self.server.kill9();
    }

    /// Kills the process if it runs, and starts it again: same port, same data.
    pub fn restart(&self) {
        self.server.restart::<MariaDb>();
    }
}

impl std::fmt::Debug for MariaDbServer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MariaDbServer").field("port", &self.port()).finish_non_exhaustive()
    }
}

struct MariaDb;

impl Kind for MariaDb {
    const NAME: &'static str = "mariadb";
    const STOP: Stop = Stop::Kill;

    fn prepare(place: &Place) {
        let mut install = place.command(find("mariadb-install-db", &[]));
        install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]).args(folders(place));
        install.args(["--auth-root-authentication-method=normal", "--innodb-flush-log-at-trx-commit=2"]);
        finish(install.args(["--innodb-log-file-size=8M", "--skip-log-bin"]));
    }

    fn run(place: &Place) -> Command {
        let mut mariadbd = place.command(find("mariadbd", &[PathBuf::from("/usr/sbin")]));
        mariadbd
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"])
            .args(folders(place));
        mariadbd.args(["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M"]);
        mariadbd.args(["--innodb-log-file-size=8M", "--skip-log-bin", "--pid-file=mariadb.pid"]);
        mariadbd.arg(format!("--port={}", place.port));
        mariadbd.arg(format!("--socket={}", place.path(SOCKET).display()));
        mariadbd
    }

    /// The first word is the server's. Nobody else has a socket in our folder.
    fn serves(place: &Place, _: u32) -> bool {
        let Ok(mut stream) = UnixStream::connect(place.path(SOCKET)) else { return false };
        let timeout = stream.set_read_timeout(Some(Duration::from_secs(1)));
        timeout.is_ok() && stream.read_exact(&mut [0]).is_ok()
    }
}

/// Whole paths: a part of one would be looked for under `/usr`. Temporary tables apart too, for each server that starts
/// removes what another has left in a common folder, and also what it still uses.
fn folders(place: &Place) -> [String; 2] {
    [format!("--datadir={}", place.path("data").display()), format!("--tmpdir={}", place.path("").display())]
}
