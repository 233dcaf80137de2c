//! `users block|unblock|blocked`.

use serde_json::json;

use crate::support::mock_server::{assert_error_is_reported, error_response, respond, run_against};
use crate::support::run;

const BLOCK: &str = r#"{"client":"user:alice","reason":"abuse","until":"2027-01-01T00:00:00Z","created_by":"admin",
 "created_at":"2026-01-01T00:00:00Z","version":3}"#;

#[test]
fn block_sends_reason_and_expiry() {
    let created = [respond("201 Created", BLOCK).version(3)];
    let (ran, sent) =
        run_against(&created, &["users", "block", "alice", "--reason", "abuse", "--for", "24h"]);
    assert_eq!((ran.code, &*ran.stdout), (0, "blocked user:alice (version 3)\n"));
    assert_eq!(sent[0].line(), "PUT /v1/admin/blocks/user%3Aalice");
    assert_eq!(sent[0].body(), json!({"client": "user:alice", "reason": "abuse", "for": "24h"}));
    let args =
        ["users", "block", "192.0.2.0/24", "--reason", "abuse", "--until", "2027-01-01T00:00:00Z", "--json"];
    let (ran, sent) = run_against(&created, &args);
    assert_eq!((ran.code, ran.json()["reason"].clone()), (0, json!("abuse")));
    assert_eq!(sent[0].line(), "PUT /v1/admin/blocks/ip%3A192.0.2.0%2F24");
    assert_eq!(sent[0].body()["until"], "2027-01-01T00:00:00Z");
    let (_, sent) = run_against(&created, &["users", "block", "tenant:acme", "--reason", "r", "--dry-run"]);
    assert_eq!(sent[0].line(), "PUT /v1/admin/blocks/tenant%3Aacme?dry_run=true");
    assert_eq!(sent[0].body(), json!({"client": "tenant:acme", "reason": "r"}));
}

#[test]
fn tenant_selects_the_block() {
    let created = [respond("201 Created", BLOCK).version(3)];
    let (_, sent) = run_against(&created, &["users", "block", "bob", "--tenant", "acme", "--reason", "r"]);
    assert_eq!(sent[0].line(), "PUT /v1/admin/blocks/user%3Abob?tenant=acme");
    let (_, sent) =
        run_against(&[respond("204 No Content", "")], &["users", "unblock", "bob", "--tenant", "acme"]);
    assert_eq!(sent[0].line(), "DELETE /v1/admin/blocks/user%3Abob?tenant=acme");
    let listed = [respond("200 OK", r#"{"blocks":[],"next":null}"#)];
    let (_, sent) = run_against(&listed, &["users", "blocked", "--tenant", "acme"]);
    assert_eq!(sent[0].line(), "GET /v1/admin/blocks?tenant=acme&active=true&limit=1000");
}

#[test]
fn unblock_deletes_the_block() {
    let (ran, sent) = run_against(&[respond("204 No Content", "")], &["users", "unblock", "alice"]);
    assert_eq!((ran.code, &*ran.stdout), (0, "unblocked user:alice\n"));
    assert_eq!(sent[0].line(), "DELETE /v1/admin/blocks/user%3Aalice");
    let none = error_response("404 Not Found", "NOT_FOUND", "user:alice is not blocked", "{}");
    let (ran, _) = run_against(&[none], &["users", "unblock", "alice"]);
    assert_eq!((ran.code, &*ran.stderr), (2, "error: user:alice is not blocked (NOT_FOUND)\n"));
}

#[test]
fn blocked_clients_are_listed() {
    let body = format!(r#"{{"blocks":[{BLOCK},{{"client":"ip:::1","reason":"r"}}],"next":null}}"#);
    let (ran, sent) = run_against(&[respond("200 OK", &body)], &["users", "blocked", "--kind", "api_key"]);
    let expected = "\
CLIENT      TENANT  UNTIL                 REASON  BY     SINCE
user:alice          2027-01-01T00:00:00Z  abuse   admin  2026-01-01T00:00:00Z
ip:::1              never expires         r
";
    assert_eq!((ran.code, &*ran.stdout), (0, expected));
    assert_eq!(sent[0].line(), "GET /v1/admin/blocks?kind=api_key&active=true&limit=1000");
    let (ran, _) = run_against(&[respond("200 OK", &body)], &["users", "blocked", "--all", "--json"]);
    assert_eq!(ran.json()["blocks"][0]["client"], "user:alice");
}

#[test]
fn invalid_arguments_exit_with_2() {
    for args in [
        &["users"][..],
        &["users", "block", "alice"],
        &["users", "block", "", "--reason", "r"],
        &["users", "block", "ip:nowhere", "--reason", "r"],
        &["users", "block", "alice", "--reason", "r", "--for", "ever"],
        &["users", "block", "alice", "--reason", "r", "--for", "1h", "--until", "2h"],
        &["users", "unblock"],
        &["users", "blocked", "--kind", "planet"],
    ] {
        assert_eq!(run(args).code, 2, "{args:?}");
    }
    let ran = run(&["users", "block", "api_key:tg_4kq2mz7ehv3xw5ta_hunter2", "--reason", "r"]);
    assert!(ran.code == 2 && ran.stderr.contains("is a full API key: pass only its id"), "{}", ran.stderr);
}

#[test]
fn server_errors_show_field_and_reason() {
    assert_error_is_reported(&["users", "block", "a", "--reason", "r"]);
    assert_error_is_reported(&["users", "unblock", "a"]);
    assert_error_is_reported(&["users", "blocked"]);
}

#[test]
fn error_names_the_flag_that_was_given() {
    let block = ["users", "block", "alice", "--reason", "r"];
    for (flag, value, other) in [("--for", "1day", "--until"), ("--until", "tomorrow", "--for")] {
        let ran = run(&[&block[..], &[flag, value]].concat());
        assert!(ran.code == 2 && ran.stderr.contains(flag) && !ran.stderr.contains(other), "{}", ran.stderr);
    }
    let both = run(&[&block[..], &["--for", "1h", "--until", "2h"]].concat());
    assert!(both.code == 2 && both.stderr.contains("cannot be used with"), "{}", both.stderr);
}
