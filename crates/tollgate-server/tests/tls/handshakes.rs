//! Handshakes: versions, names, renewal, and clients that do not complete one.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate_server::config::settings::{ServerSettings, Settings};
use tollgate_testkit::Leaf;

use crate::server::{Client, GET, Pki, Server, files, request, tls_policy};

#[tokio::test]
async fn requests_are_served_over_tls() {
    let pki = Pki::new();
    let server = Server::with_tls(&pki.server()).await;
    let text = server.get(&Client::new(&pki)).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("source=127.0.0.1"), "{text}");
    server.counted(|stats| &stats.handshakes, 1).await;
}

#[tokio::test]
async fn tls_1_2_is_refused_unless_allowed() {
    let pki = Pki::new();
    let old = Client::with(&pki, &[&rustls::version::TLS12], None);
    let server = Server::with_tls(&pki.server()).await;
    assert!(server.get(&old).await.is_err());
    server.counted(|stats| &stats.handshakes_failed, 1).await;
    let server = Server::with_tls(&format!("{}min_version = \"1.2\"", pki.server())).await;
    assert!(server.get(&old).await.is_ok());
    assert!(server.get(&Client::new(&pki)).await.is_ok());
}

#[tokio::test]
async fn tls_1_1_is_refused() {
    let pki = Pki::new();
    let server = Server::with_tls(&format!("{}min_version = \"1.2\"", pki.server())).await;
    // A ClientHello of TLS 1.1 with one cipher suite and no extensions.
    let body = [&[3, 2][..], &[7; 32], &[0, 0, 2, 0xc0, 0x09, 1, 0]].concat();
    let length = u8::try_from(body.len()).unwrap();
    let hello = [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &body].concat();
    let mut stream = server.connect().await;
    stream.write_all(&hello).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    // An alert: fatal, protocol_version (70) or handshake_failure (40).
    assert!(answer.first() == Some(&21) && matches!(answer.last(), Some(70 | 40)), "{answer:?}");
}

#[tokio::test]
async fn http2_is_negotiated() {
    let pki = Pki::new();
    let server = Server::with_tls(&pki.server()).await;
    for (offered, chosen) in [(&["h2", "http/1.1"][..], "h2"), (&["http/1.1"], "http/1.1")] {
        let mut client = Client::new(&pki);
        client.config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = client.connect(server.connect().await).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(chosen.as_bytes()));
    }
}

#[tokio::test]
async fn early_data_is_never_accepted() {
    let pki = Pki::new();
    let server = Server::with_tls(&pki.server()).await;
    let mut client = Client::new(&pki);
    client.config.enable_early_data = true;
    let config = Arc::new(client.config.clone());
    for _ in 0..3 {
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&config));
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let with = |session: &mut rustls::ClientConnection| assert!(session.early_data().is_none());
        let mut stream = connector.connect_with(name, server.connect().await, with).await.unwrap();
        request(&mut stream).await.unwrap();
    }
}

#[tokio::test]
async fn certificate_is_chosen_by_server_name() {
    let pki = Pki::new();
    let issue = |name: &str, names: &str| {
        let (certificate, key) = pki.certificates.issue(name, &Leaf { names, ..Leaf::default() });
        format!("{{ certificate_file = {certificate:?}, key_file = {key:?} }}")
    };
    let first = issue("first", "DNS:localhost");
    let second = issue("second", "DNS:api.test, DNS:*.wild.test");
    let server = Server::with_tls(&format!("certificates = [{first}, {second}]")).await;
    for (name, is_found) in [
        ("localhost", true),
        ("api.test", true),
        ("API.test", true),
        ("a.wild.test", true),
        ("a.b.wild.test", false),
        ("unknown.test", false),
    ] {
        let client = Client { name, ..Client::new(&pki) };
        assert_eq!(server.get(&client).await.is_ok(), is_found, "{name}");
    }
}

#[tokio::test]
async fn renewed_certificate_is_used_for_new_connections() {
    let pki = Pki::new();
    let renew = |number: u32| {
        let subject = format!("/CN=certificate {number}");
        let (certificate, key) =
            pki.certificates.issue("renewed", &Leaf { subject: &subject, ..Leaf::default() });
        files(&certificate, &key)
    };
    let server = Server::with_tls(&renew(0)).await;
    let client = Client::new(&pki);
    let mut old = client.connect(server.connect().await).await.unwrap();
    for number in 1..=10 {
        server.policy.store(Arc::new(tls_policy(&renew(number))));
        let stream = client.connect(server.connect().await).await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        let name = format!("certificate {number}");
        assert!(shown.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
    }
    assert!(request(&mut old).await.unwrap().starts_with("HTTP/1.1 200"), "open connections stay");
}

#[tokio::test]
async fn slow_handshake_is_closed() {
    let pki = Pki::new();
    let header_timeout = Duration::from_millis(300);
    let settings = ServerSettings { header_timeout, ..ServerSettings::default() };
    let server = Server::start(tls_policy(&pki.server()), settings).await;
    for bytes in [&b""[..], b"\x16\x03\x01"] {
        let mut stream = server.connect().await;
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{answer:?}");
    }
    server.counted(|stats| &stats.handshakes_failed, 2).await;
    server.counted(|stats| &stats.timed_out, 2).await;
    server.counted(|stats| &stats.open, 0).await;
}

#[tokio::test]
async fn plain_http_to_the_tls_port_is_closed() {
    let pki = Pki::new();
    let server = Server::with_tls(&pki.server()).await;
    let mut stream = server.connect().await;
    let _ = stream.write_all(GET).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "{answer:?}");
    server.counted(|stats| &stats.handshakes_failed, 1).await;
}

#[tokio::test]
async fn idle_http2_bytes_over_tls_are_a_flood() {
    let pki = Pki::new();
    let server = Server::with_tls(&pki.server()).await;
    let mut stream = Client::new(&pki).connect(server.connect().await).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // Unknown frames, which are ignored.
    let frame = [&[0, 0x40, 0, 0xfa, 0, 0, 0, 0, 0][..], &[0; 16_384]].concat();
    let mut sent = 0;
    while sent < (8 << 20) && stream.write_all(&frame).await.is_ok() {
        sent += frame.len();
    }
    server.counted(|stats| &stats.timed_out, 1).await;
}

#[test]
fn mistakes_in_certificate_files_are_explained() {
    let pki = Pki::new();
    let other = pki.certificates.issue("other", &Leaf::default());
    let empty = pki.folder.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let server = &pki.certificates.server;
    for (keys, expected) in [
        (files(server, &other.1), "is not the key of the first certificate in"),
        (files(&empty, &other.1), "contains no certificate in PEM format"),
        (files(server, &empty), "contains no unencrypted private key in PEM format"),
        (files(server, server), "contains no unencrypted private key in PEM format"),
        (files(&pki.folder.path().join("none.pem"), &other.1), "cannot read"),
        (String::new(), "server.tls.certificate_file: is missing"),
        ("certificates = []".to_owned(), "must list at least one certificate"),
        (format!("{}min_version = \"1.1\"", pki.server()), "server.tls.min_version"),
        (format!("{}client_certificates = \"optional\"", pki.server()), "requires client_ca_file"),
        (format!("{}client_ca_file = {empty:?}", pki.server()), "contains no certificate"),
    ] {
        let error = Settings::from_toml(&format!("[server.tls]\n{keys}")).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error}");
    }
}

#[test]
fn early_data_is_off_in_the_configuration() {
    let pki = Pki::new();
    let config: Arc<ServerConfig> = tls_policy(&pki.server()).tls.unwrap();
    assert_eq!(config.max_early_data_size, 0);
}
