//! TLS between clients and the proxy.

use std::process::Command;

use tempfile::TempDir;
use tollgate_testkit::Certificates;

use crate::harness::Service;
use crate::upstream::{Upstream, proxy_of};

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
    let tls = format!(
        "[proxy.tls]\ncertificate_file = {:?}\nkey_file = {:?}\n",
        certificates.server, certificates.server_key
    );
    let service = Service::with_config(&(Upstream::proxied(&[&upstream], "", "") + &tls));
    assert!(service.banner.contains("https://"), "{}", service.banner);
    let url = format!("https://{}/a", proxy_of(&service));
    assert_eq!(fetch(&url, &certificates, "--http1.1"), "1.1 200");
    assert_eq!(fetch(&url, &certificates, "--http2"), "2 200", "by ALPN");
    for request in upstream.requests() {
        assert_eq!(request.headers("x-forwarded-proto"), ["https"]);
    }
    assert_eq!(upstream.count(), 2);
}
