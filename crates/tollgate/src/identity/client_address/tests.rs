use proptest::prelude::*;

use super::*;

/// The peer of all requests, which is trusted.
const PEER: &str = "10.0.0.1";

fn policy(source: AddressSource, depth: u8) -> ClientAddressPolicy {
    let trusted = ["10.0.0.0/8", "192.0.2.7/32", "2001:db8:ff::/48"];
    ClientAddressPolicy {
        source,
        trusted_proxies: trusted.map(|network| network.parse().unwrap()).to_vec(),
        depth: NonZeroU8::new(depth),
    }
}

fn found(policy: &ClientAddressPolicy, peer: &str, lines: &[&[u8]]) -> Result<IpAddr, AddressError> {
    policy.client_address(peer.parse().unwrap(), lines.iter().copied())
}

fn expect(policy: &ClientAddressPolicy, peer: &str, lines: &[&str], client: &str) {
    let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
    let expected = Ok(client.parse().unwrap());
    assert_eq!(found(policy, peer, &bytes), expected, "{lines:?} from {peer}");
}

#[test]
fn x_forwarded_for_is_walked_from_the_right() {
    let policy = policy(AddressSource::XForwardedFor, 0);
    let cases: [(&[&str], &str); 42] = [
        (&[], PEER),
        (&["198.51.100.1"], "198.51.100.1"),
        // One appending proxy: the left address is the client's own claim.
        (&["203.0.113.66, 198.51.100.1"], "198.51.100.1"),
        (&["203.0.113.66,198.51.100.1"], "198.51.100.1"),
        (&["203.0.113.66 ,\t198.51.100.1 "], "198.51.100.1"),
        // Trusted hops are skipped.
        (&["203.0.113.66, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        (&["203.0.113.66, 198.51.100.1, 10.0.0.2, 192.0.2.7"], "198.51.100.1"),
        (&["203.0.113.66, 198.51.100.1, 192.0.2.8"], "192.0.2.8"),
        (&["198.51.100.1, 2001:db8:ff::2"], "198.51.100.1"),
        // A trusted address to the left of the client is a claim, too.
        (&["10.0.0.9, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        // Only trusted hops: the leftmost.
        (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        (&["10.0.0.3"], "10.0.0.3"),
        // Lines are one list.
        (&["203.0.113.66", "198.51.100.1"], "198.51.100.1"),
        (&["203.0.113.66, 198.51.100.1", "10.0.0.2"], "198.51.100.1"),
        (&["", "198.51.100.1"], "198.51.100.1"),
        (&["198.51.100.1", ""], PEER),
        // A hop that is no address stops the walk.
        (&["unknown"], PEER),
        (&["198.51.100.1, unknown"], PEER),
        (&["198.51.100.1, unknown, 10.0.0.2"], "10.0.0.2"),
        (&["198.51.100.1, _hidden, 10.0.0.2"], "10.0.0.2"),
        (&["198.51.100.1, , 10.0.0.2"], "10.0.0.2"),
        (&["198.51.100.1,"], PEER),
        (&[","], PEER),
        (&["unknown, 198.51.100.1"], "198.51.100.1"),
        // Non-canonical forms.
        (&["010.0.0.1"], PEER),
        (&["198.51.100.1, 010.0.0.2"], PEER),
        (&["1.2.3"], PEER),
        (&["0x7f.0.0.1"], PEER),
        (&["3232235777"], PEER),
        (&["fe80::1%eth0"], PEER),
        (&["fe80::1%}{:x"], PEER),
        (&["[fe80::1%1]:80"], PEER),
        // Ports, brackets and quotes.
        (&["198.51.100.1:5678"], "198.51.100.1"),
        (&["2001:db8::1"], "2001:db8::1"),
        (&["[2001:db8::1]"], "2001:db8::1"),
        (&["[2001:db8::1]:80"], "2001:db8::1"),
        (&["\"[2001:db8::1]:80\""], "2001:db8::1"),
        (&["\"198.51.100.1\""], "198.51.100.1"),
        // IPv4-mapped addresses are IPv4.
        (&["::ffff:198.51.100.1"], "198.51.100.1"),
        (&["198.51.100.1, ::ffff:10.0.0.2"], "198.51.100.1"),
        (&["[::ffff:198.51.100.1]:80"], "198.51.100.1"),
        (&["2001:DB8:0:0::1"], "2001:db8::1"),
    ];
    for (lines, client) in cases {
        expect(&policy, PEER, lines, client);
    }
    expect(&policy, "::ffff:10.0.0.1", &["198.51.100.1"], "198.51.100.1");
}

#[test]
fn malformed_addresses_are_rejected() {
    let policy = policy(AddressSource::XForwardedFor, 0);
    for hop in [
        "198.51.100.1:",
        "198.51.100.1:x",
        "198.51.100.1:65536",
        "198.51.100.1:-1",
        "198.51.100.1:+1",
        "198.51.100.1:80:80",
        "[198.51.100.1]",
        "[2001:db8::1",
        "2001:db8::1]",
        "[2001:db8::1]80",
        "[2001:db8::1]:",
        "[]",
        "\"198.51.100.1",
        "\"",
        "\"\"",
        "198.51.100.1\"",
        "198.51.100.256",
        "198.51.100.1.1",
        "198.51.100.1/32",
        "::1::",
        "example.com",
        "\u{661}.0.0.1",
        "198.51.100.1 198.51.100.2",
        "-",
        "*",
    ] {
        expect(&policy, PEER, &[hop], PEER);
    }
    assert_eq!(found(&policy, PEER, &[b"198.51.100.1\xff"]), Ok(PEER.parse().unwrap()));
    assert_eq!(found(&policy, PEER, &[b"198.51.100.1\0"]), Ok(PEER.parse().unwrap()));
}

#[test]
fn header_of_an_untrusted_peer_is_ignored() {
    let header = ["198.51.100.1"];
    for (source, depth) in AddressSource::ALL.into_iter().flat_map(|source| [(source, 0), (source, 1)]) {
        for peer in ["203.0.113.5", "11.0.0.1", "192.0.2.8", "2001:db8::9"] {
            expect(&policy(source, depth), peer, &header, peer);
        }
        let too_long = vec![b','; 70_000];
        assert_eq!(
            found(&policy(source, depth), "203.0.113.5", &[&too_long]),
            Ok("203.0.113.5".parse().unwrap())
        );
    }
}

#[test]
fn peer_and_proxy_protocol_read_no_header() {
    for source in [AddressSource::Peer, AddressSource::ProxyProtocol] {
        expect(&policy(source, 0), PEER, &["198.51.100.1"], PEER);
        assert_eq!(policy(source, 0).header(), None);
    }
}

#[test]
fn depth_counts_from_the_right() {
    let cases: [(u8, &[&str], &str); 14] = [
        // One appending proxy, a forged address: the seed's formula returned the forged one.
        (1, &["203.0.113.66, 198.51.100.1"], "198.51.100.1"),
        (1, &["198.51.100.1"], "198.51.100.1"),
        (1, &["203.0.113.66", "198.51.100.1"], "198.51.100.1"),
        (2, &["203.0.113.66, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        (2, &["203.0.113.66, 198.51.100.1, 172.16.0.2"], "198.51.100.1"),
        (2, &["203.0.113.66, 198.51.100.1", "172.16.0.2"], "198.51.100.1"),
        (3, &["198.51.100.1, 10.0.0.3, 10.0.0.2"], "198.51.100.1"),
        // Trusted or not makes no difference to the position.
        (1, &["198.51.100.1, 10.0.0.2"], "10.0.0.2"),
        // Fewer hops than proxies: the request came another way, so none of them is believed.
        (2, &["198.51.100.1"], PEER),
        (64, &["203.0.113.66, 198.51.100.1"], PEER),
        (1, &[], PEER),
        // No address at that position.
        (1, &["198.51.100.1, unknown"], PEER),
        (2, &["010.0.0.1, 10.0.0.2"], PEER),
        (1, &[""], PEER),
    ];
    for (depth, lines, client) in cases {
        expect(&policy(AddressSource::XForwardedFor, depth), PEER, lines, client);
    }
    let forwarded = policy(AddressSource::Forwarded, 2);
    expect(&forwarded, PEER, &["for=203.0.113.66, for=198.51.100.1, for=\"_x,y\""], "198.51.100.1");
}

#[test]
fn forwarded_is_parsed_as_rfc_7239() {
    let policy = policy(AddressSource::Forwarded, 0);
    let cases: [(&[&str], &str); 34] = [
        (&["for=198.51.100.1"], "198.51.100.1"),
        (&["For=198.51.100.1"], "198.51.100.1"),
        (&["FOR=\"198.51.100.1\""], "198.51.100.1"),
        (&["for=\"198.51.100.1:47011\""], "198.51.100.1"),
        (&["for=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17"),
        (&["for=\"[2001:db8::1]\""], "2001:db8::1"),
        (&["for=\"198.51.100.1:_http\""], "198.51.100.1"),
        (&["for=198.51.100.1;proto=http;by=203.0.113.43"], "198.51.100.1"),
        (&["proto=http;for=198.51.100.1"], "198.51.100.1"),
        (&["by=203.0.113.43; for=198.51.100.1 ;host=a"], "198.51.100.1"),
        (&[";for=198.51.100.1;;"], "198.51.100.1"),
        (&["for=203.0.113.66, for=198.51.100.1"], "198.51.100.1"),
        (&["for=203.0.113.66", "for=198.51.100.1"], "198.51.100.1"),
        (&["for=203.0.113.66, for=198.51.100.1, for=10.0.0.2;by=10.0.0.1"], "198.51.100.1"),
        (&["for=10.0.0.3, for=10.0.0.2"], "10.0.0.3"),
        // Commas, semicolons and escapes in quoted strings.
        (&["for=198.51.100.1;ext=\"a, for=203.0.113.66\""], "198.51.100.1"),
        (&["for=198.51.100.1;ext=\"a;for=203.0.113.66\""], "198.51.100.1"),
        (&["for=198.51.100.1;ext=\"a\\\", for=203.0.113.66\""], "198.51.100.1"),
        (&["for=198.51.100.1;ext=\"a\\\\\""], "198.51.100.1"),
        // What a client leaves open cannot swallow what a proxy appends.
        (&["for=\", for=198.51.100.1"], "198.51.100.1"),
        (&["for=\"203.0.113.66\\, for=198.51.100.1"], "198.51.100.1"),
        (&["for=203.0.113.66, for=\", for=\"198.51.100.1\""], "198.51.100.1"),
        (&["for=\"", "for=198.51.100.1"], "198.51.100.1"),
        // Hops that are no address.
        (&["for=unknown"], PEER),
        (&["for=198.51.100.1, for=_hidden, for=10.0.0.2"], "10.0.0.2"),
        (&["for=198.51.100.1, proto=https"], PEER),
        (&["for=198.51.100.1;for=203.0.113.66"], PEER),
        (&["for=198.51.100.1 for=203.0.113.66"], PEER),
        (&["198.51.100.1"], PEER),
        (&["for"], PEER),
        (&["for="], PEER),
        (&["for=\"198.51.100.1"], PEER),
        (&["for=\"198\\.51.100.1\""], PEER),
        (&["x;for=198.51.100.1"], PEER),
    ];
    for (lines, client) in cases {
        expect(&policy, PEER, lines, client);
    }
}

#[test]
fn x_real_ip_is_one_address() {
    let policy = policy(AddressSource::XRealIp, 0);
    let cases: [(&[&str], &str); 9] = [
        (&["198.51.100.1"], "198.51.100.1"),
        (&[" 198.51.100.1 "], "198.51.100.1"),
        (&["::ffff:198.51.100.1"], "198.51.100.1"),
        (&["[2001:db8::1]:80"], "2001:db8::1"),
        // A trusted address is an address.
        (&["10.0.0.2"], "10.0.0.2"),
        (&[], PEER),
        (&["203.0.113.66", "198.51.100.1"], PEER),
        (&["203.0.113.66, 198.51.100.1"], PEER),
        (&["unknown"], PEER),
    ];
    for (lines, client) in cases {
        expect(&policy, PEER, lines, client);
    }
}

#[test]
fn long_headers_of_trusted_peers_are_rejected() {
    let client = "198.51.100.1".parse().unwrap();
    for (source, hop) in
        [(AddressSource::XForwardedFor, "198.51.100.1"), (AddressSource::Forwarded, "for=198.51.100.1")]
    {
        for depth in [0, 1] {
            let policy = policy(source, depth);
            let hops = |count: usize| vec![hop; count].join(",").into_bytes();
            assert_eq!(found(&policy, PEER, &[&hops(64)]), Ok(client));
            assert_eq!(found(&policy, PEER, &[&hops(65)]), Err(AddressError::TooManyHops));
            assert_eq!(found(&policy, PEER, &[&hops(10_000)]), Err(AddressError::HeaderTooLong));
            assert_eq!(found(&policy, PEER, &[hop.as_bytes(); 64]), Ok(client));
            assert_eq!(found(&policy, PEER, &[hop.as_bytes(); 65]), Err(AddressError::TooManyHops));
            assert_eq!(found(&policy, PEER, &[&hops(32), &hops(33)]), Err(AddressError::TooManyHops));
            let padded = |length: usize| [vec![b' '; length - hop.len()], hop.into()].concat();
            assert_eq!(found(&policy, PEER, &[&padded(8_192)]), Ok(client));
            assert_eq!(found(&policy, PEER, &[&padded(8_193)]), Err(AddressError::HeaderTooLong));
            assert_eq!(
                found(&policy, PEER, &[&padded(8_000), &padded(193)]),
                Err(AddressError::HeaderTooLong)
            );
        }
    }
}

/// Bytes that a client may send: any, and those that mean something.
fn client_bytes() -> impl Strategy<Value = Vec<u8>> {
    let pieces = proptest::sample::select(vec![
        ",",
        "\"",
        "\\",
        ";",
        "for=",
        "203.0.113.66",
        "10.0.0.9",
        "unknown",
        " ",
        "[",
        "]",
        ":80",
        "2001:db8::1",
        "\\\"",
    ]);
    let pieces = proptest::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat().into_bytes());
    let bytes = proptest::collection::vec(
        any::<u8>().prop_filter("no line ends", |byte| !b"\r\n".contains(byte)),
        0..200,
    );
    prop_oneof![pieces, bytes]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn bytes_left_of_the_client_change_nothing(
        claims in proptest::collection::vec(client_bytes(), 0..3),
        hops in 0_usize..4,
        is_forwarded: bool,
        is_quoted: bool,
        own_line: bool,
    ) {
        let (source, name) =
            if is_forwarded { (AddressSource::Forwarded, "for=") } else { (AddressSource::XForwardedFor, "") };
        let hop = |address: &str| {
            if is_quoted { format!("{name}\"{address}\"") } else { format!("{name}{address}") }
        };
        // What the proxies append: the client, then each proxy behind the first.
        let appended = ["198.51.100.1", "10.0.0.2", "192.0.2.7", "10.9.9.9"][..=hops]
            .iter()
            .map(|address| hop(address))
            .collect::<Vec<String>>()
            .join(", ");
        let mut lines: Vec<Vec<u8>> = claims;
        match lines.last_mut() {
            Some(last) if !own_line => last.extend_from_slice(format!(", {appended}").as_bytes()),
            _ => lines.push(appended.into()),
        }
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        let client: IpAddr = "198.51.100.1".parse().unwrap();
        for depth in [0, u8::try_from(hops).unwrap() + 1] {
            let result = found(&policy(source, depth), PEER, &lines);
            prop_assert!(result == Ok(client) || result == Err(AddressError::TooManyHops), "{result:?}");
        }
    }

    #[test]
    fn any_header_is_answered(lines in proptest::collection::vec(client_bytes(), 0..5), depth in 0_u8..4) {
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        for source in AddressSource::ALL {
            let _ = found(&policy(source, depth), PEER, &lines);
            let untrusted = "203.0.113.5".parse().unwrap();
            prop_assert_eq!(found(&policy(source, depth), "203.0.113.5", &lines), Ok(untrusted));
        }
    }
}
