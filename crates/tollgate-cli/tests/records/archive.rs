//! The archive from the command line, and of a running service.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
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

/// A folder with a settings file and a data directory, whose rows are all beyond their retention.
fn with_old_rows() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("tollgate.toml"), archive_config(folder.path())).unwrap();
    store_old_rows(&folder.path().join("data"));
    folder
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
    let folder = with_old_rows();
    let (path, data_dir) = (folder.path(), folder.path().join("data"));
    let database = format!("sqlite://{}", data_dir.join("records.db").display());
    let logged = "SELECT COUNT(*) FROM rate_limit_audit_logs";

    let (code, done, messages) = run(path, &["archive", "run"]);
    assert_eq!(code, 0, "{messages}");
    assert!(done["rows"].as_u64().unwrap() > 50, "{done}");
    assert_eq!(messages, "", "--json prints no progress");
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

/// The rows of the three tables.
fn rows(database: &str) -> Vec<String> {
    let log = "SELECT log_id || timestamp || identifier || rule_id || decision || retry_after_seconds FROM \
               rate_limit_audit_logs ORDER BY log_id";
    let windows = "SELECT window_start || hex(key_hash) || request_count || refused || created_at FROM \
                   rate_limit_records ORDER BY 1";
    let rollups = "SELECT timestamp || hex(key_hash) || granularity || total_requests || latency_histogram FROM \
                   rate_limit_metrics ORDER BY 1";
    [log, windows, rollups].into_iter().flat_map(|sql| stored::texts(database, sql)).collect()
}

/// Runs the archive and kills the process after a number of lines. Returns whether it was faster.
fn run_and_kill(folder: &Path, lines: usize) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["archive", "run", "--config"]).arg(folder.join("tollgate.toml"));
    command.arg("--data-dir").arg(folder.join("data")).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut running = command.spawn().unwrap();
    let shown = BufReader::new(running.stderr.take().unwrap()).lines().take(lines).count();
    if shown == lines {
        running.kill().unwrap();
    }
    running.wait().unwrap().success()
}

#[test]
fn archive_killed_after_every_line_loses_nothing() {
    let folder = with_old_rows();
    let (path, data_dir) = (folder.path(), folder.path().join("data"));
    let database = format!("sqlite://{}", data_dir.join("records.db").display());
    // Hours and days are computed before the archive runs.
    let other = format!("sqlite://{}", path.join("other.db").display());
    let minutes = |rows: Vec<String>| -> Vec<String> {
        rows.into_iter().filter(|row| !row.contains("hour") && !row.contains("day")).collect()
    };
    let original = minutes(rows(&database));
    let mut kills = 0;
    // Three lines per file: written, verified, removed.
    while !run_and_kill(path, 1 + kills % 4) {
        kills += 1;
        assert!(kills < 100);
        // Instead of waiting for ten minutes.
        stored::texts(&database, "UPDATE record_maintenance SET expires_at_micros = 0");
    }
    assert!(kills > 3, "{kills}");
    assert!(rows(&database).is_empty());
    assert_eq!(run(path, &["archive", "verify"]).0, 0);
    assert_eq!(run(path, &["archive", "restore", "--into", &other]).0, 0);
    assert_eq!(minutes(rows(&other)), original);
}

#[test]
fn progress_is_a_bar_on_a_terminal() {
    let folder = with_old_rows();
    let (path, data_dir) = (folder.path(), folder.path().join("data"));
    for subcommand in ["run", "verify"] {
        let program = env!("CARGO_BIN_EXE_tollgate");
        let (config, data) = (path.join("tollgate.toml"), data_dir.display());
        let command =
            format!("{program} archive {subcommand} --config {} --data-dir {data}", config.display());
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
        let output = script.output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{shown}");
        assert!(shown.contains("% table=rate_limit_audit_logs"), "{subcommand}: {shown}");
    }
}

#[test]
fn damaged_file_is_named_by_verify() {
    let folder = with_old_rows();
    let path = folder.path();
    assert_eq!(run(path, &["archive", "run"]).0, 0);
    let list = run(path, &["archive", "list", "--table", "rate_limit_audit_logs"]).1;
    let file = list["files"][0]["file"].as_str().unwrap().to_owned();
    std::fs::write(path.join("archive").join(&file), "PAR1").unwrap();
    let (code, result, messages) = run(path, &["archive", "verify"]);
    assert_eq!((code, &result["damaged"][0]["file"]), (2, &file.as_str().into()), "{messages}");
    assert!(messages.contains("is damaged"), "{messages}");
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
