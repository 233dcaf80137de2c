//! TLS between clients and the proxy.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tempfile::TempDir;
use tollgate_testkit::{Certificates, Leaf};

use crate::harness::{Service, wait_for};
use crate::tls_client::TlsClient;
use crate::upstream::{Upstream, proxy_of};

/// The table `[proxy.tls]` with the server's certificate.
pub(crate) fn proxy_tls(certificates: &Certificates) -> String {
    let Certificates { server, server_key, .. } = certificates;
    format!("[proxy.tls]\ncertificate_file = {server:?}\nkey_file = {server_key:?}\n")
}

/// Sends a request that is verified with the test CA; returns the version and status.
fn fetch(url: &str, certificates: &Certificates, version: &str) -> String {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "--output", "/dev/null"])
        .args(["--write-out", "%{http_version} %{response_code}", version, "--cacert"])
        .args([certificates.authority.to_str().unwrap(), url])
        .output()
        .expect("curl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn proxy_terminates_tls() {
    let folder = TempDir::new().unwrap();
    let certificates = Certificates::create_in(folder.path());
    let upstream = Upstream::start();
    let config = Upstream::proxied(&[&upstream], "", "") + &proxy_tls(&certificates);
    let service = Service::with_config(&config);
    assert!(service.banner.contains("https://"), "{}", service.banner);
    let url = format!("https://{}/a", proxy_of(&service));
    assert_eq!(fetch(&url, &certificates, "--http1.1"), "1.1 200");
    assert_eq!(fetch(&url, &certificates, "--http2"), "2 200", "by ALPN");
    for request in upstream.requests() {
        assert_eq!(request.headers("x-forwarded-proto"), ["https"]);
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn certificate_change_under_load_fails_no_request() {
    let folder = TempDir::new().unwrap();
    let certificates = Certificates::create_in(folder.path());
    let upstream = Upstream::start();
    let config = Upstream::proxied(&[&upstream], "", "enabled = false") + &proxy_tls(&certificates);
    let service = Service::with_config(&config);
    let client = TlsClient::new(proxy_of(&service), &certificates.authority);
    let (is_done, requests) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut kept = client.connect();
                while !is_done.load(Ordering::Relaxed) {
                    kept.get().unwrap();
                    client.connect().get().unwrap();
                    requests.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        for number in 1..=3 {
            let name = format!("/CN=renewed-{number}");
            let (certificate, key) =
                certificates.issue("renewed", &Leaf { subject: &name, ..Leaf::default() });
            fs::rename(key, &certificates.server_key).unwrap();
            fs::rename(certificate, &certificates.server).unwrap();
            wait_for("the new certificate", || {
                let mut connection = client.connect();
                connection.get().unwrap();
                connection.saw(&certificates.server).then_some(())
            });
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(requests.into_inner() > 0);
}

#[test]
fn renewed_certificate_of_the_proxy_is_loaded() {
    let folder = TempDir::new().unwrap();
    let certificates = Certificates::create_in(folder.path());
    let upstream = Upstream::start();
    let Certificates { server, server_key, .. } = &certificates;
    let service =
        Service::with_config(&(Upstream::proxied(&[&upstream], "", "") + &proxy_tls(&certificates)));
    let metric =
        format!("tollgate_tls_certificate_expiry_timestamp_seconds{{certificate=\"{}\"}}", server.display());
    let before = service.metric(&metric).unwrap();
    assert!(service.log().contains("the certificate expires soon"), "{}", service.log());
    let later = Some(("20200101000000Z", "20900101000000Z"));
    let names = "DNS:localhost, IP:127.0.0.1";
    let renewed = certificates
        .issue("renewed", &Leaf { subject: "/CN=renewed", names, validity: later, ..Leaf::default() });
    fs::rename(renewed.1, server_key).unwrap();
    fs::rename(renewed.0, server).unwrap();
    let address = proxy_of(&service).to_string();
    wait_for("the new certificate", || {
        let shown = Command::new("openssl").args(["s_client", "-connect", &address]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains("CN = renewed").then_some(())
    });
    assert!(service.metric(&metric).unwrap() > before);
    assert_eq!(fetch(&format!("https://{address}/a"), &certificates, "--http1.1"), "1.1 200");
}
