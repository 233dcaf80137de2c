//! Client certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use tollgate_testkit::{Certificates, TlsProxy};

use crate::support::Files;
use crate::tls_setup::{CHECK, TlsSetup, done, error, text};

fn with_client_auth() -> TlsSetup {
    TlsSetup::with(Certificates::clone, TlsProxy::with_client_auth)
}

fn set_mode(file: &Path, mode: u32) {
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn client_certificate_comes_from_flag_env_or_file() {
    let setup = with_client_auth();
    let Certificates { client, client_key, .. } = &setup.certificates;
    set_mode(client_key, 0o440);
    let flags = ["--cert-file", text(client), "--cert-key-file", text(client_key)];
    done(&mut setup.trusting(&[&CHECK[..], &flags].concat()));
    let mut by_environment = setup.trusting(&CHECK);
    done(by_environment.env("TOLLGATE_CERT_FILE", client).env("TOLLGATE_CERT_KEY_FILE", client_key));
    let written = format!(
        "url = \"{}\"\nca_file = {:?}\ncert_file = \"both.pem\"\n",
        setup.proxy.url(),
        setup.certificates.authority
    );
    let files = Files::new(&[]);
    fs::create_dir(files.file("tollgate")).unwrap();
    fs::write(files.file("tollgate/config.toml"), written).unwrap();
    let both = [fs::read_to_string(client).unwrap(), fs::read_to_string(client_key).unwrap()].concat();
    fs::write(files.file("tollgate/both.pem"), both).unwrap();
    set_mode(&files.file("tollgate/both.pem"), 0o600);
    done(setup.command(&CHECK).env("XDG_CONFIG_HOME", files.file("")));
}

#[test]
fn missing_and_refused_client_certificates_differ() {
    let setup = with_client_auth();
    let none = error(&mut setup.trusting(&CHECK));
    let wanted =
        ": the server requires a client certificate: pass one with --cert-file and --cert-key-file\n";
    assert!(none.ends_with(wanted), "{none}");
    let folder = TempDir::new().unwrap();
    let strange = Certificates::create_in(folder.path());
    let flags = ["--cert-file", text(&strange.client), "--cert-key-file", text(&strange.client_key)];
    let disliked = error(&mut setup.trusting(&[&CHECK[..], &flags].concat()));
    assert!(
        disliked.ends_with(": the server does not accept the client certificate of --cert-file\n"),
        "{disliked}"
    );
}

#[test]
fn unusable_client_certificate_is_explained() {
    let folder = TempDir::new().unwrap();
    let made = Certificates::create_in(folder.path());
    let (client, key, other) = (text(&made.client), text(&made.client_key), text(&made.server_key));
    let ca = text(&made.authority);
    let secret = fs::read_to_string(key).unwrap().lines().nth(1).unwrap().to_owned();
    for (flags, reason) in [
        (
            &["--cert-file", client][..],
            "contains no unencrypted private key in PEM (`-----BEGIN PRIVATE KEY-----`)",
        ),
        (&["--cert-file", key], "contains no certificate in PEM"),
        (&["--cert-key-file", key], "--cert-key-file requires --cert-file"),
        (&["--cert-file", "/none"], "client certificate /none: No such file"),
        (&["--cert-file", client, "--cert-key-file", "/none"], "client certificate key /none: No such"),
        (&["--cert-file", client, "--cert-key-file", other], "cannot be used: "),
    ] {
        let args = [&CHECK[..], &["--url=https://localhost:1", "--ca-file", ca], flags].concat();
        let shown = error(crate::support::tollgate().args(&args));
        assert!(shown.contains(reason) && !shown.contains(&secret), "{flags:?}: {shown}");
    }
    set_mode(&made.client_key, 0o644);
    let flags = ["--url=https://localhost:1", "--ca-file", ca, "--cert-file", client, "--cert-key-file", key];
    let open = error(crate::support::tollgate().args([&CHECK[..], &flags].concat()));
    assert!(open.contains(&format!("(mode 644): run `chmod 600 {key}`")), "{open}");
}
