//! One real PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::Stop;
use crate::sql_server::{Kind, Place, SqlServer, find, finish, versions_in};

const USER: &str = "tollgate";
/// Told by nobody: a test may look for it where it must not be.
const PASSWORD: &str = "canary-postgres";

/// A running PostgreSQL server, stopped on drop. What was committed survives a kill, though not a power cut:
/// no write waits for the disk.
pub struct PostgresServer {
    server: SqlServer,
    databases: AtomicU32,
}

impl PostgresServer {
    /// Starts a server; returns when it serves, after a second or two.
    ///
    /// # Panics
    ///
    /// With the server's log, if it does not serve within thirty seconds.
    pub fn start() -> Self {
        Self { server: SqlServer::start::<Postgres>(), databases: AtomicU32::new(0) }
    }

    /// Makes an empty database; its URL, with user and password.
    pub fn create_database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE DATABASE {name}"));
        format!("postgres://{USER}:{PASSWORD}@{}/{name}", self.server.place.address())
    }

    /// Runs statements with `psql`; what they answer, a line for each row and `|` between columns.
    ///
    /// # Panics
    ///
    /// If one fails.
    pub fn execute(&self, database: &str, sql: &str) -> String {
        let place = &self.server.place;
        let mut psql = place.command(program("psql"));
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &place.port.to_string()]);
        finish(psql.args(["-U", USER, "-d", database, "-c", sql]).env("PGPASSWORD", PASSWORD))
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

    /// Stops the process where it stands (`SIGSTOP`); its children, one for each connection, go on.
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
        self.server.restart::<Postgres>();
    }
}

impl std::fmt::Debug for PostgresServer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("PostgresServer").field("port", &self.port()).finish_non_exhaustive()
    }
}

struct Postgres;

impl Kind for Postgres {
    const NAME: &'static str = "postgres";
    // "Immediate shutdown": as quick as a kill, but shared memory is given back and the children end too.
    const STOP: Stop = Stop::Quit;

    fn prepare(place: &Place) {
        fs::write(place.path("password"), PASSWORD).expect("the folder can be written to");
        let mut initdb = place.command(program("initdb"));
        // Not scram-sha-256: a client that was not optimised needs a tenth of a second to answer it.
        initdb.args(["-D", "data", "-U", USER, "--pwfile=password", "--auth=password", "--no-sync"]);
        finish(initdb.args(["-E", "UTF8", "--locale=C.UTF-8"]));
    }

    fn run(place: &Place) -> Command {
        let mut postgres = place.command(program("postgres"));
        postgres.args(["-D", "data", "-p", &place.port.to_string(), "-h", "127.0.0.1"]);
        // No socket: its path may be too long in a deep temporary folder.
        for setting in
            ["unix_socket_directories=", "fsync=off", "full_page_writes=off", "shared_buffers=16MB"]
        {
            postgres.args(["-c", setting]);
        }
        postgres
    }

    /// The server says so itself, in a file that begins with its process id.
    fn serves(place: &Place, pid: u32) -> bool {
        let state = fs::read_to_string(place.path("data/postmaster.pid")).unwrap_or_default();
        let mut lines = state.lines();
        lines.next() == Some(&pid.to_string()) && lines.any(|line| line.trim() == "ready")
    }
}

/// Debian keeps each version in a folder of its own, and only its clients in the `PATH`.
fn program(name: &str) -> PathBuf {
    let versions = versions_in(Path::new("/usr/lib/postgresql"));
    let folders: Vec<PathBuf> = versions.into_iter().map(|version| version.join("bin")).collect();
    find(name, &folders)
}
