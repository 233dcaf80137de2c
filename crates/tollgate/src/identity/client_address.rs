//! The client address of a request that may have passed proxies.

use std::net::IpAddr;
use std::num::NonZeroU8;

use ipnet::IpNet;
use thiserror::Error;

/// Where the address of a client is read (`identity.client_address`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// The other end of the connection.
    #[default]
    Peer,
    /// The header `X-Forwarded-For`.
    XForwardedFor,
    /// The header `Forwarded` (RFC 7239).
    Forwarded,
    /// The header `X-Real-IP`.
    XRealIp,
    /// The PROXY protocol, version 1 or 2.
    ProxyProtocol,
}

/// How the address of a client is found. Headers of peers that are not trusted are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddressPolicy {
    /// The only source that is read.
    pub source: AddressSource,
    /// The proxies whose headers are believed (`identity.trusted_proxies`).
    pub trusted_proxies: Vec<IpNet>,
    /// The number of proxies in front (`identity.trusted_proxy_depth`).
    pub depth: Option<NonZeroU8>,
}

/// Why the header of a trusted proxy is rejected.
#[non_exhaustive]
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// More than 8 KB.
    #[error("must be at most 8192 bytes")]
    HeaderTooLong,
    /// More than 64 addresses.
    #[error("must have at most 64 addresses")]
    TooManyHops,
}

impl ClientAddressPolicy {
    /// Whether headers of this peer are believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&peer))
    }

    /// The name of the header that is read, in lower case.
    pub const fn header(&self) -> Option<&'static str> {
        match self.source {
            AddressSource::Peer | AddressSource::ProxyProtocol => None,
            AddressSource::XForwardedFor => Some("x-forwarded-for"),
            AddressSource::Forwarded => Some("forwarded"),
            AddressSource::XRealIp => Some("x-real-ip"),
        }
    }

    /// The address of the client of a request from `peer`. `values` are those of the header, in the order of the request.
    ///
    /// # Errors
    /// When the header of a trusted peer is too long.
    pub fn client_address<'h>(
        &self,
        peer: IpAddr,
        values: impl IntoIterator<Item = &'h [u8]>,
    ) -> Result<IpAddr, AddressError> {
        let mut client = peer.to_canonical();
        let hops = values.into_iter().filter_map(|value| std::str::from_utf8(value).ok());
        let hops: Vec<&str> = hops.flat_map(|value| value.split(',')).collect();
        for hop in hops.iter().rev() {
            let (true, Ok(hop)) = (self.trusts(client), hop.trim().parse::<IpAddr>()) else { break };
            client = hop.to_canonical();
        }
        Ok(client)
    }
}
