//! The names under which the REST API is served: protection against DNS rebinding.
//!
//! A web page whose name resolves to a loopback address is of the same origin as this server to its browser, and could read and
//! charge everything that needs no key. The `Host` of its requests is the page's name; requests of other pages have their `Origin`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderValue, Uri, Version, header};

use super::error::{ApiError, Code};

/// How much of a foreign name an error repeats.
const SHOWN_BYTES_MAX: usize = 64;

/// The names of this server.
#[derive(Debug)]
pub(crate) struct HostPolicy {
    /// Those beside loopback names (`server.hosts`); absent if every name is accepted.
    listed: Option<Vec<Box<str>>>,
}

impl HostPolicy {
    /// Names are checked on loopback addresses, which other machines cannot reach, and wherever `server.hosts` is set.
    pub(crate) fn new(listed: &[Box<str>], address: IpAddr) -> Self {
        let is_checked = address.to_canonical().is_loopback() || !listed.is_empty();
        HostPolicy { listed: is_checked.then(|| listed.to_vec()) }
    }

    /// Refuses requests to a foreign name, and those of pages of another site. A request without either passes: browsers send them.
    pub(crate) fn require_own(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(listed) = &self.listed else { return Ok(()) };
        let is_own = |authority: &[u8]| host_of(authority).is_some_and(|host| is_own(host, listed));
        // HTTP/2 has the name in the URI, as HTTP/1 has in requests to proxies.
        let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
        let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
        if let Some(foreign) = authority.into_iter().chain(host).find(|sent| !is_own(sent)) {
            let reason = "is not a name of this server; add it to server.hosts to accept it";
            return Err(misdirected("host", foreign, reason));
        }
        let mut origins = headers.get_all(header::ORIGIN).iter().map(HeaderValue::as_bytes);
        match origins.find(|origin| !authority_of_origin(origin).is_some_and(is_own)) {
            Some(foreign) => {
                let reason = "is another site; add its host to server.hosts to accept requests of its pages";
                Err(misdirected("origin", foreign, reason))
            }
            None => Ok(()),
        }
    }
}

fn misdirected(field: &'static str, sent: &[u8], reason: &str) -> ApiError {
    let shown = sent.get(..SHOWN_BYTES_MAX).unwrap_or(sent).escape_ascii();
    let cut = if sent.len() > SHOWN_BYTES_MAX { "…" } else { "" };
    ApiError::field(Code::MisdirectedRequest, field, format!("\"{shown}{cut}\" {reason}"))
}

/// The Host header. HTTP/1.1 requires exactly one with a valid value, HTTP/1.0 none; on HTTP/2 it must equal `:authority`.
pub(crate) fn require_one_host<'h>(
    version: Version,
    uri: &Uri,
    headers: &'h HeaderMap,
) -> Result<Option<&'h HeaderValue>, ApiError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let invalid = |reason| Err(ApiError::field(Code::InvalidInput, "host", reason));
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host,
        (None, _) if version != Version::HTTP_11 => return Ok(None),
        _ => return invalid("must be present exactly once"),
    };
    if valid_host(host.as_bytes()).is_none() {
        return invalid("must be a host name or address, with an optional port");
    }
    match uri.authority().filter(|_| version == Version::HTTP_2) {
        Some(authority) if !authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()) => {
            invalid("must equal :authority")
        }
        _ => Ok(Some(host)),
    }
}

/// The host in `host` or `host:port`, IPv6 in brackets; `None` if it is neither.
fn host_of(authority: &[u8]) -> Option<&str> {
    valid_host(authority).and_then(|host| std::str::from_utf8(host).ok())
}

fn valid_host(authority: &[u8]) -> Option<&[u8]> {
    let is_ipv6 = authority.first() == Some(&b'[');
    let mut bytes = authority.iter();
    let end = match bytes.position(|byte| *byte == if is_ipv6 { b']' } else { b':' }) {
        Some(found) => found + usize::from(is_ipv6),
        None if is_ipv6 => return None,
        None => authority.len(),
    };
    let (host, port) = authority.split_at(end);
    let is_port = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    let has_valid_port = port.is_empty() || port.strip_prefix(b":").is_some_and(is_port);
    let is_valid = if is_ipv6 {
        std::str::from_utf8(host).ok().and_then(ipv6_of).is_some()
    } else {
        !host.is_empty() && host.iter().copied().all(is_name_byte)
    };
    Some(host).filter(|_| is_valid && has_valid_port)
}

/// `reg-name` of RFC 3986.
fn is_name_byte(byte: u8) -> bool {
    matches!(
        byte,
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\''..=b',' | b';' | b'='
    )
}

fn ipv6_of(host: &str) -> Option<Ipv6Addr> {
    host.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// `scheme://host:port`; anything else, such as `null`, has no host.
fn authority_of_origin(origin: &[u8]) -> Option<&[u8]> {
    let scheme = origin.windows(3).position(|part| part == b"://")?;
    Some(&origin[scheme + 3..])
}

/// Whether it is a loopback name or address, or one of the listed ones.
fn is_own(host: &str, listed: &[Box<str>]) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    if let Some(ip) = ipv6_of(host) {
        let is_same = |name: &str| ipv6_of(name) == Some(ip);
        return ip.to_canonical().is_loopback() || listed.iter().any(|name| is_same(name));
    }
    host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
        || is_localhost(host)
        || listed.iter().any(|name| name.eq_ignore_ascii_case(host))
}

/// `localhost` and the names below it, which resolve to loopback addresses only (RFC 6761).
fn is_localhost(host: &str) -> bool {
    let parent = host.len().checked_sub("localhost".len());
    let Some((parent, name)) = parent.and_then(|at| host.split_at_checked(at)) else { return false };
    name.eq_ignore_ascii_case("localhost") && (parent.is_empty() || parent.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn listed(names: &[&str]) -> Vec<Box<str>> {
        names.iter().map(|name| Box::from(*name)).collect()
    }

    /// The field that a request is refused for.
    fn refused(policy: &HostPolicy, host: &str, origin: Option<&str>) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        headers.extend(origin.map(|origin| (header::ORIGIN, HeaderValue::from_str(origin).unwrap())));
        let error = policy.require_own(&Uri::from_static("/metrics"), &headers).err()?;
        assert_eq!(error.code(), Code::MisdirectedRequest);
        assert!(error.message().contains("server.hosts"), "{}", error.message());
        Some(error.message().split(':').next().unwrap().to_owned())
    }

    #[test]
    fn only_loopback_and_listed_names_are_own() {
        let policy = HostPolicy::new(&listed(&["gate.internal", "10.0.0.5", "[fd00::5]"]), LOOPBACK);
        for own in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.255.0.9:1",
            "localhost",
            "LocalHost:8080",
            "localhost.:80",
            "a.b.localhost",
            "[::1]",
            "[::1]:8080",
            "[0:0:0:0:0:0:0:1]:80",
            "[::ffff:127.0.0.1]",
            "gate.internal",
            "GATE.internal.:99",
            "10.0.0.5:8080",
            "[FD00:0::5]:8080",
        ] {
            assert_eq!(refused(&policy, own, None), None, "{own}");
            let origin = format!("https://{own}");
            assert_eq!(refused(&policy, "localhost", Some(&origin)), None, "{origin}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "evillocalhost",
            "127.0.0.1.evil.example",
            "127.1",
            "0.0.0.0:8080",
            "0x7f.0.0.1",
            "128.0.0.1",
            "[::]",
            "[::2]:8080",
            "gate.internal.evil.example",
            "notgate.internal",
            "10.0.0.6",
            "localhost@evil.example",
            "localhost:80:80",
            "localhost/",
        ] {
            assert_eq!(refused(&policy, foreign, None).as_deref(), Some("host"), "{foreign}");
            let origin = format!("http://{foreign}");
            assert_eq!(refused(&policy, "localhost", Some(&origin)).as_deref(), Some("origin"), "{origin}");
        }
        for foreign in [
            "null",
            "",
            "localhost",
            "file://",
            "chrome-extension://abc",
            "http://localhost http://e.example",
        ] {
            assert_eq!(refused(&policy, "localhost", Some(foreign)).as_deref(), Some("origin"), "{foreign}");
        }
    }

    #[test]
    fn names_are_checked_on_loopback_or_if_listed() {
        let checks = |listen: &str, names: &[&str]| {
            let policy = HostPolicy::new(&listed(names), listen.parse().unwrap());
            refused(&policy, "evil.example", None).is_some()
        };
        for loopback in ["127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1"] {
            assert!(checks(loopback, &[]), "{loopback}");
        }
        assert!(!checks("0.0.0.0", &[]) && !checks("10.0.0.5", &[]) && !checks("::", &[]));
        assert!(checks("0.0.0.0", &["gate.internal"]));
    }

    #[test]
    fn authority_of_the_request_line_is_checked_too() {
        let policy = HostPolicy::new(&[], LOOPBACK);
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("localhost"))]);
        let check =
            |uri: &str, headers: &HeaderMap| policy.require_own(&uri.parse().unwrap(), headers).is_ok();
        assert!(!check("http://evil.example/metrics", &headers));
        assert!(!check("http://evil.example/metrics", &HeaderMap::new()));
        assert!(!check("http://u@localhost/metrics", &HeaderMap::new()));
        assert!(check("http://127.0.0.1:8080/metrics", &headers) && check("/metrics", &HeaderMap::new()));
    }

    #[test]
    fn foreign_name_is_escaped_and_cut() {
        let policy = HostPolicy::new(&[], LOOPBACK);
        let message = |host: &[u8]| {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_bytes(host).unwrap())]);
            policy.require_own(&Uri::from_static("/"), &headers).unwrap_err().message().to_owned()
        };
        assert!(
            message(b"a\"\t\xff").starts_with(r#"host: "a\"\t\xff" is not"#),
            "{}",
            message(b"a\"\t\xff")
        );
        let long = message("x".repeat(5_000).as_bytes());
        assert!(long.len() < 200 && long.contains(&format!("{}…", "x".repeat(64))), "{long}");
    }
}
