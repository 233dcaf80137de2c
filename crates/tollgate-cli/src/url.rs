//! Where the server is, and how values become parts of a path.

use std::net::IpAddr;

use http::Uri;
use rustls::pki_types::ServerName;

/// A server's address, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Host and port as they are dialled.
    pub(crate) authority: String,
    /// The name that the server's certificate must have in it; none for `http://`, which asks for no certificate.
    pub(crate) certified: Option<ServerName<'static>>,
    /// What stands before every path; empty or `/something`.
    prefix: String,
}

/// Why a text is no server's address. The text is not repeated: it may contain a password.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    /// Credentials do not belong into a URL.
    #[error("the URL contains a user name or password: pass the key with --key or TOLLGATE_KEY")]
    Credentials,
    /// Anything else.
    #[error("the URL must look like http://127.0.0.1:8080 or https://limits.example")]
    Malformed,
}

impl Target {
    /// Reads `http://host[:port][/prefix]`, or the same with `https`.
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        let uri: Uri = url.parse().map_err(|_| UrlError::Malformed)?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(UrlError::Malformed),
        };
        let authority = uri.authority().ok_or(UrlError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::Credentials);
        }
        let host = authority.host();
        if host.is_empty() || uri.query().is_some() {
            return Err(UrlError::Malformed);
        }
        let port = match authority.as_str().strip_prefix(host) {
            Some("" | ":") => port_of_scheme(tls),
            _ => authority.port_u16().ok_or(UrlError::Malformed)?,
        };
        let certified = || ServerName::try_from(bare(host).to_owned()).map_err(|_| UrlError::Malformed);
        Ok(Target {
            authority: format!("{host}:{port}"),
            certified: tls.then(certified).transpose()?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// A path on the server as it is requested.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// The server as the `Host` header names it: proxies that compare names do not expect the usual port there.
    pub(crate) fn host(&self) -> &str {
        let usual = if self.is_tls() { ":443" } else { ":80" };
        self.authority.strip_suffix(usual).unwrap_or(&self.authority)
    }

    /// Whether it is asked through TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.certified.is_some()
    }

    /// Whether nobody but this machine hears what is said.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = bare(self.authority.rsplit_once(':').map_or("", |(host, _)| host));
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        name == "localhost"
            || name.ends_with(".localhost")
            || host.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_tls() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.host(), self.prefix)
    }
}

fn port_of_scheme(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// An address without the brackets that IPv6 has in a URL.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// A value as one segment of a path: all but letters, digits and `-._~` is escaped, slashes too.
pub(crate) fn segment(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            other => {
                let digit = |nibble: u8| char::from(b"0123456789ABCDEF"[usize::from(nibble)]);
                escaped.extend(['%', digit(other >> 4), digit(other & 15)]);
            }
        }
    }
    escaped
}

/// The pairs that have a value, as the query of a path; empty if there are none.
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
    fn a_server_is_found_by_host_port_and_prefix() {
        let found = |url| Target::parse(url).map(|target| (target.authority.clone(), target.path("/v1/x")));
        let is = |authority: &str, path: &str| Ok((authority.to_owned(), path.to_owned()));
        assert_eq!(found("http://127.0.0.1:8080"), is("127.0.0.1:8080", "/v1/x"));
        assert_eq!(found("http://[::1]:81/"), is("[::1]:81", "/v1/x"));
        assert_eq!(found("HTTP://limits.internal/api/"), is("limits.internal:80", "/api/v1/x"));
        assert_eq!(found("https://limits.internal/api"), is("limits.internal:443", "/api/v1/x"));
        assert_eq!(found("https://[::1]:8443"), is("[::1]:8443", "/v1/x"));
    }

    #[test]
    fn a_certificate_is_asked_for_where_https_is_and_for_that_host() {
        let certified = |url| Target::parse(url).unwrap().certified.map(|name| name.to_str().into_owned());
        assert_eq!(certified("http://a"), None);
        assert_eq!(certified("https://limits.internal:8443/x"), Some("limits.internal".to_owned()));
        assert_eq!(certified("https://[::1]:8443"), Some("::1".to_owned()));
        assert_ne!(Target::parse("http://a:443"), Target::parse("https://a:443"));
    }

    #[test]
    fn the_usual_port_is_not_told() {
        let told = |url| Target::parse(url).unwrap().to_string();
        assert_eq!(told("https://a:443/x/"), "https://a/x");
        assert_eq!(told("http://a"), "http://a");
        assert_eq!(told("https://a:80"), "https://a:80");
        assert_eq!(told("http://[::1]:443"), "http://[::1]:443");
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
            assert!(Target::parse(url).unwrap().is_loopback(), "{url}");
        }
        for url in [
            "http://localhost.example",
            "http://0.0.0.0:1",
            "http://10.0.0.1",
            "http://[::2]",
            "http://127.example",
        ] {
            assert!(!Target::parse(url).unwrap().is_loopback(), "{url}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_used_says_why_and_is_not_repeated() {
        assert_eq!(Target::parse("http://me:hunter2@a"), Err(UrlError::Credentials));
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
            assert_eq!(Target::parse(url), Err(UrlError::Malformed), "{url:?}");
        }
    }

    #[test]
    fn a_value_stays_one_segment_whatever_is_in_it() {
        assert_eq!(segment("/api/v1/users?q=a b#c%2F"), "%2Fapi%2Fv1%2Fusers%3Fq%3Da%20b%23c%252F");
        assert_eq!(segment("grüße-._~"), "gr%C3%BC%C3%9Fe-._~");
        assert_eq!(segment("a\r\nHost: b"), "a%0D%0AHost%3A%20b");
    }

    #[test]
    fn a_query_holds_what_is_given_and_values_stay_values() {
        assert_eq!(query(&[("a", None)]), "");
        assert_eq!(query(&[("a", Some("1&b=2")), ("b", None), ("c", Some(""))]), "?a=1%26b%3D2&c=");
    }
}
