//! What a server's answer means for a decision: one table.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, ServerError};
use rustls::AlertDescription;
use tollgate::counters::StoreError;

use crate::redis::script;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Never sent: nothing was charged.
    NotSent,
    /// The same, because no server of the cluster holds the slot.
    SlotUnassigned,
    /// The same, because it could not leave in time: nothing came back on what had been sent before.
    QueueTimeout,
    /// The server answers, and cannot do it now: nothing was charged. In its words.
    Unavailable(String),
    /// Sent, and no answer came: whatever was charged stays charged, and asking again could charge twice.
    ConnectionLost,
    /// The same, and the connection is as it was: it may yet come.
    NoReply,
    /// The key lives at this address.
    Moved(String),
    /// The key is on its way to this address.
    Ask(String),
    /// Some of the keys are on their way, and others not yet: nothing was done.
    TryAgain,
    /// This server is no longer the one to ask, in its words.
    WrongServer(String),
    /// The script is not there.
    NoScript,
    /// Only an operator can help.
    Misconfigured(String),
}

impl Fault {
    /// Whether the server is to blame, so that it is asked less.
    pub(crate) fn counts(&self) -> bool {
        let is_silence = matches!(
            self,
            Fault::NotSent
                | Fault::SlotUnassigned
                | Fault::QueueTimeout
                | Fault::ConnectionLost
                | Fault::NoReply
        );
        self.is_answer() || is_silence
    }

    /// Whether a server that is there says that it cannot: that it still is there changes nothing.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Fault::Unavailable(_) | Fault::WrongServer(_))
    }

    /// Whether it is certain that nothing was charged. A script that failed may have begun to write, unless it could not
    /// read: it reads everything first.
    pub(crate) fn did_nothing(&self) -> bool {
        match self {
            Fault::ConnectionLost | Fault::NoReply => false,
            Fault::Misconfigured(_) => {
                self.is_of_counter() || self.is_of_login() && !self.is_of_script() || self.is_of_dial()
            }
            _ => true,
        }
    }

    /// Whether one counter is not what it should be, and others may be.
    pub(crate) fn is_of_counter(&self) -> bool {
        matches!(self, Fault::Misconfigured(reason) if reason.starts_with("WRONGTYPE"))
    }

    /// Whether there is no connection because of it.
    fn is_of_dial(&self) -> bool {
        let Fault::Misconfigured(reason) = self else { return false };
        reason.starts_with("TLS ") || reason == PROTECTED || reason.ends_with(SEE_DATABASE)
    }

    /// Whether it is our login that may not do this, or the server that has no such command, whatever it is asked about.
    pub(crate) fn is_of_login(&self) -> bool {
        let Fault::Misconfigured(reason) = self else { return false };
        let is_refused = ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|code| reason.starts_with(code));
        is_refused || reason.ends_with(NO_COMMAND)
    }

    /// Whether that is a command of the script, which other decisions may not need.
    pub(crate) fn is_of_script(&self) -> bool {
        matches!(self, Fault::Misconfigured(reason) if reason.contains(SCRIPT))
    }

    /// What it means where no server may send us on to another: there it would never end.
    pub(crate) fn outside_a_cluster(self) -> Self {
        match self {
            Fault::Moved(to) => Fault::Misconfigured(format!("MOVED {to}: {IN_CLUSTER}")),
            Fault::Ask(to) => Fault::Misconfigured(format!("ASK {to}: {IN_CLUSTER}")),
            Fault::Misconfigured(reason) if reason.starts_with("CROSSSLOT") => {
                Fault::Misconfigured(format!("{reason}: {IN_CLUSTER}"))
            }
            other => other,
        }
    }

    /// Whether servers belong together in another way than we are told.
    pub(crate) fn is_of_topology(&self) -> bool {
        matches!(self, Fault::Misconfigured(reason) if reason.ends_with(IN_CLUSTER))
    }

    /// What people are told.
    pub(crate) fn words(&self) -> String {
        match self {
            Fault::Unavailable(words) | Fault::WrongServer(words) | Fault::Misconfigured(words) => {
                words.clone()
            }
            Fault::NotSent => "there is no connection".to_owned(),
            Fault::SlotUnassigned => "no server of the cluster holds its slot".to_owned(),
            Fault::ConnectionLost => "the connection was lost".to_owned(),
            Fault::QueueTimeout | Fault::NoReply => "no answer in time".to_owned(),
            Fault::Moved(to) | Fault::Ask(to) => format!("its counters are at {to}"),
            Fault::TryAgain => "TRYAGAIN a slot is on its way".to_owned(),
            Fault::NoScript => "NOSCRIPT the script is missing although it was just loaded".to_owned(),
        }
    }

    /// The same in one word of a list that does not grow, for figures; nothing where we are only sent on.
    pub(crate) fn label(&self) -> Option<&'static str> {
        let code = match self {
            Fault::Moved(_) | Fault::Ask(_) | Fault::TryAgain => return None,
            Fault::NotSent => return Some("unconnected"),
            Fault::SlotUnassigned => return Some("unserved"),
            Fault::ConnectionLost => return Some("lost"),
            Fault::QueueTimeout | Fault::NoReply => return Some("silent"),
            Fault::NoScript => return Some("NOSCRIPT"),
            Fault::Unavailable(words) | Fault::WrongServer(words) | Fault::Misconfigured(words) => {
                words.split(' ').next().unwrap_or_default()
            }
        };
        Some(CODES.iter().find(|known| **known == code).copied().unwrap_or("other"))
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

    /// By the code the server's message begins with.
    pub(crate) fn from_server(error: &ServerError) -> Self {
        Self::from_words(error.code(), error.details().unwrap_or_default())
    }

    /// By a line as it is on the wire, without its sign.
    pub(crate) fn from_line(line: &str) -> Self {
        let (code, detail) = line.split_once(' ').unwrap_or((line, ""));
        Self::from_words(code, detail)
    }

    fn from_words(code: &str, detail: &str) -> Self {
        let address = || detail.split(' ').nth(1).unwrap_or_default().to_owned();
        match code {
            "MOVED" => Fault::Moved(address()),
            "ASK" => Fault::Ask(address()),
            "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" => Fault::WrongServer(format!("{code} {detail}")),
            "NOSCRIPT" => Fault::NoScript,
            "TRYAGAIN" => Fault::TryAgain,
            // It will pass, and it did nothing.
            "LOADING" | "OOM" | "BUSY" | "MISCONF" | "NOREPLICAS" | "UNBLOCKED" => {
                Fault::Unavailable(format!("{code} {detail}"))
            }
            // Servers before version 7 wrap what a command of the script was told.
            "ERR" if let Some((code, detail)) = told_within_script(detail) => Self::from_words(code, detail),
            "ERR" if let Some(words) = not_allowed(detail) => Fault::Misconfigured(words),
            "DENIED" => Fault::Misconfigured(PROTECTED.to_owned()),
            // NOAUTH, WRONGPASS, NOPERM, CROSSSLOT, WRONGTYPE, ERR and whatever we do not know.
            code => Fault::Misconfigured(format!("{code} {detail}")),
        }
    }

    /// Of a whole batch that failed after it was handed to the connection.
    pub(crate) fn from_connection(error: &RedisError) -> Self {
        if error.is_timeout() { Fault::NoReply } else { Fault::ConnectionLost }
    }

    /// What the connection said. The client library shares it.
    pub(crate) fn cause(error: &RedisError) -> Option<&io::Error> {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<Arc<dyn Error + Send + Sync>>());
        cause.and_then(|cause| cause.downcast_ref::<io::Error>())
    }

    /// Of a connection that could not be made.
    pub(crate) fn from_dial(error: &RedisError) -> Self {
        let refused = error.kind() == redis::ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        match error.code() {
            _ if is_about_certificates(error) => Fault::Misconfigured(format!("TLS {error}")),
            Some("DENIED") => Fault::Misconfigured(PROTECTED.to_owned()),
            _ if let Some(detail) = refused_database(error) => {
                Fault::Misconfigured(format!("ERR {detail}: {SEE_DATABASE}"))
            }
            _ if !refused => Fault::NotSent,
            Some(code) => Fault::Misconfigured(format!("{code} {}", error.detail().unwrap_or_default())),
            // The client library keeps the server's words to itself.
            None => {
                Fault::Misconfigured("WRONGPASS the server does not take this user and password".to_owned())
            }
        }
    }
}

/// Codes that figures tell by name.
const CODES: [&str; 16] = [
    "LOADING",
    "OOM",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "READONLY",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "DENIED",
    "CROSSSLOT",
    "WRONGTYPE",
    "ERR",
    "TLS",
];

/// What may not do everything that a decision takes.
const SCRIPT: &str = "the script of decisions";
const NO_COMMAND: &str = "the server has no such command, or calls it something else";

const IN_CLUSTER: &str = "this server is part of a cluster: set topology = \"cluster\"";

const SEE_DATABASE: &str = "see the database in counters.url or counters.database";

/// In place of the five sentences of the server.
const PROTECTED: &str = "DENIED this server is in protected mode and takes nobody from another machine: give its users \
                         passwords, or switch protected-mode off where the network is closed";

/// Why the server has no such database for us, if it is for good. The client library gives the words, not the code.
fn refused_database(error: &RedisError) -> Option<&str> {
    let for_good = ["DB index", "SELECT is not allowed", "no permissions"];
    let is_for_good = |detail: &&str| for_good.iter().any(|words| detail.contains(words));
    error.detail().filter(is_for_good).filter(|_| error.to_string().contains("switch database"))
}

/// The code and the rest of `Error running script (call to f_…): @user_script:9: -OOM command not allowed …`.
fn told_within_script(detail: &str) -> Option<(&str, &str)> {
    let (_, told) = detail.strip_prefix("Error running script")?.split_once(": -")?;
    told.split_once(' ').filter(|(code, _)| *code != "ERR")
}

/// What our login may not do, or the server cannot, if it says so without a code, or within the script without the name.
fn not_allowed(detail: &str) -> Option<String> {
    let commands = || script::commands_at(line_of_script(detail)).join(" or ");
    if detail.contains("can't run this command") {
        return Some(format!("NOPERM {SCRIPT} may not run {}: see the access rules of its user", commands()));
    }
    if detail.contains("can't access at least one of the keys") {
        return Some(format!("NOPERM {SCRIPT} may not use all keys that begin with rl:"));
    }
    if detail.contains("Unknown Redis command called from script") {
        return Some(format!("ERR unknown command {} in {SCRIPT}: {NO_COMMAND}", commands()));
    }
    // What it was asked about follows the name.
    let (words, _) =
        detail.strip_prefix("unknown command").map(|_| detail.split_once(',').unwrap_or((detail, "")))?;
    Some(format!("ERR {words}: {NO_COMMAND}"))
}

/// The line of the script that failed; 0 if that is not said.
fn line_of_script(detail: &str) -> usize {
    let (_, rest) = detail.split_once("@user_script:").unwrap_or_default();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Whether we do not trust the server by its certificate, or it does not trust us by ours.
fn is_about_certificates(error: &RedisError) -> bool {
    let cause = Fault::cause(error).and_then(io::Error::get_ref);
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
    fn what_a_command_of_the_script_was_told_counts_not_its_wrapping() {
        let wrapped = |told: &str| {
            let detail =
                format!("Error running script (call to f_0c): @user_script:51: @user_script: 51: {told}");
            Fault::from_words("ERR", &detail)
        };
        let full = "OOM command not allowed when used memory > 'maxmemory'.";
        assert_eq!(wrapped(&format!("-{full}")), Fault::Unavailable(full.to_owned()));
        let replica = "READONLY You can't write against a read only replica.";
        assert_eq!(wrapped(&format!("-{replica}")), Fault::WrongServer(replica.to_owned()));
        assert!(matches!(wrapped("-WRONGTYPE Operation against a key"), Fault::Misconfigured(_)));
        assert!(matches!(wrapped("-ERR unknown command"), Fault::Misconfigured(_)));
        assert!(matches!(Fault::from_words("ERR", "no such thing: -OOM"), Fault::Misconfigured(_)));
    }

    #[test]
    fn what_the_script_may_not_do_is_named_by_its_line() {
        let line = include_str!("../script/charge_all.lua")
            .lines()
            .position(|line| line.contains("'RPOP'"))
            .unwrap()
            + 1;
        let told = |words: &str| {
            Fault::from_words("ERR", &format!("{words} script: 7f64278745e968e0, on @user_script:{line}."))
        };
        let refused = told("The user executing the script can't run this command or subcommand");
        assert!(
            refused.is_of_login() && refused.is_of_script() && refused.words().contains("RPOP"),
            "{refused:?}"
        );
        assert_eq!(refused.label(), Some("NOPERM"));
        let unknown = told("Unknown Redis command called from script");
        assert!(unknown.is_of_login() && unknown.words().contains("RPOP"), "{unknown:?}");
        let renamed =
            Fault::from_words("ERR", "unknown command 'EVALSHA', with args beginning with: 'somebody'");
        assert!(renamed.is_of_login() && !renamed.is_of_script(), "{renamed:?}");
        assert!(renamed.words().contains("EVALSHA") && !renamed.words().contains("somebody"), "{renamed:?}");
        assert!(!Fault::from_words("ERR", "value is not an integer").is_of_login());
    }

    #[test]
    fn figures_name_what_is_known_and_lump_the_rest() {
        assert_eq!(Fault::from_words("OOM", "command not allowed").label(), Some("OOM"));
        assert_eq!(Fault::from_words("SOMETHING", "nobody has heard of").label(), Some("other"));
        assert_eq!(Fault::NoReply.label(), Some("silent"));
        assert_eq!(Fault::TryAgain.label(), None);
    }
}
