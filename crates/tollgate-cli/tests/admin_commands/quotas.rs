//! `quotas list|get|set|delete`.

use serde_json::json;

use crate::support::mock_server::{
    SentRequest, assert_error_is_reported, error_response, respond, run_against,
};
use crate::support::run;

const QUOTA: &str = r#"{"user_id":"alice","tier":"pro","requests_per_hour":100,"requests_per_day":null,"burst":5,
 "blocked":true,"block_reason":"abuse","blocked_until":"2027-01-01T00:00:00Z","requests_today":7,"requests_month":70,
 "last_request_at":"2026-01-01T00:00:00Z","exceeded_count":2,"quota_reset_at":"2026-01-02T00:00:00Z","version":9}"#;

#[test]
fn quotas_are_listed_with_usage() {
    let body = format!(r#"{{"quotas":[{QUOTA}],"next":null}}"#);
    let (ran, sent) =
        run_against(&[respond("200 OK", &body)], &["quotas", "list", "--tier", "pro", "--prefix", "a"]);
    let expected = "\
USER   TENANT  TIER  PER HOUR  PER DAY  BURST  TODAY  MONTH  EXCEEDED  LAST REQUEST          BLOCKED
alice          pro   100                5      7      70     2         2026-01-01T00:00:00Z  until 2027-01-01T00:00:00Z: abuse
";
    assert_eq!((ran.code, &*ran.stdout), (0, expected));
    assert_eq!(sent[0].line(), "GET /v1/admin/quotas?prefix=a&tier=pro&limit=1000");
    let (ran, _) = run_against(&[respond("200 OK", &body)], &["quotas", "list", "--json"]);
    assert_eq!(ran.json()["quotas"][0]["requests_month"], 70);
}

#[test]
fn list_filters_by_block_and_last_request() {
    let listed = [respond("200 OK", r#"{"quotas":[],"next":null}"#)];
    let args = ["quotas", "list", "--blocked", "--last-request-after", "1h"];
    let (_, sent) = run_against(&listed, &args);
    assert_eq!(sent[0].line(), "GET /v1/admin/quotas?blocked=true&last_request_after=1h&limit=1000");
    let (_, sent) =
        run_against(&listed, &["quotas", "list", "--last-request-before", "2026-01-01T00:00:00Z"]);
    let line = "GET /v1/admin/quotas?last_request_before=2026-01-01T00%3A00%3A00Z&limit=1000";
    assert_eq!(sent[0].line(), line);
    assert_eq!(run(&["quotas", "list", "--last-request-after", "yesterday"]).code, 2);
}

#[test]
fn get_prints_one_field_per_line() {
    let (ran, _) = run_against(&[respond("200 OK", QUOTA)], &["quotas", "get", "alice"]);
    assert!(ran.stdout.starts_with("user_id            alice\ntier               pro\n"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("requests_per_day"), "{}", ran.stdout);
    let (ran, _) = run_against(&[respond("200 OK", QUOTA)], &["quotas", "get", "alice", "--json"]);
    assert_eq!(ran.stdout, format!("{QUOTA}\n"));
}

#[test]
fn set_changes_only_given_fields() {
    let responses = [respond("200 OK", QUOTA).version(9), respond("200 OK", QUOTA).version(10)];
    let args = ["quotas", "set", "alice", "--requests-per-day", "500", "--unset", "burst"];
    let (ran, sent) = run_against(&responses, &args);
    assert_eq!((ran.code, &*ran.stdout), (0, "updated quota alice (version 10)\n"));
    assert_eq!((sent[1].line(), sent[1].header("if-match")), ("PUT /v1/admin/quotas/alice", Some("\"9\"")));
    let body = json!({"user_id": "alice", "tier": "pro", "requests_per_hour": 100, "requests_per_day": 500});
    assert_eq!(sent[1].body(), body);
}

#[test]
fn tenant_selects_the_quota() {
    let listed = [respond("200 OK", r#"{"quotas":[],"next":null}"#)];
    let (_, sent) = run_against(&listed, &["quotas", "list", "--tenant", "acme"]);
    assert_eq!(sent[0].line(), "GET /v1/admin/quotas?tenant=acme&limit=1000");
    let (_, sent) = run_against(&[respond("200 OK", QUOTA)], &["quotas", "get", "bob", "--tenant", "a&b"]);
    assert_eq!(sent[0].line(), "GET /v1/admin/quotas/bob?tenant=a%26b");
    let none = error_response("404 Not Found", "NOT_FOUND", "no such quota", "{}");
    let created = [none, respond("201 Created", QUOTA).version(1)];
    let args = ["quotas", "set", "bob", "--tenant", "acme", "--tier", "pro", "--dry-run"];
    let (_, sent) = run_against(&created, &args);
    assert_eq!(sent[1].line(), "PUT /v1/admin/quotas/bob?dry_run=true&tenant=acme");
    assert_eq!(sent[1].body(), json!({"user_id": "bob", "tenant": "acme", "tier": "pro"}));
    let args = ["quotas", "delete", "bob", "--tenant", "acme", "--yes"];
    let (_, sent) = run_against(&[respond("204 No Content", "")], &args);
    assert_eq!(sent[0].line(), "DELETE /v1/admin/quotas/bob?tenant=acme");
}

#[test]
fn set_creates_a_missing_quota() {
    let none = error_response("404 Not Found", "NOT_FOUND", "no such quota", "{}");
    let responses = [none, respond("201 Created", QUOTA).version(1)];
    let (ran, sent) = run_against(&responses, &["quotas", "set", "bob", "--tier", "pro", "--burst", "3"]);
    assert_eq!((ran.code, &*ran.stdout), (0, "created quota bob (version 1)\n"));
    assert_eq!(sent[1].header("if-none-match"), Some("*"));
    assert_eq!(sent[1].body(), json!({"user_id": "bob", "tier": "pro", "burst": 3}));
}

#[test]
fn set_retries_after_a_concurrent_write() {
    let overtaken = error_response("412 Precondition Failed", "PRECONDITION_FAILED", "it is at 10", "{}");
    let responses = [
        respond("200 OK", QUOTA).version(9),
        overtaken.clone(),
        respond("200 OK", r#"{"user_id":"alice","tier":"free"}"#).version(10),
        respond("200 OK", QUOTA).version(11),
    ];
    let (ran, sent) = run_against(&responses, &["quotas", "set", "alice", "--burst", "1"]);
    assert_eq!((ran.code, sent.len()), (0, 4));
    assert_eq!(sent[3].body(), json!({"user_id": "alice", "tier": "free", "burst": 1}));
    let responses = [respond("200 OK", QUOTA).version(9), overtaken];
    let (ran, sent) =
        run_against(&responses, &["quotas", "set", "alice", "--burst", "1", "--if-version", "8"]);
    assert_eq!((ran.code, sent.len(), sent[1].header("if-match")), (2, 2, Some("\"8\"")));
}

#[test]
fn dry_run_writes_nothing() {
    let body = r#"{"dry_run":true,"changes":[{"kind":"quota","id":"alice","action":"update",
        "before":{"user_id":"alice","burst":5},"after":{"user_id":"alice","burst":1}}],"effect":null}"#;
    let responses = [respond("200 OK", QUOTA).version(9), respond("200 OK", body)];
    let (ran, sent) = run_against(&responses, &["quotas", "set", "alice", "--burst", "1", "--dry-run"]);
    assert_eq!(sent.last().map(SentRequest::line), Some("PUT /v1/admin/quotas/alice?dry_run=true"));
    assert_eq!((ran.code, &*ran.stdout), (0, "~ quota alice\n    - burst = 5\n    + burst = 1\n"));
}

#[test]
fn delete_runs_when_confirmed() {
    let (ran, sent) = run_against(&[respond("204 No Content", "")], &["quotas", "delete", "alice", "--yes"]);
    assert_eq!((ran.code, &*ran.stdout), (0, "deleted quota alice\n"));
    assert_eq!(sent[0].line(), "DELETE /v1/admin/quotas/alice");
}

#[test]
fn invalid_arguments_exit_with_2() {
    for args in [
        &["quotas"][..],
        &["quotas", "set"],
        &["quotas", "set", "alice"],
        &["quotas", "set", "", "--tier", "a"],
        &["quotas", "set", "alice", "--burst", "-1"],
        &["quotas", "set", "alice", "--unset", "name"],
        &["quotas", "get"],
    ] {
        assert_eq!(run(args).code, 2, "{args:?}");
    }
}

#[test]
fn server_errors_show_field_and_reason() {
    assert_error_is_reported(&["quotas", "list"]);
    assert_error_is_reported(&["quotas", "get", "a"]);
    assert_error_is_reported(&["quotas", "set", "a", "--tier", "x"]);
    assert_error_is_reported(&["quotas", "delete", "a", "--yes"]);
}
