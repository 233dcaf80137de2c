//! A client named on the command line: `alice`, `203.0.113.7` or `tenant:acme`.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

pub(super) const KINDS: [&str; 5] = ["user", "api_key", "ip", "login", "tenant"];

/// A client and its kind. There is no `Debug`, because the name may be an API key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ClientName {
    pub(super) kind: &'static str,
    pub(super) name: String,
}

impl ClientName {
    /// Parses `kind:name`, an address or network, or a user id.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let client = |kind, name: &str| ClientName { kind, name: name.to_owned() };
        // First, because `::1` looks like a name with a kind.
        if is_network(text) {
            return Ok(client("ip", text));
        }
        let prefixed =
            KINDS.iter().find_map(|kind| Some(client(kind, text.strip_prefix(kind)?.strip_prefix(':')?)));
        let client = prefixed.unwrap_or_else(|| client("user", text));
        if client.name.is_empty() { Err("must not be empty") } else { Ok(client) }
    }

    /// Like `parse`, for commands that need a valid address or network after `ip:`.
    pub(super) fn parse_blockable(text: &str) -> Result<Self, &'static str> {
        let client = Self::parse(text)?;
        if client.kind == "ip" && !is_network(&client.name) {
            return Err("ip: must be followed by an address or a network such as 192.0.2.0/24");
        }
        Ok(client)
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

fn is_network(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || text.parse::<IpNet>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_comes_from_the_prefix_or_the_form() {
        for (text, name) in [
            ("alice", "user:alice"),
            ("user:ip:x", "user:ip:x"),
            ("203.0.113.7", "ip:203.0.113.7"),
            ("192.0.2.0/24", "ip:192.0.2.0/24"),
            ("ip:2001:db8::/32", "ip:2001:db8::/32"),
            ("::1", "ip:::1"),
            ("api_key:k:1", "api_key:k:1"),
            ("tenant:acme", "tenant:acme"),
            ("other:x", "user:other:x"),
            ("a/b", "user:a/b"),
        ] {
            assert_eq!(
                ClientName::parse_blockable(text).ok().map(|client| client.to_string()).as_deref(),
                Some(name)
            );
        }
        for text in ["", "user:", "ip:", "ip:x", "ip:10.0.0.0/33"] {
            assert!(ClientName::parse_blockable(text).is_err(), "{text:?}");
        }
    }
}
