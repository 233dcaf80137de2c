//! TLS between the proxy and upstreams.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tollgate_testkit::{Certificates, Leaf, WebServer};

use crate::harness::{Service, wait_for};
use crate::upstream::{get, proxied_to, proxy_of};

/// nginx with certificates of a private CA.
struct Setup {
    nginx: WebServer,
    certificates: Certificates,
    _folder: TempDir,
}

impl Setup {
    fn start(start: impl Fn(&Certificates) -> WebServer) -> Self {
        let folder = TempDir::new().unwrap();
        let certificates = Certificates::create_in(folder.path());
        Setup { nginx: start(&certificates), certificates, _folder: folder }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}", self.nginx.address().port())
    }

    /// A proxy with these keys of the route.
    fn proxy(&self, scheme: &str, route: &str) -> Service {
        Service::with_config(&proxied_to(&[&self.url(scheme)], route, ""))
    }

    fn ca(&self) -> String {
        format!("upstream_tls = {{ ca_file = {:?} }}", self.certificates.authority)
    }

    fn ca_and_certificate(&self) -> String {
        let Certificates { authority, client, client_key, .. } = &self.certificates;
        format!(
            "upstream_tls = {{ ca_file = {authority:?}, certificate_file = {client:?}, key_file = {client_key:?} }}"
        )
    }
}

#[test]
fn private_ca_is_trusted_for_http1_and_http2() {
    let setup = Setup::start(WebServer::nginx_with_tls);
    for (scheme, version) in [("https", "HTTP/1.1"), ("h2", "HTTP/2.0")] {
        let service = setup.proxy(scheme, &setup.ca());
        let answer = get(proxy_of(&service), "/a");
        assert_eq!((answer.status, answer.text.as_str()), (200, "hello"), "{scheme}: {answer:?}");
        let expected = format!("GET /a {version}");
        wait_for(&expected, || setup.nginx.requests().contains(&expected).then_some(()));
    }
}

#[test]
fn unknown_ca_is_502_and_the_log_has_the_remedy() {
    let setup = Setup::start(WebServer::nginx_with_tls);
    let service = setup.proxy("https", "");
    for _ in 0..3 {
        let answer = get(proxy_of(&service), "/a");
        assert_eq!((answer.status, answer.error().1.as_str()), (502, "UPSTREAM_FAILED"));
        assert!(!answer.text.contains("certificate"), "details are for the operator: {}", answer.text);
    }
    wait_for("the warning", || service.log().contains("set upstream_tls.ca_file").then_some(()));
    assert_eq!(setup.nginx.requests(), [""; 0]);
}

#[test]
fn system_ca_is_trusted_by_default() {
    let setup = Setup::start(WebServer::nginx_with_tls);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tollgate.toml");
    fs::write(&file, proxied_to(&[&setup.url("https")], "", "")).unwrap();
    let authority = setup.certificates.authority.to_str().unwrap();
    let service = Service::start(folder, Some(&file), &[("SSL_CERT_FILE", authority)]);
    assert_eq!(get(proxy_of(&service), "/a").status, 200);
}

#[test]
fn certificate_for_another_host_is_502() {
    let setup = Setup::start(|certificates| WebServer::nginx_with_tls(&certificates.for_other_host()));
    let service = setup.proxy("https", &setup.ca());
    assert_eq!(get(proxy_of(&service), "/a").status, 502);
    assert_eq!(setup.nginx.requests(), [""; 0]);
}

#[test]
fn client_certificate_is_presented_to_the_upstream() {
    let setup = Setup::start(WebServer::nginx_with_client_auth);
    for scheme in ["https", "h2"] {
        let without = setup.proxy(scheme, &setup.ca());
        assert_eq!(get(proxy_of(&without), "/a").status, 400, "nginx refuses it");
        let with = setup.proxy(scheme, &setup.ca_and_certificate());
        assert_eq!(get(proxy_of(&with), "/a").status, 200);
    }
}

#[test]
fn table_of_the_route_precedes_that_of_the_proxy() {
    let setup = Setup::start(WebServer::nginx_with_client_auth);
    let url = setup.url("https");
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\n{}\n[[proxy.routes]]\nupstreams = [{url:?}]\n\
         [[proxy.routes]]\nmatch = \"/anonymous\"\nupstreams = [{url:?}]\n{}\n",
        setup.ca_and_certificate(),
        setup.ca(),
    );
    let service = Service::with_config(&config);
    let proxy = proxy_of(&service);
    assert_eq!((get(proxy, "/a").status, get(proxy, "/anonymous").status), (200, 400));
}

fn replace(file: &Path, with: &Path) {
    let copy = file.with_extension("new");
    fs::copy(with, &copy).unwrap();
    fs::rename(copy, file).unwrap();
}

#[test]
fn changed_certificates_are_used_on_new_connections() {
    let setup = Setup::start(WebServer::nginx_with_client_auth);
    let own = TempDir::new().unwrap();
    let files = Certificates::create_in(own.path());
    let Certificates { authority, client, client_key, .. } = &files;
    let route = format!(
        "upstream_tls = {{ ca_file = {authority:?}, certificate_file = {client:?}, key_file = {client_key:?} }}"
    );
    let service = setup.proxy("https", &route);
    let proxy = proxy_of(&service);
    assert_eq!(get(proxy, "/a").status, 502, "another CA");
    replace(authority, &setup.certificates.authority);
    wait_for("the CA", || (get(proxy, "/a").status == 400).then_some(()));
    let leaf = Leaf { usage: "clientAuth", ..Leaf::default() };
    let (certificate, key) = setup.certificates.issue("proxy", &leaf);
    replace(client_key, &key);
    replace(client, &certificate);
    wait_for("the client certificate", || (get(proxy, "/a").status == 200).then_some(()));
    fs::write(client, "broken").unwrap();
    wait_for("the error", || service.log().contains("upstream_tls.certificate_file").then_some(()));
    assert_eq!(get(proxy, "/a").status, 200, "the last valid one stays in force");
}
