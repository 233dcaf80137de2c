//! The client address of a request that may have passed proxies.
//!
//! A header is believed only from a trusted peer. Each proxy appends the address that it saw, so the hops are read from the
//! right: what a client wrote stands to the left of its own address and is never reached.

mod hops;

use std::net::IpAddr;
use std::num::NonZeroU8;

use ipnet::IpNet;
use thiserror::Error;

use self::hops::{HeaderLines, parse_address};

named_enum! {
    /// Where the address of a client is read (`identity.client_address`).
    #[derive(Default)]
    pub enum AddressSource {
        /// The other end of the connection.
        #[default]
        Peer = "peer",
        /// The header `X-Forwarded-For`.
        XForwardedFor = "x-forwarded-for",
        /// The header `Forwarded` (RFC 7239).
        Forwarded = "forwarded",
        /// The header `X-Real-IP`.
        XRealIp = "x-real-ip",
        /// The PROXY protocol, version 1 or 2.
        ProxyProtocol = "proxy-protocol",
    }
}

impl AddressSource {
    /// Whether it lists the hops of a request, to which each proxy appends one.
    pub const fn has_hops(self) -> bool {
        matches!(self, AddressSource::XForwardedFor | AddressSource::Forwarded)
    }
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
    /// | source | client |
    /// |---|---|
    /// | hops | from the right, the first hop that is not trusted; the leftmost one if all are |
    /// | hops, one of them no address | the hop to its right, or the peer |
    /// | hops, with depth *n* | hop *n* from the right; the peer if there are fewer or it is no address |
    /// | `X-Real-IP` | its address; the peer if there are several values or it is no address |
    ///
    /// # Errors
    /// When the header of a trusted peer is too long.
    pub fn client_address<'h>(
        &self,
        peer: IpAddr,
        values: impl IntoIterator<Item = &'h [u8]>,
    ) -> Result<IpAddr, AddressError> {
        let peer = peer.to_canonical();
        if self.header().is_none() || !self.trusts(peer) {
            return Ok(peer);
        }
        let lines = HeaderLines::collect(values)?;
        if !self.source.has_hops() {
            return Ok(lines.single().and_then(parse_address).unwrap_or(peer));
        }
        let hops = lines.hops(self.source);
        hops.check_count()?;
        Ok(match self.depth {
            Some(depth) => hops.addresses().nth(usize::from(depth.get()) - 1).flatten().unwrap_or(peer),
            None => self.first_untrusted(peer, hops.addresses()),
        })
    }

    /// Walks over hops, the nearest first, to the first one that no trusted proxy is.
    fn first_untrusted(&self, peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        for hop in hops {
            let Some(address) = hop else { break };
            client = address;
            if !self.trusts(address) {
                break;
            }
        }
        client
    }
}

#[cfg(test)]
mod tests;
