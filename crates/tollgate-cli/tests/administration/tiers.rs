//! `tiers list|get|put|delete`.

use serde_json::json;

use crate::canned::{answer, ask, refused_with_field_and_reason};
use crate::common::{Files, run};

const TIER: &str = r#"{"name":"pro","description":"paying","limit":100,"window":"1m","burst":20,"source":"database","version":3}"#;

#[test]
fn tiers_are_listed_with_their_numbers() {
    let body = format!(r#"{{"tiers":[{TIER},{{"name":"free","requests_per_hour":5}}],"next":null}}"#);
    let (ran, asked) = ask(&[answer("200 OK", &body)], &["tiers", "list", "--prefix", "p"]);
    let expected = "\
TIER  LIMITS           DESCRIPTION  SOURCE
pro   100/1m burst 20  paying       database
free  5/h
";
    assert_eq!((ran.code, &*ran.stdout), (0, expected));
    assert_eq!(asked[0].line(), "GET /v1/admin/tiers?prefix=p&limit=1000");
    let (ran, _) = ask(&[answer("200 OK", &body)], &["tiers", "list", "--json"]);
    assert_eq!(ran.json()["tiers"][1]["name"], "free");
}

#[test]
fn a_tier_is_printed_as_toml_and_put_back() {
    let (got, _) = ask(&[answer("200 OK", TIER)], &["tiers", "get", "pro"]);
    assert!(
        got.stdout.contains("[[tiers]]\nname = \"pro\"\ndescription = \"paying\"\nlimit = 100\n"),
        "{}",
        got.stdout
    );
    let files = Files::new(&[("t.toml", &got.stdout)]);
    let (ran, asked) =
        ask(&[answer("200 OK", TIER).version(4)], &["tiers", "put", "--file", &files.path("t.toml")]);
    assert_eq!((ran.code, &*ran.stdout), (0, "updated tier pro (version 4)\n"));
    let body = json!({"name": "pro", "description": "paying", "limit": 100, "window": "1m", "burst": 20});
    assert_eq!((asked[0].line(), asked[0].body()), ("PUT /v1/admin/tiers/pro", body));
}

#[test]
fn a_tier_may_be_made_from_flags() {
    let (ran, asked) = ask(
        &[answer("201 Created", TIER).version(1)],
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
    assert_eq!(asked[0].header("if-none-match"), Some("*"));
    let body = json!({"name": "pro", "description": "paying", "limit": 100, "window": "1m", "burst": 20});
    assert_eq!(asked[0].body(), body);
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
    let (ran, asked) = ask(&[answer("200 OK", r#"{"dry_run":true,"changes":[],"effect":null}"#)], &flags);
    assert_eq!(
        (ran.code, &*ran.stdout, asked[0].line()),
        (0, "no changes\n", "PUT /v1/admin/tiers/t?dry_run=true")
    );
    let body = json!({"name": "t", "requests_per_minute": 5, "requests_per_day": 9, "burst_size": 7});
    assert_eq!(asked[0].body(), body);
}

#[test]
fn flags_that_make_no_tier_exit_with_2() {
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
fn a_tier_is_deleted_when_agreed() {
    let (ran, asked) = ask(&[answer("204 No Content", "")], &["tiers", "delete", "pro", "--yes"]);
    assert_eq!(
        (ran.code, &*ran.stdout, asked[0].line()),
        (0, "deleted tier pro\n", "DELETE /v1/admin/tiers/pro")
    );
}

#[test]
fn a_refusal_of_the_server_is_told_with_field_and_reason() {
    refused_with_field_and_reason(&["tiers", "list"]);
    refused_with_field_and_reason(&["tiers", "get", "a"]);
    refused_with_field_and_reason(&["tiers", "put", "a", "--limit", "1", "--window", "1m"]);
    refused_with_field_and_reason(&["tiers", "delete", "a", "--yes"]);
}
