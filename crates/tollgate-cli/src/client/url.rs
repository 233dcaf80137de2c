//! The URL of a server, and values as parts of URLs.

use std::fmt;
use std::net::IpAddr;

use http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::pki_types::ServerName;

/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A validated base URL without a trailing slash or default port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    base: String,
    host: String,
    is_tls: bool,
}

/// Why a URL is invalid. The URL is not repeated, because it may contain a password.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    #[error("the URL contains a user name or password: pass the key with --key or TOLLGATE_KEY")]
    Credentials,
    #[error("the URL must look like http://127.0.0.1:8080 or https://limits.example")]
    Malformed,
}

impl ServerUrl {
    /// Parses `http[s]://host[:port][/prefix]`.
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        let uri: Uri = url.parse().map_err(|_| UrlError::Malformed)?;
        let (is_tls, default_port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(UrlError::Malformed),
        };
        let authority = uri.authority().ok_or(UrlError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::Credentials);
        }
        let host = authority.host();
        let name = host.trim_start_matches('[').trim_end_matches(']');
        if uri.query().is_some() || ServerName::try_from(name).is_err() && (is_tls || host.is_empty()) {
            return Err(UrlError::Malformed);
        }
        let port = match authority.as_str().strip_prefix(host) {
            Some("" | ":") => default_port,
            _ => authority.port_u16().ok_or(UrlError::Malformed)?,
        };
        let port = if port == default_port { String::new() } else { format!(":{port}") };
        let scheme = if is_tls { "https" } else { "http" };
        let base = format!("{scheme}://{host}{port}{}", uri.path().trim_end_matches('/'));
        Ok(ServerUrl { base, host: name.to_owned(), is_tls })
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The scheme to suggest when the server does not speak this one.
    pub(super) fn other_scheme(&self) -> &'static str {
        if self.is_tls { "http" } else { "https" }
    }

    /// Whether traffic stays on this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        let name = self.host.trim_end_matches('.').to_ascii_lowercase();
        name == "localhost"
            || name.ends_with(".localhost")
            || self.host.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

/// A value as one path segment.
pub(crate) fn segment(value: &str) -> String {
    utf8_percent_encode(value, RESERVED).to_string()
}

/// A query of the pairs that have a value; empty without any.
pub(crate) fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let mut query = String::new();
    for (key, value) in pairs {
        if let Some(value) = value {
            query.push(if query.is_empty() { '?' } else { '&' });
            query.push_str(key);
            query.push('=');
            query.push_str(&segment(value));
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_port_and_trailing_slash_are_dropped() {
        for (url, base) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:81/", "http://[::1]:81"),
            ("HTTP://limits.internal/api/", "http://limits.internal/api"),
            ("https://limits.internal/api", "https://limits.internal/api"),
            ("https://[::1]:8443", "https://[::1]:8443"),
            ("https://a:443/x/", "https://a/x"),
            ("https://a:80", "https://a:80"),
            ("http://[::1]:443", "http://[::1]:443"),
        ] {
            assert_eq!(ServerUrl::parse(url).unwrap().to_string(), base);
        }
        assert!(ServerUrl::parse("https://a").unwrap().is_tls());
        assert_ne!(ServerUrl::parse("http://a:443"), ServerUrl::parse("https://a:443"));
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for url in [
            "http://localhost",
            "http://LOCALHOST.:1",
            "http://127.8.9.1:2",
            "http://[::1]",
            "http://a.localhost",
        ] {
            assert!(ServerUrl::parse(url).unwrap().is_loopback(), "{url}");
        }
        for url in [
            "http://localhost.example",
            "http://0.0.0.0:1",
            "http://10.0.0.1",
            "http://[::2]",
            "http://127.example",
        ] {
            assert!(!ServerUrl::parse(url).unwrap().is_loopback(), "{url}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected_without_repeating_them() {
        assert_eq!(ServerUrl::parse("http://me:hunter2@a"), Err(UrlError::Credentials));
        for url in [
            "",
            "a:80",
            "127.0.0.1:8080",
            "ftp://a",
            "http://",
            "http://a/?q",
            "http:///x",
            "http://a:99999",
            "https://",
            "https://a..b",
        ] {
            assert_eq!(ServerUrl::parse(url), Err(UrlError::Malformed), "{url:?}");
        }
    }

    #[test]
    fn values_stay_one_path_segment() {
        assert_eq!(segment("/api/v1/users?q=a b#c%2F"), "%2Fapi%2Fv1%2Fusers%3Fq%3Da%20b%23c%252F");
        assert_eq!(segment("grüße-._~"), "gr%C3%BC%C3%9Fe-._~");
        assert_eq!(segment("a\r\nHost: b"), "a%0D%0AHost%3A%20b");
    }

    #[test]
    fn query_escapes_values_and_skips_missing_ones() {
        assert_eq!(query(&[("a", None)]), "");
        assert_eq!(query(&[("a", Some("1&b=2")), ("b", None), ("c", Some(""))]), "?a=1%26b%3D2&c=");
    }
}
