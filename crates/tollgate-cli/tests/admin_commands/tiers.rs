//! `tiers list|get|put|delete`.

use serde_json::json;

use crate::support::mock_server::{assert_error_is_reported, respond, run_against};
use crate::support::{Files, run};

const TIER: &str = r#"{"name":"pro","description":"paying","limit":100,"window":"1m","burst":20,"source":"database","version":3}"#;

#[test]
fn tiers_are_listed_with_limits() {
    let body = format!(r#"{{"tiers":[{TIER},{{"name":"free","requests_per_hour":5}}],"next":null}}"#);
    let (ran, sent) = run_against(&[respond("200 OK", &body)], &["tiers", "list", "--prefix", "p"]);
    let expected = "\
TIER  LIMITS           DESCRIPTION  SOURCE
pro   100/1m burst 20  paying       database
free  5/h
";
    assert_eq!((ran.code, &*ran.stdout), (0, expected));
    assert_eq!(sent[0].line(), "GET /v1/admin/tiers?prefix=p&limit=1000");
    let (ran, _) = run_against(&[respond("200 OK", &body)], &["tiers", "list", "--json"]);
    assert_eq!(ran.json()["tiers"][1]["name"], "free");
}

#[test]
fn get_prints_toml_that_put_accepts() {
    let (got, _) = run_against(&[respond("200 OK", TIER)], &["tiers", "get", "pro"]);
    assert!(
        got.stdout.contains("[[tiers]]\nname = \"pro\"\ndescription = \"paying\"\nlimit = 100\n"),
        "{}",
        got.stdout
    );
    let files = Files::new(&[("t.toml", &got.stdout)]);
    let (ran, sent) = run_against(
        &[respond("200 OK", TIER).version(4)],
        &["tiers", "put", "--file", &files.path("t.toml")],
    );
    assert_eq!((ran.code, &*ran.stdout), (0, "updated tier pro (version 4)\n"));
    let body = json!({"name": "pro", "description": "paying", "limit": 100, "window": "1m", "burst": 20});
    assert_eq!((sent[0].line(), sent[0].body()), ("PUT /v1/admin/tiers/pro", body));
}

#[test]
fn put_creates_a_tier_from_flags() {
    let (ran, sent) = run_against(
        &[respond("201 Created", TIER).version(1)],
        &[
            "tiers",
            "put",
            "pro",
            "--limit",
            "100",
            "--window",
            "1m",
            "--burst",
            "20",
            "--description",
            "paying",
            "--create",
        ],
    );
    assert_eq!((ran.code, &*ran.stdout), (0, "created tier pro (version 1)\n"));
    assert_eq!(sent[0].header("if-none-match"), Some("*"));
    let body = json!({"name": "pro", "description": "paying", "limit": 100, "window": "1m", "burst": 20});
    assert_eq!(sent[0].body(), body);
    let flags = [
        "tiers",
        "put",
        "t",
        "--requests-per-minute",
        "5",
        "--requests-per-day",
        "9",
        "--burst",
        "7",
        "--dry-run",
    ];
    let (ran, sent) =
        run_against(&[respond("200 OK", r#"{"dry_run":true,"changes":[],"effect":null}"#)], &flags);
    assert_eq!(
        (ran.code, &*ran.stdout, sent[0].line()),
        (0, "no changes\n", "PUT /v1/admin/tiers/t?dry_run=true")
    );
    let body = json!({"name": "t", "requests_per_minute": 5, "requests_per_day": 9, "burst_size": 7});
    assert_eq!(sent[0].body(), body);
}

#[test]
fn invalid_arguments_exit_with_2() {
    for args in [
        &["tiers"][..],
        &["tiers", "put"],
        &["tiers", "put", "pro"],
        &["tiers", "put", "pro", "--limit", "5"],
        &["tiers", "put", "pro", "--window", "5m"],
        &["tiers", "put", "pro", "--limit", "5", "--window", "soon"],
        &["tiers", "put", "pro", "--limit", "5", "--window", "5m", "--requests-per-day", "5"],
        &["tiers", "put", "pro", "--file", "x"],
        &["tiers", "put", "--file", "x", "--limit", "5", "--window", "1m"],
        &["tiers", "get"],
        &["tiers", "get", ""],
        &["tiers", "delete"],
        &["tiers", "list", "--limit", "0"],
    ] {
        assert_eq!(run(args).code, 2, "{args:?}");
    }
}

#[test]
fn delete_runs_when_confirmed() {
    let (ran, sent) = run_against(&[respond("204 No Content", "")], &["tiers", "delete", "pro", "--yes"]);
    assert_eq!(
        (ran.code, &*ran.stdout, sent[0].line()),
        (0, "deleted tier pro\n", "DELETE /v1/admin/tiers/pro")
    );
}

#[test]
fn server_errors_show_field_and_reason() {
    assert_error_is_reported(&["tiers", "list"]);
    assert_error_is_reported(&["tiers", "get", "a"]);
    assert_error_is_reported(&["tiers", "put", "a", "--limit", "1", "--window", "1m"]);
    assert_error_is_reported(&["tiers", "delete", "a", "--yes"]);
}
