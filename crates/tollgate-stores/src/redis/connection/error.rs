//! What the errors of a Redis server mean for a decision.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, ErrorKind, RedisError, ServerError};
use rustls::AlertDescription;
use tollgate::counters::StoreError;

use crate::redis::script;
use crate::redis::script::reply::InvalidReply;

/// Why a call returned no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not sent, because there is no connection. Nothing was charged.
    NotSent,
    /// Not sent, because no server of the cluster owns the slot.
    SlotUnassigned,
    /// Not sent before its deadline, because earlier calls got no reply.
    QueueTimeout,
    /// The server replied that it cannot serve now (`OOM`, `LOADING`, …). Nothing was charged.
    Unavailable(String),
    /// Sent, then the connection broke. The charge may have been taken; repeating the call could charge twice.
    ConnectionLost,
    /// Sent, and no reply came in time. The connection still stands and the reply may still come.
    NoReply,
    /// The slot belongs to this address.
    Moved(String),
    /// The slot is being migrated to this address.
    Ask(String),
    /// Some keys of the slot have been migrated and others have not. Nothing was charged.
    TryAgain,
    /// The server is no longer the master of the key (`READONLY`, `CLUSTERDOWN`, `MASTERDOWN`).
    WrongServer(String),
    /// The server does not have the script.
    NoScript,
    /// Fails until an operator changes something.
    Misconfigured(Misconfiguration),
}

/// A fault that only an operator can fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misconfiguration {
    pub(crate) cause: Cause,
    /// The metric label.
    code: &'static str,
    message: String,
}

/// What is misconfigured.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// One key has an unexpected type; other counters may work.
    Counter,
    /// No connection can be made: TLS, protected mode, database number.
    Connection,
    /// The login is rejected, lacks a permission, or the server has no such command.
    Permission,
    /// The same for a command within the script, which other decisions may not need.
    ScriptPermission,
    /// The servers form another topology than configured.
    Topology,
    Other,
}

impl Fault {
    pub(crate) fn misconfigured(message: impl Into<String>) -> Self {
        Self::misconfigured_by(Cause::Other, "other", message)
    }

    fn misconfigured_by(cause: Cause, code: &str, message: impl Into<String>) -> Self {
        Fault::Misconfigured(Misconfiguration { cause, code: label_of(code), message: message.into() })
    }

    /// A key that the fleet shares has an unexpected type or value.
    pub(crate) fn invalid_key(what: &str) -> Self {
        Self::misconfigured(format!("unexpected type or value of the shared {what}"))
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        match self {
            Fault::Misconfigured(misconfiguration) => Some(misconfiguration.cause),
            _ => None,
        }
    }

    /// Whether the fault counts as a failure of the server and can open its circuit breaker.
    pub(crate) fn trips_breaker(&self) -> bool {
        self.is_error_reply()
            || matches!(
                self,
                Fault::NotSent
                    | Fault::SlotUnassigned
                    | Fault::QueueTimeout
                    | Fault::ConnectionLost
                    | Fault::NoReply
            )
    }

    /// Whether a reachable server replied that it cannot serve. Its reply to `PING` then proves nothing.
    pub(crate) fn is_error_reply(&self) -> bool {
        matches!(self, Fault::Unavailable(_) | Fault::WrongServer(_))
    }

    /// Whether certainly nothing was charged. A script that failed may have written, except when reading failed: it reads
    /// everything first.
    pub(crate) fn charged_nothing(&self) -> bool {
        match self {
            Fault::ConnectionLost | Fault::NoReply => false,
            Fault::Misconfigured(Misconfiguration { cause, .. }) => {
                matches!(cause, Cause::Counter | Cause::Permission | Cause::Connection)
            }
            _ => true,
        }
    }

    /// Whether the login lacks a permission, or the server a command.
    pub(crate) fn is_permission(&self) -> bool {
        matches!(self.cause(), Some(Cause::Permission | Cause::ScriptPermission))
    }

    /// Turns redirections into a misconfiguration, for topologies in which no server may redirect.
    pub(crate) fn outside_cluster(self) -> Self {
        let hint = "the server is part of a cluster; set counters.topology = \"cluster\"";
        match self {
            Fault::Moved(to) => {
                Self::misconfigured_by(Cause::Topology, "MOVED", format!("MOVED {to}: {hint}"))
            }
            Fault::Ask(to) => Self::misconfigured_by(Cause::Topology, "ASK", format!("ASK {to}: {hint}")),
            Fault::Misconfigured(Misconfiguration { code: code @ "CROSSSLOT", message, .. }) => {
                Self::misconfigured_by(Cause::Topology, code, format!("{message}: {hint}"))
            }
            other => other,
        }
    }

    /// The metric label, from a fixed list; none for redirections.
    pub(crate) fn label(&self) -> Option<&'static str> {
        match self {
            Fault::Moved(_) | Fault::Ask(_) | Fault::TryAgain => None,
            Fault::NotSent => Some("not_connected"),
            Fault::SlotUnassigned => Some("slot_unassigned"),
            Fault::ConnectionLost => Some("connection_lost"),
            Fault::QueueTimeout | Fault::NoReply => Some("timeout"),
            Fault::NoScript => Some("NOSCRIPT"),
            Fault::Unavailable(reply) | Fault::WrongServer(reply) => {
                Some(label_of(reply.split(' ').next().unwrap_or_default()))
            }
            Fault::Misconfigured(misconfiguration) => Some(misconfiguration.code),
        }
    }

    pub(crate) fn into_store_error(self, deadline: Duration) -> StoreError {
        match self {
            Fault::QueueTimeout | Fault::ConnectionLost | Fault::NoReply => StoreError::Timeout { deadline },
            Fault::Misconfigured(_) | Fault::NoScript => StoreError::Misconfigured,
            Fault::NotSent
            | Fault::SlotUnassigned
            | Fault::Unavailable(_)
            | Fault::TryAgain
            | Fault::WrongServer(_)
            | Fault::Moved(_)
            | Fault::Ask(_) => StoreError::Unreachable,
        }
    }

    pub(crate) fn from_server(error: &ServerError) -> Self {
        Self::from_reply(error.code(), error.details().unwrap_or_default())
    }

    /// From an error line of the protocol, without the leading `-`.
    pub(crate) fn from_line(line: &str) -> Self {
        let (code, detail) = line.split_once(' ').unwrap_or((line, ""));
        Self::from_reply(code, detail)
    }

    fn from_reply(code: &str, detail: &str) -> Self {
        let address = || detail.split(' ').nth(1).unwrap_or_default().to_owned();
        let message = || format!("{code} {detail}");
        match code {
            "MOVED" => Fault::Moved(address()),
            "ASK" => Fault::Ask(address()),
            "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" => Fault::WrongServer(message()),
            "NOSCRIPT" => Fault::NoScript,
            "TRYAGAIN" => Fault::TryAgain,
            "LOADING" | "OOM" | "BUSY" | "MISCONF" | "NOREPLICAS" | "UNBLOCKED" => {
                Fault::Unavailable(message())
            }
            // Servers before version 7 wrap the error of a command within the script.
            "ERR" if let Some((code, detail)) = wrapped_error(detail) => Self::from_reply(code, detail),
            "ERR" if let Some(fault) = not_allowed(detail) => fault,
            "DENIED" => protected_mode(),
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::misconfigured_by(Cause::Permission, code, message()),
            "WRONGTYPE" => Self::misconfigured_by(Cause::Counter, code, message()),
            code => Self::misconfigured_by(Cause::Other, code, message()),
        }
    }

    /// From the failure of a whole batch after it was handed to the connection.
    pub(crate) fn from_connection(error: &RedisError) -> Self {
        if error.is_timeout() { Fault::NoReply } else { Fault::ConnectionLost }
    }

    /// From a failed attempt to connect. `check` names the settings of the login.
    pub(crate) fn from_dial(error: &RedisError, client: &Client, check: &str) -> Self {
        let info = client.get_connection_info();
        let address = info.addr();
        let is_login = error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        match error.code() {
            _ if is_certificate_error(error) => {
                let check = "check counters.tls and the server's certificate";
                Self::misconfigured_by(Cause::Connection, "TLS", format!("TLS: {error}; {check}"))
            }
            Some("DENIED") => protected_mode(),
            _ if let Some(detail) = rejected_database(error) => {
                let check = "check the database in counters.url or counters.database";
                Self::misconfigured_by(Cause::Connection, "ERR", format!("ERR {detail}; {check}"))
            }
            _ if !is_login => Fault::NotSent,
            code => {
                // The client library drops the server's text when AUTH fails during the handshake.
                let code = code.unwrap_or("WRONGPASS");
                let user = info.redis_settings().username().unwrap_or("default");
                let message =
                    format!("authentication failed ({code}) for user {user:?} at {address}; {check}");
                Self::misconfigured_by(Cause::Permission, code, message)
            }
        }
    }

    /// The I/O error behind an error of the client library.
    pub(crate) fn io_cause(error: &RedisError) -> Option<&io::Error> {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<Arc<dyn Error + Send + Sync>>());
        cause.and_then(|cause| cause.downcast_ref::<io::Error>())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unavailable(reply) | Fault::WrongServer(reply) => f.write_str(reply),
            Fault::Misconfigured(misconfiguration) => f.write_str(&misconfiguration.message),
            Fault::NotSent => f.write_str("not connected"),
            Fault::SlotUnassigned => f.write_str("no server of the cluster owns the slot"),
            Fault::ConnectionLost => f.write_str("connection lost"),
            Fault::QueueTimeout | Fault::NoReply => f.write_str("no reply in time"),
            Fault::Moved(to) | Fault::Ask(to) => write!(f, "the counters moved to {to}"),
            Fault::TryAgain => f.write_str("TRYAGAIN the slot is being migrated"),
            Fault::NoScript => f.write_str("NOSCRIPT the script is missing right after SCRIPT LOAD"),
        }
    }
}

impl From<InvalidReply> for Fault {
    fn from(InvalidReply: InvalidReply) -> Self {
        Fault::misconfigured("the decision script returned an unexpected reply")
    }
}

/// Error codes that metrics name; all others are `other`.
const CODES: &str = "LOADING OOM BUSY MISCONF NOREPLICAS READONLY CLUSTERDOWN MASTERDOWN NOAUTH WRONGPASS NOPERM DENIED \
                     CROSSSLOT WRONGTYPE ERR TLS";

fn label_of(code: &str) -> &'static str {
    CODES.split(' ').find(|known| *known == code).unwrap_or("other")
}

/// Replaces the server's five sentences.
fn protected_mode() -> Fault {
    let message = "DENIED the server is in protected mode and accepts only local clients; set a password on the \
                   server, or switch protected-mode off on a closed network";
    Fault::misconfigured_by(Cause::Connection, "DENIED", message)
}

/// The reason if `SELECT` failed permanently. The client library passes on the text without its code.
fn rejected_database(error: &RedisError) -> Option<&str> {
    let permanent = ["DB index", "SELECT is not allowed", "no permissions"];
    let is_permanent = |detail: &&str| permanent.iter().any(|text| detail.contains(text));
    error.detail().filter(is_permanent).filter(|_| error.to_string().contains("switch database"))
}

/// Code and detail of `Error running script (call to f_…): @user_script:9: -OOM command not allowed …`.
fn wrapped_error(detail: &str) -> Option<(&str, &str)> {
    let (_, inner) = detail.strip_prefix("Error running script")?.split_once(": -")?;
    inner.split_once(' ').filter(|(code, _)| *code != "ERR")
}

/// Missing permissions and commands that the server reports without a code, or within the script without a name.
fn not_allowed(detail: &str) -> Option<Fault> {
    let commands = || script::commands_at(script_line(detail)).join(" or ");
    let in_script = |code, message: String| Fault::misconfigured_by(Cause::ScriptPermission, code, message);
    if detail.contains("can't run this command") {
        let message = format!("NOPERM the decision script may not run {}; check the user's ACL", commands());
        return Some(in_script("NOPERM", message));
    }
    if detail.contains("can't access at least one of the keys") {
        let message =
            "NOPERM the decision script may not access all keys with the prefix rl:; check the user's ACL";
        return Some(in_script("NOPERM", message.to_owned()));
    }
    let hint = "the server does not have it, or it was renamed";
    if detail.contains("Unknown Redis command called from script") {
        let message = format!("ERR unknown command {} in the decision script: {hint}", commands());
        return Some(in_script("ERR", message));
    }
    // The arguments of the command follow the comma; they may identify a client.
    let command =
        detail.strip_prefix("unknown command").map(|_| detail.split(',').next().unwrap_or(detail))?;
    Some(Fault::misconfigured_by(Cause::Permission, "ERR", format!("ERR {command}: {hint}")))
}

/// The line of the script that failed; 0 if the message has none.
fn script_line(detail: &str) -> usize {
    let (_, rest) = detail.split_once("@user_script:").unwrap_or_default();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Whether the server's certificate was rejected here, or ours by the server.
fn is_certificate_error(error: &RedisError) -> bool {
    let cause = Fault::io_cause(error).and_then(io::Error::get_ref);
    match cause.and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::CertificateRequired
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_script_errors_are_unwrapped() {
        let wrapped = |inner: &str| {
            let detail =
                format!("Error running script (call to f_0c): @user_script:51: @user_script: 51: {inner}");
            Fault::from_reply("ERR", &detail)
        };
        let full = "OOM command not allowed when used memory > 'maxmemory'.";
        assert_eq!(wrapped(&format!("-{full}")), Fault::Unavailable(full.to_owned()));
        let replica = "READONLY You can't write against a read only replica.";
        assert_eq!(wrapped(&format!("-{replica}")), Fault::WrongServer(replica.to_owned()));
        assert_eq!(wrapped("-WRONGTYPE Operation against a key").cause(), Some(Cause::Counter));
        assert!(matches!(wrapped("-ERR unknown command"), Fault::Misconfigured(_)));
        assert!(matches!(Fault::from_reply("ERR", "no such thing: -OOM"), Fault::Misconfigured(_)));
    }

    #[test]
    fn forbidden_script_command_is_named() {
        let source = include_str!("../script/charge_all.lua");
        let line = source.lines().position(|line| line.contains("'RPOP'")).unwrap() + 1;
        let reply = |text: &str| {
            Fault::from_reply("ERR", &format!("{text} script: 7f64278745e968e0, on @user_script:{line}."))
        };
        let refused = reply("The user executing the script can't run this command or subcommand");
        assert_eq!(refused.cause(), Some(Cause::ScriptPermission));
        assert!(refused.to_string().contains("RPOP"), "{refused}");
        assert_eq!(refused.label(), Some("NOPERM"));
        let unknown = reply("Unknown Redis command called from script");
        assert!(unknown.is_permission() && unknown.to_string().contains("RPOP"), "{unknown}");
        let renamed =
            Fault::from_reply("ERR", "unknown command 'EVALSHA', with args beginning with: 'somebody'");
        assert_eq!(renamed.cause(), Some(Cause::Permission));
        assert!(renamed.to_string().contains("EVALSHA") && !renamed.to_string().contains("somebody"));
        assert!(!Fault::from_reply("ERR", "value is not an integer").is_permission());
    }

    #[test]
    fn labels_are_from_a_fixed_list() {
        assert_eq!(Fault::from_reply("OOM", "command not allowed").label(), Some("OOM"));
        assert_eq!(Fault::from_reply("SOMETHING", "unheard of").label(), Some("other"));
        assert_eq!(Fault::NoReply.label(), Some("timeout"));
        assert_eq!(Fault::TryAgain.label(), None);
    }
}
