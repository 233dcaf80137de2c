//! Identifiers: the facts of a request, the client that it is attributed to, and the subjects that are counted.

mod address;
mod client;
mod client_address;
mod in_tenant;
mod normal_form;
mod normalization;
mod siphash;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

pub(crate) use self::address::canonical_net;
pub use self::address::{IpPrefixes, counted_ip, nat64_to_ipv4};
pub use self::client::{ApiKey, Client};
pub use self::client_address::{AddressError, AddressSource, ClientAddressPolicy};
pub use self::in_tenant::InTenant;
pub use self::normal_form::NormalForm;
pub(crate) use self::normal_form::casefold_path_char;
pub use self::normalization::{
    DescriptorNormalization, HeadCounting, IdNormalization, Normalization, NormalizationError, Scratch,
};
use self::siphash::SipHasher;
use crate::endpoint::Endpoint;
use crate::limit::Limit;
use crate::method::Method;

/// The maximum length of an identifier in bytes.
pub const ID_BYTES_MAX: usize = 256;

/// An opaque identifier of 1 to 256 bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Id<'a>(&'a str);

/// Why a text is not an identifier.
#[non_exhaustive]
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty.
    #[error("must not be empty")]
    Empty,
    /// More than [`ID_BYTES_MAX`] bytes.
    #[error("must be at most 256 bytes")]
    TooLong,
}

impl<'a> Id<'a> {
    /// Checks the length.
    ///
    /// # Errors
    /// When the text is empty or over 256 bytes.
    pub fn parse(text: &'a str) -> Result<Self, IdError> {
        match text.len() {
            0 => Err(IdError::Empty),
            1..=ID_BYTES_MAX => Ok(Id(text)),
            _ => Err(IdError::TooLong),
        }
    }

    /// The text.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

/// The validated facts of one request: what rules match and count by.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The endpoint, in its normal form.
    pub endpoint: Endpoint<'a>,
    /// The method; unknown methods are `OTHER`.
    pub method: Option<Method>,
    /// The authenticated user.
    pub user: Option<Id<'a>>,
    /// The tenant that the user belongs to.
    pub tenant: Option<Id<'a>>,
    /// The client's API key. It is hashed before anything is stored.
    pub api_key: Option<ApiKey<'a>>,
    /// Whether the API key is what the client claims, and nobody has verified it.
    pub unverified_key: bool,
    /// The name used in a login attempt.
    pub login: Option<Id<'a>>,
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The client's tier.
    pub tier: Option<Id<'a>>,
    /// The number of units to charge; zero charges nothing.
    pub cost: u32,
    /// Custom facts by name.
    pub descriptors: &'a [(Id<'a>, Id<'a>)],
    /// A limit that replaces that of the matching rule, for this request only.
    pub limit_override: Option<&'a Limit>,
}

impl<'a> Request<'a> {
    /// A request of cost 1 without a client.
    pub fn new(endpoint: Endpoint<'a>) -> Self {
        Request {
            endpoint,
            method: None,
            user: None,
            tenant: None,
            api_key: None,
            unverified_key: false,
            login: None,
            ip: None,
            tier: None,
            cost: 1,
            descriptors: &[],
            limit_override: None,
        }
    }

    /// The client: the user, or else the API key, the login, the address or the tenant.
    pub fn client(&self) -> Option<Client<'a>> {
        (self.user.map(Client::User))
            .or(self.api_key.map(Client::ApiKey))
            .or(self.login.map(Client::Login))
            .or(self.ip.map(|ip| Client::Ip(ip.to_canonical())))
            .or(self.tenant.map(Client::Tenant))
    }

    /// The address, if rules that count by client count it beside the client. Anyone can send any login name or unverified
    /// API key, so a limit on these alone does not limit the sender.
    pub fn address_beside_client(&self) -> Option<Client<'a>> {
        let is_claimed = match self.client()? {
            Client::Login(_) => true,
            Client::ApiKey(_) => self.unverified_key,
            _ => false,
        };
        self.ip.filter(|_| is_claimed).map(|ip| Client::Ip(ip.to_canonical()))
    }

    /// The value of a descriptor.
    pub fn descriptor(&self, name: &str) -> Option<Id<'a>> {
        self.descriptors.iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| *value)
    }
}

/// A dimension that rules count by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// All requests together.
    Global,
    /// The client: see [`Request::client`].
    Client,
    /// The address; for IPv6 its prefix.
    Ip,
    /// The tenant.
    Tenant,
    /// The user.
    User,
    /// The API key.
    ApiKey,
    /// The login name.
    Login,
    /// The endpoint.
    Endpoint,
    /// The method.
    Method,
    /// A descriptor by name.
    Descriptor(Box<str>),
}

impl Dimension {
    /// The dimensions without a parameter, by the name used in configuration.
    const NAMED: [(&'static str, Dimension); 9] = [
        ("global", Dimension::Global),
        ("client", Dimension::Client),
        ("ip", Dimension::Ip),
        ("tenant", Dimension::Tenant),
        ("user", Dimension::User),
        ("api_key", Dimension::ApiKey),
        ("login", Dimension::Login),
        ("endpoint", Dimension::Endpoint),
        ("method", Dimension::Method),
    ];

    /// Parses the name used in configuration.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some((_, dimension)) = Self::NAMED.into_iter().find(|(name, _)| *name == text) {
            return Some(dimension);
        }
        let name = text.strip_prefix("descriptor:").filter(|name| !name.is_empty())?;
        Some(Dimension::Descriptor(name.into()))
    }

    /// Whether it counts exactly this client.
    pub fn is_id_of(&self, client: Client<'_>) -> bool {
        matches!(
            (self, client),
            (Dimension::Client, _)
                | (Dimension::User, Client::User(_))
                | (Dimension::ApiKey, Client::ApiKey(_))
                | (Dimension::Login, Client::Login(_))
                | (Dimension::Ip, Client::Ip(_))
                | (Dimension::Tenant, Client::Tenant(_))
        )
    }

    /// Whether its values are identities that live inside a tenant.
    pub(crate) fn is_within_tenant(&self) -> bool {
        self.identifies_client() || matches!(self, Dimension::Descriptor(_))
    }

    /// Whether it distinguishes single clients.
    pub fn identifies_client(&self) -> bool {
        matches!(
            self,
            Dimension::Client | Dimension::Ip | Dimension::User | Dimension::ApiKey | Dimension::Login
        )
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Dimension::Descriptor(name) = self {
            return write!(f, "descriptor:{name}");
        }
        let found = Dimension::NAMED.into_iter().find(|(_, dimension)| dimension == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// What one counter counts: a keyed 128-bit hash of the values that a rule counts by.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject(pub u128);

/// The secret key of the subject hashes. Without it, a client cannot construct collisions.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct Seed(pub [u8; 16]);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(***)")
    }
}

impl Seed {
    /// A random seed, from the randomness of the standard library's hash maps.
    pub fn random() -> Self {
        let random = || RandomState::new().build_hasher().finish().to_le_bytes();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random());
        bytes[8..].copy_from_slice(&random());
        Seed(bytes)
    }
}

/// The tenant of a request, for stores. It is hashed only when needed.
#[derive(Copy, Clone, Debug)]
pub struct Tenant<'a> {
    id: Id<'a>,
    seed: Seed,
}

impl<'a> Tenant<'a> {
    /// The tenant with this id.
    pub fn new(id: Id<'a>, seed: Seed) -> Self {
        Tenant { id, seed }
    }

    /// The subject of the tenant.
    pub fn subject(self) -> Subject {
        let mut values = SubjectHasher::new(self.seed);
        values.push_bytes(tag::TENANT, self.id.as_str().as_bytes());
        values.subject()
    }
}

/// Hashes the values of a subject. Each value is prefixed with its kind and length, so that different lists of values
/// cannot have the same encoding.
#[derive(Copy, Clone)]
pub struct SubjectHasher(SipHasher);

impl fmt::Debug for SubjectHasher {
    /// Hides the state, which may contain an API key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubjectHasher(***)")
    }
}

impl SubjectHasher {
    /// A hasher without values.
    #[inline]
    pub fn new(seed: Seed) -> Self {
        SubjectHasher(SipHasher::new(seed.0))
    }

    /// The subject of the values so far.
    #[inline]
    pub fn subject(self) -> Subject {
        Subject(self.0.finish())
    }

    /// Adds the request's value of `dimension`. False if the request has none.
    pub fn push(&mut self, dimension: &Dimension, request: &Request<'_>, prefixes: IpPrefixes) -> bool {
        let (tag, value) = match dimension {
            Dimension::Global => (tag::GLOBAL, Some(b"".as_slice())),
            Dimension::Client => {
                return request.client().map(|client| self.push_client(client, prefixes)).is_some();
            }
            Dimension::Ip => return request.ip.map(|ip| self.push_ip(ip, prefixes)).is_some(),
            Dimension::Tenant => (tag::TENANT, id_bytes(request.tenant)),
            Dimension::User => (tag::USER, id_bytes(request.user)),
            Dimension::ApiKey => match request.api_key {
                Some(key) => (key.tag(), Some(key.as_bytes())),
                None => return false,
            },
            Dimension::Login => (tag::LOGIN, id_bytes(request.login)),
            Dimension::Endpoint => (tag::ENDPOINT, Some(request.endpoint.as_str().as_bytes())),
            Dimension::Method => {
                (tag::METHOD, request.method.map(|method| method.counted().as_str().as_bytes()))
            }
            Dimension::Descriptor(name) => {
                let value = request.descriptor(name);
                if value.is_some() {
                    self.push_bytes(tag::DESCRIPTOR, name.as_bytes());
                }
                (tag::DESCRIPTOR, id_bytes(value))
            }
        };
        value.map(|value| self.push_bytes(tag, value)).is_some()
    }

    /// Adds the tenant that the values which follow belong to. Without a tenant nothing changes.
    #[inline]
    pub fn push_tenant(&mut self, tenant: Option<&str>) {
        if let Some(tenant) = tenant {
            self.push_bytes(tag::TENANT, tenant.as_bytes());
        }
    }

    /// Adds a client inside its tenant. A tenant that is the client itself is added once.
    #[inline]
    pub(crate) fn push_client_in(
        &mut self,
        tenant: Option<Id<'_>>,
        client: Client<'_>,
        prefixes: IpPrefixes,
    ) {
        if !matches!(client, Client::Tenant(_)) {
            self.push_tenant(tenant.map(Id::as_str));
        }
        self.push_client(client, prefixes);
    }

    /// Adds a client.
    #[inline]
    pub fn push_client(&mut self, client: Client<'_>, prefixes: IpPrefixes) {
        match client {
            Client::User(id) => self.push_bytes(tag::USER, id.as_str().as_bytes()),
            Client::ApiKey(key) => self.push_bytes(key.tag(), key.as_bytes()),
            Client::Login(id) => self.push_bytes(tag::LOGIN, id.as_str().as_bytes()),
            Client::Tenant(id) => self.push_bytes(tag::TENANT, id.as_str().as_bytes()),
            Client::Ip(ip) => self.push_ip(ip, prefixes),
        }
    }

    #[inline]
    fn push_ip(&mut self, ip: IpAddr, prefixes: IpPrefixes) {
        match counted_ip(ip, prefixes) {
            IpAddr::V4(v4) => self.push_bytes(tag::IP, &v4.octets()),
            IpAddr::V6(v6) => self.push_bytes(tag::IP, &v6.octets()),
        }
    }

    /// Adds raw bytes with a tag.
    #[inline]
    pub(crate) fn push_bytes(&mut self, tag: u8, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.word(u64::from(length) << 8 | u64::from(tag), 5);
        self.0.write(bytes);
    }
}

fn id_bytes(id: Option<Id<'_>>) -> Option<&[u8]> {
    id.map(|id| id.as_str().as_bytes())
}

/// The tags of values. Stored counters depend on them: never change one.
pub(crate) mod tag {
    pub(crate) const GLOBAL: u8 = 1;
    pub(crate) const IP: u8 = 2;
    pub(crate) const TENANT: u8 = 3;
    pub(crate) const USER: u8 = 4;
    pub(crate) const API_KEY: u8 = 5;
    pub(crate) const LOGIN: u8 = 6;
    pub(crate) const ENDPOINT: u8 = 7;
    pub(crate) const METHOD: u8 = 8;
    pub(crate) const DESCRIPTOR: u8 = 9;
    pub(crate) const OVERRIDE: u8 = 12;
    pub(crate) const KNOWN_KEY: u8 = 13;
}

#[cfg(test)]
mod tests {
    use siphasher::sip128::SipHasher13;

    use super::*;

    fn subject(request: &Request<'_>, per: &[&str]) -> Option<Subject> {
        let mut values = SubjectHasher::new(Seed([7; 16]));
        for name in per {
            if !values.push(&Dimension::parse(name).unwrap(), request, IpPrefixes::DEFAULT) {
                return None;
            }
        }
        Some(values.subject())
    }

    fn request<'a>(user: &'a str, tenant: &'a str) -> Request<'a> {
        Request {
            user: Some(Id::parse(user).unwrap()),
            tenant: Some(Id::parse(tenant).unwrap()),
            ..Request::new(Endpoint::parse("/a").unwrap())
        }
    }

    #[test]
    fn different_value_lists_have_different_subjects() {
        let per = &["user", "tenant"];
        let pairs = [("a:b", "c"), ("a", "b:c"), ("a:b:c", "}"), ("}", "a:b:c"), ("a\0", "c"), ("a", "\0c")];
        // Values that contain the tag of the next one.
        let pairs = pairs.into_iter().chain([("a\u{3}b", "c"), ("a", "b\u{3}c")]);
        let subjects: std::collections::HashSet<_> =
            pairs.map(|(user, tenant)| subject(&request(user, tenant), per).unwrap()).collect();
        assert_eq!(subjects.len(), 8);
    }

    #[test]
    fn long_value_lists_have_different_subjects() {
        let per = &["user", "tenant"];
        let long = "x".repeat(256);
        let same = subject(&request(&long, &long), per);
        assert_eq!(subject(&request(&long, &long), per), same);
        for (user, tenant) in [(&long[..255], &long[..]), (&long[..], &long[..255]), (&long[..100], "y")] {
            assert_ne!(subject(&request(user, tenant), per), same);
        }
    }

    #[test]
    fn subject_encoding_is_stable() {
        // Stored counters depend on it.
        let bytes = [b"\x04\x05\0\0\0alice".as_slice(), b"\x03\x04\0\0\0acme"].concat();
        let hash = SipHasher13::new_with_key(&[7; 16]).hash(&bytes).as_u128();
        assert_eq!(subject(&request("alice", "acme"), &["user", "tenant"]), Some(Subject(hash)));
    }

    #[test]
    fn ipv6_addresses_of_a_64_share_a_subject() {
        let mut addresses = Request::new(Endpoint::parse("/").unwrap());
        let of = |request: &mut Request<'_>, ip: &str| {
            request.ip = Some(ip.parse().unwrap());
            subject(request, &["ip"]).unwrap()
        };
        let first = of(&mut addresses, "2001:db8::1");
        for n in 2..10_000_u32 {
            assert_eq!(of(&mut addresses, &format!("2001:db8::{:x}:{:x}", n % 7, n)), first);
        }
        assert_ne!(of(&mut addresses, "2001:db8:0:1::1"), first);
    }

    #[test]
    fn prefixes_are_set_by_family() {
        let prefixes = IpPrefixes { ipv4: 24, ipv6: 48 };
        for (ip, counted) in [
            ("192.0.2.33", "192.0.2.0"),
            ("::ffff:192.0.2.33", "192.0.2.0"),
            ("2001:db8:1:2::3", "2001:db8:1::"),
        ] {
            let (ip, counted): (IpAddr, IpAddr) = (ip.parse().unwrap(), counted.parse().unwrap());
            assert_eq!(counted_ip(ip, prefixes), counted);
            assert_eq!(counted_ip(ip, IpPrefixes { ipv4: 32, ipv6: 128 }), ip.to_canonical());
            assert!(counted_ip(ip, IpPrefixes { ipv4: 0, ipv6: 0 }).is_unspecified());
        }
    }

    #[test]
    fn nat64_addresses_map_to_ipv4() {
        for (ip, meant) in [
            ("64:ff9b::192.0.2.33", "192.0.2.33"),
            ("64:ff9b::", "0.0.0.0"),
            ("64:ff9b::1:192.0.2.33", "64:ff9b::1:192.0.2.33"),
            ("64:ff9b:1::192.0.2.33", "64:ff9b:1::192.0.2.33"),
            ("64:ff9c::192.0.2.33", "64:ff9c::192.0.2.33"),
            ("2002:c000:221::", "2002:c000:221::"),
            ("192.0.2.33", "192.0.2.33"),
        ] {
            assert_eq!(nat64_to_ipv4(ip.parse().unwrap()), meant.parse::<IpAddr>().unwrap(), "{ip}");
        }
    }

    #[test]
    fn mapped_addresses_equal_ipv4() {
        let mut addresses = Request::new(Endpoint::parse("/").unwrap());
        addresses.ip = Some("::ffff:192.0.2.1".parse().unwrap());
        let mapped = subject(&addresses, &["ip"]);
        addresses.ip = Some("192.0.2.1".parse().unwrap());
        assert_eq!(subject(&addresses, &["ip"]), mapped);
    }

    #[test]
    fn ids_are_at_most_256_bytes() {
        for (length, ok) in [(0, false), (1, true), (255, true), (256, true), (257, false), (1 << 20, false)]
        {
            assert_eq!(Id::parse(&"x".repeat(length)).is_ok(), ok, "{length} bytes");
        }
    }

    #[test]
    fn ids_are_byte_exact() {
        let per = &["user"];
        assert_ne!(subject(&request("Alice", "t"), per), subject(&request("alice", "t"), per));
        assert_ne!(subject(&request("\u{e9}", "t"), per), subject(&request("e\u{301}", "t"), per));
    }

    #[test]
    fn api_keys_are_not_printed() {
        let client = Client::ApiKey(ApiKey::parse("tg_secret_canary").unwrap());
        assert!(!format!("{client} {client:?}").contains("canary"));
    }
}
