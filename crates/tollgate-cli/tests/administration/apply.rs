//! `rules diff|apply|export`: files under version control and a server.

use serde_json::json;

use crate::canned::{Answer, Asked, answer, ask, refusal, refused_with_field_and_reason};
use crate::common::Files;

const FILE: &str = "[[rules]]\nname = \"a\"\naction = \"block\"\nwhen = { ips = [\"192.0.2.0/24\"] }\n";

/// The plan or the outcome of an import at a version.
fn import(version: u64, changes: &serde_json::Value) -> Answer {
    answer(
        "200 OK",
        &json!({"version": version, "created": 0, "updated": 0, "deleted": 0, "unchanged": 4, "changes": changes}).to_string(),
    )
}

fn created() -> serde_json::Value {
    json!([{"kind": "rule", "id": "a", "action": "create", "before": null, "after": {"name": "a", "action": "block"}}])
}

fn deleted() -> serde_json::Value {
    json!([{"kind": "rule", "id": "old", "action": "delete", "before": {"name": "old", "action": "allow"}, "after": null}])
}

fn lines(asked: &[Asked]) -> Vec<&str> {
    asked.iter().map(Asked::line).collect()
}

#[test]
fn apply_prints_the_plan_and_does_it_at_the_version_it_planned_against() {
    let files = Files::new(&[("a.toml", FILE)]);
    let answers = [import(12, &created()), import(13, &created())];
    let (ran, asked) = ask(&answers, &["rules", "apply", &files.path("a.toml")]);
    let expected = "+ rule a\n    + action = \"block\"\n1 created, 0 updated, 0 deleted, 4 unchanged\n";
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (0, expected, ""));
    assert_eq!(
        lines(&asked),
        ["POST /v1/admin/import?dry_run=true&kinds=rules", "POST /v1/admin/import?kinds=rules"]
    );
    assert_eq!((asked[0].header("if-match"), asked[1].header("if-match")), (None, Some("\"12\"")));
    let body = json!({"rules": [{"name": "a", "action": "block", "when": {"ips": ["192.0.2.0/24"]}}]});
    assert_eq!((asked[0].body(), asked[1].body()), (body.clone(), body));
    let (ran, _) = ask(&answers, &["rules", "apply", &files.path("a.toml"), "--json"]);
    assert_eq!((ran.code, ran.json()["version"].clone()), (0, json!(13)));
}

#[test]
fn applying_what_is_there_changes_nothing() {
    let files = Files::new(&[("a.toml", FILE)]);
    let (ran, asked) = ask(&[import(12, &json!([]))], &["rules", "apply", &files.path("a.toml"), "--prune"]);
    assert_eq!((ran.code, &*ran.stdout, asked.len()), (0, "no changes, 4 unchanged\n", 1));
    assert_eq!(asked[0].line(), "POST /v1/admin/import?dry_run=true&prune=true&kinds=rules");
}

#[test]
fn a_dry_run_is_the_plan_alone() {
    let files = Files::new(&[("a.toml", FILE)]);
    let (ran, asked) =
        ask(&[import(12, &deleted())], &["rules", "apply", &files.path("a.toml"), "--dry-run"]);
    let expected =
        "- rule old\n    - action = \"allow\"\n0 would be created, 0 updated, 1 deleted, 4 unchanged\n";
    assert_eq!((ran.code, &*ran.stdout, asked.len()), (0, expected, 1));
}

#[test]
fn nothing_is_deleted_without_consent() {
    let files = Files::new(&[("a.toml", FILE)]);
    let apply = ["rules", "apply", &files.path("a.toml"), "--prune"];
    let (ran, asked) = ask(&[import(12, &deleted())], &apply);
    assert_eq!((ran.code, asked.len()), (2, 1));
    assert!(ran.stdout.starts_with("- rule old\n"), "the plan is told all the same: {}", ran.stdout);
    assert!(
        ran.stderr.contains("to delete 1 item, somebody must agree") && ran.stderr.contains("--yes"),
        "{}",
        ran.stderr
    );
    let answers = [import(12, &deleted()), import(13, &deleted())];
    let (ran, asked) = ask(&answers, &[&apply[..], &["--yes"]].concat());
    assert_eq!((ran.code, asked[1].line()), (0, "POST /v1/admin/import?prune=true&kinds=rules"));
    assert!(ran.stdout.ends_with("0 created, 0 updated, 1 deleted, 4 unchanged\n"), "{}", ran.stdout);
}

#[test]
fn a_plan_that_was_overtaken_is_not_done() {
    let files = Files::new(&[("a.toml", FILE)]);
    let overtaken = refusal("412 Precondition Failed", "PRECONDITION_FAILED", "it is at 14", "{}");
    let (ran, _) = ask(&[import(12, &created()), overtaken], &["rules", "apply", &files.path("a.toml")]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("changed by somebody else since the plan was made: nothing was done"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_plan_without_a_version_is_not_done() {
    let files = Files::new(&[("a.toml", FILE)]);
    let plan = answer("200 OK", &json!({"changes": created()}).to_string());
    let (ran, asked) = ask(&[plan], &["rules", "apply", &files.path("a.toml")]);
    assert_eq!((ran.code, asked.len()), (2, 1));
}

#[test]
fn diff_exits_with_1_if_something_would_change() {
    let files = Files::new(&[("a.toml", FILE)]);
    let (ran, asked) = ask(&[import(12, &created())], &["rules", "diff", &files.path("a.toml")]);
    assert_eq!((ran.code, asked.len()), (1, 1));
    assert!(ran.stdout.starts_with("+ rule a\n"), "{}", ran.stdout);
    let (ran, _) = ask(&[import(12, &created())], &["rules", "diff", &files.path("a.toml"), "--json"]);
    assert_eq!((ran.code, ran.json()["changes"][0]["id"].clone()), (1, json!("a")));
    let (ran, asked) = ask(&[import(12, &json!([]))], &["rules", "diff", &files.path("a.toml"), "--prune"]);
    assert_eq!((ran.code, &*ran.stdout), (0, "no changes, 4 unchanged\n"));
    assert!(asked[0].line().contains("prune=true"));
}

#[test]
fn several_files_are_one_whole() {
    let json =
        r#"{"version": 3, "rules": [{"name": "j", "action": "allow", "source": "database", "version": 2}]}"#;
    let more = "[[tiers]]\nname = \"t\"\nlimit = 1\nwindow = 60\n[[quotas]]\nuser_id = \"u\"\ntier = \"t\"\n\
                [[blocks]]\nclient = \"user:x\"\nreason = \"r\"\nuntil = 2027-01-31T12:00:00Z\n";
    let files = Files::new(&[("a.toml", FILE), ("b.json", json), ("c.toml", more)]);
    let paths = ["a.toml", "b.json", "c.toml"].map(|name| files.path(name));
    let diff = ["rules", "diff", &paths[0], &paths[1], &paths[2]];
    let (_, asked) = ask(&[import(1, &json!([]))], &diff);
    assert_eq!(asked[0].line(), "POST /v1/admin/import?dry_run=true&kinds=rules%2Ctiers%2Cquotas%2Cblocks");
    let body = json!({
        "rules": [{"name": "a", "action": "block", "when": {"ips": ["192.0.2.0/24"]}}, {"name": "j", "action": "allow"}],
        "tiers": [{"name": "t", "limit": 1, "window": 60}],
        "quotas": [{"user_id": "u", "tier": "t"}],
        "blocks": [{"client": "user:x", "reason": "r", "until": "2027-01-31T12:00:00Z"}],
    });
    assert_eq!(asked[0].body(), body);
    let (_, asked) = ask(&[import(1, &json!([]))], &[&diff[..], &["--kinds", "tiers"]].concat());
    assert_eq!(asked[0].line(), "POST /v1/admin/import?dry_run=true&kinds=tiers");
    assert_eq!(asked[0].body(), json!({"tiers": [{"name": "t", "limit": 1, "window": 60}]}));
}

#[test]
fn what_a_file_says_is_empty_is_told_to_the_server_and_an_empty_file_is_a_mistake() {
    let files = Files::new(&[("none.toml", "rules = []\n"), ("empty.toml", "# nothing\n")]);
    let (_, asked) = ask(&[import(1, &json!([]))], &["rules", "diff", &files.path("none.toml"), "--prune"]);
    assert_eq!(
        (asked[0].line(), asked[0].body()),
        ("POST /v1/admin/import?dry_run=true&prune=true&kinds=rules", json!({"rules": []}))
    );
    let (ran, asked) = ask(&[], &["rules", "apply", &files.path("empty.toml"), "--prune", "--yes"]);
    assert_eq!((ran.code, asked.len()), (2, 0));
    assert!(ran.stderr.contains("nothing to apply"), "{}", ran.stderr);
}

#[test]
fn a_file_with_what_cannot_be_applied_is_refused_before_anything_is_asked() {
    for (text, reason) in [
        ("[server]\nlisten = \"127.0.0.1:1\"\n", "server: belongs into the server's own file"),
        ("default_limit = 5\n", "default_limit: belongs into the server's own file"),
        ("[[keys]]\nname = \"k\"\n", "keys cannot be applied"),
        ("[rules]\nname = \"k\"\n", "rules: must be a list of tables ([[rules]])"),
        ("[[quotas]]\ntier = \"pro\"\n", "quotas[0]: user_id is missing"),
        (
            "[[blocks]]\nclient = \"user:a\"\n[[blocks]]\nclient = \"user:a\"\n",
            "blocks[1]: \"user:a\" stands in",
        ),
        (
            "[[rules]]\nname = \"a\"\naction = \"explode\"\n",
            "bad.toml:3: rules[0].action: \"explode\" is not one of",
        ),
        (
            "[[tiers]]\nname = \"t\"\ndescription = \"d\"\nlimit = 1\nwindw = 60\n",
            "bad.toml:5: tiers[0].windw: ",
        ),
        ("[[rules]\n", ":1: "),
    ] {
        let files = Files::new(&[("bad.toml", text)]);
        for command in ["diff", "apply"] {
            let (ran, asked) = ask(&[], &["rules", command, &files.path("bad.toml")]);
            assert_eq!((ran.code, asked.len()), (2, 0), "{text}");
            assert!(ran.stderr.contains(reason), "{text}: {}", ran.stderr);
        }
    }
    let files = Files::new(&[("a.toml", FILE), ("b.toml", FILE)]);
    let (ran, _) = ask(&[], &["rules", "apply", &files.path("a.toml"), &files.path("b.toml")]);
    let both = format!("\"a\" stands in {} already", files.path("a.toml"));
    assert!(ran.code == 2 && ran.stderr.contains(&both) && ran.stderr.contains("b.toml"), "{}", ran.stderr);
    let (ran, _) = ask(&[], &["rules", "apply", "/nowhere/r.toml"]);
    assert!(ran.code == 2 && ran.stderr.contains("/nowhere/r.toml"), "{}", ran.stderr);
}

#[test]
fn export_prints_all_pages_as_one_file() {
    let first = json!({"version": 7, "rules": [{"name": "a", "action": "block", "when": {"ips": ["192.0.2.0/24"]}}], "tiers": [], "next": "x"});
    let last = json!({"version": 7, "rules": [{"name": "b", "action": "allow"}], "tiers": [], "next": null});
    let pages = [answer("200 OK", &first.to_string()), answer("200 OK", &last.to_string())];
    let (ran, asked) = ask(&pages, &["rules", "export"]);
    let expected = "\
# tollgate configuration, version 7
tiers = []

[[rules]]
name = \"a\"
when = { ips = [\"192.0.2.0/24\"] }
action = \"block\"

[[rules]]
name = \"b\"
action = \"allow\"
";
    assert_eq!((ran.code, &*ran.stdout), (0, expected));
    assert_eq!(
        lines(&asked),
        [
            "GET /v1/admin/export?kinds=rules%2Ctiers&limit=1000",
            "GET /v1/admin/export?kinds=rules%2Ctiers&limit=1000&after=x"
        ]
    );
    let (ran, asked) = ask(&pages[1..], &["rules", "export", "--kinds", "blocks,rules", "--json"]);
    assert_eq!(ran.json(), json!({"version": 7, "rules": [{"name": "b", "action": "allow"}], "blocks": []}));
    assert_eq!(asked[0].line(), "GET /v1/admin/export?kinds=rules%2Cblocks&limit=1000");
    let (ran, _) = ask(&[answer("502 Bad Gateway", "<html>")], &["rules", "export"]);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
}

#[test]
fn an_export_is_of_one_version() {
    let page = |version: u64, name: &str, next: Option<&str>| {
        answer("200 OK", &json!({"version": version, "rules": [{"name": name}], "next": next}).to_string())
    };
    let answers = [page(7, "a", Some("x")), page(8, "b", None), page(8, "c", Some("x")), page(8, "b", None)];
    let (ran, asked) = ask(&answers, &["rules", "export", "--kinds", "rules", "--json"]);
    assert_eq!(
        (asked.len(), ran.json()),
        (4, json!({"version": 8, "rules": [{"name": "c"}, {"name": "b"}]}))
    );
    let changing: Vec<Answer> = (0..10).map(|n| page(n, "a", Some("x"))).collect();
    let (ran, _) = ask(&changing, &["rules", "export"]);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
}

#[test]
fn a_refusal_of_the_server_is_told_with_field_and_reason() {
    let files = Files::new(&[("a.toml", FILE)]);
    refused_with_field_and_reason(&["rules", "diff", &files.path("a.toml")]);
    refused_with_field_and_reason(&["rules", "apply", &files.path("a.toml")]);
    refused_with_field_and_reason(&["rules", "export"]);
}
