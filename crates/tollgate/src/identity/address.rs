//! Client addresses: NAT64 translation, IPv4-mapped networks and the prefix that IPv6 is counted by.

use std::net::{IpAddr, Ipv6Addr};

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

/// The address that is counted: an IPv4 address itself, an IPv6 address masked to its first `ipv6_prefix` bits,
/// because one host can use every address of its /64.
pub fn counted_ip(ip: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}
