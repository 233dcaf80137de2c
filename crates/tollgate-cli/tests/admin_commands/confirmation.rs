//! Confirmation of destructive commands.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::mock_server::{MockServer, respond, run_against};
use crate::support::tollgate;

const DESTRUCTIVE: [&[&str]; 5] = [
    &["rules", "delete", "a"],
    &["tiers", "delete", "a"],
    &["quotas", "delete", "a"],
    &["keys", "revoke", "a"],
    &["keys", "delete", "a"],
];

#[test]
fn without_terminal_and_yes_nothing_is_sent() {
    for command in DESTRUCTIVE {
        let (ran, sent) = run_against(&[respond("204 No Content", "")], command);
        assert_eq!((ran.code, sent.len(), &*ran.stdout), (2, 0, ""), "{command:?}");
        assert!(ran.stderr.contains("is not a terminal: pass --yes"), "{}", ran.stderr);
        let (ran, _) = run_against(&[], &[command, &["--json"]].concat());
        assert_eq!(ran.json()["error"]["code"], "INVALID_INPUT");
    }
}

#[test]
fn yes_from_a_pipe_does_not_confirm() {
    let server = MockServer::new(&[respond("204 No Content", "")]);
    let mut running = tollgate()
        .args(["rules", "delete", "a", "--url", &server.url])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _ = running.stdin.take().unwrap().write_all(b"y\n");
    assert_eq!((running.wait().unwrap().code(), server.sent().len()), (Some(2), 0));
}

/// Runs a command on a terminal and types an answer; returns the exit code and the terminal's contents.
fn on_a_terminal(server: &MockServer, args: &str, typed: &str) -> (i32, String) {
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
fn terminal_user_can_confirm_or_decline() {
    if Command::new("script").arg("--version").output().is_err() {
        return; // `script` is not installed; the unit test of `confirm` covers the question.
    }
    let server = MockServer::new(&[respond("204 No Content", "")]);
    let (code, shown) = on_a_terminal(&server, "rules delete a", "n\n");
    assert_eq!((code, server.sent().len()), (1, 0), "{shown}");
    assert!(shown.contains("delete rule a? [y/N]") && shown.contains("nothing was changed"), "{shown}");
    let (code, shown) = on_a_terminal(&server, "rules delete a", "y\n");
    assert_eq!((code, server.sent().len()), (0, 1), "{shown}");
    assert!(shown.contains("deleted rule a"), "{shown}");
}
