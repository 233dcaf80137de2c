//! Whom a command trusts, and what it says of those whom it does not.

use std::fs;

use tempfile::TempDir;
use tollgate_testkit::{Certificates, TlsProxy};

use crate::common::Files;
use crate::harness::wait_for;
use crate::ingress::{CHECK, Ingress, done, error, run, text};

#[test]
fn every_kind_of_command_works_through_tls_with_a_private_authority() {
    let ingress = Ingress::start();
    let place = ["--user", "alice", "--endpoint", "/api/v1/a b?c"];
    let checked = done(&mut ingress.trusting(&[&["check"], &place[..]].concat()));
    assert!(checked.starts_with("admitted"), "{checked}");
    let status = done(&mut ingress.trusting(&[&["status"], &place[..]].concat()));
    assert!(status.contains("9 of 10 left"), "{status}");
    let explained = done(&mut ingress.trusting(&[&["explain"], &place[..]].concat()));
    assert!(explained.contains("MATCHED"), "{explained}");
    let rules = "[[rules]]\nname = \"few\"\nper = [\"user\"]\nlimits = [{ requests = 7, window = \"1h\" }]\n";
    let files = Files::new(&[("rules.toml", rules)]);
    let applied = done(&mut ingress.trusting(&["rules", "apply", &files.path("rules.toml")]));
    assert!(applied.ends_with("1 created, 0 updated, 0 deleted, 0 unchanged\n"), "{applied}");
    wait_for("the rule to be in force", || {
        let explained = done(&mut ingress.trusting(&[&["explain"], &place[..], &["--json"]].concat()));
        (serde_json::from_str::<serde_json::Value>(&explained).unwrap()["limit"] == 7).then_some(())
    });
}

#[test]
fn an_authority_is_named_by_flag_environment_or_file_and_the_flag_stands_above() {
    let ingress = Ingress::start();
    let authority = text(&ingress.certificates.authority);
    done(&mut ingress.command(&[&CHECK[..], &["--ca-file", authority]].concat()));
    done(ingress.command(&CHECK).env("TOLLGATE_CA_FILE", authority));
    done(ingress.command(&[&CHECK[..], &["--ca-file", authority]].concat()).env("TOLLGATE_CA_FILE", "/none"));
    let files = Files::new(&[]);
    fs::create_dir(files.file("tollgate")).unwrap();
    fs::copy(authority, files.file("tollgate/ca.pem")).unwrap();
    let written = format!("url = \"{}\"\nca_file = \"ca.pem\"\n", ingress.proxy.url());
    fs::write(files.file("tollgate/config.toml"), written).unwrap();
    let home = files.file("");
    done(ingress.command(&CHECK).env("XDG_CONFIG_HOME", &home).env_remove("TOLLGATE_URL"));
    done(ingress.command(&CHECK).env("XDG_CONFIG_HOME", &home).env("TOLLGATE_CA_FILE", ""));
    // The same machine by another name is another server, for which the file says nothing.
    let other = format!("https://127.0.0.1:{}", ingress.proxy.port());
    let told = error(ingress.command(&CHECK).env("XDG_CONFIG_HOME", &home).env("TOLLGATE_URL", &other));
    assert!(told.contains("not trusted here"), "{told}");
    done(ingress.trusting(&CHECK).env("XDG_CONFIG_HOME", &home).env("TOLLGATE_URL", &other));
}

#[test]
fn the_authorities_of_the_system_are_trusted_and_others_only_added() {
    let ingress = Ingress::start();
    let other = TempDir::new().unwrap();
    let other = Certificates::create_in(other.path()).authority;
    // OpenSSL's variable, and that of many others, names the system's authorities.
    done(ingress.command(&CHECK).env("SSL_CERT_FILE", &ingress.certificates.authority));
    let both = [&CHECK[..], &["--ca-file", text(&other)]].concat();
    done(ingress.command(&both).env("SSL_CERT_FILE", &ingress.certificates.authority));
    done(ingress.trusting(&CHECK).env("SSL_CERT_FILE", "/none"));
    let nobody = error(ingress.command(&CHECK).env("SSL_CERT_FILE", "/none"));
    assert!(nobody.contains("no list of trusted authorities") && nobody.contains("/none"), "{nobody}");
}

#[test]
fn a_server_of_an_unknown_authority_is_refused_and_never_asked() {
    let ingress = Ingress::start();
    let other = TempDir::new().unwrap();
    let other = Certificates::create_in(other.path()).authority;
    let url = ingress.proxy.url();
    let unknown =
        "an authority that is not trusted here: for a private one, name its certificate with --ca-file";
    let told = error(&mut ingress.command(&CHECK));
    assert_eq!(told, format!("error: {url}: the server's certificate is signed by {unknown}\n"));
    // Authorities of the testkit all have the same name, as those have that are made anew.
    let told = error(ingress.command(&CHECK).env("TOLLGATE_CA_FILE", &other));
    assert!(
        told.contains("called like a trusted one and has another key: is --ca-file an old one?"),
        "{told}"
    );
    let json = run(&mut ingress.command(&[&CHECK[..], &["--json"]].concat()));
    assert_eq!((json.code, &json.json()["error"]["code"]), (2, &"SERVICE_UNAVAILABLE".into()));
    let left = done(&mut ingress.trusting(&["status", "--user", "alice", "--endpoint", "/a"]));
    assert!(left.contains("10 of 10 left"), "{left}");
}

#[test]
fn a_server_that_signed_for_itself_is_trusted_by_its_own_certificate_unless_that_is_an_authoritys() {
    let ingress = Ingress::with(Certificates::self_signed, TlsProxy::in_front_of);
    let told = error(&mut ingress.command(&CHECK));
    assert!(told.contains("not trusted here"), "{told}");
    done(&mut ingress.trusting(&CHECK));
    let ingress = Ingress::with(Certificates::self_signed_ca, TlsProxy::in_front_of);
    let told = error(&mut ingress.trusting(&CHECK));
    assert!(told.contains("the server shows the certificate of an authority (CA:TRUE)"), "{told}");
}

#[test]
fn a_server_of_another_name_is_refused_and_both_names_are_told() {
    let ingress = Ingress::with(Certificates::for_other_host, TlsProxy::in_front_of);
    let told = error(&mut ingress.trusting(&CHECK));
    assert!(told.ends_with(": the server's certificate is for other.test, not for localhost\n"), "{told}");
    let by_address = format!("https://127.0.0.1:{}", ingress.proxy.port());
    let told = error(ingress.trusting(&CHECK).env("TOLLGATE_URL", by_address));
    assert!(told.ends_with(": the server's certificate is for other.test, not for 127.0.0.1\n"), "{told}");
}

#[test]
fn an_expired_certificate_is_refused_and_its_end_is_told() {
    let ingress = Ingress::with(Certificates::expired, TlsProxy::in_front_of);
    let told = error(&mut ingress.trusting(&CHECK));
    assert!(told.ends_with(": the server's certificate expired at 2020-01-02T00:00:00Z\n"), "{told}");
}

#[test]
fn a_file_of_authorities_that_cannot_be_used_says_why_and_nothing_is_sent() {
    let url = format!("https://localhost:{}", tollgate_testkit::free_port());
    let torn = "-----BEGIN CERTIFICATE-----\nMIIB!\n-----END CERTIFICATE-----\n";
    let wrong = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let files =
        Files::new(&[("empty.pem", ""), ("text.pem", "hello\n"), ("torn.pem", torn), ("wrong.pem", wrong)]);
    for (name, reason) in [
        ("missing.pem", ": No such file or directory"),
        ("empty.pem", " holds no certificate in PEM (`-----BEGIN CERTIFICATE-----`)"),
        ("text.pem", " holds no certificate in PEM"),
        ("torn.pem", " cannot be used: "),
        ("wrong.pem", " cannot be used: "),
        ("", ": Is a directory"),
    ] {
        let path = files.path(name);
        let args = [&CHECK[..], &["--url", &url, "--ca-file", &path]].concat();
        let told = error(crate::common::tollgate().args(&args));
        assert!(told.starts_with(&format!("error: the file of authorities {path}{reason}")), "{told}");
        let json = run(crate::common::tollgate().args(&args).arg("--json")).json();
        assert_eq!(json["error"]["code"], "INVALID_INPUT");
    }
}
