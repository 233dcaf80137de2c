//! One real `redis-server`.
//!
//! Its settings stand in a file, not on the command line, so that `CONFIG REWRITE`, and with it a failover by
//! Sentinel, survives a restart as it does in production. The kit logs in as a user of its own, so that a test
//! may take every right from the default user and the kit can still look inside.

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
/// Each sentinel that makes a replica of a master closes the connections of its clients.
const CONNECTIONS_TRIED_MAX: usize = 5;
const KIT_USER: &str = "testkit on >testkit ~* &* +@all";

/// What a server is to be like; `RedisOptions::default()` is an open one that keeps nothing on disk.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// More settings, in the manner of the command line: `["--maxmemory", "3mb"]`.
    pub args: Vec<String>,
    /// The password of the default user (`requirepass`).
    pub password: Option<String>,
    /// Users as in an ACL file, without the word `user`: `alice on >secret ~* +@all`.
    pub users: Vec<String>,
    /// Keep the users in an ACL file, as `ACL LOAD` and `ACL SAVE` want it. Redis ignores `password` then.
    pub acl_file: bool,
    /// Listen on a Unix socket as well.
    pub unix_socket: bool,
    /// Listen for TLS on a second port. A client may show a certificate but need not, unless `args` hold
    /// `["--tls-auth-clients", "yes"]`.
    pub tls: bool,
}

impl RedisOptions {
    /// The defaults with more settings, in the manner of the command line.
    pub fn with_args(args: &[&str]) -> Self {
        Self { args: args.iter().map(ToString::to_string).collect(), ..Self::default() }
    }
}

/// What a `redis-server` is started as.
#[derive(Clone, Copy)]
pub(crate) enum Role<'a> {
    Single,
    ClusterNode,
    /// With these lines of configuration.
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
    /// Kept open: a test that counts connections should not see ours come and go.
    client: Mutex<Option<RespClient>>,
    folder: TempDir, // last, so that it is removed when nobody writes to it any more
}

impl RedisServer {
    /// Starts a server with the defaults; returns when it answers.
    pub fn start() -> Self {
        Self::start_with(&RedisOptions::default())
    }

    /// Starts a server with more settings, in the manner of the command line: `&["--maxmemory", "3mb"]`.
    pub fn with(args: &[&str]) -> Self {
        Self::start_with(&RedisOptions::with_args(args))
    }

    /// Starts a server; returns when it answers.
    ///
    /// # Panics
    ///
    /// With the server's log, if it does not answer within ten seconds.
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

    /// Where TLS is spoken.
    ///
    /// # Panics
    ///
    /// If the server was started without TLS.
    pub fn tls_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.tls_port.expect("started with TLS")).into()
    }

    /// The certificates of server, client and authority.
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
    /// If the server was started without one.
    pub fn socket_path(&self) -> &Path {
        self.socket.as_deref().expect("started with a Unix socket")
    }

    /// The server's folder: its data, its settings (`redis.conf`), its log (`redis.log`).
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the server has logged.
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
    /// If the server was killed. So do all the methods below, unless they say otherwise.
    pub fn pid(&self) -> u32 {
        self.with_process(Process::pid)
    }

    /// Whether the process runs (or is frozen).
    pub fn is_running(&self) -> bool {
        lock(&self.process).as_mut().is_some_and(|process| !process.has_ended())
    }

    /// User and system time the process has used, in steps of 10 ms.
    pub fn cpu_time(&self) -> Duration {
        self.with_process(Process::cpu_time)
    }

    /// Stops the process where it stands (`SIGSTOP`): connections stay open, nothing is answered.
    pub fn freeze(&self) {
        self.with_process(Process::freeze);
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.with_process(Process::thaw);
    }

    /// Kills the process (`SIGKILL`) and reaps it. Its port refuses connections afterwards.
    pub fn kill9(&self) {
        lock(&self.process).take();
        lock(&self.client).take();
    }

    /// Kills the process if it runs, and starts it again: same port, same folder, same settings.
    ///
    /// # Panics
    ///
    /// With the server's log, if it does not answer within ten seconds.
    pub fn restart(&self) {
        self.kill9();
        self.run().unwrap_or_else(|log| panic!("redis-server does not start again:\n{log}"));
    }

    /// Runs one command over the kit's own connection, as a user who may do everything.
    ///
    /// # Panics
    ///
    /// If no reply comes. An error reply is a reply.
    pub fn command(&self, arguments: &[&[u8]]) -> Reply {
        self.try_command(arguments)
            .unwrap_or_else(|error| panic!("port {}: {error}\n{}", self.port, self.log()))
    }

    /// As [`command`](Self::command), for a server that may be dead.
    ///
    /// # Errors
    ///
    /// What the socket says.
    pub fn try_command(&self, arguments: &[&[u8]]) -> io::Result<Reply> {
        let mut kept = lock(&self.client);
        for _ in 1..CONNECTIONS_TRIED_MAX {
            match self.command_on(&mut kept, arguments) {
                Err(error) if was_closed(&error) => {}
                outcome => return outcome,
            }
        }
        self.command_on(&mut kept, arguments)
    }

    /// Runs one command; the reply as `redis-cli` prints it, one element per line.
    ///
    /// # Panics
    ///
    /// If no reply comes. An error reply is a reply.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        self.command(&arguments).to_string()
    }

    /// A section of `INFO` as names and values.
    pub fn info(&self, section: &str) -> HashMap<String, String> {
        fields(&self.cli(&["INFO", section]))
    }

    /// How often a command has been called since the start or `CONFIG RESETSTAT`: `evalsha`, `client|kill`.
    pub fn commandstats(&self, command: &str) -> u64 {
        let stats = self.info("commandstats");
        let Some(stat) = stats.get(&format!("cmdstat_{}", command.to_lowercase())) else { return 0 };
        let calls = stat.split(',').find_map(|field| field.strip_prefix("calls="));
        calls.and_then(|calls| calls.parse().ok()).expect("every command has its calls")
    }

    /// Bytes the server has allocated (`used_memory`).
    pub fn memory_used(&self) -> u64 {
        self.info("memory")["used_memory"].parse().expect("a number of bytes")
    }

    /// Deletes every key.
    pub fn flush_all(&self) {
        assert_eq!(self.cli(&["FLUSHALL", "SYNC"]), "OK");
    }

    /// Forgets every script, so that `EVALSHA` answers `NOSCRIPT`.
    pub fn script_flush(&self) {
        assert_eq!(self.cli(&["SCRIPT", "FLUSH", "SYNC"]), "OK");
    }

    /// Closes every client's connection but the kit's own; how many there were.
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

    /// Chooses ports and writes the files of a server that does not run yet.
    fn configure(role: Role<'_>, options: &RedisOptions) -> Self {
        let folder = TempDir::with_prefix("tollgate-redis-").expect("a temporary folder can be made");
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
        fs::write(server.folder().join("redis.conf"), settings).expect("the folder can be written to");
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
            fs::write(self.folder().join("users.acl"), acl).expect("the folder can be written to");
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

    /// Starts the process and waits until it answers; the log if it does not.
    fn run(&self) -> Result<(), String> {
        let output = File::create(self.folder().join("output.txt")).expect("the folder can be written to");
        let mut command = Command::new("redis-server");
        command.arg("redis.conf").current_dir(self.folder());
        command.stdout(output.try_clone().expect("a file can be shared")).stderr(output);
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

    /// Whether this very process answers, and not a stranger who took the port before it.
    fn answers_as(&self, pid: u32) -> bool {
        let says = |arguments: &[&[u8]]| {
            self.try_command(arguments).map(|reply| reply.to_string()).unwrap_or_default()
        };
        says(&[b"PING"]) == "PONG"
            && fields(&says(&[b"INFO", b"server"])).get("process_id") == Some(&pid.to_string())
    }

    /// On the connection that is kept, or a new one. It is kept if the reply came: one that may still come would be
    /// taken for that of the next command.
    fn command_on(&self, kept: &mut Option<RespClient>, arguments: &[&[u8]]) -> io::Result<Reply> {
        let mut client = kept.take().map_or_else(|| self.log_in(), Ok)?;
        let reply = client.command(arguments)?;
        *kept = Some(client);
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

// A replica should be in sync at once: a snapshot on disk begins when it is asked for, one without a disk only
// with the next beat of a clock that beats once a second; and the end of either is noticed `hz` times a second.
const SERVER_SETTINGS: &str = "\
save \"\"
appendonly no
enable-debug-command yes
repl-diskless-sync no
repl-diskless-sync-delay 0
hz 50
";

/// A poisoned lock only means that another test thread panicked; what it guards is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What several servers have logged, for the message of a panic.
pub(crate) fn logs_of<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> String {
    let logs = servers.into_iter().map(|server| format!("--- port {}\n{}", server.port(), server.log()));
    logs.collect::<Vec<_>>().join("\n")
}

/// `name:value` lines, as `INFO` and `CLUSTER INFO` answer them.
pub(crate) fn fields(lines: &str) -> HashMap<String, String> {
    let pairs = lines.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Arguments of the command line as lines of a configuration file.
fn lines_of(args: &[String]) -> String {
    let starts = args.iter().enumerate().filter(|(_, arg)| arg.starts_with("--")).map(|(at, _)| at);
    let starts: Vec<usize> = starts.collect();
    assert_eq!(starts.first().copied().unwrap_or(args.len()), 0, "settings begin with --: {args:?}");
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
    fn arguments_become_lines() {
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
