//! Rules, tiers, quotas, blocks and the audit log against a running service.

use std::fmt::Write;

use serde_json::json;

use crate::cli_runner::CliRunner;
use crate::harness::Service;
use crate::support::Files;

const RULE: &str = "[[rules]]\nname = \"two\"\npriority = 1\nper = [\"user\"]\nlimits = [{ requests = 2, window = \"30d\" }]\n";

#[test]
fn rule_is_created_changed_and_deleted() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let files = Files::new(&[("r.toml", RULE), ("more.toml", &RULE.replace("requests = 2", "requests = 5"))]);
    let put = ["rules", "put", &files.path("r.toml")];
    let dry = cli.done(&[&put[..], &["--dry-run"]].concat());
    assert!(dry.starts_with("+ rule two\n"), "{dry}");
    assert!(cli.done(&[&put[..], &["--create"]].concat()).starts_with("created rule two (version "));
    assert!(cli.error(&[&put[..], &["--create"]].concat()).contains("PRECONDITION_FAILED"));
    cli.in_force("alice", 2);
    let statuses: Vec<u16> = (0..3).map(|_| service.check("alice", "/a").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let got = cli.done(&["rules", "get", "two"]);
    let rule = "[[rules]]\nname = \"two\"\npriority = 1\nper = [\"user\"]\nlimits = [{ requests = 2, window = \"30d\" }]\n";
    assert!(got.ends_with(rule) && got.starts_with("# source: database, version "), "{got}");
    let shown = cli.json(&["rules", "get", "two"]);
    assert_eq!((&shown["source"], &shown["limits"][0]["requests"]), (&json!("database"), &json!(2)));
    assert!(cli.done(&["rules", "put", &files.path("more.toml")]).starts_with("updated rule two"));
    cli.in_force("alice", 5);
    let status = cli.json(&["status", "--user", "alice", "--endpoint", "/a"]);
    assert_eq!(status["remaining"], 3, "usage must be kept: {status}");
    // The JSON fetched before has an outdated version.
    let old = Files::new(&[("old.json", &shown.to_string())]);
    assert!(cli.error(&["rules", "put", &old.path("old.json")]).contains("PRECONDITION_FAILED"));
    let list = cli.done(&["rules", "list"]);
    assert!(list.contains("5/30d") && list.contains("default"), "{list}");
    assert!(!cli.done(&["rules", "list", "--prefix", "tw"]).contains("default"));
    assert!(cli.error(&["rules", "delete", "two"]).contains("--yes"));
    assert!(cli.done(&["rules", "delete", "two", "--dry-run"]).starts_with("- rule two\n"));
    assert_eq!(cli.done(&["rules", "delete", "two", "--yes"]), "deleted rule two\n");
    assert!(cli.error(&["rules", "get", "two"]).contains("NOT_FOUND"));
}

#[test]
fn rules_of_the_settings_file_are_read_only() {
    let service = Service::with_config(RULE);
    let cli = CliRunner::of(&service);
    let files = Files::new(&[("r.toml", RULE)]);
    assert_eq!(cli.json(&["rules", "get", "two"])["source"], "file");
    let error = cli.error(&["rules", "put", &files.path("r.toml")]);
    assert!(error.contains("CONFLICT") && error.contains("tollgate.toml"), "{error}");
    let error = cli.error(&["rules", "delete", "two", "--yes"]);
    assert!(error.contains("CONFLICT") && error.contains("tollgate.toml"), "{error}");
}

#[test]
fn default_rule_is_shown_as_built_in() {
    let service = Service::unconfigured();
    let cli = CliRunner::of(&service);
    assert_eq!(cli.json(&["rules", "get", "default"])["source"], "built-in");
    let got = cli.done(&["rules", "get", "default"]);
    assert!(got.starts_with("# built-in default, not configured\n"), "{got}");
    assert!(cli.done(&["rules", "list"]).contains("built-in"));
    assert!(cli.done(&["rules", "list", "--source", "built-in"]).contains("default"));
    assert!(!cli.done(&["rules", "list", "--source", "file"]).contains("default"));
    let configured = Service::with_config("default_limit = 5");
    assert_eq!(CliRunner::of(&configured).json(&["rules", "get", "default"])["source"], "file");
}

#[test]
fn invalid_item_error_names_the_field() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let files = Files::new(&[("r.json", r#"{"name": "x", "action": "explode"}"#)]);
    let error = cli.error(&["rules", "put", &files.path("r.json")]);
    assert!(
        error.contains("INVALID_INPUT") && error.contains("action") && error.contains("explode"),
        "{error}"
    );
    let error = cli.error(&["keys", "create", "k", "--expires", "2001-01-01T00:00:00Z"]);
    assert!(error.contains("expires_at"), "{error}");
}

#[test]
fn tier_of_a_quota_applies_to_its_user() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let put = ["tiers", "put", "small", "--limit", "1", "--window", "30d", "--description", "for \"tests\""];
    assert!(cli.done(&put).starts_with("created tier small"));
    assert!(
        cli.done(&["tiers", "get", "small"]).contains("description = \"for \\\"tests\\\"\"\nlimit = 1\n")
    );
    assert!(cli.done(&["tiers", "list"]).contains("1/30d"));
    assert!(cli.done(&["quotas", "set", "alice", "--tier", "small"]).starts_with("created quota alice"));
    cli.in_force("alice", 1);
    assert_eq!((service.check("alice", "/a").status, service.check("alice", "/a").status), (200, 429));
    assert_eq!((service.check("bob", "/a").status, service.check("bob", "/a").status), (200, 200));
    cli.done(&["quotas", "set", "alice", "--requests-per-day", "500", "--burst", "5"]);
    let quota = cli.json(&["quotas", "get", "alice"]);
    assert_eq!(
        (&quota["tier"], &quota["requests_per_day"], &quota["burst"]),
        (&json!("small"), &json!(500), &json!(5))
    );
    // The limits of a quota override those of its tier.
    cli.in_force("alice", 500);
    assert_eq!(service.check("alice", "/a").status, 200);
    cli.done(&["quotas", "set", "alice", "--unset", "tier,burst"]);
    let quota = cli.json(&["quotas", "get", "alice"]);
    assert!(quota["tier"].is_null() && quota["burst"].is_null(), "{quota}");
    assert!(cli.done(&["quotas", "list"]).contains("alice"));
    assert_eq!(cli.done(&["quotas", "delete", "alice", "--yes"]), "deleted quota alice\n");
    assert!(cli.error(&["quotas", "get", "alice"]).contains("NOT_FOUND"));
    assert_eq!(cli.done(&["tiers", "delete", "small", "--yes"]), "deleted tier small\n");
}

#[test]
fn block_refuses_until_unblocked() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let check = ["check", "--user", "alice", "--endpoint", "/a"];
    assert!(
        cli.done(&["users", "block", "alice", "--reason", "spam", "--for", "24h"])
            .starts_with("blocked user:alice (version ")
    );
    let shown = cli.until(1, &check);
    assert!(shown.contains("blocked") && shown.contains("spam"), "{shown}");
    let blocked = cli.done(&["users", "blocked"]);
    assert!(blocked.contains("user:alice") && blocked.contains("spam"), "{blocked}");
    let shown = cli.done(&["users", "block", "192.0.2.7/24", "--reason", "guessing"]);
    assert!(shown.starts_with("blocked ip:192.0.2.0/24 (version "), "{shown}");
    let shown = cli.until(1, &["check", "--ip", "192.0.2.9", "--endpoint", "/a"]);
    assert!(shown.contains("guessing"), "{shown}");
    let networks = cli.json(&["users", "blocked", "--kind", "ip"]);
    assert_eq!(networks["blocks"].as_array().unwrap().len(), 1, "{networks}");
    assert_eq!(cli.done(&["users", "unblock", "alice"]), "unblocked user:alice\n");
    cli.until(0, &check);
    assert!(cli.error(&["users", "unblock", "alice"]).contains("NOT_FOUND"));
    cli.done(&["users", "unblock", "ip:192.0.2.0/24"]);
}

#[test]
fn audit_lists_changes_newest_first() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    cli.done(&["tiers", "put", "t", "--limit", "1", "--window", "1m"]);
    cli.done(&["tiers", "put", "t", "--limit", "2", "--window", "1m"]);
    cli.done(&["users", "block", "alice", "--reason", "r"]);
    let newest = cli.json(&["audit", "--limit", "2"]);
    let kinds: Vec<&str> =
        newest["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["block", "tier"]);
    let tiers = cli.done(&["audit", "--kind", "tier"]);
    assert_eq!(tiers.lines().count(), 3, "{tiers}");
    assert!(
        tiers.lines().nth(1).unwrap().ends_with("limit"),
        "the newest entry must list the changed keys: {tiers}"
    );
    let first = newest["entries"][1]["id"].as_u64().unwrap().to_string();
    let later = cli.json(&["audit", "--after", &first]);
    assert_eq!(later["entries"].as_array().unwrap().len(), 1, "{later}");
    assert!(cli.json(&["audit", "--subject", "nobody"])["entries"].as_array().unwrap().is_empty());
}

#[test]
fn hostile_names_are_handled_as_names() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    for name in [
        "a b",
        "a/b",
        "../x",
        "ü\u{1f600}",
        "a\"b'c\\",
        "100%2F",
        "'; DROP TABLE tiers; --",
        "user:x",
        "?&#=+",
    ] {
        cli.done(&["quotas", "set", name, "--requests-per-day", "9"]);
        assert_eq!(cli.json(&["quotas", "get", name])["user_id"], name);
        cli.done(&["users", "block", &format!("user:{name}"), "--reason", name]);
        cli.done(&["users", "unblock", &format!("user:{name}")]);
    }
    let file = cli.done(&["rules", "export", "--kinds", "quotas"]);
    let files = Files::new(&[("q.toml", &file)]);
    let again = cli.done(&["rules", "apply", &files.path("q.toml"), "--prune"]);
    assert_eq!(again, "no changes, 9 unchanged\n");
}

#[test]
fn lists_longer_than_a_page_are_complete() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let mut text = String::new();
    for n in 0..1_050 {
        let _ = writeln!(text, "[[quotas]]\nuser_id = \"user-{n:04}\"\nrequests_per_day = {}", n + 1);
    }
    let files = Files::new(&[("q.toml", &text)]);
    let applied = cli.done(&["rules", "apply", &files.path("q.toml")]);
    assert!(
        applied.ends_with("1050 created, 0 updated, 0 deleted, 0 unchanged\n"),
        "{}",
        &applied[applied.len() - 80..]
    );
    let listed = cli.json(&["quotas", "list"]);
    let users: Vec<&str> =
        listed["quotas"].as_array().unwrap().iter().map(|quota| quota["user_id"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..1_050).map(|n| format!("user-{n:04}")).collect();
    assert_eq!((users, listed["next"].is_null()), (expected.iter().map(String::as_str).collect(), true));
    assert_eq!(cli.done(&["quotas", "list", "--limit", "1001"]).lines().count(), 1_002);
    let seven = cli.run(&["quotas", "list", "--limit", "7"]);
    assert_eq!(
        (seven.stdout.lines().count(), &*seven.stderr),
        (8, "showing the first 7; raise --limit to see more\n")
    );
}

#[test]
fn key_is_limited_to_its_scopes() {
    let service = Service::with_config("default_limit = 1000");
    let admin = CliRunner::of(&service);
    let with_scope = |scope: &str| {
        let key = admin.done(&["keys", "create", scope, "--scope", scope, "--quiet"]);
        let cli = CliRunner::with_key(&service, key.trim_end());
        cli.until(0, &["rules", "list"]);
        cli
    };
    let (read, config) = (with_scope("read"), with_scope("read,config"));
    for args in [&["rules", "list"][..], &["tiers", "list"], &["quotas", "list"], &["users", "blocked"]] {
        read.done(args);
    }
    config.done(&["quotas", "set", "alice", "--burst", "5", "--requests-per-hour", "9", "--dry-run"]);
    config.done(&["users", "block", "alice", "--reason", "r"]);
    config.done(&["users", "unblock", "alice"]);
    for (cli, args) in [
        (&read, &["quotas", "delete", "alice", "--yes"][..]),
        (&read, &["users", "block", "alice", "--reason", "r"]),
        (&read, &["audit"]),
        (&read, &["keys", "list"]),
        (&config, &["tiers", "put", "t", "--limit", "1", "--window", "1m"]),
        (&config, &["rules", "delete", "a", "--yes"]),
        (&config, &["keys", "create", "k", "--scope", "admin"]),
    ] {
        let error = cli.error(args);
        assert!(error.contains("FORBIDDEN"), "{args:?}: {error}");
    }
}

#[test]
fn wrong_key_reads_and_changes_nothing() {
    let service = Service::with_config("default_limit = 1000");
    for args in [
        &["rules", "list"][..],
        &["tiers", "put", "t", "--limit", "1", "--window", "1m"],
        &["quotas", "delete", "a", "--yes"],
        &["users", "blocked"],
        &["keys", "list"],
        &["audit"],
        &["rules", "export"],
    ] {
        let ran = CliRunner::with_key(&service, "wrong").run(args);
        assert_eq!((ran.code, &*ran.stdout), (2, ""), "{args:?}");
        assert!(ran.stderr.contains("UNAUTHORIZED") && !ran.stderr.contains("wrong"), "{}", ran.stderr);
    }
}
