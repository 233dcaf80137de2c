//! Where the server is, and how values become parts of a path.

use http::Uri;

/// A server's address, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Host and port as they are dialled and named in the `Host` header.
    pub(crate) authority: String,
    /// What stands before every path; empty or `/something`.
    prefix: String,
}

/// Why a text is no server's address. The text is not repeated: it may contain a password.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    /// TLS is not spoken yet.
    #[error("https:// is not supported yet: use http://, through a local proxy that speaks TLS if need be")]
    Https,
    /// Credentials do not belong into a URL.
    #[error("the URL contains a user name or password: pass the key with --key or TOLLGATE_KEY")]
    Credentials,
    /// Anything else.
    #[error("the URL must look like http://127.0.0.1:8080")]
    Malformed,
}

impl Target {
    /// Reads `http://host[:port][/prefix]`.
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        let uri: Uri = url.parse().map_err(|_| UrlError::Malformed)?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(UrlError::Https),
            _ => return Err(UrlError::Malformed),
        }
        let authority = uri.authority().ok_or(UrlError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::Credentials);
        }
        if authority.host().is_empty() || uri.query().is_some() {
            return Err(UrlError::Malformed);
        }
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("" | ":") => 80,
            _ => authority.port_u16().ok_or(UrlError::Malformed)?,
        };
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Target { authority: format!("{}:{port}", authority.host()), prefix })
    }

    /// A path on the server as it is requested.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
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
    }

    #[test]
    fn a_url_that_cannot_be_used_says_why_and_is_not_repeated() {
        assert_eq!(Target::parse("https://a"), Err(UrlError::Https));
        assert_eq!(Target::parse("http://me:hunter2@a"), Err(UrlError::Credentials));
        for url in
            ["", "a:80", "127.0.0.1:8080", "ftp://a", "http://", "http://a/?q", "http:///x", "http://a:99999"]
        {
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
