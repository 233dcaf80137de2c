//! TLS of the listener itself: the command line client, renewal, and callers with certificates.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;
use tollgate_testkit::{Certificates, Leaf};

use crate::harness::{Service, wait_for};
use crate::support::tollgate;
use crate::tls_setup::{CHECK, done, error, run, text};

struct TlsService {
    service: Service,
    certificates: Certificates,
    _folder: TempDir,
}

impl TlsService {
    /// With more keys of `[server.tls]`, and sections after it.
    fn start(more: impl Fn(&Certificates) -> String) -> Self {
        let folder = TempDir::new().unwrap();
        let certificates = Certificates::create_in(folder.path());
        let Certificates { server, server_key, .. } = &certificates;
        let config = format!(
            "default_limit = 100000\n[server.tls]\ncertificate_file = {server:?}\nkey_file = {server_key:?}\n{}",
            more(&certificates)
        );
        let service = Service::with_config(&config);
        TlsService { service, certificates, _folder: folder }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = tollgate();
        command.args(args).env("TOLLGATE_URL", format!("https://localhost:{}", self.service.address.port()));
        command.env("TOLLGATE_CA_FILE", &self.certificates.authority);
        command
    }

    /// With a client certificate and without a key.
    fn with_certificate(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        let Certificates { client, client_key, .. } = &self.certificates;
        command.env("TOLLGATE_CERT_FILE", client).env("TOLLGATE_CERT_KEY_FILE", client_key);
        command
    }

    /// With a new client certificate.
    fn as_owner_of(&self, subject: &str, names: &str, args: &[&str]) -> Command {
        let leaf = Leaf { subject, names, usage: "clientAuth", ..Leaf::default() };
        let (certificate, key) = self.certificates.issue("owner", &leaf);
        let mut command = self.command(args);
        command.env("TOLLGATE_CERT_FILE", certificate).env("TOLLGATE_CERT_KEY_FILE", key);
        command
    }

    fn readiness(&self) -> Value {
        let url = format!("https://localhost:{}/readyz", self.service.address.port());
        let mut curl = Command::new("curl");
        let got = curl.args(["-sS", &url, "--cacert"]).arg(&self.certificates.authority).output().unwrap();
        serde_json::from_slice(&got.stdout).unwrap()
    }

    /// Gives the server a new certificate of the same authority.
    fn renew(&self, name: &str) {
        let leaf = Leaf { subject: name, names: "DNS:localhost", ..Leaf::default() };
        let (certificate, key) = self.certificates.issue("renewed", &leaf);
        fs::rename(key, &self.certificates.server_key).unwrap();
        fs::rename(certificate, &self.certificates.server).unwrap();
    }

    fn shows(&self, name: &str) -> bool {
        let address = format!("localhost:{}", self.service.address.port());
        let shown = Command::new("openssl").args(["s_client", "-connect", &address]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains(name)
    }
}

fn with_caller(certificates: &Certificates) -> String {
    format!(
        "client_ca_file = {:?}\nclient_certificates = \"optional\"\n[auth]\nopen_checks = false\n\
         [[auth.callers]]\nname = \"billing\"\ncertificate = {{ dns = \"client.test\" }}\nscopes = [\"check\"]\n",
        certificates.authority
    )
}

#[test]
fn commands_speak_to_the_tls_listener() {
    let tls = TlsService::start(|_| String::new());
    assert!(tls.service.banner.contains("serving on https://"), "{}", tls.service.banner);
    done(&mut tls.command(&CHECK));
    let mut plain = tls.command(&CHECK);
    let shown = error(plain.env("TOLLGATE_URL", format!("http://localhost:{}", tls.service.address.port())));
    assert!(shown.contains("https://"), "{shown}");
}

#[test]
fn renewal_under_load_fails_no_request() {
    let tls = TlsService::start(|_| String::new());
    let (is_done, requests) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let ran = run(&mut tls.command(&CHECK));
                assert_eq!(ran.code, 0, "{}", ran.stderr);
                requests.fetch_add(1, Ordering::Relaxed);
            }
        });
        for number in 1..=3 {
            let name = format!("renewed-{number}");
            tls.renew(&format!("/CN={name}"));
            wait_for("the new certificate", || tls.shows(&name).then_some(()));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(requests.into_inner() > 0);
}

#[test]
fn invalid_certificate_keeps_the_old_one() {
    let tls = TlsService::start(|_| String::new());
    fs::write(&tls.certificates.server, "broken").unwrap();
    wait_for("the error", || {
        tls.service.log().contains("contains no certificate in PEM format").then_some(())
    });
    done(&mut tls.command(&CHECK));
    let ready = tls.readiness();
    let problem = ready["config_error"].as_str().unwrap_or_default();
    assert!(problem.contains("server.tls.certificate_file"), "{ready}");
    assert_eq!(ready["status"], "degraded");
    tls.renew("/CN=repaired");
    wait_for("the repaired certificate", || tls.shows("repaired").then_some(()));
    wait_for("readiness", || (tls.readiness()["status"] == "ready").then_some(()));
}

#[test]
fn caller_is_identified_by_its_certificate() {
    let tls = TlsService::start(with_caller);
    done(&mut tls.with_certificate(&CHECK));
    let shown = error(&mut tls.with_certificate(&["rules", "list"]));
    assert!(shown.contains("lacks the scope"), "{shown}");
    let shown = error(&mut tls.command(&CHECK));
    assert!(shown.contains("API key required"), "{shown}");
    // A key in the request decides.
    let mut admin = tls.with_certificate(&["rules", "list"]);
    done(admin.env("TOLLGATE_KEY", tls.service.admin_key()));
    let strange = tls.certificates.issue("strange", &Leaf { usage: "clientAuth", ..Leaf::default() });
    let flags = ["--cert-file", text(&strange.0), "--cert-key-file", text(&strange.1)];
    let shown = error(&mut tls.command(&[&CHECK[..], &flags].concat()));
    assert!(shown.contains("no caller of [[auth.callers]] has the client certificate"), "{shown}");
}

#[test]
fn each_name_of_a_certificate_identifies_its_caller() {
    let callers = [
        ("billing", "subject = \"CN=billing,O=Acme\"", ""),
        ("orders", "uri = \"urn:service:orders\"", "tenant = \"acme\""),
        ("reports", "spiffe = \"spiffe://test/reports\"", ""),
    ];
    let callers = callers.map(|(name, certificate, more)| {
        format!(
            "[[auth.callers]]\nname = \"{name}\"\ncertificate = {{ {certificate} }}\nscopes = [\"check\"]\n{more}\n"
        )
    });
    let tls = TlsService::start(|certificates| {
        let authority = &certificates.authority;
        format!("client_ca_file = {authority:?}\n[auth]\nopen_checks = false\n{}", callers.concat())
    });
    done(&mut tls.as_owner_of("/O=Acme/CN=billing", "DNS:a.test", &CHECK));
    done(&mut tls.as_owner_of("/CN=a", "DNS:a.test, URI:spiffe://test/reports", &CHECK));
    let orders = |tenant: &str| {
        tls.as_owner_of("/CN=a", "URI:urn:service:orders", &[&CHECK[..], &["--tenant", tenant]].concat())
    };
    done(&mut orders("acme"));
    let shown = error(&mut orders("globex"));
    assert!(shown.contains("acme"), "{shown}");
    for (subject, names) in [
        ("/CN=billing", "DNS:a.test"),
        ("/O=Other/CN=billing", "DNS:a.test"),
        ("/CN=billing,O=Acme", "DNS:a.test"),
        ("/CN=a", "URI:spiffe://test/reports/x"),
        ("/CN=a", "DNS:urn"),
    ] {
        let shown = error(&mut tls.as_owner_of(subject, names, &CHECK));
        assert!(shown.contains("no caller of [[auth.callers]]"), "{subject} {names}: {shown}");
    }
}

#[test]
fn removed_caller_is_refused_at_once() {
    let tls = TlsService::start(with_caller);
    done(&mut tls.with_certificate(&CHECK));
    let file = tls.service.config_file();
    let kept = fs::read_to_string(&file).unwrap().split("[[auth.callers]]").next().unwrap().to_owned();
    fs::write(&file, kept).unwrap();
    wait_for("the caller to be removed", || (run(&mut tls.with_certificate(&CHECK)).code == 2).then_some(()));
}
