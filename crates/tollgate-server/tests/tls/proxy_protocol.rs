//! The PROXY protocol: which peers may name another client.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tollgate::identity::{AddressSource, ClientAddressPolicy};
use tollgate_server::config::settings::ServerSettings;
use tollgate_server::listener::AcceptPolicy;

use crate::server::{Client, GET, Pki, Server, request, tls_policy};

const LINE: &[u8] = b"PROXY TCP4 203.0.113.9 192.0.2.1 51000 80\r\n";

fn policy(trusted: &str) -> AcceptPolicy {
    let client_address = ClientAddressPolicy {
        source: AddressSource::ProxyProtocol,
        trusted_proxies: vec![trusted.parse().unwrap()],
        ..ClientAddressPolicy::default()
    };
    AcceptPolicy { client_address, ..AcceptPolicy::default() }
}

fn v2() -> Vec<u8> {
    let address = [203, 0, 113, 9, 192, 0, 2, 1, 0xc7, 0x38, 0, 80];
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".as_slice(), &address].concat()
}

/// The response to a request after these bytes; empty if the connection is closed.
async fn get_after(server: &Server, bytes: &[u8]) -> String {
    let mut stream = server.connect().await;
    let _ = stream.write_all(bytes).await;
    request(&mut stream).await.unwrap_or_default()
}

#[tokio::test]
async fn trusted_proxy_names_the_client() {
    let server = Server::start(policy("127.0.0.0/8"), ServerSettings::default()).await;
    for header in [LINE, &v2()] {
        let text = get_after(&server, header).await;
        assert!(text.ends_with("source=203.0.113.9"), "{text}");
    }
    for header in [b"PROXY UNKNOWN\r\n".as_slice(), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        let text = get_after(&server, header).await;
        assert!(text.ends_with("source=127.0.0.1"), "{text}");
    }
}

#[tokio::test]
async fn header_may_arrive_byte_by_byte() {
    let server = Server::start(policy("127.0.0.1/32"), ServerSettings::default()).await;
    for header in [LINE, &v2()] {
        let mut stream = server.connect().await;
        stream.set_nodelay(true).unwrap();
        for byte in [header, GET].concat() {
            stream.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.unwrap();
        assert!(text.ends_with("source=203.0.113.9"), "{text}");
    }
}

#[tokio::test]
async fn forged_header_of_an_untrusted_peer_is_no_header() {
    let server = Server::start(policy("10.0.0.0/8"), ServerSettings::default()).await;
    for header in [LINE, &v2()] {
        let text = get_after(&server, header).await;
        assert!(!text.contains("203.0.113.9") && !text.starts_with("HTTP/1.1 200"), "{text}");
    }
    let text = get_after(&server, b"").await;
    assert!(text.ends_with("source=127.0.0.1"), "{text}");
    server.counted(|stats| &stats.proxy_headers_invalid, 0).await;
}

#[tokio::test]
async fn trusted_proxy_without_a_valid_header_is_closed() {
    let settings = ServerSettings { header_timeout: Duration::from_millis(300), ..ServerSettings::default() };
    let server = Server::start(policy("127.0.0.0/8"), settings).await;
    let long = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 300], b"\r\n"].concat();
    let huge = [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".as_slice(), &[1; 64]].concat();
    for bytes in [b"".as_slice(), b"garbage\r\n", b"PROXY TCP4 a b 1 2\r\n", &long, &huge] {
        assert_eq!(get_after(&server, bytes).await, "", "{bytes:?}");
    }
    // Incomplete: the timeout closes it.
    let mut stream = server.connect().await;
    stream.write_all(&LINE[..20]).await.unwrap();
    let mut text = String::new();
    let _ = tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await;
    assert_eq!(text, "");
    server.counted(|stats| &stats.proxy_headers_invalid, 6).await;
    server.counted(|stats| &stats.open, 0).await;
}

#[tokio::test]
async fn header_precedes_the_tls_handshake() {
    let pki = Pki::new();
    let policy = AcceptPolicy { tls: tls_policy(&pki.server()).tls, ..policy("127.0.0.0/8") };
    let server = Server::start(policy, ServerSettings::default()).await;
    let mut stream = server.connect().await;
    stream.write_all(LINE).await.unwrap();
    let mut stream = Client::new(&pki).connect(stream).await.unwrap();
    let text = request(&mut stream).await.unwrap();
    assert!(text.ends_with("source=203.0.113.9"), "{text}");
}

#[tokio::test]
async fn connections_of_a_proxy_are_limited_by_client() {
    let settings = ServerSettings { connections_per_ip_max: 1, ..ServerSettings::default() };
    let server = Server::start(policy("127.0.0.0/8"), settings).await;
    let mut held = Vec::new();
    for client in 1..=3 {
        let mut stream = server.connect().await;
        let line = format!("PROXY TCP4 203.0.113.{client} 192.0.2.1 51000 80\r\n");
        stream.write_all(line.as_bytes()).await.unwrap();
        held.push(stream);
    }
    server.counted(|stats| &stats.open, 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let same = b"PROXY TCP4 203.0.113.1 192.0.2.1 51001 80\r\n";
    assert_eq!(get_after(&server, same).await, "");
    server.counted(|stats| &stats.refused, 1).await;
}

#[tokio::test]
async fn changed_policy_applies_to_new_connections() {
    let server = Server::start(policy("10.0.0.0/8"), ServerSettings::default()).await;
    assert!(!get_after(&server, LINE).await.contains("203.0.113.9"));
    server.policy.store(Arc::new(policy("127.0.0.0/8")));
    assert!(get_after(&server, LINE).await.ends_with("source=203.0.113.9"));
}
