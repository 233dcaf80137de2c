//! The client of a request, and API keys of clients.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::{Id, IdError, tag};
use crate::accounts::Key;

/// The API key of a client: an opaque secret that is never shown, or the id of a key with an account.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct ApiKey<'a> {
    text: Id<'a>,
    is_known: bool,
}

impl<'a> ApiKey<'a> {
    /// An opaque key of 1 to 256 bytes.
    ///
    /// # Errors
    /// When the text is empty or over 256 bytes.
    pub fn parse(text: &'a str) -> Result<Self, IdError> {
        Id::parse(text).map(|text| ApiKey { text, is_known: false })
    }

    /// A key with an account that was already verified. It is counted by its id, separately from an opaque key with the
    /// same text.
    pub fn known(key: Key<'a>) -> Self {
        // Accounts only have keys with valid ids.
        ApiKey { text: Id(key.id), is_known: true }
    }

    /// The id of a key with an account.
    pub fn known_id(self) -> Option<Id<'a>> {
        self.is_known.then_some(self.text)
    }

    pub(super) fn as_bytes(self) -> &'a [u8] {
        self.text.as_str().as_bytes()
    }

    /// The tag that it is counted under.
    pub(super) const fn tag(self) -> u8 {
        if self.is_known { tag::KNOWN_KEY } else { tag::API_KEY }
    }
}

impl fmt::Debug for ApiKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known_id() {
            Some(id) => f.debug_tuple("ApiKey").field(&id.as_str()).finish(),
            None => f.write_str("ApiKey(***)"),
        }
    }
}

/// The client that a request is attributed to.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client<'a> {
    /// An authenticated user.
    User(Id<'a>),
    /// The holder of an API key.
    ApiKey(ApiKey<'a>),
    /// A login name.
    Login(Id<'a>),
    /// An address.
    Ip(IpAddr),
    /// A tenant.
    Tenant(Id<'a>),
}

impl<'a> Client<'a> {
    /// Parses the display form, such as `user:alice`. Opaque API keys print as a hash, `api_key:#…`, and cannot be parsed.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (kind, value) = text.split_once(':')?;
        let id = Id::parse(value).ok();
        match kind {
            "user" => id.map(Client::User),
            "api_key" if !value.starts_with('#') => {
                id.map(|text| Client::ApiKey(ApiKey { text, is_known: true }))
            }
            "login" => id.map(Client::Login),
            "tenant" => id.map(Client::Tenant),
            "ip" => value.parse().ok().map(|ip: IpAddr| Client::Ip(ip.to_canonical())),
            _ => None,
        }
    }
}

impl fmt::Display for Client<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::User(id) => write!(f, "user:{}", id.as_str()),
            // A hash identifies an opaque key without revealing it.
            Client::ApiKey(key) => match key.known_id() {
                Some(id) => write!(f, "api_key:{}", id.as_str()),
                None => write!(f, "api_key:#{:016x}", fingerprint(*key)),
            },
            Client::Login(id) => write!(f, "login:{}", id.as_str()),
            Client::Ip(ip) => write!(f, "ip:{ip}"),
            Client::Tenant(id) => write!(f, "tenant:{}", id.as_str()),
        }
    }
}

fn fingerprint(key: ApiKey<'_>) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0x746f_6c6c, 0x6761_7465);
    hasher.write(key.as_bytes());
    hasher.finish128().h1
}
