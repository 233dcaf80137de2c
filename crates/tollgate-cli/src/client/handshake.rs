//! Why TLS was not agreed on, in words that say what to do about it.

use std::error::Error;
use std::io;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};

/// Names of a certificate that are told; one for many hosts may have hundreds.
const NAMES_MAX: usize = 5;

/// Why TLS was not agreed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// Nobody we trust signed the certificate.
    #[error(
        "the server's certificate is signed by an authority that is not trusted here: for a private one, name its certificate with --ca-file"
    )]
    UnknownAuthority,
    /// Somebody signed the certificate who is called like one we trust: an authority that was made anew, say.
    #[error(
        "the server's certificate is signed by an authority that is called like a trusted one and has another key: is --ca-file an old one?"
    )]
    OtherAuthority,
    /// An authority's own certificate, as `openssl req -x509` makes them.
    #[error(
        "the server shows the certificate of an authority (CA:TRUE): it needs one of its own (CA:FALSE), which may be signed by itself"
    )]
    AuthorityAsServer,
    /// It is another server, or is called by another name.
    #[error("the server's certificate is for {names}, not for {asked}")]
    WrongName {
        /// Whom we asked for.
        asked: String,
        /// Who answered.
        names: String,
    },
    /// The certificate was good once.
    #[error("the server's certificate expired at {0}")]
    Expired(String),
    /// The certificate will be good, or our clock is wrong.
    #[error("the server's certificate is not valid before {0}: is the clock of this machine right?")]
    NotYetValid(String),
    /// The certificate is wrong in a rarer way.
    #[error("the server's certificate cannot be trusted: {0}")]
    Certificate(CertificateError),
    /// The server wants to know who we are.
    #[error("the server asks for a client certificate: name one with --cert-file and --cert-key-file")]
    WantsCertificate,
    /// The server knows who we are, and does not want us.
    #[error("the server does not accept the client certificate of --cert-file")]
    RefusesCertificate,
    /// Who answers does not speak TLS.
    #[error("the answer is not TLS: use http:// if that is a port for plain HTTP")]
    NotTls,
    /// Who answers ends the connection before TLS was agreed on.
    #[error("the server hung up before TLS was agreed on: use http:// if that is a port for plain HTTP")]
    HungUp,
    /// We have nothing in common, or the server keeps to itself what it misses: before TLS 1.3, a client certificate.
    #[error(
        "the server refused the TLS handshake ({0:?}): it may want a client certificate (--cert-file), or an older TLS than 1.2"
    )]
    Refused(AlertDescription),
    /// Anything else.
    #[error("TLS failed: {0}")]
    Other(rustls::Error),
}

impl HandshakeError {
    /// What an error of a connection says about TLS; nothing if it is about something else.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(error) = cause(error) {
            return Some(Self::read(error));
        }
        error.downcast_ref().is_some_and(hangs_up).then_some(Self::HungUp)
    }

    /// What nginx says about certificates, in a page: it agrees to TLS first.
    pub(super) fn told_in(page: &str) -> Option<Self> {
        if page.contains("No required SSL certificate was sent") {
            return Some(Self::WantsCertificate);
        }
        page.contains("The SSL certificate error").then_some(Self::RefusesCertificate)
    }

    fn read(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::of_certificate(error),
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => Self::WantsCertificate,
            rustls::Error::AlertReceived(
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied,
            ) => Self::RefusesCertificate,
            rustls::Error::AlertReceived(
                alert @ (AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion),
            ) => Self::Refused(*alert),
            other => Self::Other(other.clone()),
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer => Self::UnknownAuthority,
            CertificateError::BadSignature => Self::OtherAuthority,
            // Its type is that of a crate below rustls, which nobody else here needs.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                Self::AuthorityAsServer
            }
            CertificateError::ExpiredContext { not_after, .. } => Self::Expired(moment(*not_after)),
            CertificateError::NotValidYetContext { not_before, .. } => Self::NotYetValid(moment(*not_before)),
            CertificateError::NotValidForNameContext { expected, presented } => {
                Self::WrongName { asked: expected.to_str().into_owned(), names: names(presented) }
            }
            other => Self::Certificate(other.clone()),
        }
    }
}

/// Whether the other side has ended the connection.
pub(super) fn hangs_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// The error of rustls within one of a connection. What an `io::Error` carries is not its source.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(carried) => Some(carried),
            None => error.source(),
        };
    }
    None
}

fn moment(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| format!("{seconds} s after 1970"), |at| at.to_string())
}

/// `DnsName("a.example")` and `IpAddress(10.0.0.1)` as people write them.
fn names(presented: &[String]) -> String {
    let inner = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
        inner.trim_matches('"').to_owned()
    };
    let mut told: Vec<String> = presented.iter().take(NAMES_MAX).map(inner).collect();
    match presented.len() {
        0 => "no host at all".to_owned(),
        count if count > NAMES_MAX => {
            told.push(format!("{} more", count - NAMES_MAX));
            told.join(", ")
        }
        _ => told.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_names_are_told_as_people_write_them() {
        let dns = |name: &str| format!("DnsName({name:?})");
        assert_eq!(names(&[]), "no host at all");
        assert_eq!(names(&[dns("*.a.example"), "IpAddress(10.0.0.1)".to_owned()]), "*.a.example, 10.0.0.1");
        let many: Vec<String> = (0..300).map(|number| dns(&format!("h{number}"))).collect();
        assert_eq!(names(&many), "h0, h1, h2, h3, h4, 295 more");
    }

    #[test]
    fn a_cause_is_found_however_deep_it_is() {
        let inner = io::Error::other(rustls::Error::AlertReceived(AlertDescription::UnknownCA));
        let told = HandshakeError::of(&io::Error::other(inner));
        assert!(matches!(told, Some(HandshakeError::RefusesCertificate)), "{told:?}");
        assert!(HandshakeError::of(&io::Error::other("full")).is_none());
    }
}
