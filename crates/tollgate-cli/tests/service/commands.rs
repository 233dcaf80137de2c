//! The commands against a running service.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::Service;

fn run(service: &Service, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).env("TOLLGATE_URL", format!("http://{}", service.address));
    command.env("TOLLGATE_KEY", service.admin_key()).output().unwrap()
}

fn said(output: &Output) -> (i32, String) {
    let text = [&*output.stdout, &*output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn check_exits_with_0_for_admitted_1_for_refused_and_2_for_an_error() {
    let service = Service::with_config("default_limit = 1");
    let check = ["check", "--user", "alice", "--endpoint", "/a b"];
    let (code, text) = said(&run(&service, &check));
    assert!(code == 0 && text.contains("admitted by default"), "{code} {text}");
    let (code, text) = said(&run(&service, &check));
    assert!(code == 1 && text.contains("refused"), "{code} {text}");
    let (code, text) = said(&run(&service, &["check", "--user", "alice", "--endpoint", "/%zz"]));
    assert!(code == 2 && text.contains("endpoint"), "{code} {text}");
}

#[test]
fn every_command_prints_the_servers_json_when_asked() {
    let service = Service::unconfigured();
    let place = ["--user", "a/b c%", "--endpoint", "/x/y", "--json"];
    let ask = |command: &str| {
        let output = run(&service, &[&[command], &place[..]].concat());
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    assert_eq!(ask("check")["remaining"], 99);
    let status = ask("status");
    assert_eq!((&status["user_id"], &status["remaining"]), (&json!("a/b c%"), &json!(99)));
    assert_eq!(ask("explain")["rules"][0]["name"], "default");
    assert_eq!(ask("reset")["counters"], 1);
    assert_eq!(ask("status")["remaining"], 100);
}

#[test]
fn explain_reads_like_a_table() {
    let service =
        Service::with_config("default_limit = 5\n[[tiers]]\nname = \"gold\"\nlimit = 9\nwindow = 60");
    let (code, text) = said(&run(&service, &["explain", "--user", "a", "--endpoint", "/x"]));
    assert_eq!(code, 0);
    for part in ["tier:gold", "the request has no tier", "default", "its limits apply"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn settings_are_shown_with_secrets_masked() {
    let service = Service::unconfigured();
    let (code, text) = said(&run(&service, &["config", "show"]));
    assert!(code == 0 && text.contains("[server]") && text.contains("[[rules]]"), "{text}");
}
