//! Headers on their way through the proxy: what ends here, what is added, and what a client must not set.

use std::net::IpAddr;

use http::header::{
    CONNECTION, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Uri};
use tollgate::headers::HeaderProfile;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Headers of one connection, which are not forwarded (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

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
    pub(super) peer: IpAddr,
    /// The client, by `identity.client_address`.
    pub(super) client: IpAddr,
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
    let mut named: Vec<HeaderName> = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for option in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            let Ok(name) = HeaderName::from_bytes(option) else { continue };
            let text = name.as_str();
            if END_TO_END.contains(&text) || text.starts_with("x-forwarded-") {
                return Err(ConnectionNamesEndToEnd(text.into()));
            }
            named.push(name);
        }
    }
    let wants_trailers = headers.get_all(TE).iter().any(accepts_trailers);
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// Removes the headers of a connection from a response.
pub(super) fn remove_hop_by_hop_of_response(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|option| HeaderName::from_bytes(option.trim_ascii()).ok())
        .filter(|name| !END_TO_END.contains(&name.as_str()))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn accepts_trailers(value: &HeaderValue) -> bool {
    let mut codings = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    codings.any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// The protocol that a request asks to switch to, if any.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let has_option = headers.get_all(CONNECTION).iter().any(|value| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    headers.get(UPGRADE).filter(|_| has_option).cloned()
}

/// Asks the other side to switch protocols.
pub(super) fn request_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Sets the forwarding headers. Those of a peer that is not trusted are replaced, those of a trusted proxy continued.
pub(super) fn set_forwarded(headers: &mut HeaderMap, hop: &Hop<'_>) {
    let peer = text(hop.peer);
    let chain = match joined(headers, &X_FORWARDED_FOR).filter(|_| hop.is_trusted) {
        Some(chain) => {
            HeaderValue::from_bytes(&[chain.as_slice(), b", ", peer.as_bytes()].concat()).unwrap_or(peer)
        }
        None => peer,
    };
    headers.insert(X_FORWARDED_FOR, chain);
    if !hop.is_trusted {
        headers.remove(X_FORWARDED_HOST);
        headers.remove(X_FORWARDED_PROTO);
        headers.remove(FORWARDED);
    }
    let proto = HeaderValue::from_static(if hop.is_tls { "https" } else { "http" });
    headers.entry(X_FORWARDED_PROTO).or_insert(proto);
    if let Some(host) = hop.host {
        headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
    headers.insert(X_REAL_IP, text(hop.client));
}

/// All values of a header, as one.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let values: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    (!values.is_empty()).then(|| values.join(&b", "[..]))
}

fn text(ip: IpAddr) -> HeaderValue {
    // An address has only characters of a header value.
    HeaderValue::from_str(&ip.to_string()).unwrap_or(HeaderValue::from_static("unknown"))
}

/// The host of a request: `Host`, or `:authority` of HTTP/2.
pub(super) fn host_of(headers: &HeaderMap, uri: &Uri) -> Option<HeaderValue> {
    let authority = || HeaderValue::from_str(uri.authority()?.as_str()).ok();
    headers.get(HOST).cloned().or_else(authority)
}

/// Removes the headers of a response that only tollgate may set.
pub(super) fn remove_rate_limit_headers(headers: &mut HeaderMap, profiles: &[HeaderProfile]) {
    for field in profiles.iter().flat_map(|profile| profile.fields()) {
        headers.remove(field.as_str());
    }
}
