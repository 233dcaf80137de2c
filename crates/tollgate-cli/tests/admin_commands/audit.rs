//! `audit`.

use crate::support::mock_server::{assert_error_is_reported, respond, run_against};
use crate::support::run;

const TRAIL: &str = r#"{"entries":[
 {"id":9,"version":8,"at":"2026-01-01T00:00:00Z","by":"key:abc","action":"put","kind":"rule","subject":"free",
  "before":{"name":"free","priority":1},"after":{"name":"free","priority":2,"layer":"x"}},
 {"id":8,"version":7,"at":"2026-01-01T00:00:00Z","by":"admin","action":"put","kind":"user_endpoint_limit",
  "subject":["alice","/a"],"before":null,"after":{}}],"next":null}"#;

#[test]
fn newest_entries_come_first() {
    let (ran, sent) = run_against(
        &[respond("200 OK", TRAIL)],
        &["audit", "--kind", "rule", "--by", "key:abc", "--subject", "free"],
    );
    let expected = "\
ENTRY  WHEN                  BY       ACTION  KIND   SUBJECT   TENANT  CHANGED
9      2026-01-01T00:00:00Z  key:abc  put     rule   free              layer, priority
8      2026-01-01T00:00:00Z  admin    put     limit  alice /a
";
    assert_eq!((ran.code, &*ran.stdout), (0, expected));
    assert_eq!(
        sent[0].line(),
        "GET /v1/admin/audit?kind=rule&by=key%3Aabc&subject=free&newest=true&limit=50"
    );
    let (_, sent) = run_against(&[respond("200 OK", TRAIL)], &["audit", "--kind", "limit", "--since", "2h"]);
    assert_eq!(sent[0].line(), "GET /v1/admin/audit?kind=user_endpoint_limit&since=2h&newest=true&limit=50");
    let (ran, _) = run_against(&[respond("200 OK", TRAIL)], &["audit", "--json"]);
    assert_eq!(ran.json()["entries"][0]["id"], 9);
}

#[test]
fn after_continues_from_an_entry() {
    let first = TRAIL.replace("\"next\":null", "\"next\":\"9\"");
    let responses = [respond("200 OK", &first), respond("200 OK", TRAIL)];
    let (_, sent) = run_against(&responses, &["audit", "--after", "7", "--limit", "4", "--json"]);
    assert_eq!(sent[0].line(), "GET /v1/admin/audit?after=7&limit=4");
    assert_eq!(sent[1].line(), "GET /v1/admin/audit?limit=2&after=9");
}

#[test]
fn invalid_arguments_exit_with_2() {
    for args in [&["audit", "--limit", "0"][..], &["audit", "--after", "yesterday"], &["audit", "now"]] {
        assert_eq!(run(args).code, 2, "{args:?}");
    }
}

#[test]
fn server_errors_show_field_and_reason() {
    assert_error_is_reported(&["audit"]);
}
