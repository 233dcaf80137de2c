//! Hashes of the keys of windows and rollups.

use std::hash::{BuildHasher, Hasher as _};
use std::net::IpAddr;

use hashbrown::DefaultHashBuilder;
use siphasher::sip128::{Hasher128, SipHasher13};
use tollgate::identity::IpPrefixes;
use tollgate::{Client, Id, Seed};

use crate::records::codec::RowWriter;
use crate::records::delta_table::Fingerprint;
use crate::records::identifier::Identifier;

/// Hashes keys differently in every process.
pub(super) struct KeyHashing {
    windows: SipHasher13,
    rollups: DefaultHashBuilder,
}

/// The client of a window.
#[derive(Copy, Clone)]
pub(super) enum ClientKey<'a> {
    Text(TextClient, &'a str),
    Ip(IpAddr),
}

/// The kind of a client with a name.
#[derive(Copy, Clone)]
pub(super) enum TextClient {
    User,
    Login,
    Tenant,
    /// By its displayed form, `api_key:…`.
    ApiKey,
}

impl KeyHashing {
    pub(super) fn new() -> Self {
        KeyHashing {
            windows: SipHasher13::new_with_key(&Seed::random().0),
            rollups: DefaultHashBuilder::default(),
        }
    }

    /// The hash that stands for a window: nobody can construct two keys with the same one.
    pub(super) fn window(&self, key: &[u8]) -> Fingerprint {
        let mut hasher = self.windows;
        hasher.write(key);
        hasher.finish128().as_u128()
    }

    /// The key of a rollup, whose fields are compared too.
    pub(super) fn rollup(&self, texts: [Option<&str>; 4]) -> Fingerprint {
        self.rollups.hash_one(texts).into()
    }
}

/// The kind of a client, in the key of a window.
mod kind {
    pub(super) const USER: u8 = b'u';
    pub(super) const LOGIN: u8 = b'l';
    pub(super) const TENANT: u8 = b't';
    pub(super) const IPV4: u8 = b'4';
    pub(super) const IPV6: u8 = b'6';
    pub(super) const API_KEY: u8 = b'k';
}

/// Appends the key of a window, which is cheaper than its fields.
pub(super) fn write_window_key(
    out: &mut Vec<u8>,
    client: ClientKey<'_>,
    prefixes: IpPrefixes,
    tenant: Option<&str>,
    route: &str,
) {
    let mut write = |kind, client: &[u8]| {
        let lengths = [Some(client.len()), tenant.map(str::len), Some(route.len())];
        let header = KeyHeader { kind, prefixes, lengths };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(client);
        out.extend_from_slice(tenant.unwrap_or_default().as_bytes());
        out.extend_from_slice(route.as_bytes());
    };
    match client {
        ClientKey::Text(TextClient::User, name) => write(kind::USER, name.as_bytes()),
        ClientKey::Text(TextClient::Login, name) => write(kind::LOGIN, name.as_bytes()),
        ClientKey::Text(TextClient::Tenant, name) => write(kind::TENANT, name.as_bytes()),
        ClientKey::Text(TextClient::ApiKey, shown) => write(kind::API_KEY, shown.as_bytes()),
        ClientKey::Ip(IpAddr::V4(ip)) => write(kind::IPV4, &ip.octets()),
        ClientKey::Ip(IpAddr::V6(ip)) => write(kind::IPV6, &ip.octets()),
    }
}

/// Writes the fields of a window: client, tenant and route. `key` starts with its key.
pub(super) fn write_window_fields(key: &[u8], out: &mut Vec<u8>) {
    let mut fields = RowWriter::fields(out);
    // Without the fields, the row would be set aside as damaged.
    let Some((header, [client, tenant, route])) = KeyHeader::read(key) else { return };
    let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
    let id = |bytes| Id::parse(text(bytes)).ok();
    let client = match (header.kind, client) {
        (kind::USER, bytes) => id(bytes).map(Client::User),
        (kind::LOGIN, bytes) => id(bytes).map(Client::Login),
        (kind::TENANT, bytes) => id(bytes).map(Client::Tenant),
        (kind::IPV4, bytes) => bytes.first_chunk::<4>().map(|octets| Client::Ip((*octets).into())),
        (kind::IPV6, bytes) => bytes.first_chunk::<16>().map(|octets| Client::Ip((*octets).into())),
        (_, shown) => {
            fields.text(text(shown));
            None
        }
    };
    if let Some(client) = client {
        fields.display(Identifier { client, prefixes: header.prefixes });
    }
    fields.maybe_text(header.lengths[1].map(|_| text(tenant))).text(text(route));
}

/// The start of a window's key. It has the lengths of the parts, so that different keys have different bytes.
struct KeyHeader {
    kind: u8,
    prefixes: IpPrefixes,
    /// Of the client, the tenant and the route. `None` if absent.
    lengths: [Option<usize>; 3],
}

impl KeyHeader {
    fn encode(&self) -> [u8; 16] {
        let [client, tenant, route] = self.lengths.map(|length| {
            // Requests are bounded: no part is that long.
            u128::from(length.and_then(|length| u32::try_from(length).ok()).unwrap_or(u32::MAX))
        });
        let IpPrefixes { ipv4, ipv6 } = self.prefixes;
        let header = u128::from(self.kind) | (u128::from(ipv4) << 8) | (u128::from(ipv6) << 16);
        (header | (client << 32) | (tenant << 64) | (route << 96)).to_le_bytes()
    }

    /// The header and the parts of a key.
    fn read(key: &[u8]) -> Option<(Self, [&[u8]; 3])> {
        let (header, rest) = key.split_first_chunk::<16>()?;
        let [kind, ipv4, ipv6, ..] = *header;
        let header = u128::from_le_bytes(*header);
        let lengths = [32, 64, 96].map(|shift| {
            let length = u32::try_from((header >> shift) & u128::from(u32::MAX)).unwrap_or(u32::MAX);
            Some(length as usize).filter(|_| length != u32::MAX)
        });
        let (client, rest) = rest.split_at_checked(lengths[0].unwrap_or(0))?;
        let (tenant, rest) = rest.split_at_checked(lengths[1].unwrap_or(0))?;
        let (route, _) = rest.split_at_checked(lengths[2].unwrap_or(0))?;
        Some((KeyHeader { kind, prefixes: IpPrefixes { ipv4, ipv6 }, lengths }, [client, tenant, route]))
    }
}

#[cfg(test)]
mod tests {
    use tollgate::ApiKey;
    use tollgate::Request;
    use tollgate::endpoint::Endpoint;

    use super::super::batch::{Batch, CountedDecision};
    use super::*;
    use crate::records::codec::WindowKey;

    #[test]
    fn different_windows_have_different_keys() {
        let hashing = KeyHashing::new();
        let key = |user: &str, tenant: Option<&str>, route: &str| {
            let mut key = Vec::new();
            let client = ClientKey::Text(TextClient::User, user);
            write_window_key(&mut key, client, IpPrefixes::DEFAULT, tenant, route);
            hashing.window(&key)
        };
        let keys = [
            key("alice", None, "/a"),
            key("alic", Some("e"), "/a"),
            key("alic", None, "e/a"),
            key("alice", Some("/"), "a"),
            key("alice", Some(""), "/a"),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_eq!(keys[0], key("alice", None, "/a"));
    }

    #[test]
    fn key_becomes_the_fields() {
        let id = |text| Some(Id::parse(text).unwrap());
        let request = || Request::new(Endpoint::parse("/").unwrap());
        let requests = [
            Request { user: id("alice"), ..request() },
            Request { login: id("bob"), ..request() },
            Request { tenant: id("acme"), ..request() },
            Request { ip: Some("192.0.2.1".parse().unwrap()), ..request() },
            Request { ip: Some("2001:db8:1:2::3".parse().unwrap()), ..request() },
            Request { api_key: Some(ApiKey::parse("secret").unwrap()), ..request() },
        ];
        for (request, tenant) in requests.iter().zip([None, Some("acme")].into_iter().cycle()) {
            let identifier = Identifier::of(request, IpPrefixes::DEFAULT).unwrap();
            let mut batch = Batch::default();
            batch.push(CountedDecision::ALLOWED, identifier, tenant, "/api/7", None);
            let decision = batch.decisions().next().unwrap();
            let (mut key, mut fields) = (Vec::new(), Vec::new());
            write_window_key(&mut key, decision.client, decision.prefixes, decision.tenant, "/api/*");
            key.extend_from_slice(b"the next key");
            write_window_fields(&key, &mut fields);
            let read = WindowKey::read(&fields).unwrap();
            assert_eq!(
                (read.identifier, read.tenant, read.route),
                (&*identifier.to_string(), tenant, "/api/*")
            );
        }
    }
}
