//! What destroys something is asked about: on a terminal a person, elsewhere nobody.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::canned::{Server, answer, ask};
use crate::common::tollgate;

const DESTRUCTIVE: [&[&str]; 5] = [
    &["rules", "delete", "a"],
    &["tiers", "delete", "a"],
    &["quotas", "delete", "a"],
    &["keys", "revoke", "a"],
    &["keys", "delete", "a"],
];

#[test]
fn without_a_terminal_and_without_yes_nothing_is_asked_of_the_server() {
    for command in DESTRUCTIVE {
        let (ran, asked) = ask(&[answer("204 No Content", "")], command);
        assert_eq!((ran.code, asked.len(), &*ran.stdout), (2, 0, ""), "{command:?}");
        assert!(ran.stderr.contains("there is no terminal to ask on: pass --yes"), "{}", ran.stderr);
        let (ran, _) = ask(&[], &[command, &["--json"]].concat());
        assert_eq!(ran.json()["error"]["code"], "INVALID_INPUT");
    }
}

#[test]
fn a_pipe_that_says_yes_is_no_terminal() {
    let server = Server::new(&[answer("204 No Content", "")]);
    let mut running = tollgate()
        .args(["rules", "delete", "a", "--url", &server.url])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _ = running.stdin.take().unwrap().write_all(b"y\n");
    assert_eq!((running.wait().unwrap().code(), server.asked().len()), (Some(2), 0));
}

/// Runs a command on a terminal of its own and types an answer: its exit code and all that was shown.
fn on_a_terminal(server: &Server, args: &str, typed: &str) -> (i32, String) {
    let binary = env!("CARGO_BIN_EXE_tollgate");
    let mut running = Command::new("script")
        .args(["-qec", &format!("{binary} {args} --url {}", server.url), "/dev/null"])
        .env_remove("TOLLGATE_KEY")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut terminal = running.stdin.take().unwrap();
    terminal.write_all(typed.as_bytes()).unwrap();
    let ended = running.wait_with_output().unwrap();
    drop(terminal);
    (ended.status.code().unwrap(), String::from_utf8_lossy(&ended.stdout).into_owned())
}

#[test]
fn on_a_terminal_a_person_decides() {
    if Command::new("script").arg("--version").output().is_err() {
        return; // A system without `script`; what is asked is tested beside the code.
    }
    let server = Server::new(&[answer("204 No Content", "")]);
    let (code, shown) = on_a_terminal(&server, "rules delete a", "n\n");
    assert_eq!((code, server.asked().len()), (1, 0), "{shown}");
    assert!(shown.contains("delete rule a? [y/N]") && shown.contains("nothing was changed"), "{shown}");
    let (code, shown) = on_a_terminal(&server, "rules delete a", "y\n");
    assert_eq!((code, server.asked().len()), (0, 1), "{shown}");
    assert!(shown.contains("deleted rule a"), "{shown}");
}
