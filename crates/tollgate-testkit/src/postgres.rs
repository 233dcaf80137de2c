//! PostgreSQL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::StopSignal;
use crate::shared_sql_server::SharedSqlServer;
use crate::sql_server::{SqlEngine, SqlInstance, SqlServer, USER, find, run_to_end, versions_in};

/// A PostgreSQL server of one test.
pub type PostgresServer = SqlServer<Postgres>;

/// A PostgreSQL server that tests share.
pub type SharedPostgres = SharedSqlServer<Postgres>;

/// Runs PostgreSQL.
pub struct Postgres;

impl SqlEngine for Postgres {
    const NAME: &'static str = "postgres";
    // "Immediate shutdown": as fast as SIGKILL, but it frees shared memory and stops the child processes.
    const STOP: StopSignal = StopSignal::Quit;
    const PASSWORD: &'static str = "canary-postgres";
    const DEFAULT_DATABASE: &'static str = "postgres";

    fn init(instance: &SqlInstance) {
        fs::write(instance.path("password"), Self::PASSWORD).expect("the folder is writable");
        let mut initdb = instance.command(program("initdb"));
        // Not scram-sha-256: an unoptimised client needs 100 ms for its key derivation.
        initdb.args(["-D", "data", "-U", USER, "--pwfile=password", "--auth=password", "--no-sync"]);
        run_to_end(initdb.args(["-E", "UTF8", "--locale=C.UTF-8"]));
    }

    fn server(instance: &SqlInstance) -> Command {
        let mut postgres = instance.command(program("postgres"));
        postgres.args(["-D", "data", "-p", &instance.port.to_string(), "-h", "127.0.0.1"]);
        // No Unix socket: its path may be too long in a deep temporary folder.
        postgres.args(["-c", "unix_socket_directories="]);
        if !instance.is_durable {
            for setting in ["fsync=off", "full_page_writes=off", "shared_buffers=16MB"] {
                postgres.args(["-c", setting]);
            }
        }
        postgres.args(&instance.args);
        postgres
    }

    fn create_database(name: &str) -> (String, &'static str) {
        (format!("CREATE DATABASE {name}"), "postgres")
    }

    /// Columns are separated by `|`.
    fn client(instance: &SqlInstance, database: &str, sql: &str) -> Command {
        let mut psql = instance.command(program("psql"));
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &instance.port.to_string()]);
        psql.args(["-U", USER, "-d", database, "-c", sql]).env("PGPASSWORD", Self::PASSWORD);
        psql
    }

    /// `postmaster.pid` starts with the process id and ends with the status.
    fn is_ready(instance: &SqlInstance, pid: u32) -> bool {
        let state = fs::read_to_string(instance.path("data/postmaster.pid")).unwrap_or_default();
        let mut lines = state.lines();
        lines.next() == Some(&pid.to_string()) && lines.any(|line| line.trim() == "ready")
    }
}

/// Debian installs each version in a folder of its own, with only the clients in `PATH`.
fn program(name: &str) -> PathBuf {
    let versions = versions_in(Path::new("/usr/lib/postgresql"));
    let folders: Vec<PathBuf> = versions.into_iter().map(|version| version.join("bin")).collect();
    find(name, &folders)
}
