//! The URL of a server, and values as parts of URLs.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::{Host, Url};

/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The base URL of a server: `http[s]://host[:port][/prefix]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl(Url);

/// Why a URL is invalid. The URL is not repeated, because it may contain a password.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    #[error("the URL contains a user name or password: pass the key with --key or TOLLGATE_KEY")]
    Credentials,
    #[error("the URL must look like http://127.0.0.1:8080 or https://limits.example")]
    Malformed,
}

impl ServerUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, UrlError> {
        let url = Url::parse(text.trim_end_matches('/')).map_err(|_| UrlError::Malformed)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Credentials);
        }
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
            return Err(UrlError::Malformed);
        }
        Ok(ServerUrl(url))
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// The scheme to suggest when the server does not speak this one.
    pub(super) fn other_scheme(&self) -> &'static str {
        if self.is_tls() { "http" } else { "https" }
    }

    /// Whether traffic stays on this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        match self.0.host() {
            Some(Host::Domain(name)) => {
                let name = name.trim_end_matches('.');
                name == "localhost" || name.ends_with(".localhost")
            }
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
            None => false,
        }
    }
}

/// Without a trailing slash, so that a path can follow.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
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
        for url in
            ["", "a:80", "127.0.0.1:8080", "ftp://a", "http://", "http://a/?q", "http://a:99999", "https://"]
        {
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
