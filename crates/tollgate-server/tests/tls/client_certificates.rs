//! Client certificates: which are accepted, and when they stop being so.

use std::path::PathBuf;
use std::sync::Arc;

use tollgate_testkit::Leaf;

use crate::server::{Client, Pki, Server, tls_policy};

fn with_client_auth(pki: &Pki, mode: &str) -> String {
    format!(
        "{}client_ca_file = {:?}\nclient_certificates = {mode:?}",
        pki.server(),
        pki.certificates.authority
    )
}

fn leaf<'a>() -> Leaf<'a> {
    Leaf {
        subject: "/O=Acme/CN=billing",
        names: "DNS:billing.internal, URI:spiffe://test/billing",
        usage: "clientAuth",
        validity: None,
    }
}

fn client(pki: &Pki, certificate: &(PathBuf, PathBuf)) -> Client {
    Client::with(pki, rustls::ALL_VERSIONS, Some(certificate))
}

#[tokio::test]
async fn verified_certificate_reaches_the_service() {
    let pki = Pki::new();
    let server = Server::with_tls(&with_client_auth(&pki, "required")).await;
    let text = server.get(&client(&pki, &pki.certificates.issue("billing", &leaf()))).await.unwrap();
    assert!(text.ends_with("certificate=\"CN=billing,O=Acme\""), "{text}");
}

#[tokio::test]
async fn invalid_client_certificates_are_refused() {
    let (pki, other) = (Pki::new(), Pki::new());
    let issue = |name: &str, leaf: &Leaf<'_>| pki.certificates.issue(name, leaf);
    let expired = Some(("20200101000000Z", "20200102000000Z"));
    let future = Some(("20900101000000Z", "20900102000000Z"));
    let cases = [
        ("another authority", other.certificates.issue("foreign", &leaf())),
        ("expired", issue("expired_client", &Leaf { validity: expired, ..leaf() })),
        ("not yet valid", issue("future", &Leaf { validity: future, ..leaf() })),
        ("usage", issue("usage", &Leaf { usage: "serverAuth", ..leaf() })),
    ];
    for mode in ["required", "optional"] {
        let server = Server::with_tls(&with_client_auth(&pki, mode)).await;
        for (why, certificate) in &cases {
            assert!(server.get(&client(&pki, certificate)).await.is_err(), "{mode}: {why}");
        }
        server.counted(|stats| &stats.handshakes_failed, 4).await;
    }
}

#[tokio::test]
async fn certificate_is_required_only_if_configured() {
    let pki = Pki::new();
    let server = Server::with_tls(&with_client_auth(&pki, "required")).await;
    assert!(server.get(&Client::new(&pki)).await.is_err());
    let server = Server::with_tls(&with_client_auth(&pki, "optional")).await;
    let text = server.get(&Client::new(&pki)).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && !text.contains("certificate="), "{text}");
}

#[tokio::test]
async fn listed_certificates_are_refused() {
    let (pki, other) = (Pki::new(), Pki::new());
    let with_list = |list: PathBuf| {
        format!("{}\nclient_crl_file = {:?}", with_client_auth(&pki, "required"), list.display().to_string())
    };
    let (stolen, kept) = ["stolen", "kept"].map(|name| pki.certificates.issue(name, &leaf())).into();
    let server = Server::with_tls(&with_list(pki.certificates.revoke(&[&stolen.0]))).await;
    assert!(server.get(&client(&pki, &stolen)).await.unwrap_err().contains("CertificateRevoked"));
    assert!(server.get(&client(&pki, &kept)).await.is_ok());
    // Without a list of its authority, a certificate may be revoked or not.
    server.policy.store(Arc::new(tls_policy(&with_list(other.certificates.revoke(&[])))));
    assert!(server.get(&client(&pki, &kept)).await.is_err());
}

#[tokio::test]
async fn removed_authority_refuses_new_connections() {
    let (pki, other) = (Pki::new(), Pki::new());
    let server = Server::with_tls(&with_client_auth(&pki, "required")).await;
    let config = client(&pki, &pki.certificates.issue("billing", &leaf()));
    // Twice, so that a session could be resumed.
    for _ in 0..2 {
        assert!(server.get(&config).await.is_ok());
    }
    let keys = format!("{}client_ca_file = {:?}", pki.server(), other.certificates.authority);
    server.policy.store(Arc::new(tls_policy(&keys)));
    assert!(server.get(&config).await.is_err());
}
