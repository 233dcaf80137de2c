//! One SQL server for all tests of a run.
//!
//! nextest runs every test in its own process. The first test that needs the server starts it and writes its port and
//! folder to a file named after the run; the other tests read that file. The server stops when nextest ends.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Seek, Write};
use std::marker::PhantomData;
use std::net::TcpStream;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sql_server::{SqlEngine, SqlInstance, SqlServer};

/// A server that tests share. It cannot be killed or frozen: start an [`SqlServer`] for that.
pub struct SharedSqlServer<E: SqlEngine> {
    engine: PhantomData<E>,
    instance: SqlInstance,
    /// Distinguishes the databases of this process.
    prefix: String,
    databases: AtomicU32,
}

impl<E: SqlEngine> SharedSqlServer<E> {
    /// The server of this nextest run, or of this process under `cargo test`. Starts it if none runs.
    pub fn get() -> Self {
        let instance = match std::env::var("NEXTEST_RUN_ID") {
            Ok(run) => {
                let file = std::env::temp_dir().join(format!("tollgate-{}-{run}", E::NAME));
                find_or_start::<E>(&file, parent_id())
            }
            Err(_) => SqlServer::<E>::start().hand_over(process::id(), Path::new("")),
        };
        let prefix = format!("test_{:016x}", RandomState::new().hash_one(process::id()));
        Self { engine: PhantomData, instance, prefix, databases: AtomicU32::new(0) }
    }

    /// Creates an empty database; returns its URL with user and password.
    pub fn create_database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        self.instance.create_database::<E>(&format!("{}_{number}", self.prefix))
    }
}

/// The server whose address is in `file`, or a new one that runs until the process `owner` ends.
fn find_or_start<E: SqlEngine>(file: &Path, owner: u32) -> SqlInstance {
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(file);
    let mut address = opened.expect("the temporary folder is writable");
    address.lock().expect("a file can be locked");
    let mut line = String::new();
    address.read_to_string(&mut line).expect("the file holds text");
    if let Some(instance) = parse(&line)
        && TcpStream::connect(instance.address()).is_ok()
    {
        return instance;
    }
    let instance = SqlServer::<E>::start().hand_over(owner, file);
    let line = format!("{} {}", instance.port, instance.folder().display());
    address
        .rewind()
        .and_then(|()| address.set_len(0))
        .and_then(|()| address.write_all(line.as_bytes()))
        .expect("the file is writable");
    instance
}

fn parse(line: &str) -> Option<SqlInstance> {
    let (port, folder) = line.split_once(' ')?;
    Some(SqlInstance::at(PathBuf::from(folder), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::poll::wait_until;
    use crate::postgres::Postgres;
    use crate::process::Process;

    #[test]
    fn server_is_started_once_and_stops_with_its_owner() {
        let owner = Process::spawn(Command::new("sleep").arg("600"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("address");
        let first = find_or_start::<Postgres>(&file, owner.pid());
        let second = find_or_start::<Postgres>(&file, owner.pid());
        assert_eq!((first.port, first.folder()), (second.port, second.folder()));
        second.create_database::<Postgres>("test_a");
        drop(owner);
        assert!(wait_until(Duration::from_secs(20), || !first.folder().exists() && !file.exists()));
        assert!(TcpStream::connect(first.address()).is_err());
    }
}
