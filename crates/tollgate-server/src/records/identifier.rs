//! The client of a request as it is recorded.

use std::fmt;
use std::net::IpAddr;

use tollgate::identity::counted_ip;
use tollgate::{Client, Request};

/// The client: `user:alice`, `api_key:ID`, `login:alice`, `ip:192.0.2.1` or `tenant:acme`. An IPv6 address is recorded by the prefix that
/// is counted, `ip:2001:db8::/64`, because one host can use every address of it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Identifier<'a> {
    pub(crate) client: Client<'a>,
    pub(crate) ipv6_prefix: u8,
}

impl<'a> Identifier<'a> {
    /// The client of this address.
    pub(crate) fn of_ip(ip: IpAddr, ipv6_prefix: u8) -> Self {
        Identifier { client: Client::Ip(counted_ip(ip, ipv6_prefix)), ipv6_prefix }
    }

    /// The client of a request, if it has any.
    pub(crate) fn of(request: &Request<'a>, ipv6_prefix: u8) -> Option<Self> {
        Some(match request.client()? {
            Client::Ip(ip) => Identifier::of_ip(ip, ipv6_prefix),
            client => Identifier { client, ipv6_prefix },
        })
    }
}

impl fmt::Display for Identifier<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client {
            Client::Ip(IpAddr::V6(ip)) if self.ipv6_prefix < 128 => {
                write!(out, "ip:{ip}/{}", self.ipv6_prefix)
            }
            client => client.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::endpoint::Endpoint;

    use super::*;

    fn identifier(ip: &str, ipv6_prefix: u8) -> String {
        let mut request = Request::new(Endpoint::parse("/").unwrap());
        request.ip = Some(ip.parse().unwrap());
        Identifier::of(&request, ipv6_prefix).unwrap().to_string()
    }

    #[test]
    fn ipv6_is_recorded_by_the_counted_prefix() {
        assert_eq!(identifier("192.0.2.1", 64), "ip:192.0.2.1");
        assert_eq!(identifier("::ffff:192.0.2.1", 64), "ip:192.0.2.1");
        assert_eq!(identifier("2001:db8:1:2:3::4", 64), "ip:2001:db8:1:2::/64");
        assert_eq!(identifier("2001:db8::4", 128), "ip:2001:db8::4");
    }
}
