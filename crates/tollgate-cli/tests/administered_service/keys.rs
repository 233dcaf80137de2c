//! API keys from their making to their end.

use std::fs;

use crate::harness::{Service, wait_for};
use crate::operator::Operator;

/// Whether a key may ask how the service stands.
fn reads(service: &Service, key: &str) -> bool {
    Operator::with_key(service, key).run(&["rules", "list"]).code == 0
}

#[test]
fn a_new_key_works_until_it_is_revoked() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let made = operator.run(&["keys", "create", "reader", "--scope", "read", "--expires", "90d"]);
    assert!(made.code == 0 && made.stderr.contains("the only time it is shown"), "{}", made.stderr);
    let key = made.stdout.trim_end();
    let id = key.strip_prefix("tg_").unwrap().split('_').next().unwrap();
    assert!(made.stdout.lines().count() == 1 && made.stderr.contains(id), "{}", made.stdout);
    wait_for("the key to be known", || reads(&service, key).then_some(()));
    let refused = Operator::with_key(&service, key).run(&["keys", "list"]);
    assert!(refused.code == 2 && refused.stderr.contains("FORBIDDEN"), "{}", refused.stderr);
    let list = operator.done(&["keys", "list"]);
    assert!(list.contains(id) && list.contains("reader") && list.contains("active"), "{list}");
    let shown = operator.json(&["keys", "show", id]);
    assert_eq!((&shown["name"], &shown["status"]), (&"reader".into(), &"active".into()));
    assert!(operator.error(&["keys", "revoke", id]).contains("--yes"));
    assert!(reads(&service, key));
    assert_eq!(
        operator.done(&["keys", "revoke", id, "--yes"]).split(" (").next().unwrap().trim_end(),
        format!("revoked key {id}")
    );
    wait_for("the key to be of no use", || (!reads(&service, key)).then_some(()));
    assert_eq!(operator.json(&["keys", "show", id])["status"], "revoked");
    assert!(!operator.done(&["keys", "list", "--json", "--active"]).contains(id));
    operator.done(&["keys", "delete", id, "--yes"]);
    assert!(operator.error(&["keys", "show", id]).contains("NOT_FOUND"));
}

#[test]
fn a_rotated_key_has_two_secrets_for_a_while() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let old = operator.done(&["keys", "create", "ci", "--scope", "read", "--quiet"]).trim_end().to_owned();
    let id = old.split('_').nth(1).unwrap();
    let new = operator.done(&["keys", "rotate", id, "--quiet"]).trim_end().to_owned();
    assert!(new != old && new.starts_with(&format!("tg_{id}_")), "the id stays");
    wait_for("the new secret to be good", || reads(&service, &new).then_some(()));
    assert!(reads(&service, &old));
    let last =
        operator.done(&["keys", "rotate", id, "--overlap", "0s", "--yes", "--quiet"]).trim_end().to_owned();
    wait_for("the old secret to be of no use", || (!reads(&service, &new)).then_some(()));
    wait_for("the last secret to be good", || reads(&service, &last).then_some(()));
}

#[test]
fn a_key_of_a_limited_client_counts_by_its_own_numbers() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let made = operator.json(&[
        "keys",
        "create",
        "app",
        "--user",
        "alice",
        "--requests-per-day",
        "1",
        "--burst",
        "1",
    ]);
    let key = made["key"].as_str().unwrap();
    let check = ["check", "--api-key", key, "--endpoint", "/a"];
    wait_for("the numbers of the key", || {
        let explained = operator.json(&["explain", "--api-key", key, "--endpoint", "/a"]);
        (explained["limit"] == 1).then_some(())
    });
    assert_eq!((operator.run(&check).code, operator.run(&check).code), (0, 1));
    assert_eq!(operator.json(&["keys", "list", "--user", "alice"])["keys"][0]["id"], made["id"]);
    assert!(operator.json(&["keys", "list", "--user", "bob"])["keys"].as_array().unwrap().is_empty());
}

#[test]
fn t27_a_secret_is_told_once_and_kept_nowhere() {
    let service = Service::with_config("default_limit = 1000");
    let operator = Operator::of(&service);
    let key =
        operator.done(&["keys", "create", "canary", "--scope", "read", "--quiet"]).trim_end().to_owned();
    let secret = key.splitn(3, '_').nth(2).unwrap();
    wait_for("the key to be known", || reads(&service, &key).then_some(()));
    let id = key.split('_').nth(1).unwrap();
    operator.done(&["keys", "rotate", id, "--quiet"]);
    for args in [&["keys", "list"][..], &["keys", "show", id], &["audit"], &["rules", "export"]] {
        let told = operator.done(&[args, &["--json"]].concat());
        assert!(!told.contains(secret), "{args:?}");
    }
    assert!(!service.log().contains(secret));
    for entry in fs::read_dir(service.data_dir()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{path:?}");
    }
}
