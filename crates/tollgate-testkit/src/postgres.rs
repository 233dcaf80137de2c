//! One real PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::StopSignal;
use crate::sql_server::{SqlEngine, SqlInstance, SqlServer, USER, find, finish, versions_in};

/// A PostgreSQL server.
pub type PostgresServer = SqlServer<Postgres>;

/// What PostgreSQL does its own way.
pub struct Postgres;

impl SqlEngine for Postgres {
    const NAME: &'static str = "postgres";
    // "Immediate shutdown": as quick as a kill, but shared memory is given back and the children end too.
    const STOP: StopSignal = StopSignal::Quit;
    const PASSWORD: &'static str = "canary-postgres";
    const DEFAULT_DATABASE: &'static str = "postgres";

    fn init(instance: &SqlInstance) {
        fs::write(instance.path("password"), Self::PASSWORD).expect("the folder can be written to");
        let mut initdb = instance.command(program("initdb"));
        // Not scram-sha-256: a client that was not optimised needs a tenth of a second to answer it.
        initdb.args(["-D", "data", "-U", USER, "--pwfile=password", "--auth=password", "--no-sync"]);
        finish(initdb.args(["-E", "UTF8", "--locale=C.UTF-8"]));
    }

    fn server(instance: &SqlInstance) -> Command {
        let mut postgres = instance.command(program("postgres"));
        postgres.args(["-D", "data", "-p", &instance.port.to_string(), "-h", "127.0.0.1"]);
        // No socket: its path may be too long in a deep temporary folder.
        for setting in
            ["unix_socket_directories=", "fsync=off", "full_page_writes=off", "shared_buffers=16MB"]
        {
            postgres.args(["-c", setting]);
        }
        postgres
    }

    fn database(name: &str) -> (String, &'static str) {
        (format!("CREATE DATABASE {name}"), "postgres")
    }

    /// `|` between columns.
    fn client(instance: &SqlInstance, database: &str, sql: &str) -> Command {
        let mut psql = instance.command(program("psql"));
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &instance.port.to_string()]);
        psql.args(["-U", USER, "-d", database, "-c", sql]).env("PGPASSWORD", Self::PASSWORD);
        psql
    }

    /// The server says so itself, in a file that begins with its process id.
    fn is_ready(instance: &SqlInstance, pid: u32) -> bool {
        let state = fs::read_to_string(instance.path("data/postmaster.pid")).unwrap_or_default();
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
