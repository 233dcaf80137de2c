//! Address headers of arbitrary bytes: an untrusted peer is counted itself, and what a client claims never changes the client.
#![no_main]

use std::net::IpAddr;
use std::num::NonZeroU8;

use libfuzzer_sys::fuzz_target;
use tollgate::identity::{AddressSource, ClientAddressPolicy};

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const UNTRUSTED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 5));

// The source, the depth, and the lines of the header.
fuzz_target!(|data: &[u8]| {
    let [source, depth, text @ ..] = data else { return };
    let policy = ClientAddressPolicy {
        source: AddressSource::ALL[usize::from(*source) % AddressSource::ALL.len()],
        trusted_proxies: ["10.0.0.0/8", "2001:db8:ff::/48"].map(|network| network.parse().unwrap()).to_vec(),
        depth: NonZeroU8::new(*depth % 4),
    };
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    assert_eq!(policy.client_address(UNTRUSTED, lines.iter().copied()), Ok(UNTRUSTED));
    let Ok(client) = policy.client_address(PEER, lines.iter().copied()) else { return };
    if policy.source.has_hops() && (!policy.trusts(client) || policy.depth.is_some() && client != PEER) {
        let claim: &[u8] = b"for=198.51.100.66, for=\"";
        let claimed = [claim].into_iter().chain(lines);
        // It may become too long.
        let found = policy.client_address(PEER, claimed);
        assert!(found.is_err() || found == Ok(client), "{found:?}");
    }
});
