//! The one a request is attributed to, and the API keys of limited clients.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::{Id, IdError, tag};
use crate::accounts::Key;

/// The API key of a limited client: text that is counted by and never shown, or a key that is known by its id.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct ApiKey<'a> {
    text: Id<'a>,
    is_known: bool,
}

impl<'a> ApiKey<'a> {
    /// Checks the length; every byte is kept.
    ///
    /// # Errors
    /// When the text is empty or over 256 bytes.
    pub fn parse(text: &'a str) -> Result<Self, IdError> {
        Id::parse(text).map(|text| ApiKey { text, is_known: false })
    }

    /// A key of the accounts, whose holder was checked: counted by its id. The same text as an opaque key is somebody
    /// else.
    pub fn known(key: Key<'a>) -> Self {
        // Every key in the accounts has an id of the right length.
        ApiKey { text: Id(key.id()), is_known: true }
    }

    /// The id of a known key.
    pub fn known_id(self) -> Option<Id<'a>> {
        self.is_known.then_some(self.text)
    }

    pub(super) fn as_bytes(self) -> &'a [u8] {
        self.text.as_str().as_bytes()
    }

    /// What kind of value it is counted as.
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

/// The one a request is attributed to.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client<'a> {
    /// An authenticated user.
    User(Id<'a>),
    /// The holder of an API key.
    ApiKey(ApiKey<'a>),
    /// The account of a login attempt.
    Login(Id<'a>),
    /// An address.
    Ip(IpAddr),
    /// An organisation as a whole.
    Tenant(Id<'a>),
}

impl<'a> Client<'a> {
    /// Reads the form that [`Client`] prints, `user:alice`. Of API keys only known ones can be read back, `api_key:<id>`:
    /// the others print as a hash, `api_key:#…`.
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
            // An opaque key is a secret: what is shown identifies it without revealing it.
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
