//! `reload`, `penalties`, `limits`, `audit show` and the history of rules, against a running service.

use std::fs;

use serde_json::{Value, json};

use crate::cli_runner::CliRunner;
use crate::harness::Service;
use crate::support::Files;

fn rule(name: &str, requests: u32) -> String {
    format!(
        "[[rules]]\nname = \"{name}\"\nper = [\"user\"]\nlayer = \"{name}\"\n\
         limits = [{{ requests = {requests}, window = \"1h\" }}]\n"
    )
}

/// Writes a rule to the database and returns the version of the change.
fn put(cli: &CliRunner<'_>, name: &str, requests: u32) -> u64 {
    let files = Files::new(&[("r.toml", &rule(name, requests))]);
    cli.json(&["rules", "put", &files.path("r.toml")])["version"].as_u64().unwrap()
}

#[test]
fn reload_reports_rules_and_errors() {
    let service = Service::with_config(&rule("a", 5));
    let cli = CliRunner::of(&service);
    put(&cli, "b", 5);
    let counters = "[counters]\nkeys_max = 5000\n";
    fs::write(service.config_file(), format!("{}{}{counters}", rule("a", 5), rule("c", 5))).unwrap();
    let ran = cli.run(&["reload"]);
    assert_eq!((ran.code, &*ran.stdout), (0, "reloaded: 2 rules in the file, 3 in force (generation 2)\n"));
    assert!(ran.stderr.contains("counters has changed and takes effect after a restart"), "{}", ran.stderr);
    assert_eq!(cli.json(&["reload"])["generation"], 3);
    fs::write(service.config_file(), "default_limit = -1").unwrap();
    assert!(cli.error(&["reload"]).contains("default_limit"));
}

#[test]
fn penalties_are_listed_and_pardoned() {
    let service = Service::with_config(
        "default_limit = 1\ndefault_window = \"1h\"\n[progressive_penalties]\nenabled = true\nviolation_threshold = 1\n\
         base_cooldown = \"1h\"\n",
    );
    let cli = CliRunner::of(&service);
    assert_eq!(cli.run(&["penalties", "list"]).stderr, "no penalties\n");
    (0..3).for_each(|_| drop(service.check("alice", "/x")));
    let listed = cli.done(&["penalties", "list"]);
    assert!(listed.contains("user:alice          1           in "), "{listed}");
    assert_eq!(cli.json(&["penalties", "list"])["penalties"][0]["client"], "user:alice");
    assert_eq!(cli.done(&["penalties", "pardon", "alice"]), "pardoned user:alice\n");
    assert_eq!(cli.json(&["penalties", "list"])["penalties"], json!([]));
    assert!(cli.error(&["penalties", "pardon", "alice"]).contains("no penalties"));
}

#[test]
fn limits_are_set_listed_and_deleted() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let set = ["limits", "set", "alice", "/search", "--limit", "5", "--window", "1m"];
    let dry = cli.done(&[&set[..], &["--dry-run"]].concat());
    assert!(
        dry.contains("+ limit alice /search") && cli.json(&["limits", "list"])["limits"] == json!([]),
        "{dry}"
    );
    assert_eq!(cli.done(&set), "set alice on /search: 5/1m\n");
    for (user, endpoint) in [("alice", "/other"), ("bob", "/search")] {
        let more = ["--limit", "9", "--window", "1h", "--burst", "3", "--algorithm", "gcra"];
        cli.done(&[&["limits", "set", user, endpoint][..], &more].concat());
    }
    let listed = cli.done(&["limits", "list"]);
    let lines: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().take(6).collect()).collect();
    assert_eq!(lines[1][..5], ["alice", "/other", "9/1h", "burst", "3"], "{listed}");
    assert_eq!(lines[2][..4], ["alice", "/search", "5/1m", "token_bucket"], "{listed}");
    let of =
        |flags: &[&str]| cli.json(&[&["limits", "list"], flags].concat())["limits"].as_array().unwrap().len();
    assert_eq!((of(&[]), of(&["--user", "alice"]), of(&["--limit", "2"])), (3, 2, 2));
    let of_acme = ["limits", "set", "alice", "/search", "--tenant", "acme", "--limit", "2", "--window", "1m"];
    cli.done(&of_acme);
    assert_eq!((of(&["--tenant", "acme"]), of(&["--user", "alice"])), (1, 3));
    cli.done(&["limits", "delete", "alice", "/search", "--tenant", "acme", "--yes"]);
    assert_eq!((of(&["--tenant", "acme"]), of(&["--user", "alice"])), (0, 2));
    assert!(cli.error(&["limits", "delete", "alice", "/search"]).contains("--yes"));
    assert_eq!(
        cli.done(&["limits", "delete", "alice", "/search", "--yes"]),
        "deleted the limit of alice on /search\n"
    );
    assert_eq!(of(&["--user", "alice"]), 1);
    assert!(cli.error(&["limits", "delete", "alice", "/search", "--yes"]).contains("no override"));
}

#[test]
fn limits_are_listed_in_pages() {
    let service = Service::with_config("default_limit = 1000");
    for user in ["a", "b", "c", "d", "e"] {
        let body =
            json!({"user_id": user, "endpoint": "/x", "limit": 1, "window_seconds": 1, "strategy": "gcra"});
        assert_eq!(service.admin("PUT", "/v1/rate-limit/config", &body.to_string()).status, 200);
    }
    let (mut users, mut path) = (Vec::new(), "/v1/admin/limits?limit=2".to_owned());
    loop {
        let page = service.admin("GET", &path, "").json();
        users.extend(
            page["limits"]
                .as_array()
                .unwrap()
                .iter()
                .map(|limit| limit["user_id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/admin/limits?limit=2&after={next}");
    }
    assert_eq!(users, ["a", "b", "c", "d", "e"]);
}

#[test]
fn rules_are_switched_together() {
    let service = Service::with_config(&rule("of-file", 5));
    let cli = CliRunner::of(&service);
    put(&cli, "a", 1);
    put(&cli, "b", 2);
    let enabled = |name: &str| cli.json(&["rules", "get", name])["enabled"].clone();
    let dry = cli.done(&["rules", "disable", "a", "--dry-run"]);
    assert!(dry.contains("~ rule a\n    + enabled = false\n") && enabled("a") == true, "{dry}");
    assert_eq!(cli.done(&["rules", "disable", "a", "b"]), "disabled rule a\ndisabled rule b\n");
    assert_eq!((enabled("a"), enabled("b")), (json!(false), json!(false)));
    assert!(cli.error(&["rules", "enable", "a", "nosuch"]).contains("nosuch"));
    assert!(cli.error(&["rules", "enable", "a", "of-file"]).contains("settings file"));
    assert_eq!(enabled("a"), false, "all or none");
    put(&cli, "a", 1);
    assert_eq!(cli.done(&["rules", "enable", "a", "b"]), "rule a is already enabled\nenabled rule b\n");
    assert_eq!(cli.json(&["rules", "enable", "b"])["unchanged"], 1);
}

#[test]
fn rollback_restores_an_earlier_definition() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let (first, second) = (put(&cli, "a", 5), put(&cli, "a", 9));
    let requests = || cli.json(&["rules", "get", "a"])["limits"][0]["requests"].clone();
    let history = cli.done(&["rules", "history", "a"]);
    let lines: Vec<&str> = history.lines().collect();
    assert_eq!(lines.len(), 3, "{history}");
    assert!(lines[1].starts_with(&second.to_string()) && lines[1].contains("limits"), "{history}");
    let rollback =
        |flags: &[&str]| cli.run(&[&["rules", "rollback", "a", "--to", &first.to_string()], flags].concat());
    let dry = rollback(&["--dry-run"]);
    assert!(dry.code == 0 && dry.stdout.contains("requests = 5"), "{}{}", dry.stdout, dry.stderr);
    let unconfirmed = rollback(&[]);
    assert!(unconfirmed.code == 2 && unconfirmed.stderr.contains("--yes"), "{}", unconfirmed.stderr);
    assert_eq!(requests(), 9);
    let done = rollback(&["--yes"]);
    assert!(
        done.code == 0 && done.stdout.contains("restored rule a (version "),
        "{}{}",
        done.stdout,
        done.stderr
    );
    assert_eq!(requests(), 5);
    assert_eq!(rollback(&["--yes"]).stdout, "no changes\n");
    // A deleted rule is restored, too.
    cli.done(&["rules", "delete", "a", "--yes"]);
    let deleted = cli.json(&["rules", "history", "a"])["entries"][0]["version"].as_u64().unwrap();
    let error = cli.error(&["rules", "rollback", "a", "--to", &deleted.to_string(), "--yes"]);
    assert!(error.contains("did not exist at version"), "{error}");
    assert_eq!(rollback(&["--yes"]).code, 0);
    assert_eq!(requests(), 5);
    assert!(cli.error(&["rules", "rollback", "a", "--to", "0", "--yes"]).contains("no change of rule"));
}

#[test]
fn audit_entry_is_shown_as_a_difference() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    put(&cli, "a", 5);
    put(&cli, "a", 9);
    let entry = cli.json(&["audit", "--limit", "1"])["entries"][0]["id"].to_string();
    let shown = cli.done(&["audit", "show", &entry]);
    for words in [
        "action   update",
        "subject  a",
        "~ rule a\n",
        "- limits = [{ requests = 5",
        "+ limits = [{ requests = 9",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert_eq!(cli.json(&["audit", "show", &entry])["after"]["limits"][0]["requests"], 9);
    assert!(cli.error(&["audit", "show", "999999"]).contains("no entry 999999"));
}

#[test]
fn audit_is_limited_in_time() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    put(&cli, "a", 5);
    let entries = |flags: &[&str]| {
        cli.json(&[&["audit", "--kind", "rule"], flags].concat())["entries"].as_array().unwrap().len()
    };
    assert_eq!((entries(&["--since", "2h"]), entries(&["--until", "2h"])), (1, 0));
    assert_eq!(
        (entries(&["--since", "2040-01-01T00:00:00Z"]), entries(&["--until", "2040-01-01T00:00:00Z"])),
        (0, 1)
    );
    for flag in ["--since", "--until"] {
        assert!(cli.error(&["audit", flag, "yesterday"]).contains(flag));
        let path = format!("/v1/admin/audit?{}=yesterday", &flag[2..]);
        assert_eq!(service.admin("GET", &path, "").error().0, 400);
    }
}

#[test]
fn rules_are_listed_in_order_of_evaluation() {
    let text = |name: &str, priority: u32, more: &str| {
        format!("[[rules]]\nname = \"{name}\"\npriority = {priority}\naction = \"allow\"\n{more}\n")
    };
    let service = Service::with_config(&(text("z", 10, "") + &text("m", 30, "")));
    let cli = CliRunner::of(&service);
    // At equal priorities the more specific rule comes first.
    let files = Files::new(&[(
        "db.toml",
        &*(text("y", 20, "when = { endpoints = [\"/a/*\"] }") + &text("x", 20, "")),
    )]);
    cli.done(&["rules", "apply", &files.path("db.toml")]);
    let names = |flags: &[&str]| -> Vec<Value> {
        let listed = cli.json(&[&["rules", "list"], flags].concat());
        listed["rules"].as_array().unwrap().iter().map(|rule| rule["name"].clone()).collect()
    };
    assert_eq!(names(&[]), ["z", "y", "x", "m", "default"]);
    assert_eq!(names(&["--limit", "2"]), ["z", "y"]);
    assert_eq!(cli.json(&["rules", "list"])["rules"][1]["position"], 2);
}
