//! One real `redis-server`.
//!
//! Settings are in a file rather than on the command line, so that `CONFIG REWRITE`, and with it a Sentinel failover,
//! survives a restart. The kit authenticates as a user of its own, so that a test can restrict the default user.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::poll::eventually;
use crate::port::free_port;
use crate::process::Process;
use crate::resp::{Reply, RespClient};

const START_DEADLINE: Duration = Duration::from_secs(10);
const REPLY_DEADLINE: Duration = Duration::from_secs(10);
const PORT_ATTEMPTS: usize = 20;
/// A sentinel that demotes a master closes the connections of its clients.
const CONNECT_ATTEMPTS: usize = 5;
const KIT_USER: &str = "testkit on >testkit ~* &* +@all";

/// Options of a server. By default it needs no password and persists nothing.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// More settings, written as command line arguments: `["--maxmemory", "3mb"]`.
    pub args: Vec<String>,
    /// The password of the default user (`requirepass`).
    pub password: Option<String>,
    /// ACL users, written as in an ACL file without the word `user`: `alice on >secret ~* +@all`.
    pub users: Vec<String>,
    /// Keep the users in an ACL file, as `ACL LOAD` and `ACL SAVE` require. Redis then ignores `password`.
    pub acl_file: bool,
    /// Also listen on a Unix socket.
    pub unix_socket: bool,
    /// Also listen for TLS on a second port. Client certificates are optional unless `args` contain
    /// `["--tls-auth-clients", "yes"]`.
    pub tls: bool,
}

impl RedisOptions {
    /// The defaults with more settings, written as command line arguments.
    pub fn with_args(args: &[&str]) -> Self {
        Self { args: args.iter().map(ToString::to_string).collect(), ..Self::default() }
    }
}

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
    ///
    /// # Panics
    ///
    /// With the server's log, if it does not reply within ten seconds.
    pub fn start_with(options: &RedisOptions) -> Self {
        Self::start_as(Role::Single, options)
    }

    pub(crate) fn start_as(role: Role<'_>, options: &RedisOptions) -> Self {
        for _ in 0..PORT_ATTEMPTS {
            let server = Self::configure(role, options);
            match server.run() {
                Ok(()) => return server,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("redis-server does not start:\n{log}"),
            }
        }
        panic!("{PORT_ATTEMPTS} ports in a row were taken between choosing and binding them");
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
    ///
    /// # Panics
    ///
    /// If the server was started without TLS.
    pub fn tls_url(&self) -> String {
        format!("rediss://{}localhost:{}", self.url_password(), self.tls_address().port())
    }

    /// The address of the TLS port.
    ///
    /// # Panics
    ///
    /// If the server was started without TLS.
    pub fn tls_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.tls_port.expect("started with TLS")).into()
    }

    /// The certificates of the server, a client and their CA.
    ///
    /// # Panics
    ///
    /// If the server was started without TLS.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("started with TLS")
    }

    /// The Unix socket.
    ///
    /// # Panics
    ///
    /// If the server was started without a Unix socket.
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
    ///
    /// # Panics
    ///
    /// If the server was killed. So do the methods below unless documented otherwise.
    pub fn pid(&self) -> u32 {
        self.with_process(Process::pid)
    }

    /// Whether the process runs (or is frozen).
    pub fn is_running(&self) -> bool {
        lock(&self.process).as_mut().is_some_and(|process| !process.has_ended())
    }

    /// User and system time of the process, in steps of 10 ms.
    pub fn cpu_time(&self) -> Duration {
        self.with_process(Process::cpu_time)
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
    ///
    /// # Panics
    ///
    /// With the server's log, if it does not reply within ten seconds.
    pub fn restart(&self) {
        self.kill9();
        self.run().unwrap_or_else(|log| panic!("redis-server does not restart:\n{log}"));
    }

    /// Runs one command on the kit's connection, as a user with all permissions.
    ///
    /// # Panics
    ///
    /// If there is no reply. An error reply is a reply.
    pub fn command(&self, arguments: &[&[u8]]) -> Reply {
        self.try_command(arguments)
            .unwrap_or_else(|error| panic!("port {}: {error}\n{}", self.port, self.log()))
    }

    /// Like [`command`](Self::command), for a server that may be down.
    ///
    /// # Errors
    ///
    /// Errors of the socket.
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
    ///
    /// # Panics
    ///
    /// If there is no reply. An error reply is a reply.
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
        let settings = server.settings(role, options);
        fs::write(server.folder().join("redis.conf"), settings).expect("the folder is writable");
        server
    }

    fn settings(&self, role: Role<'_>, options: &RedisOptions) -> String {
        let mut lines = format!("bind 127.0.0.1\nport {}\nlogfile redis.log\n", self.port);
        lines += &directive("dir", &[&self.folder().to_string_lossy()]);
        match role {
            Role::Single => lines += SERVER_SETTINGS,
            Role::ClusterNode => {
                lines += SERVER_SETTINGS;
                let _ = writeln!(lines, "cluster-enabled yes\ncluster-port {}", self.bus_port());
            }
            Role::Sentinel(monitored) => lines += monitored,
        }
        lines += &self.user_settings(options);
        lines += &self.listener_settings();
        lines + &lines_of(&options.args)
    }

    fn user_settings(&self, options: &RedisOptions) -> String {
        let password = options.password.iter().map(|password| directive("requirepass", &[password]));
        let users =
            options.users.iter().map(String::as_str).chain([KIT_USER]).map(|user| format!("user {user}\n"));
        if options.acl_file {
            let acl: String = users.collect();
            fs::write(self.folder().join("users.acl"), acl).expect("the folder is writable");
            return "aclfile users.acl\n".to_owned();
        }
        password.chain(users).collect()
    }

    fn listener_settings(&self) -> String {
        let mut lines = String::new();
        if let Some(socket) = &self.socket {
            lines += &directive("unixsocket", &[&socket.to_string_lossy()]);
        }
        if let (Some(port), Some(files)) = (self.tls_port, &self.certificates) {
            lines += &directive("tls-port", &[&port.to_string()]);
            lines += &directive("tls-ca-cert-file", &[&files.authority.to_string_lossy()]);
            lines += &directive("tls-cert-file", &[&files.server.to_string_lossy()]);
            lines += &directive("tls-key-file", &[&files.server_key.to_string_lossy()]);
            lines += "tls-auth-clients optional\n";
        }
        lines
    }

    /// Starts the process and waits for a reply. Fails with the log.
    fn run(&self) -> Result<(), String> {
        let output = File::create(self.folder().join("output.txt")).expect("the folder is writable");
        let mut command = Command::new("redis-server");
        command.arg("redis.conf").current_dir(self.folder());
        command.stdout(output.try_clone().expect("a file can be cloned")).stderr(output);
        if self.is_sentinel {
            command.arg("--sentinel");
        }
        let mut process = Process::spawn(&mut command);
        let settled =
            || (self.answers_as(process.pid()) || process.has_ended()).then(|| !process.has_ended());
        if eventually(START_DEADLINE, settled) != Some(true) {
            drop(process);
            return Err(self.log());
        }
        *lock(&self.process) = Some(process);
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

// For quick replication: a snapshot on disk starts at once, a diskless one only at the next one-second tick, and Redis checks
// `hz` times a second whether it is complete.
const SERVER_SETTINGS: &str = "\
save \"\"
appendonly no
enable-debug-command yes
repl-diskless-sync no
repl-diskless-sync-delay 0
hz 50
";

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

/// Converts command line arguments to lines of a configuration file.
fn lines_of(args: &[String]) -> String {
    let starts = args.iter().enumerate().filter(|(_, arg)| arg.starts_with("--")).map(|(at, _)| at);
    let starts: Vec<usize> = starts.collect();
    assert_eq!(starts.first().copied().unwrap_or(args.len()), 0, "settings start with --: {args:?}");
    let ends = starts.iter().skip(1).copied().chain([args.len()]);
    let settings = starts.iter().zip(ends).map(|(start, end)| &args[*start..end]);
    settings.map(|setting| directive(&setting[0][2..], &setting[1..])).collect()
}

fn directive(name: &str, values: &[impl AsRef<str>]) -> String {
    let escape = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"");
    let values = values.iter().map(|value| format!(" \"{}\"", escape(value.as_ref())));
    format!("{name}{}\n", values.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_configuration_lines() {
        let args = RedisOptions::with_args(&[
            "--maxmemory",
            "3mb",
            "--save",
            "",
            "--rename-command",
            "KEYS",
            "a\"b",
        ]);
        assert_eq!(
            lines_of(&args.args),
            "maxmemory \"3mb\"\nsave \"\"\nrename-command \"KEYS\" \"a\\\"b\"\n"
        );
        assert_eq!(lines_of(&[]), "");
    }
}
