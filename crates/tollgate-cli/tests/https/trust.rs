//! Trusted CAs and certificate errors.

use std::fs;

use tempfile::TempDir;
use tollgate_testkit::{Certificates, TlsProxy};

use crate::harness::wait_for;
use crate::support::Files;
use crate::tls_setup::{CHECK, TlsSetup, done, error, run, text};

#[test]
fn commands_work_over_tls_with_a_private_ca() {
    let setup = TlsSetup::start();
    let place = ["--user", "alice", "--endpoint", "/api/v1/a b?c"];
    let checked = done(&mut setup.trusting(&[&["check"], &place[..]].concat()));
    assert!(checked.starts_with("admitted"), "{checked}");
    let status = done(&mut setup.trusting(&[&["status"], &place[..]].concat()));
    assert!(status.contains("9 of 10 left"), "{status}");
    let explained = done(&mut setup.trusting(&[&["explain"], &place[..]].concat()));
    assert!(explained.contains("MATCHED"), "{explained}");
    let rules = "[[rules]]\nname = \"few\"\nper = [\"user\"]\nlimits = [{ requests = 7, window = \"1h\" }]\n";
    let files = Files::new(&[("rules.toml", rules)]);
    let applied = done(&mut setup.trusting(&["rules", "apply", &files.path("rules.toml")]));
    assert!(applied.ends_with("1 created, 0 updated, 0 deleted, 0 unchanged\n"), "{applied}");
    wait_for("the rule to be in force", || {
        let explained = done(&mut setup.trusting(&[&["explain"], &place[..], &["--json"]].concat()));
        (serde_json::from_str::<serde_json::Value>(&explained).unwrap()["limit"] == 7).then_some(())
    });
}

#[test]
fn ca_file_comes_from_flag_env_or_file() {
    let setup = TlsSetup::start();
    let authority = text(&setup.certificates.authority);
    done(&mut setup.command(&[&CHECK[..], &["--ca-file", authority]].concat()));
    done(setup.command(&CHECK).env("TOLLGATE_CA_FILE", authority));
    done(setup.command(&[&CHECK[..], &["--ca-file", authority]].concat()).env("TOLLGATE_CA_FILE", "/none"));
    let files = Files::new(&[]);
    fs::create_dir(files.file("tollgate")).unwrap();
    fs::copy(authority, files.file("tollgate/ca.pem")).unwrap();
    let written = format!("url = \"{}\"\nca_file = \"ca.pem\"\n", setup.proxy.url());
    fs::write(files.file("tollgate/config.toml"), written).unwrap();
    let home = files.file("");
    done(setup.command(&CHECK).env("XDG_CONFIG_HOME", &home).env_remove("TOLLGATE_URL"));
    done(setup.command(&CHECK).env("XDG_CONFIG_HOME", &home).env("TOLLGATE_CA_FILE", ""));
    // Another name is another server, to which the file does not apply.
    let other = format!("https://127.0.0.1:{}", setup.proxy.port());
    let shown = error(setup.command(&CHECK).env("XDG_CONFIG_HOME", &home).env("TOLLGATE_URL", &other));
    assert!(shown.contains("unknown CA"), "{shown}");
    done(setup.trusting(&CHECK).env("XDG_CONFIG_HOME", &home).env("TOLLGATE_URL", &other));
}

#[test]
fn ca_file_adds_to_the_system_cas() {
    let setup = TlsSetup::start();
    let other = TempDir::new().unwrap();
    let other = Certificates::create_in(other.path()).authority;
    // OpenSSL's variable names the system's CAs.
    done(setup.command(&CHECK).env("SSL_CERT_FILE", &setup.certificates.authority));
    let both = [&CHECK[..], &["--ca-file", text(&other)]].concat();
    done(setup.command(&both).env("SSL_CERT_FILE", &setup.certificates.authority));
    done(setup.trusting(&CHECK).env("SSL_CERT_FILE", "/none"));
    let untrusted = error(setup.command(&CHECK).env("SSL_CERT_FILE", "/none"));
    assert!(untrusted.contains("no trusted CA certificates") && untrusted.contains("/none"), "{untrusted}");
}

#[test]
fn unknown_ca_is_refused_before_any_request() {
    let setup = TlsSetup::start();
    let other = TempDir::new().unwrap();
    let other = Certificates::create_in(other.path()).authority;
    let url = setup.proxy.url();
    let unknown = "an unknown CA: for a private CA, pass its certificate with --ca-file";
    let shown = error(&mut setup.command(&CHECK));
    assert_eq!(shown, format!("error: {url}: the server's certificate is signed by {unknown}\n"));
    // All CAs of the testkit have the same name, like a CA that was recreated.
    let shown = error(setup.command(&CHECK).env("TOLLGATE_CA_FILE", &other));
    assert!(
        shown.contains("has the name of a trusted CA but another key: is --ca-file outdated?"),
        "{shown}"
    );
    let json = run(&mut setup.command(&[&CHECK[..], &["--json"]].concat()));
    assert_eq!((json.code, &json.json()["error"]["code"]), (2, &"SERVICE_UNAVAILABLE".into()));
    let left = done(&mut setup.trusting(&["status", "--user", "alice", "--endpoint", "/a"]));
    assert!(left.contains("10 of 10 left"), "{left}");
}

#[test]
fn self_signed_certificate_can_be_trusted() {
    let setup = TlsSetup::with(Certificates::self_signed, TlsProxy::in_front_of);
    let shown = error(&mut setup.command(&CHECK));
    assert!(shown.contains("unknown CA"), "{shown}");
    done(&mut setup.trusting(&CHECK));
    let setup = TlsSetup::with(Certificates::self_signed_ca, TlsProxy::in_front_of);
    let shown = error(&mut setup.trusting(&CHECK));
    assert!(shown.contains("the server presents a CA certificate (CA:TRUE)"), "{shown}");
}

#[test]
fn wrong_host_name_shows_both_names() {
    let setup = TlsSetup::with(Certificates::for_other_host, TlsProxy::in_front_of);
    let shown = error(&mut setup.trusting(&CHECK));
    assert!(shown.ends_with(": the server's certificate is for other.test, not for localhost\n"), "{shown}");
    let by_address = format!("https://127.0.0.1:{}", setup.proxy.port());
    let shown = error(setup.trusting(&CHECK).env("TOLLGATE_URL", by_address));
    assert!(shown.ends_with(": the server's certificate is for other.test, not for 127.0.0.1\n"), "{shown}");
}

#[test]
fn expired_certificate_shows_its_date() {
    let setup = TlsSetup::with(Certificates::expired, TlsProxy::in_front_of);
    let shown = error(&mut setup.trusting(&CHECK));
    assert!(shown.ends_with(": the server's certificate expired at 2020-01-02T00:00:00Z\n"), "{shown}");
}

#[test]
fn unusable_ca_file_is_explained() {
    let url = format!("https://localhost:{}", tollgate_testkit::free_port());
    let torn = "-----BEGIN CERTIFICATE-----\nMIIB!\n-----END CERTIFICATE-----\n";
    let wrong = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let files =
        Files::new(&[("empty.pem", ""), ("text.pem", "hello\n"), ("torn.pem", torn), ("wrong.pem", wrong)]);
    for (name, reason) in [
        ("missing.pem", ": No such file or directory"),
        ("empty.pem", " contains no certificate in PEM (`-----BEGIN CERTIFICATE-----`)"),
        ("text.pem", " contains no certificate in PEM"),
        ("torn.pem", " cannot be used: "),
        ("wrong.pem", " cannot be used: "),
        ("", ": Is a directory"),
    ] {
        let path = files.path(name);
        let args = [&CHECK[..], &["--url", &url, "--ca-file", &path]].concat();
        let shown = error(crate::support::tollgate().args(&args));
        assert!(shown.starts_with(&format!("error: CA file {path}{reason}")), "{shown}");
        let json = run(crate::support::tollgate().args(&args).arg("--json")).json();
        assert_eq!(json["error"]["code"], "INVALID_INPUT");
    }
}
