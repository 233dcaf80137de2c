//! What PostgreSQL and MariaDB servers have in common: a data folder, a port, a process.
//!
//! Neither server runs as root. If the tests do, as in many containers, the server runs as `nobody` and owns its folder.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::poll::eventually;
use crate::port::{free_port, start_on_free_port};
use crate::process::{Process, StopSignal};

const START_DEADLINE: Duration = Duration::from_secs(30);

/// The user in every URL.
pub(crate) const USER: &str = "tollgate";

/// What differs between PostgreSQL and MariaDB.
pub trait SqlEngine {
    /// The name of the engine, for messages and folders.
    const NAME: &'static str;
    /// The signal that stops the server.
    const STOP: StopSignal;
    /// The password in every URL. A test may search output for it.
    const PASSWORD: &'static str;
    /// The database that always exists.
    const DEFAULT_DATABASE: &'static str;

    /// Initializes the data folder.
    fn init(instance: &SqlInstance);
    /// The command that runs the server.
    fn server(instance: &SqlInstance) -> Command;
    /// Whether the server with this process id accepts connections.
    fn is_ready(instance: &SqlInstance, pid: u32) -> bool;
    /// SQL to run once, after the first start.
    fn init_sql() -> Option<String> {
        None
    }
    /// The statement that creates a database, and the scheme of its URL.
    fn create_database(name: &str) -> (String, &'static str);
    /// The command that runs SQL statements.
    fn client(instance: &SqlInstance, database: &str, sql: &str) -> Command;
}

/// The port and the data folder of one server.
pub struct SqlInstance {
    pub(crate) port: u16,
    /// Whether a commit is on disk when it returns, with the default memory of the engine.
    pub(crate) is_durable: bool,
    /// More arguments of the server.
    pub(crate) args: Vec<String>,
    folder: PathBuf,
    owner: Option<(u32, u32)>,
    cleanup: Option<TempDir>,
}

/// A running SQL server, stopped on drop.
///
/// Committed data survives `SIGKILL` but not a power failure: the server does not call `fsync`, unless it was started as durable.
pub struct SqlServer<E: SqlEngine> {
    engine: PhantomData<E>,
    databases: AtomicU32,
    process: Mutex<Option<Process>>,
    instance: SqlInstance, // last: its folder is removed after the process has stopped
}

impl<E: SqlEngine> SqlServer<E> {
    /// Starts a server in a new folder; returns when it accepts connections, after a few seconds.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more arguments: `&["-c", "archive_mode=on"]`.
    pub fn with(args: &[&str]) -> Self {
        Self::start_in(SqlInstance::new(E::NAME).with_args(args))
    }

    /// Starts a server whose data folder is filled by `restore` instead of being new. It has the users of the backup.
    pub fn from_backup(restore: impl FnOnce(&SqlInstance)) -> Self {
        let instance = SqlInstance::new(E::NAME);
        restore(&instance);
        Self::run_in(instance)
    }

    /// Starts a server that calls `fsync` and has the default memory of its engine, for measurements.
    pub fn start_durable() -> Self {
        Self::start_in(SqlInstance { is_durable: true, ..SqlInstance::new(E::NAME) })
    }

    fn start_in(instance: SqlInstance) -> Self {
        E::init(&instance);
        let server = Self::run_in(instance);
        if let Some(sql) = E::init_sql() {
            server.execute(E::DEFAULT_DATABASE, &sql);
        }
        server
    }

    fn run_in(instance: SqlInstance) -> Self {
        let (databases, process) = (AtomicU32::new(0), Mutex::new(None));
        let mut server = Self { engine: PhantomData, databases, process, instance };
        start_on_free_port(E::NAME, || {
            server.instance.port = free_port();
            server.run()
        });
        server
    }

    /// Creates the empty database `test_N`, counted from 0; returns its URL with user and password.
    pub fn create_database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        self.instance.create_database::<E>(&format!("test_{number}"))
    }

    /// Runs statements with the server's own client; returns their output, one line per row.
    pub fn execute(&self, database: &str, sql: &str) -> String {
        run_to_end(&mut E::client(&self.instance, database, sql))
    }

    /// The folder of the server and the user who owns it.
    pub fn instance(&self) -> &SqlInstance {
        &self.instance
    }

    /// The password in every URL.
    pub const PASSWORD: &str = E::PASSWORD;

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.instance.port
    }

    /// The server's log.
    pub fn log(&self) -> String {
        self.instance.log()
    }

    /// Sends `SIGKILL`. The port refuses connections afterwards.
    pub fn kill9(&self) {
        if let Some(process) = self.lock().take() {
            process.kill9();
        }
    }

    /// Kills the process if it runs, and starts it again with the same port and data.
    pub fn restart(&self) {
        self.kill9();
        let mut failure = String::new();
        let started = eventually(START_DEADLINE, || match self.run() {
            Ok(()) => Some(true),
            // PostgreSQL refuses to start until the children of the killed process have exited.
            Err(log) if log.contains("still in use") => None,
            Err(log) => {
                failure = log;
                Some(false)
            }
        });
        assert!(started == Some(true), "{} does not restart:\n{failure}", E::NAME);
    }

    /// Sends `SIGSTOP`: new connections get no reply. PostgreSQL serves open connections from child processes, which
    /// continue.
    pub fn freeze(&self) {
        self.lock().as_ref().expect("the server runs").freeze();
    }

    /// Continues a frozen process.
    pub fn thaw(&self) {
        self.lock().as_ref().expect("the server runs").thaw();
    }

    /// Lets the server run until the process `owner` ends; its folder and `file` are removed then.
    pub(crate) fn hand_over(mut self, owner: u32, file: &Path) -> SqlInstance {
        let process = self.lock().take().expect("the server runs");
        process.hand_over(owner, [&self.instance.folder, file]);
        if let Some(mut folder) = self.instance.cleanup.take() {
            folder.disable_cleanup(true);
        }
        self.instance
    }

    fn run(&self) -> Result<(), String> {
        let mut command = E::server(&self.instance);
        let command = Process::log_to(&mut command, &self.instance.path("output.txt"));
        let process = Process::spawn_with(command, E::STOP, Some(&self.instance.folder));
        let process = process.when_ready(START_DEADLINE, |pid| E::is_ready(&self.instance, pid));
        *self.lock() = Some(process.ok_or_else(|| self.instance.log())?);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: SqlEngine> fmt::Debug for SqlServer<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct(E::NAME).field("port", &self.port()).finish_non_exhaustive()
    }
}

impl SqlInstance {
    fn new(name: &str) -> Self {
        let folder =
            TempDir::with_prefix(format!("tollgate-{name}-")).expect("a temporary folder can be created");
        let mut instance = Self::at(folder.path().to_owned(), free_port());
        if let Some((user, group)) = instance.owner {
            chown(folder.path(), Some(user), Some(group)).expect("root may change the owner");
        }
        instance.cleanup = Some(folder);
        instance
    }

    /// A server that another test process has started.
    pub(crate) fn at(folder: PathBuf, port: u16) -> Self {
        let is_root = fs::metadata("/proc/self").expect("/proc is mounted").uid() == 0;
        Self { port, is_durable: false, args: Vec::new(), folder, owner: is_root.then(nobody), cleanup: None }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn with_args(mut self, args: &[&str]) -> Self {
        self.args = args.iter().map(ToString::to_string).collect();
        self
    }

    /// A file or folder of the server. Its data is in `data`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("output.txt")).unwrap_or_default()
    }

    /// A command that runs in the folder as the user who owns it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env("HOME", &self.folder);
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }

    pub(crate) fn create_database<E: SqlEngine>(&self, name: &str) -> String {
        let (statement, scheme) = E::create_database(name);
        run_to_end(&mut E::client(self, E::DEFAULT_DATABASE, &statement));
        format!("{scheme}://{USER}:{}@{}/{name}", E::PASSWORD, self.address())
    }
}

/// Runs a command to its end; returns its standard output.
#[track_caller]
pub(crate) fn run_to_end(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{stdout}{stderr}", command.get_program().display());
    stdout
}

/// Finds a program in `PATH` or in one of these folders.
pub(crate) fn find(program: &str, folders: &[PathBuf]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).chain(folders.iter().cloned());
    let found = candidates.find_map(|folder| Some(folder.join(program)).filter(|file| file.is_file()));
    found.unwrap_or_else(|| panic!("{program} is not installed: run scripts/install-tools test"))
}

/// The subfolders of a folder, latest version first.
pub(crate) fn versions_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    versions.sort_by_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        std::cmp::Reverse(name.parse::<u32>().unwrap_or(0))
    });
    versions
}

fn nobody() -> (u32, u32) {
    let id = |flag| run_to_end(Command::new("id").args([flag, "nobody"])).trim().parse().expect("a number");
    (id("-u"), id("-g"))
}
