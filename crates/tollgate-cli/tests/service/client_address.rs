//! Client addresses behind trusted proxies. The caller's own limit and the backoff after invalid keys show what is counted.

use std::fs;

use crate::harness::{Answer, Service};
use crate::http2;

const STATUS: &str = "/v1/rate-limit/status?user_id=a&endpoint=/x";
/// Three per hour and address: nothing is restored while a test runs.
const THREE_PER_HOUR: &str = "[callers]\nlimit = 3\nwindow = \"1h\"\n[identity]\n";
const CLIENT: &str = "198.51.100.1";
const VICTIM: &str = "198.51.100.2";

fn service(identity: &str) -> Service {
    Service::with_config(&format!("{THREE_PER_HOUR}{identity}"))
}

/// Behind a proxy on loopback, which is trusted.
fn behind_proxy() -> Service {
    service("trusted_proxies = [\"127.0.0.1\"]")
}

fn ask(service: &Service, headers: &[(&str, &str)]) -> Answer {
    service.send("GET", STATUS, headers, "")
}

fn forwarded_for(service: &Service, hops: &str) -> u16 {
    ask(service, &[("x-forwarded-for", hops)]).status
}

#[test]
fn forged_header_from_untrusted_peer_is_ignored() {
    for (source, name, prefix) in [
        ("x-forwarded-for", "x-forwarded-for", ""),
        ("forwarded", "forwarded", "for="),
        ("x-real-ip", "x-real-ip", ""),
        ("peer", "x-forwarded-for", ""),
        ("proxy-protocol", "x-forwarded-for", ""),
    ] {
        let service = service(&format!("trusted_proxies = [\"10.0.0.0/8\"]\nclient_address = \"{source}\""));
        let statuses = [1, 2, 3, 4]
            .map(|number| ask(&service, &[(name, &format!("{prefix}203.0.113.{number}"))]).status);
        assert_eq!(statuses, [200, 200, 200, 429], "{source}");
    }
}

#[test]
fn trusted_proxy_names_the_client() {
    let service = behind_proxy();
    let statuses = [(); 4].map(|()| forwarded_for(&service, CLIENT));
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(forwarded_for(&service, &format!("::ffff:{CLIENT}")), 429, "the same address");
    assert_eq!(forwarded_for(&service, &format!("{CLIENT}:4711, 127.0.0.1")), 429, "the same address");
    assert_eq!(forwarded_for(&service, VICTIM), 200, "another client");
    assert_eq!(ask(&service, &[]).status, 200, "the proxy itself");
}

#[test]
fn forged_hop_gains_nothing_and_charges_no_victim() {
    let service = behind_proxy();
    let forged = format!("{VICTIM}, {CLIENT}");
    assert_eq!([(); 5].map(|()| forwarded_for(&service, &forged)), [200, 200, 200, 429, 429]);
    assert_eq!([(); 4].map(|()| forwarded_for(&service, VICTIM)), [200, 200, 200, 429], "untouched");
}

#[test]
fn header_lines_are_one_list() {
    let service = behind_proxy();
    let lines = |forged: &'static str| [("x-forwarded-for", forged), ("x-forwarded-for", CLIENT)];
    assert_eq!(ask(&service, &lines("203.0.113.1")).status, 200);
    assert_eq!(ask(&service, &lines("203.0.113.2, unknown")).status, 200);
    let over_http2 = |forged| http2::status_of(&service, "GET", STATUS, "localhost", &lines(forged));
    assert_eq!(over_http2("203.0.113.3"), 200);
    assert_eq!(over_http2("203.0.113.4"), 429);
    assert_eq!(ask(&service, &lines("203.0.113.5")).status, 429);
    assert_eq!(forwarded_for(&service, "203.0.113.5"), 200, "the first line names no client");
}

#[test]
fn other_address_headers_are_ignored() {
    let own = format!("for={CLIENT};proto=https");
    for (source, value) in [("x-forwarded-for", CLIENT), ("forwarded", &own), ("x-real-ip", CLIENT)] {
        let identity = format!("trusted_proxies = [\"127.0.0.1\"]\nclient_address = \"{source}\"");
        let service = service(&identity);
        let statuses = [1, 2, 3, 4].map(|number| {
            let forged = format!("203.0.113.{number}");
            let element = format!("for={forged}");
            let others = [
                ("x-forwarded-for", &*forged),
                ("forwarded", &*element),
                ("x-real-ip", &*forged),
                ("x-client-ip", &*forged),
                ("true-client-ip", &*forged),
                ("cf-connecting-ip", &*forged),
            ];
            let mut headers: Vec<_> = others.into_iter().filter(|(name, _)| *name != source).collect();
            headers.push((source, value));
            ask(&service, &headers).status
        });
        assert_eq!(statuses, [200, 200, 200, 429], "{source}");
        assert_eq!(ask(&service, &[("x-forwarded-for", "203.0.113.9")]).status, 200);
    }
}

#[test]
fn header_with_too_many_hops_is_rejected() {
    let trusting = behind_proxy();
    let (hops, long) = (vec![CLIENT; 65].join(","), format!("{}{CLIENT}", " ,".repeat(4_100)));
    for header in [&hops, &long] {
        let answer = ask(&trusting, &[("x-forwarded-for", header)]);
        assert_eq!(answer.error(), (400, "INVALID_INPUT".to_owned(), "x-forwarded-for".to_owned()));
    }
    let commas = ",".repeat(64);
    let over_http2 = [("x-forwarded-for", &*commas)];
    assert_eq!(http2::status_of(&trusting, "GET", STATUS, "localhost", &over_http2), 400);
    assert_eq!(forwarded_for(&trusting, &vec![CLIENT; 64].join(",")), 200);
    let untrusting = service("trusted_proxies = [\"10.0.0.0/8\"]");
    assert_eq!([&hops, &long].map(|header| forwarded_for(&untrusting, header)), [200, 200]);
}

#[test]
fn invalid_keys_back_off_the_client_not_its_proxy() {
    let service = behind_proxy();
    let attempt = |hops: &str| {
        let headers = [("x-forwarded-for", hops), ("authorization", "Bearer wrong")];
        service.send("GET", "/v1/admin/rules", &headers, "").status
    };
    let refused = (1..=100).find(|number| attempt(&format!("203.0.113.{number}, {CLIENT}")) == 429);
    assert!(refused.is_some_and(|number| number > 60), "{refused:?}");
    assert_eq!(attempt(VICTIM), 401, "another client");
    let key = format!("Bearer {}", service.admin_key());
    let admin = [("x-forwarded-for", VICTIM), ("authorization", &*key)];
    assert_eq!(service.send("GET", "/v1/admin/rules", &admin, "").status, 200);
    assert_eq!(service.admin("GET", "/v1/admin/rules", "").status, 200, "the proxy itself");
}

#[test]
fn reload_changes_the_trusted_proxies() {
    let service = service("ipv4_prefix = 24");
    assert_eq!(
        [(); 4].map(|()| forwarded_for(&service, CLIENT)),
        [200, 200, 200, 429],
        "counted by the peer"
    );
    let reload = |identity: &str| {
        fs::write(service.config_file(), format!("{THREE_PER_HOUR}{identity}")).unwrap();
        assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 200);
    };
    reload("trusted_proxies = [\"127.0.0.0/8\"]\ntrusted_proxy_depth = 2\nipv4_prefix = 24");
    let through = |client: &str| forwarded_for(&service, &format!("203.0.113.9, {client}, 192.0.2.1"));
    assert_eq!([CLIENT, VICTIM, "198.51.100.77", CLIENT].map(through), [200, 200, 200, 429], "one /24");
    assert_eq!(through("198.51.101.1"), 200);
    assert_eq!(forwarded_for(&service, CLIENT), 429, "fewer hops than proxies: the peer");
    reload("ipv4_prefix = 24");
    assert_eq!(through("198.51.102.1"), 429, "the peer again");
}

/// The status of a request after a PROXY header, version 1.
fn after_proxy_header(service: &Service, source: &str) -> u16 {
    let request = format!(
        "PROXY TCP4 {source} 192.0.2.1 51000 80\r\nGET {STATUS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         x-forwarded-for: {VICTIM}\r\n\r\n"
    );
    service.raw(request.as_bytes()).status
}

#[test]
fn proxy_protocol_names_the_client() {
    let service = service("trusted_proxies = [\"127.0.0.1\"]\nclient_address = \"proxy-protocol\"");
    let statuses = [(); 4].map(|()| after_proxy_header(&service, CLIENT));
    assert_eq!(statuses, [200, 200, 200, 429]);
    let statuses = [(); 4].map(|()| after_proxy_header(&service, VICTIM));
    assert_eq!(statuses, [200, 200, 200, 429], "the header counted for nobody");
}

#[test]
fn forged_proxy_header_is_a_bad_request() {
    let service = service("trusted_proxies = [\"10.0.0.0/8\"]\nclient_address = \"proxy-protocol\"");
    assert_eq!(after_proxy_header(&service, CLIENT), 400);
    assert_eq!(ask(&service, &[]).status, 200);
    assert_eq!(service.metric("tollgate_proxy_headers_invalid_total"), Some(0.0));
}
