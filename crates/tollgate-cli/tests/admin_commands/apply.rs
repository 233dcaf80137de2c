//! `rules diff|apply|export` against a mock server.

use serde_json::json;

use crate::support::Files;
use crate::support::mock_server::{
    MockResponse, SentRequest, assert_error_is_reported, error_response, respond, run_against,
};

const FILE: &str = "[[rules]]\nname = \"a\"\naction = \"block\"\nwhen = { ips = [\"192.0.2.0/24\"] }\n";

/// The plan or the result of an import at a version.
fn import(version: u64, changes: &serde_json::Value) -> MockResponse {
    respond(
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

fn lines(sent: &[SentRequest]) -> Vec<&str> {
    sent.iter().map(SentRequest::line).collect()
}

#[test]
fn apply_is_conditional_on_the_planned_version() {
    let files = Files::new(&[("a.toml", FILE)]);
    let responses = [import(12, &created()), import(13, &created())];
    let (ran, sent) = run_against(&responses, &["rules", "apply", &files.path("a.toml")]);
    let expected = "+ rule a\n    + action = \"block\"\n1 created, 0 updated, 0 deleted, 4 unchanged\n";
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (0, expected, ""));
    assert_eq!(
        lines(&sent),
        ["POST /v1/admin/import?dry_run=true&kinds=rules", "POST /v1/admin/import?kinds=rules"]
    );
    assert_eq!((sent[0].header("if-match"), sent[1].header("if-match")), (None, Some("\"12\"")));
    let body = json!({"rules": [{"name": "a", "action": "block", "when": {"ips": ["192.0.2.0/24"]}}]});
    assert_eq!((sent[0].body(), sent[1].body()), (body.clone(), body));
    let (ran, _) = run_against(&responses, &["rules", "apply", &files.path("a.toml"), "--json"]);
    assert_eq!((ran.code, ran.json()["version"].clone()), (0, json!(13)));
}

#[test]
fn applying_twice_changes_nothing() {
    let files = Files::new(&[("a.toml", FILE)]);
    let (ran, sent) =
        run_against(&[import(12, &json!([]))], &["rules", "apply", &files.path("a.toml"), "--prune"]);
    assert_eq!((ran.code, &*ran.stdout, sent.len()), (0, "no changes, 4 unchanged\n", 1));
    assert_eq!(sent[0].line(), "POST /v1/admin/import?dry_run=true&prune=true&kinds=rules");
}

#[test]
fn dry_run_prints_only_the_plan() {
    let files = Files::new(&[("a.toml", FILE)]);
    let (ran, sent) =
        run_against(&[import(12, &deleted())], &["rules", "apply", &files.path("a.toml"), "--dry-run"]);
    let expected =
        "- rule old\n    - action = \"allow\"\n0 to create, 0 to update, 1 to delete, 4 unchanged\n";
    assert_eq!((ran.code, &*ran.stdout, sent.len()), (0, expected, 1));
}

#[test]
fn deletion_needs_confirmation() {
    let files = Files::new(&[("a.toml", FILE)]);
    let apply = ["rules", "apply", &files.path("a.toml"), "--prune"];
    let (ran, sent) = run_against(&[import(12, &deleted())], &apply);
    assert_eq!((ran.code, sent.len()), (2, 1));
    assert!(ran.stdout.starts_with("- rule old\n"), "the plan is printed anyway: {}", ran.stdout);
    assert!(
        ran.stderr.contains("confirmation required to delete 1 item") && ran.stderr.contains("--yes"),
        "{}",
        ran.stderr
    );
    let responses = [import(12, &deleted()), import(13, &deleted())];
    let (ran, sent) = run_against(&responses, &[&apply[..], &["--yes"]].concat());
    assert_eq!((ran.code, sent[1].line()), (0, "POST /v1/admin/import?prune=true&kinds=rules"));
    assert!(ran.stdout.ends_with("0 created, 0 updated, 1 deleted, 4 unchanged\n"), "{}", ran.stdout);
}

#[test]
fn outdated_plan_is_not_applied() {
    let files = Files::new(&[("a.toml", FILE)]);
    let overtaken = error_response("412 Precondition Failed", "PRECONDITION_FAILED", "it is at 14", "{}");
    let (ran, _) =
        run_against(&[import(12, &created()), overtaken], &["rules", "apply", &files.path("a.toml")]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("changed after the plan was made: nothing was applied"), "{}", ran.stderr);
}

#[test]
fn plan_without_version_is_not_applied() {
    let files = Files::new(&[("a.toml", FILE)]);
    let plan = respond("200 OK", &json!({"changes": created()}).to_string());
    let (ran, sent) = run_against(&[plan], &["rules", "apply", &files.path("a.toml")]);
    assert_eq!((ran.code, sent.len()), (2, 1));
}

#[test]
fn diff_exits_with_1_on_changes() {
    let files = Files::new(&[("a.toml", FILE)]);
    let (ran, sent) = run_against(&[import(12, &created())], &["rules", "diff", &files.path("a.toml")]);
    assert_eq!((ran.code, sent.len()), (1, 1));
    assert!(ran.stdout.starts_with("+ rule a\n"), "{}", ran.stdout);
    let (ran, _) =
        run_against(&[import(12, &created())], &["rules", "diff", &files.path("a.toml"), "--json"]);
    assert_eq!((ran.code, ran.json()["changes"][0]["id"].clone()), (1, json!("a")));
    let (ran, sent) =
        run_against(&[import(12, &json!([]))], &["rules", "diff", &files.path("a.toml"), "--prune"]);
    assert_eq!((ran.code, &*ran.stdout), (0, "no changes, 4 unchanged\n"));
    assert!(sent[0].line().contains("prune=true"));
}

#[test]
fn several_files_are_merged() {
    let json =
        r#"{"version": 3, "rules": [{"name": "j", "action": "allow", "source": "database", "version": 2}]}"#;
    let more = "[[tiers]]\nname = \"t\"\nlimit = 1\nwindow = 60\n[[quotas]]\nuser_id = \"u\"\ntier = \"t\"\n\
                [[blocks]]\nclient = \"user:x\"\nreason = \"r\"\nuntil = 2027-01-31T12:00:00Z\n";
    let files = Files::new(&[("a.toml", FILE), ("b.json", json), ("c.toml", more)]);
    let paths = ["a.toml", "b.json", "c.toml"].map(|name| files.path(name));
    let diff = ["rules", "diff", &paths[0], &paths[1], &paths[2]];
    let (_, sent) = run_against(&[import(1, &json!([]))], &diff);
    assert_eq!(sent[0].line(), "POST /v1/admin/import?dry_run=true&kinds=rules%2Ctiers%2Cquotas%2Cblocks");
    let body = json!({
        "rules": [{"name": "a", "action": "block", "when": {"ips": ["192.0.2.0/24"]}}, {"name": "j", "action": "allow"}],
        "tiers": [{"name": "t", "limit": 1, "window": 60}],
        "quotas": [{"user_id": "u", "tier": "t"}],
        "blocks": [{"client": "user:x", "reason": "r", "until": "2027-01-31T12:00:00Z"}],
    });
    assert_eq!(sent[0].body(), body);
    let (_, sent) = run_against(&[import(1, &json!([]))], &[&diff[..], &["--kinds", "tiers"]].concat());
    assert_eq!(sent[0].line(), "POST /v1/admin/import?dry_run=true&kinds=tiers");
    assert_eq!(sent[0].body(), json!({"tiers": [{"name": "t", "limit": 1, "window": 60}]}));
}

#[test]
fn empty_list_is_sent_and_empty_file_is_rejected() {
    let files = Files::new(&[("none.toml", "rules = []\n"), ("empty.toml", "# nothing\n")]);
    let (_, sent) =
        run_against(&[import(1, &json!([]))], &["rules", "diff", &files.path("none.toml"), "--prune"]);
    assert_eq!(
        (sent[0].line(), sent[0].body()),
        ("POST /v1/admin/import?dry_run=true&prune=true&kinds=rules", json!({"rules": []}))
    );
    let (ran, sent) = run_against(&[], &["rules", "apply", &files.path("empty.toml"), "--prune", "--yes"]);
    assert_eq!((ran.code, sent.len()), (2, 0));
    assert!(ran.stderr.contains("nothing to apply"), "{}", ran.stderr);
}

#[test]
fn invalid_file_is_rejected_before_any_request() {
    for (text, reason) in [
        ("[server]\nlisten = \"127.0.0.1:1\"\n", "bad.toml: not applied: server; "),
        ("default_limit = 5\n", "nothing to apply: the files have no [[rules]]"),
        (
            "[[keys]]\nname = \"k\"\n",
            "bad.toml:1: keys: keys cannot be imported: their secrets are not stored",
        ),
        ("[rules]\nname = \"k\"\n", "rules: must be a list of tables ([[rules]])"),
        ("[[quotas]]\ntier = \"pro\"\n", "bad.toml:1: quotas[0].user_id: is missing"),
        (
            "[[blocks]]\nclient = \"user:a\"\n[[blocks]]\nclient = \"user:a\"\n",
            "bad.toml:4: blocks[1].client: \"user:a\" is given twice",
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
            let (ran, sent) = run_against(&[], &["rules", command, &files.path("bad.toml")]);
            assert_eq!((ran.code, sent.len()), (2, 0), "{text}");
            assert!(ran.stderr.contains(reason), "{text}: {}", ran.stderr);
        }
    }
    let files = Files::new(&[("a.toml", FILE), ("b.toml", FILE)]);
    let (ran, _) = run_against(&[], &["rules", "apply", &files.path("a.toml"), &files.path("b.toml")]);
    let both = format!("\"a\" is already defined in {}", files.path("a.toml"));
    assert!(ran.code == 2 && ran.stderr.contains(&both) && ran.stderr.contains("b.toml"), "{}", ran.stderr);
    let (ran, _) = run_against(&[], &["rules", "apply", "/nowhere/r.toml"]);
    assert!(ran.code == 2 && ran.stderr.contains("/nowhere/r.toml"), "{}", ran.stderr);
}

#[test]
fn export_merges_all_pages() {
    let first = json!({"version": 7, "rules": [{"name": "a", "action": "block", "when": {"ips": ["192.0.2.0/24"]}}], "tiers": [], "next": "x"});
    let last = json!({"version": 7, "rules": [{"name": "b", "action": "allow"}], "tiers": [], "next": null});
    let pages = [respond("200 OK", &first.to_string()), respond("200 OK", &last.to_string())];
    let (ran, sent) = run_against(&pages, &["rules", "export"]);
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
        lines(&sent),
        [
            "GET /v1/admin/export?kinds=rules%2Ctiers&limit=1000",
            "GET /v1/admin/export?kinds=rules%2Ctiers&limit=1000&after=x"
        ]
    );
    let (ran, sent) = run_against(&pages[1..], &["rules", "export", "--kinds", "blocks,rules", "--json"]);
    assert_eq!(ran.json(), json!({"version": 7, "rules": [{"name": "b", "action": "allow"}], "blocks": []}));
    assert_eq!(sent[0].line(), "GET /v1/admin/export?kinds=rules%2Cblocks&limit=1000");
    let (ran, _) = run_against(&[respond("502 Bad Gateway", "<html>")], &["rules", "export"]);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
}

#[test]
fn export_restarts_when_the_version_changes() {
    let page = |version: u64, name: &str, next: Option<&str>| {
        respond("200 OK", &json!({"version": version, "rules": [{"name": name}], "next": next}).to_string())
    };
    let responses =
        [page(7, "a", Some("x")), page(8, "b", None), page(8, "c", Some("x")), page(8, "b", None)];
    let (ran, sent) = run_against(&responses, &["rules", "export", "--kinds", "rules", "--json"]);
    assert_eq!((sent.len(), ran.json()), (4, json!({"version": 8, "rules": [{"name": "c"}, {"name": "b"}]})));
    let changing: Vec<MockResponse> = (0..10).map(|n| page(n, "a", Some("x"))).collect();
    let (ran, _) = run_against(&changing, &["rules", "export"]);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
}

#[test]
fn server_errors_show_field_and_reason() {
    let files = Files::new(&[("a.toml", FILE)]);
    assert_error_is_reported(&["rules", "diff", &files.path("a.toml")]);
    assert_error_is_reported(&["rules", "apply", &files.path("a.toml")]);
    assert_error_is_reported(&["rules", "export"]);
}
