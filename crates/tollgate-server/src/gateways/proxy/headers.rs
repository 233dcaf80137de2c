//! Headers on their way through the proxy: what ends here, what is added, and what a client must not set.

use http::header::{
    CONNECTION, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use tollgate::headers::HeaderProfile;

use crate::http::request_id::REQUEST_ID;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Headers of one connection, which are not forwarded (RFC 9110, 7.6.1).
static HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The lengths of the names in [`HOP_BY_HOP`], as bits. They exclude most other headers without a comparison.
const HOP_BY_HOP_LENGTHS: u32 = 1 << 2 | 1 << 7 | 1 << 10 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 19;

/// Headers in which upstreams trust the proxy.
static SET_BY_PROXY: [HeaderName; 6] =
    [X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, X_REAL_IP, FORWARDED, REQUEST_ID];

/// Headers that `Connection` must not name: removing them would change what the upstream authenticates or counts.
const END_TO_END: [&str; 9] = [
    "host",
    "content-length",
    "content-type",
    "authorization",
    "cookie",
    "forwarded",
    "x-real-ip",
    "x-request-id",
    "x-api-key",
];

/// `Connection` names a header that must reach the upstream.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("must not name {0}, which is not a header of the connection")]
pub(super) struct ConnectionNamesEndToEnd(pub(super) Box<str>);

/// How the client is connected.
pub(super) struct Hop<'a> {
    pub(super) peer: HeaderValue,
    /// The client, by `identity.client_address`.
    pub(super) client: HeaderValue,
    /// Whether the forwarding headers of the peer are believed.
    pub(super) is_trusted: bool,
    pub(super) is_tls: bool,
    /// The host that the client asked for.
    pub(super) host: Option<&'a HeaderValue>,
}

/// Removes the headers of a connection. `TE: trailers`, which gRPC needs, stays.
///
/// # Errors
/// When `Connection` names a header that must be forwarded.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) -> Result<(), ConnectionNamesEndToEnd> {
    let present = HopByHop::of(headers);
    let mut named: Vec<HeaderName> = Vec::new();
    for value in present.values(headers, &CONNECTION) {
        for option in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            let Some(name) = named_header(option) else { continue };
            let text = name.as_str();
            if END_TO_END.contains(&text) || text.starts_with("x-forwarded-") {
                return Err(ConnectionNamesEndToEnd(text.into()));
            }
            named.push(name);
        }
    }
    let wants_trailers = present.values(headers, &TE).any(accepts_trailers);
    present.remove_from(headers, &named);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// Removes the headers of a connection from a response.
pub(super) fn remove_hop_by_hop_of_response(headers: &mut HeaderMap) {
    let present = HopByHop::of(headers);
    let mut named: Vec<HeaderName> = Vec::new();
    for value in present.values(headers, &CONNECTION).filter(|value| !is_usual(value.as_bytes())) {
        let options = value.as_bytes().split(|byte| *byte == b',');
        let listed = options.filter_map(|option| named_header(option.trim_ascii()));
        named.extend(listed.filter(|name| !END_TO_END.contains(&name.as_str())));
    }
    present.remove_from(headers, &named);
}

/// The header that an option of `Connection` names.
fn named_header(option: &[u8]) -> Option<HeaderName> {
    if is_usual(option) {
        return None;
    }
    HeaderName::from_bytes(option).ok()
}

/// Whether an option of `Connection` is one of those that name no header but those of [`HOP_BY_HOP`].
fn is_usual(option: &[u8]) -> bool {
    let usual: [&[u8]; 3] = [b"keep-alive", b"close", b"upgrade"];
    usual.iter().any(|usual| option.eq_ignore_ascii_case(usual))
}

/// Which of [`HOP_BY_HOP`] are present, by bit. One pass finds them all: a lookup each would take longer.
#[derive(Copy, Clone)]
struct HopByHop(u8);

impl HopByHop {
    fn of(headers: &HeaderMap) -> Self {
        let position = |name: &HeaderName| {
            let length = u32::try_from(name.as_str().len()).unwrap_or(u32::MAX);
            let is_possible = HOP_BY_HOP_LENGTHS & 1_u32.checked_shl(length).unwrap_or(0) != 0;
            HOP_BY_HOP.iter().position(|other| is_possible && other == name)
        };
        HopByHop(headers.keys().filter_map(position).fold(0, |present, index| present | 1 << index))
    }

    fn names(self) -> impl Iterator<Item = &'static HeaderName> {
        HOP_BY_HOP.iter().enumerate().filter(move |(index, _)| self.0 & 1 << index != 0).map(|(_, name)| name)
    }

    /// The values of one of them.
    fn values<'h>(self, headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h HeaderValue> {
        self.names().find(|present| *present == name).into_iter().flat_map(|name| headers.get_all(name))
    }

    /// Removes them, and those that `Connection` names.
    fn remove_from(self, headers: &mut HeaderMap, named: &[HeaderName]) {
        for name in self.names() {
            headers.remove(name);
        }
        for name in named {
            headers.remove(name);
        }
    }
}

fn accepts_trailers(value: &HeaderValue) -> bool {
    let mut codings = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    codings.any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// The protocol that a request asks to switch to, if any.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let has_option = headers.get_all(CONNECTION).iter().any(|value| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    has_option.then(|| protocol.clone())
}

/// Asks the other side to switch protocols.
pub(super) fn request_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Sets the forwarding headers. Those of a peer that is not trusted are replaced, those of a trusted proxy continued.
pub(super) fn set_forwarded(headers: &mut HeaderMap, hop: Hop<'_>) {
    remove_aliases(headers);
    let Hop { peer, client, .. } = hop;
    let proto = HeaderValue::from_static(if hop.is_tls { "https" } else { "http" });
    headers.reserve(SET_BY_PROXY.len());
    if hop.is_trusted {
        let chain = joined(headers, &X_FORWARDED_FOR);
        let chain = chain.map(|chain| [chain.as_slice(), b", ", peer.as_bytes()].concat());
        let chain = chain.and_then(|chain| HeaderValue::from_bytes(&chain).ok());
        headers.insert(X_FORWARDED_FOR, chain.unwrap_or(peer));
        headers.entry(X_FORWARDED_PROTO).or_insert(proto);
        if let Some(host) = hop.host {
            headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
        }
    } else {
        headers.remove(FORWARDED);
        headers.insert(X_FORWARDED_FOR, peer);
        headers.insert(X_FORWARDED_PROTO, proto);
        match hop.host {
            Some(host) => drop(headers.insert(X_FORWARDED_HOST, host.clone())),
            None => drop(headers.remove(X_FORWARDED_HOST)),
        }
    }
    headers.insert(X_REAL_IP, client);
}

/// Removes headers such as `X_Forwarded_For`, which CGI and WSGI servers take for `X-Forwarded-For`.
fn remove_aliases(headers: &mut HeaderMap) {
    let is_alias = |name: &&HeaderName| {
        let text = name.as_str();
        text.contains('_') && SET_BY_PROXY.iter().any(|set| *set == *text.replace('_', "-"))
    };
    let aliases: Vec<HeaderName> = headers.keys().filter(is_alias).cloned().collect();
    for name in aliases {
        headers.remove(name);
    }
}

/// Removes trailers that an upstream could take for headers of the proxy.
pub(super) fn remove_spoofed_trailers(trailers: &mut HeaderMap) {
    for name in SET_BY_PROXY.iter().chain(&HOP_BY_HOP) {
        trailers.remove(name);
    }
    remove_aliases(trailers);
}

/// All values of a header, as one.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let values: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    (!values.is_empty()).then(|| values.join(&b", "[..]))
}

/// Removes the headers of a response that only tollgate may set.
pub(super) fn remove_rate_limit_headers(headers: &mut HeaderMap, profiles: &[HeaderProfile]) {
    let fields = || profiles.iter().flat_map(|profile| profile.fields());
    let is_field = |name: &&HeaderName| {
        let name = name.as_str();
        // Most other names differ in the first letter.
        name.starts_with(['x', 'r']) && fields().any(|field| field.as_str() == name)
    };
    while let Some(name) = headers.keys().find(is_field).cloned() {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_hop_by_hop_headers() {
        let lengths = HOP_BY_HOP.iter().fold(0, |lengths, name| lengths | 1 << name.as_str().len());
        assert_eq!(lengths, HOP_BY_HOP_LENGTHS);
    }

    #[test]
    fn rate_limit_headers_of_upstreams_are_removed() {
        for profile in HeaderProfile::ALL {
            for field in profile.fields() {
                let mut headers = HeaderMap::new();
                for name in [field.as_str(), "x-other", "etag"] {
                    headers.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
                }
                remove_rate_limit_headers(&mut headers, &[profile]);
                assert!(!headers.contains_key(field.as_str()) && headers.len() == 2, "{field:?}");
            }
        }
    }
}
