//! `rules list|get|put|delete` against a server.

use serde_json::json;

use crate::support::mock_server::{assert_error_is_reported, error_response, respond, run_against};
use crate::support::{Files, run};

const RULE: &str = r#"{"name":"free-tier","priority":500,"when":{"tiers":["free"]},"per":["user"],
 "limits":[{"requests":10,"window":"1m"}],"leases":true,"source":"database","version":7,"created_by":"admin",
 "created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-02T00:00:00Z",
 "definition":{"name":"free-tier","priority":500,"when":{"tiers":["free"]},"per":["user"],"limits":[{"requests":10,"window":"1m"}]}}"#;

fn page(names: &[&str], next: Option<&str>) -> String {
    let rules: Vec<_> = names
        .iter()
        .map(|name| json!({"name": name, "priority": 1, "action": "block", "source": "file", "enabled": *name != "off"}))
        .collect();
    json!({ "rules": rules, "next": next }).to_string()
}

#[test]
fn list_without_a_file_shows_server_rules() {
    let (ran, sent) = run_against(
        &[respond("200 OK", &format!(r#"{{"rules":[{RULE}],"next":null}}"#))],
        &["rules", "list", "--prefix", "free", "--source", "database", "--enabled", "true"],
    );
    let expected = "\
PRIORITY  RULE       ACTION  PER   LAYER  WHEN        LIMITS  SOURCE    VERSION
500       free-tier  reject  user         tiers=free  10/1m   database  7
";
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (0, expected, ""));
    assert_eq!(sent[0].line(), "GET /v1/admin/rules?prefix=free&source=database&enabled=true&limit=1000");
}

#[test]
fn list_with_a_file_sends_no_request() {
    let files = Files::new(&[("r.toml", "default_limit = 5\n")]);
    let (ran, sent) = run_against(&[], &["rules", "list", &files.path("r.toml")]);
    assert_eq!((ran.code, sent.len()), (0, 0));
    assert!(ran.stdout.contains("5/1m"), "{}", ran.stdout);
    for flags in [["--prefix", "a"], ["--limit", "1"], ["--source", "file"]] {
        assert_eq!(run(&[&["rules", "list", &files.path("r.toml")], &flags[..]].concat()).code, 2);
    }
}

#[test]
fn pages_are_followed_to_the_end() {
    let responses = [
        respond("200 OK", &page(&["a", "b"], Some("b+/="))),
        respond("200 OK", &page(&["off"], Some("c"))),
        respond("200 OK", &page(&["d"], None)),
    ];
    let (ran, sent) = run_against(&responses, &["rules", "list"]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 5), "{}", ran.stdout);
    assert!(ran.stdout.contains("1         off   off"), "{}", ran.stdout);
    let lines: Vec<&str> = sent.iter().map(crate::support::mock_server::SentRequest::line).collect();
    assert_eq!(
        lines,
        [
            "GET /v1/admin/rules?limit=1000",
            "GET /v1/admin/rules?limit=1000&after=b%2B%2F%3D",
            "GET /v1/admin/rules?limit=1000&after=c"
        ]
    );
    let (ran, _) = run_against(&responses, &["rules", "list", "--json"]);
    let names: Vec<_> =
        ran.json()["rules"].as_array().unwrap().iter().map(|rule| rule["name"].clone()).collect();
    assert_eq!(
        (names, ran.json()["next"].clone()),
        (vec![json!("a"), json!("b"), json!("off"), json!("d")], json!(null))
    );
}

#[test]
fn limit_truncates_the_list_with_a_note() {
    let responses =
        [respond("200 OK", &page(&["a", "b"], Some("b"))), respond("200 OK", &page(&["c", "d"], None))];
    let (ran, sent) = run_against(&responses, &["rules", "list", "--limit", "3"]);
    assert_eq!((ran.code, &*ran.stderr), (0, "showing the first 3; raise --limit to see more\n"));
    // The order of evaluation is known once all rules are there.
    assert_eq!(sent[0].line(), "GET /v1/admin/rules?limit=1000");
    assert_eq!(sent[1].line(), "GET /v1/admin/rules?limit=1000&after=b");
    let (ran, _) = run_against(&responses, &["rules", "list", "--limit", "3", "--json"]);
    assert_eq!((ran.json()["rules"].as_array().unwrap().len(), &*ran.stderr), (3, ""));
}

#[test]
fn repeated_cursor_ends_the_list() {
    let (ran, sent) = run_against(&[respond("200 OK", &page(&[], Some("x")))], &["rules", "list"]);
    assert_eq!((ran.code, sent.len(), &*ran.stderr), (0, 1, "no rules\n"));
    let again = respond("200 OK", &page(&["a"], Some("x")));
    let (ran, sent) = run_against(&[again.clone(), again], &["rules", "list"]);
    assert_eq!((ran.code, sent.len()), (0, 2));
}

#[test]
fn response_without_rules_is_an_error() {
    let (ran, _) = run_against(&[respond("200 OK", "{}")], &["rules", "list"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("contains no rules: is it a tollgate server of this version?"),
        "{}",
        ran.stderr
    );
    let (ran, _) = run_against(&[respond("404 Not Found", r#"{"rules":[]}"#)], &["rules", "list"]);
    assert_eq!(ran.code, 2);
}

#[test]
fn get_prints_toml_that_put_accepts() {
    let (got, sent) = run_against(&[respond("200 OK", RULE).version(7)], &["rules", "get", "free-tier"]);
    let expected = "\
# source: database, version 7, created by admin, updated 2026-01-02T00:00:00Z
[[rules]]
name = \"free-tier\"
priority = 500
when = { tiers = [\"free\"] }
per = [\"user\"]
limits = [{ requests = 10, window = \"1m\" }]
";
    assert_eq!((got.code, &*got.stdout), (0, expected));
    assert_eq!(sent[0].line(), "GET /v1/admin/rules/free-tier");
    let files = Files::new(&[("r.toml", &got.stdout)]);
    let (put, sent) =
        run_against(&[respond("200 OK", RULE).version(8)], &["rules", "put", &files.path("r.toml")]);
    assert_eq!((put.code, &*put.stdout), (0, "updated rule free-tier (version 8)\n"));
    assert_eq!(sent[0].line(), "PUT /v1/admin/rules/free-tier");
    let body = json!({"name": "free-tier", "priority": 500, "when": {"tiers": ["free"]}, "per": ["user"],
                      "limits": [{"requests": 10, "window": "1m"}]});
    assert_eq!((sent[0].body(), sent[0].header("if-match")), (body, None));
    let (json, _) = run_against(&[respond("200 OK", RULE)], &["rules", "get", "free-tier", "--json"]);
    assert_eq!(json.stdout, format!("{RULE}\n"));
}

#[test]
fn json_version_becomes_the_precondition() {
    let files = Files::new(&[("r.json", RULE)]);
    let put = ["rules", "put", &files.path("r.json")];
    let (ran, sent) = run_against(&[respond("201 Created", RULE).version(8)], &put);
    assert_eq!((ran.code, &*ran.stdout), (0, "created rule free-tier (version 8)\n"));
    assert_eq!(sent[0].header("if-match"), Some("\"7\""));
    assert!(sent[0].body().get("version").is_none());
    let (_, sent) = run_against(&[respond("200 OK", RULE)], &[&put[..], &["--if-version", "9"]].concat());
    assert_eq!(sent[0].header("if-match"), Some("\"9\""));
    let (_, sent) = run_against(&[respond("200 OK", RULE)], &[&put[..], &["--create"]].concat());
    assert_eq!((sent[0].header("if-match"), sent[0].header("if-none-match")), (None, Some("*")));
    let overtaken =
        error_response("412 Precondition Failed", "PRECONDITION_FAILED", "it is at version 8", "{}");
    let (ran, _) = run_against(&[overtaken], &put);
    assert_eq!((ran.code, &*ran.stderr), (2, "error: it is at version 8 (PRECONDITION_FAILED)\n"));
}

#[test]
fn put_needs_exactly_one_named_rule() {
    for (text, reason) in [
        ("", "must contain exactly one [[rules]]"),
        (
            "[[rules]]\nname = \"a\"\naction = \"allow\"\n[[rules]]\nname = \"b\"\naction = \"allow\"",
            "must contain exactly one [[rules]]",
        ),
        ("[[tiers]]\nname = \"a\"\nlimit = 1\nwindow = 1", "must contain exactly one [[rules]]"),
        ("[[rules]]\nname = \"a\"\naction = \"allow\"\n[server]\n", ":4: server: unknown key"),
        ("[[rules]]\naction = \"allow\"", ":1: rules[0].name: is missing"),
        ("{}", "the rule has no name"),
        ("{", ":1: EOF while parsing"),
        ("[[rules]]\nname = ", ":2: "),
    ] {
        let files = Files::new(&[("r.toml", text)]);
        let (ran, sent) = run_against(&[], &["rules", "put", &files.path("r.toml")]);
        assert_eq!((ran.code, sent.len()), (2, 0), "{text}");
        assert!(ran.stderr.contains(reason), "{text}: {}", ran.stderr);
    }
}

#[test]
fn dry_run_prints_the_changes() {
    let files = Files::new(&[("r.json", RULE)]);
    let body = r#"{"dry_run":true,"changes":[{"kind":"rule","id":"free-tier","action":"update",
        "before":{"name":"free-tier","priority":5},"after":{"name":"free-tier","priority":500}}],
        "effect":{"requests":10,"clients":2,"window_seconds":300,"newly_refused":1,"newly_admitted":0,"examples":[]}}"#;
    let put = ["rules", "put", &files.path("r.json"), "--dry-run"];
    let (ran, sent) = run_against(&[respond("200 OK", body)], &put);
    assert_eq!(sent[0].line(), "PUT /v1/admin/rules/free-tier?dry_run=true");
    let expected = "\
~ rule free-tier
    - priority = 5
    + priority = 500
traffic of the last 5m: 10 requests from 2 clients, 1 more refused, 0 more admitted
";
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (0, expected, "dry run: nothing was changed\n"));
    let (ran, _) = run_against(&[respond("200 OK", body)], &[&put[..], &["--json"]].concat());
    assert_eq!(ran.json()["effect"]["newly_refused"], 1);
    let (ran, sent) = run_against(&[respond("200 OK", body)], &["rules", "delete", "free-tier", "--dry-run"]);
    assert_eq!((ran.code, sent[0].line()), (0, "DELETE /v1/admin/rules/free-tier?dry_run=true"));
}

#[test]
fn names_are_escaped_in_paths() {
    let (ran, sent) = run_against(
        &[respond("204 No Content", "")],
        &["rules", "delete", "a/b c", "--yes", "--if-version", "3"],
    );
    assert_eq!((ran.code, &*ran.stdout), (0, "deleted rule a/b c\n"));
    assert_eq!(sent[0].line(), "DELETE /v1/admin/rules/a%2Fb%20c");
    assert_eq!(sent[0].header("if-match"), Some("\"3\""));
    let (ran, _) = run_against(&[respond("204 No Content", "")], &["rules", "delete", "a", "-y", "--json"]);
    assert_eq!(ran.json(), json!({"deleted": {"kind": "rule", "id": "a"}}));
}

#[test]
fn server_errors_show_field_and_reason() {
    let files = Files::new(&[("r.json", RULE)]);
    assert_error_is_reported(&["rules", "list"]);
    assert_error_is_reported(&["rules", "get", "a"]);
    assert_error_is_reported(&["rules", "put", &files.path("r.json")]);
    assert_error_is_reported(&["rules", "delete", "a", "--yes"]);
}
