//! One real PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Stop;
use crate::sql_server::{Kind, Place, SqlServer, USER, find, finish, versions_in};

/// A PostgreSQL server.
pub type PostgresServer = SqlServer<Postgres>;

/// What PostgreSQL does its own way.
pub struct Postgres;

impl Kind for Postgres {
    const NAME: &'static str = "postgres";
    // "Immediate shutdown": as quick as a kill, but shared memory is given back and the children end too.
    const STOP: Stop = Stop::Quit;
    const PASSWORD: &'static str = "canary-postgres";
    const FIRST_DATABASE: &'static str = "postgres";

    fn prepare(place: &Place) {
        fs::write(place.path("password"), Self::PASSWORD).expect("the folder can be written to");
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

    fn database(name: &str) -> (String, &'static str) {
        (format!("CREATE DATABASE {name}"), "postgres")
    }

    /// `|` between columns.
    fn client(place: &Place, database: &str, sql: &str) -> Command {
        let mut psql = place.command(program("psql"));
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &place.port.to_string()]);
        psql.args(["-U", USER, "-d", database, "-c", sql]).env("PGPASSWORD", Self::PASSWORD);
        psql
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
