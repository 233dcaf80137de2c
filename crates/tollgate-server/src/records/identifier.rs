//! The client of a request as it is recorded.

use std::fmt;
use std::net::IpAddr;

use tollgate::identity::{IpPrefixes, counted_ip};
use tollgate::{Client, Request};

/// The client: `user:alice`, `api_key:ID`, `login:alice`, `ip:192.0.2.1` or `tenant:acme`. An address is recorded by the prefix that
/// is counted, such as `ip:2001:db8::/64`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Identifier<'a> {
    pub(crate) client: Client<'a>,
    pub(crate) prefixes: IpPrefixes,
}

impl<'a> Identifier<'a> {
    /// The client of this address.
    pub(crate) fn of_ip(ip: IpAddr, prefixes: IpPrefixes) -> Self {
        Identifier { client: Client::Ip(counted_ip(ip, prefixes)), prefixes }
    }

    /// The client of a request, if it has any.
    pub(crate) fn of(request: &Request<'a>, prefixes: IpPrefixes) -> Option<Self> {
        Some(match request.client()? {
            Client::Ip(ip) => Identifier::of_ip(ip, prefixes),
            client => Identifier { client, prefixes },
        })
    }
}

impl fmt::Display for Identifier<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client {
            Client::Ip(IpAddr::V4(ip)) if self.prefixes.ipv4 < 32 => {
                write!(out, "ip:{ip}/{}", self.prefixes.ipv4)
            }
            Client::Ip(IpAddr::V6(ip)) if self.prefixes.ipv6 < 128 => {
                write!(out, "ip:{ip}/{}", self.prefixes.ipv6)
            }
            client => client.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::endpoint::Endpoint;

    use super::*;

    fn identifier(ip: &str, ipv4: u8, ipv6: u8) -> String {
        let mut request = Request::new(Endpoint::parse("/").unwrap());
        request.ip = Some(ip.parse().unwrap());
        Identifier::of(&request, IpPrefixes { ipv4, ipv6 }).unwrap().to_string()
    }

    #[test]
    fn addresses_are_recorded_by_the_counted_prefix() {
        assert_eq!(identifier("192.0.2.1", 32, 64), "ip:192.0.2.1");
        assert_eq!(identifier("::ffff:192.0.2.1", 32, 64), "ip:192.0.2.1");
        assert_eq!(identifier("192.0.2.1", 24, 64), "ip:192.0.2.0/24");
        assert_eq!(identifier("2001:db8:1:2:3::4", 24, 64), "ip:2001:db8:1:2::/64");
        assert_eq!(identifier("2001:db8::4", 32, 128), "ip:2001:db8::4");
    }
}
