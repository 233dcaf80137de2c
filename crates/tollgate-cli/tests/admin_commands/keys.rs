//! `keys create|list|show|rotate|revoke|delete`.

use std::process::Stdio;

use serde_json::json;

use crate::support::mock_server::{MockServer, assert_error_is_reported, respond, run_against};
use crate::support::{finished, run, tollgate};

const ID: &str = "4kq2mz7ehv3xw5ta";
const NEW: &str =
    r#"{"id":"4kq2mz7ehv3xw5ta","name":"ci","key":"tg_4kq2mz7ehv3xw5ta_SECRET","status":"active"}"#;
const KEY: &str = r#"{"id":"4kq2mz7ehv3xw5ta","name":"ci","status":"revoked","user_id":"alice","tenant":null,"tier":"pro",
 "scopes":["check","read"],"expires_at":"2027-01-01T00:00:00Z","last_used_at":null,"requests_total":42}"#;

#[test]
fn new_key_is_alone_on_stdout() {
    let args = ["keys", "create", "ci", "--user", "alice", "--scope", "check,read", "--expires", "90d"];
    let (ran, sent) = run_against(&[respond("201 Created", NEW)], &args);
    assert_eq!((ran.code, &*ran.stdout), (0, "tg_4kq2mz7ehv3xw5ta_SECRET\n"));
    assert_eq!(ran.stderr, "created key 4kq2mz7ehv3xw5ta (ci); the key is shown only this once:\n");
    assert_eq!(sent[0].line(), "POST /v1/admin/keys");
    let body = json!({"name": "ci", "user_id": "alice", "scopes": ["check", "read"], "expires_in": "90d"});
    assert_eq!(sent[0].body(), body);
    let (ran, _) = run_against(&[respond("201 Created", NEW)], &["keys", "create", "ci", "--quiet"]);
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (0, "tg_4kq2mz7ehv3xw5ta_SECRET\n", ""));
    let (ran, _) = run_against(&[respond("201 Created", NEW)], &["keys", "create", "ci", "--json"]);
    assert_eq!((ran.json()["key"].clone(), &*ran.stderr), (json!("tg_4kq2mz7ehv3xw5ta_SECRET"), ""));
}

#[test]
fn response_without_key_is_an_error() {
    let (ran, _) = run_against(&[respond("201 Created", r#"{"id":"x"}"#)], &["keys", "create", "ci"]);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
}

#[test]
fn unprinted_key_is_an_error() {
    for flags in [&[][..], &["--json"]] {
        let server = MockServer::new(&[respond("201 Created", NEW)]);
        let mut command = tollgate();
        command.args(["keys", "create", "ci", "--url", &server.url]).args(flags);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let running = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let ended = finished(running.wait_with_output().unwrap());
        assert_eq!(ended.code, 2);
        assert!(
            ended.stderr.contains("key 4kq2mz7ehv3xw5ta was created but could not be printed"),
            "{}",
            ended.stderr
        );
        assert!(!ended.stderr.contains("SECRET"), "{}", ended.stderr);
    }
}

#[test]
fn dry_run_creates_no_key() {
    let body = r#"{"dry_run":true,"changes":[{"kind":"key","id":"new","action":"create","before":null,"after":{"name":"ci"}}]}"#;
    let (ran, sent) = run_against(&[respond("200 OK", body)], &["keys", "create", "ci", "--dry-run"]);
    assert_eq!((ran.code, sent[0].line()), (0, "POST /v1/admin/keys?dry_run=true"));
    assert_eq!(ran.stdout, "+ key new\n    + name = \"ci\"\n");
}

#[test]
fn keys_are_listed() {
    let body = format!(r#"{{"keys":[{KEY}],"next":null}}"#);
    let args = [
        "keys",
        "list",
        "--user",
        "alice",
        "--tenant",
        "acme",
        "--tier",
        "pro",
        "--active",
        "--expires-before",
        "30d",
        "--limit",
        "5",
    ];
    let (ran, sent) = run_against(&[respond("200 OK", &body)], &args);
    assert_eq!(ran.code, 0);
    let words: Vec<Vec<&str>> = ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[1], [ID, "ci", "revoked", "alice", "pro", "check,read", "2027-01-01T00:00:00Z", "42"]);
    let line = "GET /v1/admin/keys?user_id=alice&tenant=acme&tier=pro&active=true&expires_before=30d&limit=5";
    assert_eq!(sent[0].line(), line);
    let (ran, _) = run_against(&[respond("200 OK", &body)], &["keys", "list", "--json"]);
    assert_eq!(ran.json()["keys"][0]["requests_total"], 42);
}

#[test]
fn show_prints_details_without_the_secret() {
    let (ran, sent) = run_against(&[respond("200 OK", KEY)], &["keys", "show", &format!("tg_{ID}")]);
    assert_eq!((ran.code, sent[0].line()), (0, "GET /v1/admin/keys/4kq2mz7ehv3xw5ta"));
    assert!(ran.stdout.contains("scopes          check, read\n"), "{}", ran.stdout);
    let (ran, _) = run_against(&[respond("200 OK", KEY)], &["keys", "show", ID, "--json"]);
    assert_eq!(ran.stdout, format!("{KEY}\n"));
}

#[test]
fn rotate_keeps_the_old_secret_for_the_overlap() {
    let (ran, sent) = run_against(&[respond("200 OK", NEW)], &["keys", "rotate", ID]);
    assert_eq!((ran.code, &*ran.stdout), (0, "tg_4kq2mz7ehv3xw5ta_SECRET\n"));
    assert!(
        ran.stderr.contains("the key is shown only this once")
            && ran.stderr.ends_with("stays valid for 24h\n"),
        "{}",
        ran.stderr
    );
    assert_eq!(sent[0].line(), "POST /v1/admin/keys/4kq2mz7ehv3xw5ta/rotate");
    assert_eq!(sent[0].body(), json!({"overlap": "24h"}));
    let (ran, sent) =
        run_against(&[respond("200 OK", NEW)], &["keys", "rotate", ID, "--overlap", "7d", "-q"]);
    assert_eq!((&*ran.stderr, sent[0].body()), ("", json!({"overlap": "7d"})));
}

#[test]
fn rotate_without_overlap_needs_confirmation() {
    let (ran, sent) = run_against(&[], &["keys", "rotate", ID, "--overlap", "0s"]);
    assert_eq!((ran.code, sent.len()), (2, 0));
    let (ran, _) =
        run_against(&[respond("200 OK", NEW)], &["keys", "rotate", ID, "--overlap", "0s", "--yes"]);
    assert!(ran.code == 0 && ran.stderr.contains("no longer valid"), "{}", ran.stderr);
}

#[test]
fn revoke_and_delete_run_when_confirmed() {
    let (ran, sent) = run_against(&[respond("200 OK", KEY)], &["keys", "revoke", ID, "--yes"]);
    assert_eq!((ran.code, &*ran.stdout), (0, "revoked key 4kq2mz7ehv3xw5ta\n"));
    assert_eq!(sent[0].line(), "POST /v1/admin/keys/4kq2mz7ehv3xw5ta/revoke");
    let (ran, _) = run_against(&[respond("200 OK", KEY)], &["keys", "revoke", ID, "--yes", "--json"]);
    assert_eq!(ran.json()["status"], "revoked");
    let (ran, sent) = run_against(&[respond("204 No Content", "")], &["keys", "delete", ID, "--yes"]);
    assert_eq!((ran.code, sent[0].line()), (0, "DELETE /v1/admin/keys/4kq2mz7ehv3xw5ta"));
}

#[test]
fn full_keys_reach_no_url_and_no_message() {
    let whole = format!("tg_{ID}_{}", "SECRET-".repeat(6) + "S");
    let (named, user) = (format!("api_key:{whole}"), format!("user:{whole}"));
    let cut = format!("api_key:tg_{ID}_SECRET");
    let (block, unblock) = (["users", "block", "--reason", "r"], ["users", "unblock"]);
    let status = ["status", "--endpoint", "/a"];
    let commands = [
        [&block[..], &[&named]].concat(),
        [&block[..], &[&cut]].concat(),
        [&block[..], &[&whole]].concat(),
        [&unblock[..], &[&named]].concat(),
        [&unblock[..], &[&cut]].concat(),
        vec!["inspect", &whole],
        vec!["inspect", &named],
        vec!["inspect", &cut],
        vec!["inspect", &user],
        vec!["quotas", "get", &whole],
        vec!["audit", "--by", &whole],
        vec!["audit", "--limit", &whole],
        vec!["keys", &whole],
        vec!["keys", "list", "--user", &whole],
        vec!["keys", "show", ID, &whole],
        [&status[..], &["--user", &whole]].concat(),
        [&status[..], &["--api-key", &whole]].concat(),
    ];
    let ids = [&whole, &cut["api_key:".len()..]];
    let on_ids = ["show", "rotate", "revoke", "delete"]
        .into_iter()
        .flat_map(|command| ids.map(|id| vec!["keys", command, id]));
    for args in commands.into_iter().chain(on_ids) {
        let (ran, sent) = run_against(&[respond("200 OK", KEY)], &[&args[..], &["--json"]].concat());
        assert_eq!((ran.code, sent.len()), (2, 0), "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("SECRET") && !ran.stdout.contains("SECRET"), "{args:?}: {}", ran.stderr);
        let shown = ["is a full API key: pass only its id", "would send the key in its URL"];
        assert!(shown.iter().any(|shown| ran.stderr.contains(shown)), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.json()["error"]["code"], "INVALID_INPUT");
    }
}

#[test]
fn full_keys_are_accepted_in_key_flags() {
    let whole = format!("tg_{ID}_{}", "SECRET-".repeat(6) + "S");
    let check = ["check", "--endpoint", "/a", "--api-key", &whole, "--key", &whole];
    let (ran, sent) = run_against(&[respond("200 OK", r#"{"allowed":true}"#)], &check);
    assert_eq!((ran.code, sent[0].line()), (0, "POST /v1/rate-limit/check"), "{}", ran.stderr);
    assert_eq!(sent[0].body()["api_key"], *whole);
}

#[test]
fn invalid_arguments_exit_with_2() {
    for args in [
        &["keys"][..],
        &["keys", "create"],
        &["keys", "create", ""],
        &["keys", "create", "a", "--scope", "fly"],
        &["keys", "create", "a", "--expires", "never"],
        &["keys", "create", "a", "--burst", "many"],
        &["keys", "rotate", "a", "--overlap", "long"],
        &["keys", "show"],
        &["keys", "revoke", ""],
    ] {
        assert_eq!(run(args).code, 2, "{args:?}");
    }
}

#[test]
fn server_errors_show_field_and_reason() {
    for args in [
        &["keys", "create", "a"][..],
        &["keys", "list"],
        &["keys", "show", "a"],
        &["keys", "rotate", "a"],
        &["keys", "revoke", "a", "--yes"],
        &["keys", "delete", "a", "--yes"],
    ] {
        assert_error_is_reported(args);
    }
}
