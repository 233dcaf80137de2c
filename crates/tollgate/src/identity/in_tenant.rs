//! Identities inside their tenant.

use std::fmt;

/// An identity inside its tenant: user `bob` of tenant `acme` is not user `bob` of tenant `beta`, and neither is user
/// `bob` without a tenant.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InTenant<'a, T> {
    /// The tenant.
    pub tenant: Option<&'a str>,
    /// The user, client or block target.
    pub id: T,
}

impl<'a, T> InTenant<'a, T> {
    /// An identity of this tenant.
    pub const fn new(tenant: Option<&'a str>, id: T) -> Self {
        InTenant { tenant, id }
    }
}

/// An identity without a tenant.
impl<T> From<T> for InTenant<'_, T> {
    fn from(id: T) -> Self {
        InTenant { tenant: None, id }
    }
}

/// A user without a tenant.
impl<'a> From<&'a String> for InTenant<'a, &'a str> {
    fn from(id: &'a String) -> Self {
        InTenant { tenant: None, id }
    }
}

/// `user:bob`, or with a tenant `4/acme/user:bob`: the tenant is preceded by its length, so no two clients print alike.
impl<T: fmt::Display> fmt::Display for InTenant<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tenant {
            Some(tenant) => write!(f, "{}/{tenant}/{}", tenant.len(), self.id),
            None => self.id.fmt(f),
        }
    }
}

impl<'a> InTenant<'a, &'a str> {
    /// Parses a printed client into its tenant and the client's own name, such as `user:bob`.
    pub fn parse_client(text: &'a str) -> Self {
        // The kinds of clients do not start with a digit.
        let parsed = text.split_once('/').and_then(|(length, rest)| {
            let (tenant, rest) = rest.split_at_checked(length.parse().ok()?)?;
            Some(InTenant { tenant: Some(tenant), id: rest.strip_prefix('/')? })
        });
        parsed.unwrap_or(InTenant { tenant: None, id: text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Client, Id};

    #[test]
    fn printed_clients_are_parsed_back() {
        for tenant in [None, Some("acme"), Some("a/b"), Some("4/acme/user:x"), Some("\u{e9}/")] {
            for user in ["bob", "4/acme/user:bob", "a/b"] {
                let client = Client::User(Id::parse(user).unwrap());
                let text = InTenant::new(tenant, client).to_string();
                let name = format!("user:{user}");
                assert_eq!(InTenant::parse_client(&text), InTenant::new(tenant, &*name), "{text}");
            }
        }
        for text in ["ip:10.0.0.0/8", "user:4/acme/x", "9/acme/user:x", "1/\u{e9}/user:x"] {
            assert_eq!(InTenant::parse_client(text), InTenant::new(None, text));
        }
    }
}
