//! Which server is asked, with which key: flags, environment, and the file in the user's configuration folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::canned::{Answer, Server, answer, refusal};
use crate::common::{Files, Ran, ran, tollgate};

/// A configuration folder with a file of that text and those permissions.
fn configured(text: &str, mode: u32) -> Files {
    let files = Files::new(&[]);
    fs::create_dir(files.file("tollgate")).unwrap();
    let file = files.file("tollgate").join("config.toml");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    files
}

fn none() -> Answer {
    answer("200 OK", r#"{"tiers":[],"next":null}"#)
}

fn list(files: &Files) -> Command {
    let mut command = tollgate();
    command.args(["tiers", "list"]).env("XDG_CONFIG_HOME", files.file(""));
    command
}

fn run(command: &mut Command) -> Ran {
    ran(command.output().unwrap())
}

#[test]
fn server_and_key_come_from_the_file() {
    let server = Server::new(&[none(), none()]);
    let files = configured(&format!("url = \"{}/\"\nkey = \"hunter2\"\n", server.url), 0o600);
    let ran = run(&mut list(&files));
    assert_eq!((ran.code, &*ran.stderr), (0, "no tiers\n"));
    assert_eq!(server.asked()[0].header("authorization"), Some("Bearer hunter2"));
    // The same server, named on the command line, and an environment that has no key after all.
    run(list(&files).args(["--url", &server.url]).env("TOLLGATE_KEY", ""));
    assert_eq!(server.asked()[1].header("authorization"), Some("Bearer hunter2"));
}

#[test]
fn without_xdg_the_file_is_below_the_home_folder() {
    let server = Server::new(&[none()]);
    let files = Files::new(&[]);
    fs::create_dir_all(files.file(".config/tollgate")).unwrap();
    fs::write(files.file(".config/tollgate/config.toml"), format!("url = \"{}\"\n", server.url)).unwrap();
    let ran = run(tollgate().args(["tiers", "list"]).env("HOME", files.file("")));
    assert_eq!((ran.code, server.asked().len()), (0, 1), "{}", ran.stderr);
}

#[test]
fn flags_stand_above_the_environment_and_that_above_the_file() {
    let server = Server::new(&[none(), none()]);
    let files = configured("url = \"http://127.0.0.1:1\"\nkey = \"file\"\n", 0o600);
    run(list(&files).env("TOLLGATE_URL", &server.url).env("TOLLGATE_KEY", "environment"));
    assert_eq!(server.asked()[0].header("authorization"), Some("Bearer environment"));
    run(list(&files).env("TOLLGATE_URL", "http://127.0.0.1:1").env("TOLLGATE_KEY", "environment").args([
        "--url",
        &server.url,
        "--key",
        "flag",
    ]));
    assert_eq!(server.asked()[1].header("authorization"), Some("Bearer flag"));
}

#[test]
fn a_key_may_be_in_a_file_of_its_own() {
    let server = Server::new(&[none(), none()]);
    let files = configured(&format!("url = \"{}\"\nkey_file = \"admin.key\"\n", server.url), 0o644);
    let key = files.file("tollgate/admin.key");
    let missing = run(&mut list(&files));
    assert!(missing.code == 2 && missing.stderr.contains("admin.key"), "{}", missing.stderr);
    fs::write(&key, "hunter2\n").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let open = run(&mut list(&files));
    assert_eq!((open.code, server.asked().len()), (2, 0));
    assert!(
        open.stderr.contains("(mode 640): run `chmod 600 ") && open.stderr.contains("admin.key"),
        "{}",
        open.stderr
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    assert_eq!(run(&mut list(&files)).code, 0);
    assert_eq!(server.asked()[0].header("authorization"), Some("Bearer hunter2"));
}

#[test]
fn a_file_with_a_key_that_others_can_read_is_refused_with_what_to_do() {
    let server = Server::new(&[none()]);
    for mode in [0o644, 0o640, 0o604, 0o660] {
        let files = configured(&format!("url = \"{}\"\nkey = \"hunter2\"\n", server.url), mode);
        let ran = run(&mut list(&files));
        assert_eq!((ran.code, server.asked().len()), (2, 0), "{mode:o}");
        assert!(ran.stderr.contains(&format!("(mode {mode:o}): run `chmod 600 ")), "{}", ran.stderr);
        assert!(!ran.stderr.contains("hunter2"));
    }
    let writable = configured(&format!("url = \"{}\"\nkey_file = \"k\"\n", server.url), 0o662);
    assert_eq!(run(&mut list(&writable)).code, 2, "who can write it can send the key elsewhere");
    let keyless = configured(&format!("url = \"{}\"\n", server.url), 0o644);
    assert_eq!(run(&mut list(&keyless)).code, 0);
}

#[test]
fn the_key_of_one_server_is_not_sent_to_another() {
    let no = refusal("401 Unauthorized", "UNAUTHORIZED", "no key", "{}");
    let server = Server::new(&[no]);
    let files = configured("url = \"http://limits.example\"\nkey = \"hunter2\"\n", 0o600);
    let ran = run(list(&files).args(["--url", &server.url]));
    assert_eq!((ran.code, server.asked()[0].header("authorization")), (2, None));
    assert!(
        ran.stderr.contains("is for http://limits.example and was not sent: set TOLLGATE_KEY"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains("hunter2"));
}

#[test]
fn mistakes_of_the_file_are_told_with_their_lines() {
    let files = configured("url = 5\nport = 1\nkey = \"hunter2\n", 0o600);
    let ran = run(&mut list(&files));
    assert!(ran.code == 2 && ran.stderr.contains("config.toml:3: "), "{}", ran.stderr);
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    let files = configured("url = 5\nport = 1\nkey = \"hunter2\"\n", 0o600);
    let ran = run(&mut list(&files));
    for part in ["config.toml:1: url: ", "config.toml:2: port: "] {
        assert!(ran.code == 2 && ran.stderr.contains(part), "{}", ran.stderr);
    }
    // What asks no server does not care.
    let mut offline = tollgate();
    offline.args(["completions", "bash"]).env("XDG_CONFIG_HOME", files.file(""));
    assert_eq!(run(&mut offline).code, 0);
}
