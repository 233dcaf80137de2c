//! Client addresses: NAT64 translation, IPv4-mapped networks and the prefixes that addresses are counted by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The IPv4 address embedded in the NAT64 well-known prefix `64:ff9b::/96` (RFC 6052); other addresses are unchanged.
///
/// Off by default: without a NAT64 gateway in front, a client could choose such an address itself.
pub fn nat64_to_ipv4(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::from([a, b, c, d])
        }
        other => other,
    }
}

/// The IPv4 form of an IPv4-mapped network: `::ffff:10.0.0.0/104` is `10.0.0.0/8`. Other networks are unchanged.
pub(crate) fn canonical_net(net: IpNet) -> IpNet {
    match (net.network().to_canonical(), net.prefix_len().checked_sub(96)) {
        (v4 @ IpAddr::V4(_), Some(length)) if net.network().is_ipv6() => {
            IpNet::new(v4, length).unwrap_or(net)
        }
        _ => net,
    }
}

/// The lengths of the prefixes that addresses are counted by.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct IpPrefixes {
    /// Bits of an IPv4 address, up to 32.
    pub ipv4: u8,
    /// Bits of an IPv6 address, up to 128.
    pub ipv6: u8,
}

impl IpPrefixes {
    /// Single IPv4 addresses, and the /64 of IPv6, because one host can use every address of it.
    pub const DEFAULT: IpPrefixes = IpPrefixes { ipv4: 32, ipv6: 64 };
}

impl Default for IpPrefixes {
    fn default() -> Self {
        IpPrefixes::DEFAULT
    }
}

/// The address that is counted: the first bits of an address, by its family.
#[inline]
pub fn counted_ip(ip: IpAddr, prefixes: IpPrefixes) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefixes.ipv4.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefixes.ipv6.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}
