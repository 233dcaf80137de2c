//! TLS of the listener itself: the command line client, callers with certificates, and revocation.

use std::fs;

use tollgate_testkit::Leaf;

use crate::harness::wait_for;
use crate::tls_service::{TlsService, with_caller};
use crate::tls_setup::{CHECK, done, error, run, text};

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

#[test]
fn revoked_certificate_is_refused_when_the_list_changes() {
    let tls = TlsService::start(|certificates| {
        let list = certificates.revoke(&[]);
        format!("client_crl_file = {list:?}\n{}", with_caller(certificates))
    });
    let other = Leaf { names: "DNS:client.test", usage: "clientAuth", ..Leaf::default() };
    let other = tls.certificates.issue("other", &other);
    let flags = ["--cert-file", text(&other.0), "--cert-key-file", text(&other.1)];
    let as_other = [&CHECK[..], &flags].concat();
    done(&mut tls.with_certificate(&CHECK));
    done(&mut tls.command(&as_other));

    let list = tls.certificates.revoke(&[&tls.certificates.client]);
    let shown = wait_for("the revocation", || {
        let ran = run(&mut tls.with_certificate(&CHECK));
        (ran.code != 0).then_some(ran.stderr)
    });
    assert!(shown.contains("the server does not accept the client certificate of --cert-file"), "{shown}");
    done(&mut tls.command(&as_other));

    fs::write(list, "broken").unwrap();
    wait_for("the error", || {
        tls.service.log().contains("contains no revocation list in PEM format").then_some(())
    });
    assert_ne!(run(&mut tls.with_certificate(&CHECK)).code, 0, "the old list stays in force");
    done(&mut tls.command(&as_other));
}
