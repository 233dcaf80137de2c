//! The commands against a running service.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::Service;

pub(crate) fn run(service: &Service, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).env("TOLLGATE_URL", format!("http://{}", service.address));
    command.env("TOLLGATE_KEY", service.admin_key()).output().unwrap()
}

fn code_and_text(output: &Output) -> (i32, String) {
    let text = [&*output.stdout, &*output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn check_exit_codes_match_the_decision() {
    let service = Service::with_config("default_limit = 1");
    let check = ["check", "--user", "alice", "--endpoint", "/a b"];
    let (code, text) = code_and_text(&run(&service, &check));
    assert!(code == 0 && text.contains("admitted by default"), "{code} {text}");
    let (code, text) = code_and_text(&run(&service, &check));
    assert!(code == 1 && text.contains("refused"), "{code} {text}");
    let (code, text) = code_and_text(&run(&service, &["check", "--user", "alice", "--endpoint", "/%zz"]));
    assert!(code == 2 && text.contains("endpoint"), "{code} {text}");
}

#[test]
fn json_flag_prints_the_server_response() {
    // A long window, because commands may be slow to start.
    let service = Service::with_config("default_limit = 100\ndefault_window = \"1d\"");
    let target = ["--user", "a/b c%", "--endpoint", "/x/y", "--json"];
    let output_of = |command: &str| {
        let output = run(&service, &[&[command], &target[..]].concat());
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    assert_eq!(output_of("check")["remaining"], 99);
    let status = output_of("status");
    assert_eq!((&status["user_id"], &status["remaining"]), (&json!("a/b c%"), &json!(99)));
    assert_eq!(output_of("explain")["rules"][0]["name"], "default");
    assert_eq!(output_of("reset")["counters"], 1);
    assert_eq!(output_of("status")["remaining"], 100);
}

#[test]
fn explain_prints_a_table() {
    let service =
        Service::with_config("default_limit = 5\n[[tiers]]\nname = \"gold\"\nlimit = 9\nwindow = 60");
    let explain = ["explain", "--user", "a", "--endpoint", "/x"];
    let (_, text) = code_and_text(&run(&service, &explain));
    assert!(text.contains("1 rule does not match: --all lists it") && !text.contains("tier:gold"), "{text}");
    let (code, text) = code_and_text(&run(&service, &[&explain[..], &["--all"]].concat()));
    assert_eq!(code, 0);
    for part in ["tier:gold", "the request has no tier", "default", "its limits apply"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn status_and_reset_accept_the_flags_of_check() {
    let service = Service::with_config("default_limit = 5\ndefault_window = \"1h\"");
    let target = ["--ip", "10.0.0.1", "--endpoint", "/x"];
    let output_of = |command: &[&str]| code_and_text(&run(&service, &[command, &target].concat())).1;
    let unused = "address 10.0.0.1 on /x: 5 of 5 left, 0.0 % used, token_bucket\n";
    assert_eq!(output_of(&["status", "--descriptor", "a b=c"]), unused);
    // Some seconds may pass while the command starts.
    let one_used = |text: &str| {
        ["in 12m,", "in 11m "].map(|time| text.contains(&format!("4 of 5 left, full again {time}")))
    };
    let checked = output_of(&["check"]);
    assert!(one_used(&checked).contains(&true), "{checked}");
    let explained = output_of(&["explain"]);
    assert!(explained.contains("4 of 5 left, full again in 1") && !explained.contains("24m"), "{explained}");
    assert_eq!(output_of(&["reset"]), "reset address 10.0.0.1 on /x: 1 counter\n");
    assert_eq!(output_of(&["status"]), unused);
    let limit_override = ["--limit", "1", "--window", "3600"];
    assert!(output_of(&[&["check"], &limit_override[..]].concat()).contains("0 of 1 left"));
    assert!(output_of(&[&["status"], &limit_override[..]].concat()).contains("0 of 1 left"));
    assert_eq!(
        output_of(&[&["reset"], &limit_override[..]].concat()),
        "reset address 10.0.0.1 on /x: 1 counter\n"
    );
    assert!(output_of(&[&["status"], &limit_override[..]].concat()).contains("1 of 1 left"));
}

#[test]
fn config_show_masks_secrets() {
    let service = Service::unconfigured();
    let (code, text) = code_and_text(&run(&service, &["config", "show"]));
    assert!(code == 0 && text.contains("[server]") && text.contains("[[rules]]"), "{text}");
}

#[test]
fn inspect_lists_skipped_rules_of_the_client_only() {
    let rule = |name: &str, per: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nper = [{per}]\nlimits = [{{ requests = 5, window = \"1h\" }}]\n"
        )
    };
    let rules = [
        rule("u", "\"user\""),
        rule("k", "\"api_key\""),
        rule("i", "\"ip\""),
        rule("guard", "\"login\", \"ip\""),
        rule("region", "\"client\", \"descriptor:region\""),
        rule("place", "\"tenant\", \"endpoint\""),
        rule("act", "\"user\", \"method\""),
    ];
    let service = Service::with_config(&rules.concat());
    let named = |client: &str, more: &[&str]| {
        let (code, text) = code_and_text(&run(&service, &[&["inspect", client], more].concat()));
        assert_eq!(code, 0, "{text}");
        let mut lines: Vec<String> = text.lines().skip(1).map(|line| line.trim().to_owned()).collect();
        lines.sort_unstable();
        lines
    };
    let region = "region: skipped: also counts by descriptor:region, which `inspect` cannot select";
    let unused = |rule: &str| format!("{rule} (5 per 1h, token_bucket): unused, 5 left");
    let guard = "guard: skipped: also counts by login, which `inspect` cannot select";
    assert_eq!(named("ip:192.0.2.1", &[]), [guard, &*unused("i"), region]);
    assert_eq!(
        named("bob", &[]),
        ["act: skipped: also counts by method; add --method", region, &*unused("u")]
    );
    assert_eq!(named("tenant:x", &[]), ["place: skipped: also counts by endpoint; add --endpoint", region]);
    assert_eq!(named("tenant:x", &["--endpoint", "/a"]), [&*unused("place"), region]);
    let unknown = "unknown API key: this server did not issue it, and counts it by its text";
    assert_eq!(named("api_key:k", &[]), [&*unused("k"), region, unknown]);
}

#[test]
fn inspect_prints_live_counters() {
    let service = Service::with_config(
        "[progressive_penalties]\nenabled = true\nviolation_threshold = 1\nbase_cooldown = \"1h\"\n\
         [[rules]]\nname = \"per-user\"\nper = [\"user\"]\nlimits = [{ requests = 2, window = \"30d\" }]\n\
         [[rules]]\nname = \"per-path\"\nper = [\"user\", \"endpoint\"]\nlimits = [{ requests = 9, window = \"1d\" }]\n\
         [[rules]]\nname = \"gold\"\nper = [\"user\"]\nlayer = \"gold\"\nwhen = { tiers = [\"gold\"] }\n\
         limits = [{ requests = 50, window = \"1d\" }]\n",
    );
    let (code, text) = code_and_text(&run(&service, &["inspect", "alice"]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("user:alice: no counters in use in memory"), "{text}");
    assert!(text.contains("per-user (2 per 30d, token_bucket): unused, 2 left"), "{text}");
    assert!(text.contains("per-path: skipped: also counts by endpoint; add --endpoint"), "{text}");
    assert_eq!(service.check("alice", "/a").status, 200);
    let silver = ["inspect", "user:alice", "--endpoint", "/a", "--tier", "silver", "--json"];
    let inspected: Value = serde_json::from_slice(&run(&service, &silver).stdout).unwrap();
    let counters: Vec<(&str, u64)> = (inspected["counters"].as_array().unwrap().iter())
        .map(|counter| (counter["rule"].as_str().unwrap(), counter["used"].as_u64().unwrap()))
        .collect();
    assert_eq!(counters, [("per-path", 1), ("per-user", 1)]);
    assert_eq!(inspected["cooldown_until"], Value::Null);
    let refused = (0..2).filter(|_| service.check("alice", "/a").status == 429).count();
    assert_eq!(refused, 1);
    let (_, text) = code_and_text(&run(&service, &["inspect", "alice"]));
    assert!(text.contains("in cooldown") && text.contains("2 used, 0 left, refused for"), "{text}");
    let (code, text) = code_and_text(&run(&service, &["inspect", "ip:nonsense"]));
    assert!(code == 2 && text.contains("ip"), "{text}");
    assert_eq!(service.get("/v1/admin/counters?user=alice").status, 401);
}
