//! What a server's answer means for a decision: one table.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, ServerError};
use rustls::AlertDescription;
use tollgate::counters::StoreError;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Never sent, or refused before anything was done: nothing was charged.
    NotDone,
    /// Sent, and no answer came: whatever was charged stays charged, and asking again could charge twice.
    Unknown,
    /// The same, and the connection is as it was: it may yet come.
    Silent,
    /// The key lives at this address.
    Moved(String),
    /// The key is on its way to this address.
    Ask(String),
    /// Some of the keys are on their way, and others not yet: nothing was done.
    TryAgain,
    /// This server is no longer the one to ask.
    WrongServer,
    /// The script is not there.
    NoScript,
    /// Only an operator can help.
    Misconfigured(String),
}

impl Fault {
    /// Whether the server is to blame, so that it is asked less.
    pub(super) fn counts(&self) -> bool {
        matches!(self, Fault::NotDone | Fault::Unknown | Fault::Silent | Fault::WrongServer)
    }

    /// Whether it is certain that nothing was charged.
    pub(super) fn did_nothing(&self) -> bool {
        !matches!(self, Fault::Unknown | Fault::Silent | Fault::Misconfigured(_))
    }

    /// Whether it is our login that may not do this, whatever it is asked about.
    pub(super) fn is_of_login(&self) -> bool {
        let Fault::Misconfigured(reason) = self else { return false };
        ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|code| reason.starts_with(code))
    }

    pub(super) fn into_store_error(self, deadline: Duration) -> StoreError {
        match self {
            Fault::Unknown | Fault::Silent => StoreError::Timeout { deadline },
            Fault::Misconfigured(_) | Fault::NoScript => StoreError::Misconfigured,
            Fault::NotDone | Fault::TryAgain | Fault::WrongServer | Fault::Moved(_) | Fault::Ask(_) => {
                StoreError::Unreachable
            }
        }
    }

    /// By the code the server's message begins with.
    pub(super) fn from_server(error: &ServerError) -> Self {
        let detail = error.details().unwrap_or_default();
        let address = || detail.split(' ').nth(1).unwrap_or_default().to_owned();
        match error.code() {
            "MOVED" => Fault::Moved(address()),
            "ASK" => Fault::Ask(address()),
            "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" => Fault::WrongServer,
            "NOSCRIPT" => Fault::NoScript,
            "TRYAGAIN" => Fault::TryAgain,
            // It will pass, and it did nothing.
            "LOADING" | "OOM" | "BUSY" | "MISCONF" | "NOREPLICAS" | "UNBLOCKED" => Fault::NotDone,
            // NOAUTH, WRONGPASS, NOPERM, CROSSSLOT, WRONGTYPE, ERR and whatever we do not know.
            code => Fault::Misconfigured(format!("{code} {detail}")),
        }
    }

    /// Of a whole batch that failed after it was handed to the connection.
    pub(super) fn from_connection(error: &RedisError) -> Self {
        if error.is_timeout() { Fault::Silent } else { Fault::Unknown }
    }

    /// Of a connection that could not be made.
    pub(super) fn from_dial(error: &RedisError) -> Self {
        let refused = error.kind() == redis::ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        match error.code() {
            _ if is_about_certificates(error) => Fault::Misconfigured(format!("TLS {error}")),
            _ if !refused => Fault::NotDone,
            Some(code) => Fault::Misconfigured(format!("{code} {}", error.detail().unwrap_or_default())),
            // The client library keeps the server's words to itself.
            None => {
                Fault::Misconfigured("WRONGPASS the server does not take this user and password".to_owned())
            }
        }
    }
}

/// Whether we do not trust the server by its certificate, or it does not trust us by ours.
fn is_about_certificates(error: &RedisError) -> bool {
    // The client library shares what the connection said.
    let cause = error.source().and_then(|cause| cause.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>()).and_then(io::Error::get_ref);
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
