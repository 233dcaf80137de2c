//! The parts of a token, before anything in them is verified.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::JwtError;
use super::keys::KID_BYTES_MAX;

/// Maximum size of a token.
pub(crate) const TOKEN_BYTES_MAX: usize = 8 << 10;

/// A token in compact serialization, split and decoded.
pub(super) struct UnverifiedToken<'t> {
    /// The bytes that are signed.
    pub(super) message: &'t str,
    /// The signature, in base64url.
    pub(super) signature: &'t str,
    header: Vec<u8>,
    claims: Vec<u8>,
}

impl<'t> UnverifiedToken<'t> {
    pub(super) fn parse(token: &'t str) -> Result<Self, JwtError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(JwtError::TooLarge);
        }
        match token.bytes().filter(|byte| *byte == b'.').count() {
            2 => {}
            4 => return Err(JwtError::Encrypted),
            _ => return Err(JwtError::Malformed("it must have three parts, separated by dots")),
        }
        let malformed = || JwtError::Malformed("a part is not base64url without padding");
        let (message, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, claims) = message.split_once('.').ok_or_else(malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed());
        Ok(UnverifiedToken { message, signature, header: decode(header)?, claims: decode(claims)? })
    }

    pub(super) fn header(&self) -> Result<Header, JwtError> {
        Header::new(&Members::parse(&self.header)?)
    }

    pub(super) fn claims(&self) -> Result<Members<'_>, JwtError> {
        Members::parse(&self.claims)
    }
}

/// The parts of the header that are used. `jku`, `jwk`, `x5u` and `x5c` are ignored: keys come from the settings.
pub(super) struct Header {
    pub(super) algorithm: String,
    pub(super) key_id: Option<String>,
}

impl Header {
    fn new(members: &Members<'_>) -> Result<Self, JwtError> {
        // RFC 7515, 4.1.11: a token with an extension that is not understood is invalid, and none is.
        if members.has("crit") {
            return Err(JwtError::Malformed("its header has crit, but no extension is supported"));
        }
        let algorithm = members.text("alg").ok().flatten();
        let algorithm = algorithm.ok_or(JwtError::Malformed("its header has no alg"))?;
        match members.text("kid") {
            Ok(key_id) if key_id.as_ref().is_none_or(|id| id.len() <= KID_BYTES_MAX) => {
                Ok(Header { algorithm, key_id })
            }
            _ => Err(JwtError::Malformed("its kid is not a string of at most 256 bytes")),
        }
    }
}

/// A member is not a string.
pub(super) struct NotText;

/// The members of a JSON object. Each name occurs once, so that no other reader sees another value.
pub(super) struct Members<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl<'a> Members<'a> {
    pub(super) fn parse(json: &'a [u8]) -> Result<Self, JwtError> {
        serde_json::from_slice(json)
            .map_err(|_| JwtError::Malformed("a part is not a JSON object with distinct names"))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The member as JSON text.
    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.get())
    }

    /// The member as a string, if it is present.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, NotText> {
        self.raw(name).map(|value| serde_json::from_str(value).map_err(|_| NotText)).transpose()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = HashMap::new();
        while let Some((name, value)) = map.next_entry::<MemberName<'de>, &RawValue>()? {
            if members.insert(name.0, value).is_some() {
                return Err(A::Error::custom("duplicate name"));
            }
        }
        Ok(Members(members))
    }
}

/// Borrowed unless it has escapes.
#[derive(Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);
