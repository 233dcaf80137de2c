//! The life cycle of API keys against a running service.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli_runner::CliRunner;
use crate::harness::{Service, wait_for};
use crate::support::Files;

/// Whether a key can read the rules.
fn reads(service: &Service, key: &str) -> bool {
    CliRunner::with_key(service, key).run(&["rules", "list"]).code == 0
}

#[test]
fn new_key_works_until_revoked() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let made = cli.run(&["keys", "create", "reader", "--scope", "read", "--expires", "90d"]);
    assert!(made.code == 0 && made.stderr.contains("the key is shown only this once"), "{}", made.stderr);
    let key = made.stdout.trim_end();
    let id = key.strip_prefix("tg_").unwrap().split('_').next().unwrap();
    assert!(made.stdout.lines().count() == 1 && made.stderr.contains(id), "{}", made.stdout);
    wait_for("the key to be active", || reads(&service, key).then_some(()));
    let refused = CliRunner::with_key(&service, key).run(&["keys", "list"]);
    assert!(refused.code == 2 && refused.stderr.contains("FORBIDDEN"), "{}", refused.stderr);
    let list = cli.done(&["keys", "list"]);
    assert!(list.contains(id) && list.contains("reader") && list.contains("active"), "{list}");
    let shown = cli.json(&["keys", "show", id]);
    assert_eq!((&shown["name"], &shown["status"]), (&"reader".into(), &"active".into()));
    assert!(cli.error(&["keys", "revoke", id]).contains("--yes"));
    assert!(reads(&service, key));
    assert_eq!(
        cli.done(&["keys", "revoke", id, "--yes"]).split(" (").next().unwrap().trim_end(),
        format!("revoked key {id}")
    );
    wait_for("the key to be revoked", || (!reads(&service, key)).then_some(()));
    assert_eq!(cli.json(&["keys", "show", id])["status"], "revoked");
    assert!(!cli.done(&["keys", "list", "--json", "--active"]).contains(id));
    cli.done(&["keys", "delete", id, "--yes"]);
    assert!(cli.error(&["keys", "show", id]).contains("NOT_FOUND"));
}

#[test]
fn rotated_key_has_two_secrets_during_overlap() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let old = cli.done(&["keys", "create", "ci", "--scope", "read", "--quiet"]).trim_end().to_owned();
    let id = old.split('_').nth(1).unwrap();
    let new = cli.done(&["keys", "rotate", id, "--quiet"]).trim_end().to_owned();
    assert!(new != old && new.starts_with(&format!("tg_{id}_")), "the id must not change");
    wait_for("the new secret to be valid", || reads(&service, &new).then_some(()));
    assert!(reads(&service, &old));
    let last = cli.done(&["keys", "rotate", id, "--overlap", "0s", "--yes", "--quiet"]).trim_end().to_owned();
    wait_for("the old secret to be invalid", || (!reads(&service, &new)).then_some(()));
    wait_for("the last secret to be valid", || reads(&service, &last).then_some(()));
}

#[test]
fn limits_of_a_key_apply_to_its_requests() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let made =
        cli.json(&["keys", "create", "app", "--user", "alice", "--requests-per-day", "1", "--burst", "1"]);
    let key = made["key"].as_str().unwrap();
    let check = ["check", "--api-key", key, "--endpoint", "/a"];
    wait_for("the limits of the key", || {
        let explained = cli.json(&["explain", "--api-key", key, "--endpoint", "/a"]);
        (explained["limit"] == 1).then_some(())
    });
    assert_eq!((cli.run(&check).code, cli.run(&check).code), (0, 1));
    assert_eq!(cli.json(&["keys", "list", "--user", "alice"])["keys"][0]["id"], made["id"]);
    assert!(cli.json(&["keys", "list", "--user", "bob"])["keys"].as_array().unwrap().is_empty());
}

#[test]
fn secret_is_shown_once_and_stored_nowhere() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let key = cli.done(&["keys", "create", "canary", "--scope", "read", "--quiet"]).trim_end().to_owned();
    let secret = key.splitn(3, '_').nth(2).unwrap();
    wait_for("the key to be active", || reads(&service, &key).then_some(()));
    let id = key.split('_').nth(1).unwrap();
    cli.done(&["keys", "rotate", id, "--quiet"]);
    for args in [&["keys", "list"][..], &["keys", "show", id], &["audit"], &["rules", "export"]] {
        let shown = cli.done(&[args, &["--json"]].concat());
        assert!(!shown.contains(secret), "{args:?}");
    }
    assert!(!service.log().contains(secret));
    for path in files_below(&service.data_dir()) {
        // The spool removes files that are stored.
        let bytes = fs::read(&path).unwrap_or_default();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{path:?}");
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn imported_keys_are_verified_until_revoked() {
    const TEXT: &str = "sk_live_51HxCanary0123456789";
    const HASHED: &str = "sk_live_51HxHashed9876543210";
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let hash = "611b5a36a2b0792eda3c9ea5a15129f30c74d043ec1aadc9c9bae9849049302a"; // of HASHED
    let lines = [
        format!(r#"{{"name": "text", "key": "{TEXT}", "user_id": "alice", "requests_per_day": 1}}"#),
        format!(r#"{{"name": "hash", "key_sha256": "{hash}", "scopes": ["read"]}}"#),
        r#"{"name": "wrong", "key_sha256": "abc"}"#.to_owned(),
    ];
    let files = Files::new(&[("keys.jsonl", &lines.join("\n"))]);
    let import = ["keys", "import", &files.path("keys.jsonl"), "--json"];
    let ran = cli.run(&import);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert_eq!(
        (&ran.json()["imported"], &ran.json()["failed"][0]["line"]),
        (&2.into(), &3.into()),
        "{}",
        ran.stdout
    );
    let again = cli.run(&import).json();
    assert_eq!((&again["imported"], &again["existing"]), (&0.into(), &2.into()));
    let check = ["check", "--api-key", TEXT, "--endpoint", "/a", "--json"];
    wait_for("the limit of the imported key", || (cli.run(&check).code == 1).then_some(()));
    wait_for("the hashed key to be a caller", || reads(&service, HASHED).then_some(()));
    let listed = cli.json(&["keys", "list", "--user", "alice"]);
    let id = listed["keys"][0]["id"].as_str().unwrap();
    cli.done(&["keys", "revoke", id, "--yes"]);
    wait_for("the key to be revoked", || cli.run(&check).stdout.contains("api_key_revoked").then_some(()));
    for shown in [service.log(), cli.done(&["audit", "--json"]), cli.done(&["keys", "list", "--json"])] {
        assert!(!shown.contains(TEXT) && !shown.contains(HASHED) && !shown.contains(hash));
    }
}

#[test]
fn imported_keys_must_be_hard_to_guess() {
    let service = Service::with_config("default_limit = 1000");
    let cli = CliRunner::of(&service);
    let own = cli.done(&["keys", "create", "own", "--quiet"]);
    for (key, reason) in [("short", "at least 16"), (own.trim_end(), "must not contain an API key")] {
        let files = Files::new(&[("keys.jsonl", &format!(r#"{{"name": "x", "key": "{key}"}}"#))]);
        let ran = cli.run(&["keys", "import", &files.path("keys.jsonl")]);
        assert!(ran.code == 2 && ran.stdout.contains(reason), "{}{}", ran.stdout, ran.stderr);
        assert!(!ran.stdout.contains(key));
    }
}
