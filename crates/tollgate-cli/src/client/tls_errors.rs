//! TLS failures in words that say what to do.

use std::error::Error;
use std::io;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};

/// How many names of a certificate are shown.
const NAMES_MAX: usize = 5;

const WANTS_CERTIFICATE: &str =
    "the server requires a client certificate: pass one with --cert-file and --cert-key-file";
const REFUSES_CERTIFICATE: &str = "the server does not accept the client certificate of --cert-file";

/// What nginx, Go and Apache answer to plain HTTP on a TLS port.
const TLS_PORT_PAGES: [&str; 3] = ["HTTPS port", "HTTPS server", "SSL-enabled server port"];

/// The rustls error inside an I/O error, however deep.
pub(super) fn find(error: &io::Error) -> Option<&rustls::Error> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = match error.downcast_ref::<ureq::Error>() {
            Some(ureq::Error::Rustls(found)) => return Some(found),
            _ => match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                Some(inner) => Some(inner),
                None => error.source(),
            },
        };
    }
    None
}

/// The reason of a failed handshake, and what to do about it.
pub(super) fn explain(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(error) => explain_certificate(error),
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS on this port: use http:// for plain HTTP".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => WANTS_CERTIFICATE.to_owned(),
        rustls::Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => REFUSES_CERTIFICATE.to_owned(),
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion),
        ) => format!(
            "the server refused the TLS handshake ({alert:?}): it may require a client certificate (--cert-file), or support only TLS versions before 1.2"
        ),
        other => format!("TLS failed: {other}"),
    }
}

fn explain_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "the server's certificate is signed by an unknown CA: for a private CA, pass its certificate with --ca-file".to_owned()
        }
        CertificateError::BadSignature => {
            "the server's certificate is signed by a CA that has the name of a trusted CA but another key: is --ca-file outdated?".to_owned()
        }
        // The type of this error belongs to a dependency of rustls.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "the server presents a CA certificate (CA:TRUE): it needs a server certificate (CA:FALSE), which may be self-signed".to_owned()
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the server's certificate expired at {}", format_unix_time(*not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the server's certificate is not valid before {}: check the clock of this machine",
            format_unix_time(*not_before)
        ),
        CertificateError::NotValidForNameContext { expected, presented } => {
            format!("the server's certificate is for {}, not for {}", format_names(presented), expected.to_str())
        }
        other => format!("the server's certificate is invalid: {other}"),
    }
}

/// What nginx answers over TLS when it rejects the client certificate.
pub(super) fn explain_page(page: &str) -> Option<&'static str> {
    if page.contains("No required SSL certificate was sent") {
        return Some(WANTS_CERTIFICATE);
    }
    page.contains("The SSL certificate error").then_some(REFUSES_CERTIFICATE)
}

/// Whether a page says that the port expects TLS.
pub(super) fn is_tls_port_page(page: &str) -> bool {
    TLS_PORT_PAGES.iter().any(|part| page.contains(part))
}

fn format_unix_time(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| format!("{seconds} s after 1970"), |at| at.to_string())
}

/// `DnsName("a.example")` and `IpAddress(10.0.0.1)` without the wrapping.
fn format_names(presented: &[String]) -> String {
    let inner = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
        inner.trim_matches('"').to_owned()
    };
    let names: Vec<String> = presented.iter().take(NAMES_MAX).map(inner).collect();
    match presented.len().saturating_sub(NAMES_MAX) {
        _ if names.is_empty() => "no host at all".to_owned(),
        0 => names.join(", "),
        more => format!("{}, {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_five_names_are_shown() {
        let dns = |name: &str| format!("DnsName({name:?})");
        assert_eq!(format_names(&[]), "no host at all");
        assert_eq!(
            format_names(&[dns("*.a.example"), "IpAddress(10.0.0.1)".to_owned()]),
            "*.a.example, 10.0.0.1"
        );
        let many: Vec<String> = (0..300).map(|number| dns(&format!("h{number}"))).collect();
        assert_eq!(format_names(&many), "h0, h1, h2, h3, h4, 295 more");
    }

    #[test]
    fn nested_tls_errors_are_found() {
        let inner = io::Error::other(rustls::Error::AlertReceived(AlertDescription::UnknownCA));
        let nested = io::Error::other(inner);
        assert_eq!(find(&nested).map(explain).as_deref(), Some(REFUSES_CERTIFICATE));
        assert!(find(&io::Error::other("full")).is_none());
    }
}
