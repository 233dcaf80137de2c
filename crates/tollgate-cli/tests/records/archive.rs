//! The archive from the command line, and of a running service.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollgate_stores::sql::records::DecisionKind;

use crate::harness::{Service, wait_for};
use crate::record_rows::{RecordRows, now_micros};
use crate::stored;

const DAY: u64 = 86_400_000_000;

/// Rows of 200 days ago, which are beyond every retention.
fn store_old_rows(data_dir: &Path) {
    let mut rows = RecordRows::default();
    for number in 0..50 {
        let user = format!("u{}", number % 5);
        rows.add(&user, None, now_micros() - 200 * DAY + number, DecisionKind::Throttled);
    }
    rows.store(data_dir);
}

fn archive_config(folder: &Path) -> String {
    format!("[records.archive]\nurl = \"file://{}\"\n", folder.join("archive").display())
}

/// Runs a command with the settings of a folder; returns its exit code, its JSON and its messages.
fn run(folder: &Path, args: &[&str]) -> (i32, Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).arg("--json").arg("--config").arg(folder.join("tollgate.toml"));
    let output = command.arg("--data-dir").arg(folder.join("data")).output().unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), json, messages)
}

#[test]
fn archive_is_run_searched_restored_and_pruned() {
    let folder = tempfile::tempdir().unwrap();
    let (path, data_dir) = (folder.path(), folder.path().join("data"));
    std::fs::create_dir(&data_dir).unwrap();
    std::fs::write(path.join("tollgate.toml"), archive_config(path)).unwrap();
    store_old_rows(&data_dir);
    let database = format!("sqlite://{}", data_dir.join("records.db").display());
    let logged = "SELECT COUNT(*) FROM rate_limit_audit_logs";

    let (code, done, messages) = run(path, &["archive", "run"]);
    assert_eq!(code, 0, "{messages}");
    assert!(done["rows"].as_u64().unwrap() > 50, "{done}");
    assert!(messages.contains("verified, 50 rows"), "{messages}");
    assert_eq!(stored::number(&database, logged), 0);
    assert_eq!(run(path, &["archive", "run"]).1["files"], 0);
    let (code, list, _) = run(path, &["archive", "list", "--table", "rate_limit_audit_logs"]);
    assert_eq!((code, &list["files"][0]["rows"]), (0, &50.into()), "{list}");
    assert_eq!(run(path, &["archive", "verify"]).0, 0);

    let search = ["decisions", "search", "--archive", "--client", "u3", "--since", "300d"];
    let (code, found, messages) = run(path, &search);
    assert_eq!((code, found["decisions"].as_array().map(Vec::len)), (0, Some(10)), "{found} {messages}");
    assert_eq!(found["decisions"][0]["identifier"], "user:u3");

    let (code, _, messages) = run(path, &["archive", "restore"]);
    assert_eq!(code, 2, "nodes would archive it again");
    assert!(messages.contains("--into"), "{messages}");
    let other = format!("sqlite://{}", path.join("other.db").display());
    assert_eq!(run(path, &["archive", "restore", "--into", &other]).0, 0);
    assert_eq!(stored::number(&other, logged), 50);

    assert_eq!(run(path, &["archive", "prune", "--yes"]).1["deleted"], Value::Array(vec![]), "seven years");
    let (code, _, messages) = run(path, &["archive", "prune", "--older-than", "30d"]);
    assert_eq!(code, 2, "{messages}");
    assert!(messages.contains("--yes"), "{messages}");
    assert_eq!(run(path, &["archive", "prune", "--older-than", "30d", "--yes"]).0, 0);
    assert_eq!(run(path, &["archive", "list"]).1["files"], Value::Array(vec![]));
}

#[test]
fn running_service_archives_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let config = archive_config(folder.path());
    let first = Service::with_config(&config);
    let data_dir = first.data_dir();
    first.signal("-TERM");
    let (_, service_folder) = first.ended();
    store_old_rows(&data_dir);
    let file = service_folder.path().join("tollgate.toml");
    let service = Service::start(service_folder, Some(&file), &[]);
    wait_for("the archive", || {
        (service.metric("tollgate_record_archive_rows_total").unwrap_or(0.0) > 50.0).then_some(())
    });
    let database = format!("sqlite://{}", data_dir.join("records.db").display());
    let old = "SELECT COUNT(*) FROM rate_limit_audit_logs";
    wait_for("the archive", || (stored::number(&database, old) == 0).then_some(()));
    assert_eq!(service.metric("tollgate_record_archive_failures_total"), Some(0.0));
    assert!(folder.path().join("archive/table=rate_limit_audit_logs").is_dir());
}
