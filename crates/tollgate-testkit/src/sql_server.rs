//! What the SQL servers have in common: a folder, a port, a process that is not root's.
//!
//! Neither PostgreSQL nor MariaDB runs as root. Where the tests do, as in many containers, the server runs as `nobody`, and
//! its folder is given to it.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
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
use crate::port::free_port;
use crate::process::{Process, StopSignal};

const START_DEADLINE: Duration = Duration::from_secs(30);
const PORT_ATTEMPTS: usize = 20;

/// The user in every URL.
pub(crate) const USER: &str = "tollgate";

/// What a kind of server does its own way.
pub trait SqlEngine {
    /// The name of its program, for messages.
    const NAME: &'static str;
    /// How it is told to end.
    const STOP: StopSignal;
    /// The password in every URL. Told by nobody: a test may look for it where it must not be.
    const PASSWORD: &'static str;
    /// The database that is always there.
    const DEFAULT_DATABASE: &'static str;

    /// Makes an empty database in the folder.
    fn init(instance: &SqlInstance);
    /// The command that runs the server.
    fn server(instance: &SqlInstance) -> Command;
    /// Whether the server with this process id serves.
    fn is_ready(instance: &SqlInstance, pid: u32) -> bool;
    /// What is said once to a server that serves.
    fn init_sql() -> Option<String> {
        None
    }
    /// The statement that makes a database, and the scheme of its URL.
    fn database(name: &str) -> (String, &'static str);
    /// The command that runs statements.
    fn client(instance: &SqlInstance, database: &str, sql: &str) -> Command;
}

/// Where a server lives.
pub struct SqlInstance {
    pub(crate) port: u16,
    owner: Option<(u32, u32)>,
    folder: TempDir,
}

/// A running SQL server, ended on drop. What was committed survives a kill, though not a power cut: no write waits for the
/// disk.
pub struct SqlServer<K: SqlEngine> {
    kind: PhantomData<K>,
    databases: AtomicU32,
    process: Mutex<Option<Process>>,
    instance: SqlInstance, // last, so that its folder is removed when nobody writes to it any more
}

impl<K: SqlEngine> SqlServer<K> {
    /// Starts a server in a folder of its own; returns when it serves, after a few seconds.
    ///
    /// # Panics
    ///
    /// With the server's log, if it does not serve within thirty seconds.
    pub fn start() -> Self {
        let mut instance = SqlInstance::new(K::NAME);
        K::init(&instance);
        for _ in 0..PORT_ATTEMPTS {
            let (databases, process) = (AtomicU32::new(0), Mutex::new(None));
            let server = Self { kind: PhantomData, databases, process, instance };
            match server.run() {
                Ok(()) => {
                    if let Some(sql) = K::init_sql() {
                        server.execute(K::DEFAULT_DATABASE, &sql);
                    }
                    return server;
                }
                Err(log) if log.contains("Address already in use") => {
                    instance = SqlInstance { port: free_port(), ..server.instance };
                }
                Err(log) => panic!("{} does not start:\n{log}", K::NAME),
            }
        }
        panic!("{PORT_ATTEMPTS} ports in a row were taken between choosing and binding them");
    }

    /// Makes an empty database; its URL, with user and password.
    pub fn create_database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let (statement, scheme) = K::database(&name);
        self.execute(K::DEFAULT_DATABASE, &statement);
        format!("{scheme}://{USER}:{}@{}/{name}", K::PASSWORD, self.instance.address())
    }

    /// Runs statements with the server's own client; what they answer, a line for each row.
    ///
    /// # Panics
    ///
    /// If one fails.
    pub fn execute(&self, database: &str, sql: &str) -> String {
        finish(&mut K::client(&self.instance, database, sql))
    }

    /// The password in every URL.
    pub const PASSWORD: &str = K::PASSWORD;

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.instance.port
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        self.instance.log()
    }

    /// Kills the process (`SIGKILL`). Its port refuses connections afterwards.
    pub fn kill9(&self) {
        if let Some(process) = self.lock().take() {
            process.kill9();
        }
    }

    /// Kills the process if it runs, and starts it again: same port, same data.
    pub fn restart(&self) {
        self.kill9();
        let mut log = String::new();
        let started = eventually(START_DEADLINE, || match self.run() {
            Ok(()) => Some(true),
            // PostgreSQL waits for the children of a process that was killed: they notice when they next look up.
            Err(said) if said.contains("still in use") => None,
            Err(said) => {
                log = said;
                Some(false)
            }
        });
        assert!(started == Some(true), "{} does not start again:\n{log}", K::NAME);
    }

    /// Stops the process where it stands (`SIGSTOP`): nothing new is answered. The children of PostgreSQL, one for each
    /// connection, go on.
    pub fn freeze(&self) {
        self.lock().as_ref().expect("the server was killed").freeze();
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.lock().as_ref().expect("the server was killed").thaw();
    }

    fn run(&self) -> Result<(), String> {
        let output = File::create(self.instance.path("output.txt")).expect("the folder can be written to");
        let mut command = K::server(&self.instance);
        command.stdout(output.try_clone().expect("a file can be shared")).stderr(output);
        let mut process = Process::spawn_with(&mut command, K::STOP, Some(self.instance.folder.path()));
        let pid = process.pid();
        let settled =
            || (K::is_ready(&self.instance, pid) || process.has_ended()).then(|| !process.has_ended());
        if eventually(START_DEADLINE, settled) != Some(true) {
            drop(process);
            return Err(self.instance.log());
        }
        *self.lock() = Some(process);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: SqlEngine> fmt::Debug for SqlServer<K> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct(K::NAME).field("port", &self.port()).finish_non_exhaustive()
    }
}

impl SqlInstance {
    fn new(name: &str) -> Self {
        let folder =
            TempDir::with_prefix(format!("tollgate-{name}-")).expect("a temporary folder can be made");
        let owner = (fs::metadata(folder.path()).expect("it was just made").uid() == 0).then(nobody);
        if let Some((user, group)) = owner {
            chown(folder.path(), Some(user), Some(group)).expect("root may give its folder away");
        }
        Self { port: free_port(), owner, folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the server has said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("output.txt")).unwrap_or_default()
    }

    /// A command that runs in the folder, and not as root.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }
}

/// Runs a command to its end; what it says.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{said}{complaint}", command.get_program().display());
    said
}

/// Where a program is: in the `PATH`, or in one of these folders.
pub(crate) fn find(program: &str, folders: &[PathBuf]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).chain(folders.iter().cloned());
    let found = candidates.find_map(|folder| Some(folder.join(program)).filter(|file| file.is_file()));
    found.unwrap_or_else(|| panic!("{program} is not installed: see scripts/install-tools"))
}

/// Folders in a folder, latest version first.
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
    let id = |flag| finish(Command::new("id").args([flag, "nobody"])).trim().parse().expect("a number");
    (id("-u"), id("-g"))
}
