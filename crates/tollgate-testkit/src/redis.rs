//! One real `redis-server`.
//!
//! Settings are in a file rather than on the command line, so that `CONFIG REWRITE`, and with it a Sentinel failover,
//! survives a restart. The kit authenticates as a user of its own, so that a test can restrict the default user.

mod settings;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::port::{free_port, start_on_free_port};
use crate::process::Process;
use crate::resp::{Reply, RespClient};
pub use settings::RedisOptions;

const START_DEADLINE: Duration = Duration::from_secs(10);
const REPLY_DEADLINE: Duration = Duration::from_secs(10);
/// A sentinel that demotes a master closes the connections of its clients.
const CONNECT_ATTEMPTS: usize = 5;

/// The role of a `redis-server`.
#[derive(Clone, Copy)]
pub(crate) enum Role<'a> {
    Single,
    ClusterNode,
    /// With these configuration lines.
    Sentinel(&'a str),
}

/// A running `redis-server`, killed on drop.
pub struct RedisServer {
    port: u16,
    bus_port: Option<u16>,
    tls_port: Option<u16>,
    password: Option<String>,
    certificates: Option<Certificates>,
    socket: Option<PathBuf>,
    is_sentinel: bool,
    /// `None` after `kill9`.
    process: Mutex<Option<Process>>,
    /// Kept open: a test that counts connections must not see new ones from the kit.
    client: Mutex<Option<RespClient>>,
    folder: TempDir, // last: removed after the process has stopped
}

impl RedisServer {
    /// Starts a server with the defaults; returns when it replies.
    pub fn start() -> Self {
        Self::start_with(&RedisOptions::default())
    }

    /// Starts a server with more settings, written as command line arguments: `&["--maxmemory", "3mb"]`.
    pub fn with(args: &[&str]) -> Self {
        Self::start_with(&RedisOptions::with_args(args))
    }

    /// Starts a server; returns when it replies.
    pub fn start_with(options: &RedisOptions) -> Self {
        Self::start_as(Role::Single, options)
    }

    pub(crate) fn start_as(role: Role<'_>, options: &RedisOptions) -> Self {
        start_on_free_port("redis-server", || {
            let server = Self::configure(role, options);
            server.run().map(|()| server)
        })
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1` and the port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `redis://127.0.0.1:PORT`, with the default user's password if there is one.
    pub fn url(&self) -> String {
        format!("redis://{}{}", self.url_password(), self.address())
    }

    /// `rediss://localhost:PORT`, with the default user's password if there is one.
    pub fn tls_url(&self) -> String {
        format!("rediss://{}localhost:{}", self.url_password(), self.tls_address().port())
    }

    /// The address of the TLS port.
    pub fn tls_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.tls_port.expect("started with TLS")).into()
    }

    /// The certificates of the server, a client and their CA.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("started with TLS")
    }

    /// The Unix socket.
    pub fn socket_path(&self) -> &Path {
        self.socket.as_deref().expect("started with a Unix socket")
    }

    /// The server's folder: data, settings (`redis.conf`), log (`redis.log`).
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The server's log.
    pub fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.folder().join(name)).unwrap_or_default();
        read("redis.log") + &read("output.txt")
    }

    pub(crate) fn bus_port(&self) -> u16 {
        self.bus_port.expect("started as a node of a cluster")
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.with_process(Process::pid)
    }

    /// Whether the process runs (or is frozen).
    pub fn is_running(&self) -> bool {
        lock(&self.process).as_mut().is_some_and(|process| !process.has_ended())
    }

    /// Sends `SIGSTOP`: connections stay open, commands get no reply.
    pub fn freeze(&self) {
        self.with_process(Process::freeze);
    }

    /// Continues a frozen process.
    pub fn thaw(&self) {
        self.with_process(Process::thaw);
    }

    /// Kills the process (`SIGKILL`). The port refuses connections afterwards.
    pub fn kill9(&self) {
        lock(&self.process).take();
        lock(&self.client).take();
    }

    /// Kills the process if it runs, and starts it again with the same port, folder and settings.
    pub fn restart(&self) {
        self.kill9();
        self.run().unwrap_or_else(|log| panic!("redis-server does not restart:\n{log}"));
    }

    /// Runs one command on the kit's connection, as a user with all permissions. An error reply is a reply.
    pub fn command(&self, arguments: &[&[u8]]) -> Reply {
        self.try_command(arguments)
            .unwrap_or_else(|error| panic!("port {}: {error}\n{}", self.port, self.log()))
    }

    /// Like [`command`](Self::command), for a server that may be down.
    pub fn try_command(&self, arguments: &[&[u8]]) -> io::Result<Reply> {
        let mut open = lock(&self.client);
        for _ in 1..CONNECT_ATTEMPTS {
            match self.command_on(&mut open, arguments) {
                Err(error) if was_closed(&error) => {}
                outcome => return outcome,
            }
        }
        self.command_on(&mut open, arguments)
    }

    /// Runs one command; returns the reply as `redis-cli` prints it, one element per line.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        self.command(&arguments).to_string()
    }

    /// A section of `INFO`.
    pub fn info(&self, section: &str) -> HashMap<String, String> {
        fields(&self.cli(&["INFO", section]))
    }

    /// Calls of a command, such as `evalsha` or `client|kill`, since the start or `CONFIG RESETSTAT`.
    pub fn commandstats(&self, command: &str) -> u64 {
        let stats = self.info("commandstats");
        let Some(stat) = stats.get(&format!("cmdstat_{}", command.to_lowercase())) else { return 0 };
        let calls = stat.split(',').find_map(|field| field.strip_prefix("calls="));
        calls.and_then(|calls| calls.parse().ok()).expect("every command has a call count")
    }

    /// Allocated bytes (`used_memory`).
    pub fn memory_used(&self) -> u64 {
        self.info("memory")["used_memory"].parse().expect("a number of bytes")
    }

    /// Deletes every key.
    pub fn flush_all(&self) {
        assert_eq!(self.cli(&["FLUSHALL", "SYNC"]), "OK");
    }

    /// Removes all scripts, so that `EVALSHA` returns `NOSCRIPT`.
    pub fn script_flush(&self) {
        assert_eq!(self.cli(&["SCRIPT", "FLUSH", "SYNC"]), "OK");
    }

    /// Closes all client connections except the kit's; returns their number.
    pub fn kill_clients(&self) -> usize {
        let killed = self.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        killed.parse().expect("the number of killed clients")
    }

    fn with_process<T>(&self, ask: impl FnOnce(&Process) -> T) -> T {
        ask(lock(&self.process).as_ref().expect("the server was killed"))
    }

    fn url_password(&self) -> String {
        self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default()
    }

    /// Chooses ports and writes the configuration files.
    fn configure(role: Role<'_>, options: &RedisOptions) -> Self {
        let folder = TempDir::with_prefix("tollgate-redis-").expect("a temporary folder can be created");
        let server = Self {
            port: free_port(),
            bus_port: matches!(role, Role::ClusterNode).then(free_port),
            tls_port: options.tls.then(free_port),
            password: options.password.clone(),
            certificates: options.tls.then(|| Certificates::create_in(folder.path())),
            socket: options.unix_socket.then(|| folder.path().join("redis.sock")),
            is_sentinel: matches!(role, Role::Sentinel(_)),
            process: Mutex::new(None),
            client: Mutex::new(None),
            folder,
        };
        fs::write(server.folder().join("redis.conf"), settings::write(&server, role, options))
            .expect("the folder is writable");
        server
    }

    /// Starts the process and waits for a reply. Fails with the log.
    fn run(&self) -> Result<(), String> {
        let mut command = Command::new("redis-server");
        command.arg("redis.conf").current_dir(self.folder());
        if self.is_sentinel {
            command.arg("--sentinel");
        }
        let process = Process::spawn(Process::log_to(&mut command, &self.folder().join("output.txt")));
        let process = process.when_ready(START_DEADLINE, |pid| self.answers_as(pid));
        *lock(&self.process) = Some(process.ok_or_else(|| self.log())?);
        Ok(())
    }

    /// Whether this process replies, rather than another server that took the port first.
    fn answers_as(&self, pid: u32) -> bool {
        let reply_to = |arguments: &[&[u8]]| {
            self.try_command(arguments).map(|reply| reply.to_string()).unwrap_or_default()
        };
        reply_to(&[b"PING"]) == "PONG"
            && fields(&reply_to(&[b"INFO", b"server"])).get("process_id") == Some(&pid.to_string())
    }

    /// Uses the open connection or a new one. Keeps it only after a reply: a late reply would be taken for that of the next
    /// command.
    fn command_on(&self, open: &mut Option<RespClient>, arguments: &[&[u8]]) -> io::Result<Reply> {
        let mut client = open.take().map_or_else(|| self.log_in(), Ok)?;
        let reply = client.command(arguments)?;
        *open = Some(client);
        Ok(reply)
    }

    fn log_in(&self) -> io::Result<RespClient> {
        let mut client = RespClient::connect(self.address(), REPLY_DEADLINE)?;
        match client.command(&[b"AUTH", b"testkit", b"testkit"])? {
            Reply::Error(error) => Err(io::Error::other(error)),
            _ => Ok(client),
        }
    }
}

fn was_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

impl std::fmt::Debug for RedisServer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RedisServer").field("port", &self.port).finish_non_exhaustive()
    }
}

/// A poisoned lock only means that another test thread panicked; the value is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The logs of several servers, for a panic message.
pub(crate) fn logs_of<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> String {
    let logs = servers.into_iter().map(|server| format!("--- port {}\n{}", server.port(), server.log()));
    logs.collect::<Vec<_>>().join("\n")
}

/// Parses the `name:value` lines of `INFO` and `CLUSTER INFO`.
pub(crate) fn fields(lines: &str) -> HashMap<String, String> {
    let pairs = lines.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
