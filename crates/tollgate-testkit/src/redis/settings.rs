//! The configuration file of a `redis-server`.

use std::fmt::Write as _;
use std::fs;

use super::{RedisServer, Role};

/// The user of the kit's own connection.
const KIT_USER: &str = "testkit on >testkit ~* &* +@all";

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

/// The contents of `redis.conf`. Users may be written to a file of their own.
pub(super) fn write(server: &RedisServer, role: Role<'_>, options: &RedisOptions) -> String {
    let mut lines = format!("bind 127.0.0.1\nport {}\nlogfile redis.log\n", server.port);
    lines += &directive("dir", &[&server.folder().to_string_lossy()]);
    match role {
        Role::Single => lines += SERVER_SETTINGS,
        Role::ClusterNode => {
            lines += SERVER_SETTINGS;
            let _ = writeln!(lines, "cluster-enabled yes\ncluster-port {}", server.bus_port());
        }
        Role::Sentinel(monitored) => lines += monitored,
    }
    lines += &user_settings(server, options);
    lines += &listener_settings(server);
    lines + &lines_of(&options.args)
}

fn user_settings(server: &RedisServer, options: &RedisOptions) -> String {
    let password = options.password.iter().map(|password| directive("requirepass", &[password]));
    let users =
        options.users.iter().map(String::as_str).chain([KIT_USER]).map(|user| format!("user {user}\n"));
    if options.acl_file {
        let acl: String = users.collect();
        fs::write(server.folder().join("users.acl"), acl).expect("the folder is writable");
        return "aclfile users.acl\n".to_owned();
    }
    password.chain(users).collect()
}

fn listener_settings(server: &RedisServer) -> String {
    let mut lines = String::new();
    if let Some(socket) = &server.socket {
        lines += &directive("unixsocket", &[&socket.to_string_lossy()]);
    }
    if let (Some(port), Some(files)) = (server.tls_port, &server.certificates) {
        lines += &directive("tls-port", &[&port.to_string()]);
        lines += &directive("tls-ca-cert-file", &[&files.authority.to_string_lossy()]);
        lines += &directive("tls-cert-file", &[&files.server.to_string_lossy()]);
        lines += &directive("tls-key-file", &[&files.server_key.to_string_lossy()]);
        lines += "tls-auth-clients optional\n";
    }
    lines
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
