//! The server and key to use: flags, environment and config file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::mock_server::{MockResponse, MockServer, error_response, respond};
use crate::support::{CommandOutput, Files, finished, tollgate};

/// A config directory with a file of the given text and mode.
fn configured(text: &str, mode: u32) -> Files {
    let files = Files::new(&[]);
    fs::create_dir(files.file("tollgate")).unwrap();
    let file = files.file("tollgate").join("config.toml");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    files
}

fn none() -> MockResponse {
    respond("200 OK", r#"{"tiers":[],"next":null}"#)
}

fn list(files: &Files) -> Command {
    let mut command = tollgate();
    command.args(["tiers", "list"]).env("XDG_CONFIG_HOME", files.file(""));
    command
}

fn run(command: &mut Command) -> CommandOutput {
    finished(command.output().unwrap())
}

#[test]
fn server_and_key_are_read_from_the_file() {
    let server = MockServer::new(&[none(), none()]);
    let files = configured(&format!("url = \"{}/\"\nkey = \"hunter2\"\n", server.url), 0o600);
    let ran = run(&mut list(&files));
    assert_eq!((ran.code, &*ran.stderr), (0, "no tiers\n"));
    assert_eq!(server.sent()[0].header("authorization"), Some("Bearer hunter2"));
    // The same server named by a flag, and an empty key in the environment.
    run(list(&files).args(["--url", &server.url]).env("TOLLGATE_KEY", ""));
    assert_eq!(server.sent()[1].header("authorization"), Some("Bearer hunter2"));
}

#[test]
fn config_file_is_below_home_without_xdg() {
    let server = MockServer::new(&[none()]);
    let files = Files::new(&[]);
    fs::create_dir_all(files.file(".config/tollgate")).unwrap();
    fs::write(files.file(".config/tollgate/config.toml"), format!("url = \"{}\"\n", server.url)).unwrap();
    let ran = run(tollgate().args(["tiers", "list"]).env("HOME", files.file("")));
    assert_eq!((ran.code, server.sent().len()), (0, 1), "{}", ran.stderr);
}

#[test]
fn flags_override_environment_and_file() {
    let server = MockServer::new(&[none(), none()]);
    let files = configured("url = \"http://127.0.0.1:1\"\nkey = \"file\"\n", 0o600);
    run(list(&files).env("TOLLGATE_URL", &server.url).env("TOLLGATE_KEY", "environment"));
    assert_eq!(server.sent()[0].header("authorization"), Some("Bearer environment"));
    run(list(&files).env("TOLLGATE_URL", "http://127.0.0.1:1").env("TOLLGATE_KEY", "environment").args([
        "--url",
        &server.url,
        "--key",
        "flag",
    ]));
    assert_eq!(server.sent()[1].header("authorization"), Some("Bearer flag"));
}

#[test]
fn key_file_is_read() {
    let server = MockServer::new(&[none(), none()]);
    let files = configured(&format!("url = \"{}\"\nkey_file = \"admin.key\"\n", server.url), 0o644);
    let key = files.file("tollgate/admin.key");
    let missing = run(&mut list(&files));
    assert!(missing.code == 2 && missing.stderr.contains("admin.key"), "{}", missing.stderr);
    fs::write(&key, "hunter2\n").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let open = run(&mut list(&files));
    assert_eq!((open.code, server.sent().len()), (2, 0));
    assert!(
        open.stderr.contains("(mode 640): run `chmod 600 ") && open.stderr.contains("admin.key"),
        "{}",
        open.stderr
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    assert_eq!(run(&mut list(&files)).code, 0);
    assert_eq!(server.sent()[0].header("authorization"), Some("Bearer hunter2"));
}

#[test]
fn key_readable_by_others_is_rejected() {
    let server = MockServer::new(&[none()]);
    for mode in [0o644, 0o640, 0o604, 0o660] {
        let files = configured(&format!("url = \"{}\"\nkey = \"hunter2\"\n", server.url), mode);
        let ran = run(&mut list(&files));
        assert_eq!((ran.code, server.sent().len()), (2, 0), "{mode:o}");
        assert!(ran.stderr.contains(&format!("(mode {mode:o}): run `chmod 600 ")), "{}", ran.stderr);
        assert!(!ran.stderr.contains("hunter2"));
    }
    let writable = configured(&format!("url = \"{}\"\nkey_file = \"k\"\n", server.url), 0o662);
    assert_eq!(run(&mut list(&writable)).code, 2, "a writer could redirect the key");
    let keyless = configured(&format!("url = \"{}\"\n", server.url), 0o644);
    assert_eq!(run(&mut list(&keyless)).code, 0);
}

#[test]
fn key_is_not_sent_to_another_server() {
    let no = error_response("401 Unauthorized", "UNAUTHORIZED", "no key", "{}");
    let server = MockServer::new(&[no]);
    let files = configured("url = \"http://limits.example\"\nkey = \"hunter2\"\n", 0o600);
    let ran = run(list(&files).args(["--url", &server.url]));
    assert_eq!((ran.code, server.sent()[0].header("authorization")), (2, None));
    assert!(
        ran.stderr.contains("is for http://limits.example and was not sent: set TOLLGATE_KEY"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains("hunter2"));
}

#[test]
fn config_file_errors_have_lines() {
    let files = configured("url = 5\nport = 1\nkey = \"hunter2\n", 0o600);
    let ran = run(&mut list(&files));
    assert!(ran.code == 2 && ran.stderr.contains("config.toml:3: "), "{}", ran.stderr);
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    let files = configured("url = 5\nport = 1\nkey = \"hunter2\"\n", 0o600);
    let ran = run(&mut list(&files));
    for part in ["config.toml:1: url: ", "config.toml:2: port: "] {
        assert!(ran.code == 2 && ran.stderr.contains(part), "{}", ran.stderr);
    }
    // Offline commands do not read the file.
    let mut offline = tollgate();
    offline.args(["completions", "bash"]).env("XDG_CONFIG_HOME", files.file(""));
    assert_eq!(run(&mut offline).code, 0);
}
