//! `decisions`, `usage` and `report`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use tollgate_stores::sql::records::DecisionKind;

use crate::cli_runner::CliRunner;
use crate::harness::Service;
use crate::record_rows::{RecordRows, now_micros};
use crate::support::tollgate;

fn with_records() -> Service {
    let service = Service::unconfigured();
    let (mut rows, now) = (RecordRows::default(), now_micros());
    rows.add("alice", None, now - 5_000_000, DecisionKind::Allowed);
    rows.add("alice", None, now - 4_000_000, DecisionKind::Throttled);
    rows.add("bob", Some("acme"), now - 3_000_000, DecisionKind::Blocked);
    rows.store(&service.data_dir());
    service
}

#[test]
fn decisions_are_searched_by_client_and_outcome() {
    let service = with_records();
    let cli = CliRunner::of(&service);
    let listed = cli.done(&["decisions", "search", "--since", "1h"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("WHEN") && lines.len() == 4, "{listed}");
    assert!(lines[1].contains("blocked") && lines[1].contains("user:bob"), "newest first: {listed}");
    let refused = cli.done(&["decisions", "search", "--client", "alice", "--decision", "throttled"]);
    assert!(
        refused.contains("user:alice") && refused.contains("3/100") && refused.contains("30s"),
        "{refused}"
    );
    assert_eq!(refused.lines().count(), 2);
    let of_tenant = cli.json(&["decisions", "search", "--tenant", "acme"]);
    assert_eq!(of_tenant["decisions"].as_array().unwrap().len(), 1);
    let narrow = cli.run_in_columns(&["decisions", "search"], 60).stdout;
    assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    assert!(cli.error(&["decisions", "search", "--since", "tomorrow"]).contains("--since"));
}

#[test]
fn tail_shows_new_decisions_once() {
    let service = with_records();
    let mut command = tollgate();
    command.args(["decisions", "tail", "--lines", "1", "--json"]).stdout(Stdio::piped());
    command.env("TOLLGATE_URL", format!("http://{}", service.address));
    let mut tail = command.env("TOLLGATE_KEY", service.admin_key()).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut next = || {
        let row: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        row["identifier"].as_str().unwrap().to_owned()
    };
    assert_eq!(next(), "user:bob", "the last decision before");
    for user in ["carol", "dave"] {
        let mut rows = RecordRows::default();
        // Later rows may have earlier times: those of other nodes.
        rows.add(user, None, now_micros() - 10_000_000, DecisionKind::Throttled);
        rows.store(&service.data_dir());
        assert_eq!(next(), format!("user:{user}"));
    }
    tail.kill().unwrap();
    tail.wait().unwrap();
}

#[test]
fn usage_shows_totals_routes_and_periods() {
    let service = with_records();
    let cli = CliRunner::of(&service);
    let shown = cli.done(&["usage", "alice"]);
    assert!(shown.starts_with("user:alice\n"), "{shown}");
    for part in ["today", "this month", "since ", "ROUTE", "/of/alice", "DAY", "last request"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(cli.json(&["usage", "user:alice", "--since", "1h"])["total"]["requests"], 2);
    assert_eq!(cli.json(&["usage", "bob", "--tenant", "acme"])["total"]["refused"], 1);
    assert!(cli.done(&["usage", "bob"]).contains("no requests in this time"), "another tenant");
}

#[test]
fn report_is_one_file_without_references() {
    let service = with_records();
    let cli = CliRunner::of(&service);
    let file = service.folder.path().join("report.html");
    cli.done(&["report", "--since", "2h", "--out", file.to_str().unwrap()]);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
    for part in ["<svg", "user:alice", "/of/bob", "rule-of-alice", "prefers-color-scheme: dark"] {
        assert!(page.contains(part), "{part}");
    }
    for reference in ["http://", "https://", "src=", "href=", "url(", "<script"] {
        assert!(!page.contains(reference), "{reference}");
    }
    let data = cli.json(&["report", "--tenant", "acme"]);
    assert_eq!(data["points"].as_array().unwrap().len(), 1);
    assert_eq!(data["clients"][0]["name"], "user:bob");
    assert!(cli.done(&["report", "--out", "-"]).contains("<svg"));
    assert!(cli.error(&["report", "--out", "/nowhere/report.html"]).contains("--out /nowhere/report.html"));
}
