//! Rules, tiers, quotas, blocks and the audit trail, one by one.

use std::fmt::Write;

use serde_json::json;

use crate::common::Files;
use crate::harness::Service;
use crate::operator::Operator;

const RULE: &str = "[[rules]]\nname = \"two\"\npriority = 1\nper = [\"user\"]\nlimits = [{ requests = 2, window = \"30d\" }]\n";

#[test]
fn a_rule_is_put_in_force_changed_and_deleted() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let files = Files::new(&[("r.toml", RULE), ("more.toml", &RULE.replace("requests = 2", "requests = 5"))]);
    let put = ["rules", "put", &files.path("r.toml")];
    let dry = operator.done(&[&put[..], &["--dry-run"]].concat());
    assert!(dry.starts_with("+ rule two\n"), "{dry}");
    assert!(operator.done(&[&put[..], &["--create"]].concat()).starts_with("created rule two (version "));
    assert!(operator.error(&[&put[..], &["--create"]].concat()).contains("PRECONDITION_FAILED"));
    operator.in_force("alice", 2);
    let statuses: Vec<u16> = (0..3).map(|_| service.check("alice", "/a").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let got = operator.done(&["rules", "get", "two"]);
    let rule = "[[rules]]\nname = \"two\"\npriority = 1\nper = [\"user\"]\nlimits = [{ requests = 2, window = \"30d\" }]\n";
    assert!(got.ends_with(rule) && got.starts_with("# from the database, version "), "{got}");
    let told = operator.json(&["rules", "get", "two"]);
    assert_eq!((&told["source"], &told["limits"][0]["requests"]), (&json!("database"), &json!(2)));
    assert!(operator.done(&["rules", "put", &files.path("more.toml")]).starts_with("updated rule two"));
    operator.in_force("alice", 5);
    let status = operator.json(&["status", "--user", "alice", "--endpoint", "/a"]);
    assert_eq!(status["remaining"], 3, "what was used stays used: {status}");
    // The JSON of before is of a version that is gone.
    let old = Files::new(&[("old.json", &told.to_string())]);
    assert!(operator.error(&["rules", "put", &old.path("old.json")]).contains("PRECONDITION_FAILED"));
    let list = operator.done(&["rules", "list"]);
    assert!(list.contains("5/30d") && list.contains("default"), "{list}");
    assert!(!operator.done(&["rules", "list", "--prefix", "tw"]).contains("default"));
    assert!(operator.error(&["rules", "delete", "two"]).contains("--yes"));
    assert!(operator.done(&["rules", "delete", "two", "--dry-run"]).starts_with("- rule two\n"));
    assert_eq!(operator.done(&["rules", "delete", "two", "--yes"]), "deleted rule two\n");
    assert!(operator.error(&["rules", "get", "two"]).contains("NOT_FOUND"));
}

#[test]
fn rules_of_the_servers_file_are_shown_and_not_changed() {
    let service = Service::with_config(RULE);
    let operator = Operator::of(&service);
    let files = Files::new(&[("r.toml", RULE)]);
    assert_eq!(operator.json(&["rules", "get", "two"])["source"], "file");
    let error = operator.error(&["rules", "put", &files.path("r.toml")]);
    assert!(error.contains("CONFLICT") && error.contains("tollgate.toml"), "{error}");
    let error = operator.error(&["rules", "delete", "two", "--yes"]);
    assert!(error.contains("CONFLICT") && error.contains("tollgate.toml"), "{error}");
}

#[test]
fn the_rule_of_a_server_that_has_none_is_told_as_built_in() {
    let service = Service::unconfigured();
    let operator = Operator::of(&service);
    assert_eq!(operator.json(&["rules", "get", "default"])["source"], "built-in");
    let got = operator.done(&["rules", "get", "default"]);
    assert!(got.starts_with("# built-in: nothing is configured\n"), "{got}");
    assert!(operator.done(&["rules", "list"]).contains("built-in"));
    assert!(operator.done(&["rules", "list", "--source", "built-in"]).contains("default"));
    assert!(!operator.done(&["rules", "list", "--source", "file"]).contains("default"));
    let configured = Service::with_config("default_limit = 5");
    assert_eq!(Operator::of(&configured).json(&["rules", "get", "default"])["source"], "file");
}

#[test]
fn a_mistake_is_told_with_its_field() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let files = Files::new(&[("r.json", r#"{"name": "x", "action": "explode"}"#)]);
    let error = operator.error(&["rules", "put", &files.path("r.json")]);
    assert!(
        error.contains("INVALID_INPUT") && error.contains("action") && error.contains("explode"),
        "{error}"
    );
    let error = operator.error(&["keys", "create", "k", "--expires", "2001-01-01T00:00:00Z"]);
    assert!(error.contains("expires_at"), "{error}");
}

#[test]
fn a_tier_of_a_quota_counts_for_its_user() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let put = ["tiers", "put", "small", "--limit", "1", "--window", "30d", "--description", "for \"tests\""];
    assert!(operator.done(&put).starts_with("created tier small"));
    assert!(
        operator
            .done(&["tiers", "get", "small"])
            .contains("description = \"for \\\"tests\\\"\"\nlimit = 1\n")
    );
    assert!(operator.done(&["tiers", "list"]).contains("1/30d"));
    assert!(operator.done(&["quotas", "set", "alice", "--tier", "small"]).starts_with("created quota alice"));
    operator.in_force("alice", 1);
    assert_eq!((service.check("alice", "/a").status, service.check("alice", "/a").status), (200, 429));
    assert_eq!((service.check("bob", "/a").status, service.check("bob", "/a").status), (200, 200));
    operator.done(&["quotas", "set", "alice", "--requests-per-day", "500", "--burst", "5"]);
    let quota = operator.json(&["quotas", "get", "alice"]);
    assert_eq!(
        (&quota["tier"], &quota["requests_per_day"], &quota["burst"]),
        (&json!("small"), &json!(500), &json!(5))
    );
    // Numbers of one's own stand above those of a tier.
    operator.in_force("alice", 500);
    assert_eq!(service.check("alice", "/a").status, 200);
    operator.done(&["quotas", "set", "alice", "--unset", "tier,burst"]);
    let quota = operator.json(&["quotas", "get", "alice"]);
    assert!(quota["tier"].is_null() && quota["burst"].is_null(), "{quota}");
    assert!(operator.done(&["quotas", "list"]).contains("alice"));
    assert_eq!(operator.done(&["quotas", "delete", "alice", "--yes"]), "deleted quota alice\n");
    assert!(operator.error(&["quotas", "get", "alice"]).contains("NOT_FOUND"));
    assert_eq!(operator.done(&["tiers", "delete", "small", "--yes"]), "deleted tier small\n");
}

#[test]
fn who_is_blocked_is_kept_out_until_let_in_again() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let check = ["check", "--user", "alice", "--endpoint", "/a"];
    assert!(
        operator
            .done(&["users", "block", "alice", "--reason", "spam", "--for", "24h"])
            .starts_with("blocked user:alice (version ")
    );
    let told = operator.until(1, &check);
    assert!(told.contains("blocked") && told.contains("spam"), "{told}");
    let blocked = operator.done(&["users", "blocked"]);
    assert!(blocked.contains("user:alice") && blocked.contains("spam"), "{blocked}");
    let told = operator.done(&["users", "block", "192.0.2.7/24", "--reason", "guessing"]);
    assert!(told.starts_with("blocked ip:192.0.2.0/24 (version "), "{told}");
    let told = operator.until(1, &["check", "--ip", "192.0.2.9", "--endpoint", "/a"]);
    assert!(told.contains("guessing"), "{told}");
    let networks = operator.json(&["users", "blocked", "--kind", "ip"]);
    assert_eq!(networks["blocks"].as_array().unwrap().len(), 1, "{networks}");
    assert_eq!(operator.done(&["users", "unblock", "alice"]), "unblocked user:alice\n");
    operator.until(0, &check);
    assert!(operator.error(&["users", "unblock", "alice"]).contains("NOT_FOUND"));
    operator.done(&["users", "unblock", "ip:192.0.2.0/24"]);
}

#[test]
fn the_audit_tells_who_changed_what() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    operator.done(&["tiers", "put", "t", "--limit", "1", "--window", "1m"]);
    operator.done(&["tiers", "put", "t", "--limit", "2", "--window", "1m"]);
    operator.done(&["users", "block", "alice", "--reason", "r"]);
    let newest = operator.json(&["audit", "--limit", "2"]);
    let kinds: Vec<&str> =
        newest["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["block", "tier"]);
    let tiers = operator.done(&["audit", "--kind", "tier"]);
    assert_eq!(tiers.lines().count(), 3, "{tiers}");
    assert!(tiers.lines().nth(1).unwrap().ends_with("limit"), "the newest names what it changed: {tiers}");
    let first = newest["entries"][1]["id"].as_u64().unwrap().to_string();
    let later = operator.json(&["audit", "--after", &first]);
    assert_eq!(later["entries"].as_array().unwrap().len(), 1, "{later}");
    assert!(operator.json(&["audit", "--subject", "nobody"])["entries"].as_array().unwrap().is_empty());
}

#[test]
fn t43_names_are_names_whatever_is_in_them() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
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
        operator.done(&["quotas", "set", name, "--requests-per-day", "9"]);
        assert_eq!(operator.json(&["quotas", "get", name])["user_id"], name);
        operator.done(&["users", "block", &format!("user:{name}"), "--reason", name]);
        operator.done(&["users", "unblock", &format!("user:{name}")]);
    }
    let file = operator.done(&["rules", "export", "--kinds", "quotas"]);
    let files = Files::new(&[("q.toml", &file)]);
    let again = operator.done(&["rules", "apply", &files.path("q.toml"), "--prune"]);
    assert_eq!(again, "no changes, 9 unchanged\n");
}

#[test]
fn more_than_a_page_is_listed_whole() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let mut text = String::new();
    for n in 0..1_050 {
        let _ = writeln!(text, "[[quotas]]\nuser_id = \"user-{n:04}\"\nrequests_per_day = {}", n + 1);
    }
    let files = Files::new(&[("q.toml", &text)]);
    let applied = operator.done(&["rules", "apply", &files.path("q.toml")]);
    assert!(
        applied.ends_with("1050 created, 0 updated, 0 deleted, 0 unchanged\n"),
        "{}",
        &applied[applied.len() - 80..]
    );
    let listed = operator.json(&["quotas", "list"]);
    let users: Vec<&str> =
        listed["quotas"].as_array().unwrap().iter().map(|quota| quota["user_id"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..1_050).map(|n| format!("user-{n:04}")).collect();
    assert_eq!((users, listed["next"].is_null()), (expected.iter().map(String::as_str).collect(), true));
    assert_eq!(operator.done(&["quotas", "list", "--limit", "1001"]).lines().count(), 1_002);
    let seven = operator.run(&["quotas", "list", "--limit", "7"]);
    assert_eq!(
        (seven.stdout.lines().count(), &*seven.stderr),
        (8, "the first 7; there are more: raise --limit\n")
    );
}

#[test]
fn t31_a_key_does_what_its_scopes_permit_and_no_more() {
    let service = Service::with_config("default_limit = 1000");
    let admin = Operator::of(&service);
    let with_scope = |scope: &str| {
        let key = admin.done(&["keys", "create", scope, "--scope", scope, "--quiet"]);
        let operator = Operator::with_key(&service, key.trim_end());
        operator.until(0, &["rules", "list"]);
        operator
    };
    let (read, config) = (with_scope("read"), with_scope("read,config"));
    for args in [&["rules", "list"][..], &["tiers", "list"], &["quotas", "list"], &["users", "blocked"]] {
        read.done(args);
    }
    config.done(&["quotas", "set", "alice", "--burst", "5", "--requests-per-hour", "9", "--dry-run"]);
    config.done(&["users", "block", "alice", "--reason", "r"]);
    config.done(&["users", "unblock", "alice"]);
    for (operator, args) in [
        (&read, &["quotas", "delete", "alice", "--yes"][..]),
        (&read, &["users", "block", "alice", "--reason", "r"]),
        (&read, &["audit"]),
        (&read, &["keys", "list"]),
        (&config, &["tiers", "put", "t", "--limit", "1", "--window", "1m"]),
        (&config, &["rules", "delete", "a", "--yes"]),
        (&config, &["keys", "create", "k", "--scope", "admin"]),
    ] {
        let error = operator.error(args);
        assert!(error.contains("FORBIDDEN"), "{args:?}: {error}");
    }
}

#[test]
fn without_the_right_key_nothing_is_told_or_changed() {
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
        let ran = Operator::with_key(&service, "wrong").run(args);
        assert_eq!((ran.code, &*ran.stdout), (2, ""), "{args:?}");
        assert!(ran.stderr.contains("UNAUTHORIZED") && !ran.stderr.contains("wrong"), "{}", ran.stderr);
    }
}
