//! `migrate`, without a running service.

use serde_json::json;
use tollgate_testkit::{MariaDbServer, PostgresServer};

use crate::support::{Files, finished, run, tollgate};

#[test]
fn new_database_is_created_and_migrated_once() {
    let files = Files::new(&[]);
    let folder = files.path("data");
    let migrate = ["migrate", "--data-dir", &folder];
    let dry = run(&[&migrate[..], &["--dry-run"]].concat());
    assert_eq!(dry.code, 0, "{}", dry.stderr);
    for file in ["tollgate.db", "records.db"] {
        let line = format!("{file} does not exist yet and would be created\n");
        assert!(dry.stdout.contains(&line), "{}", dry.stdout);
    }
    assert!(!files.file("data").exists(), "a dry run creates nothing");
    let made = run(&migrate);
    assert!(
        made.code == 0 && made.stdout.contains(" applied\n") && made.stdout.contains("\n  1 "),
        "{}{}",
        made.stdout,
        made.stderr
    );
    let again = run(&[&migrate[..], &["--json"]].concat());
    assert_eq!((again.code, again.json()["applied"].clone()), (0, json!([])));
    assert_eq!(again.json()["records"]["applied"], json!([]));
    let dry = run(&[&migrate[..], &["--dry-run", "--json"]].concat());
    assert_eq!((dry.json()["exists"].clone(), dry.json()["pending"].clone()), (json!(true), json!([])));
    assert!(run(&[&migrate[..], &["--dry-run"]].concat()).stdout.ends_with("is up to date\n"));
}

#[cfg(unix)]
#[test]
fn created_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new(&[]);
    assert_eq!(run(&["migrate", "--data-dir", &files.path("data")]).code, 0);
    let mode = |name: &str| files.file(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("data"), mode("data/tollgate.db"), mode("data/records.db")), (0o700, 0o600, 0o600));
}

#[test]
fn unreachable_database_exits_with_2_without_password() {
    let url = format!("postgres://me:hunter2@127.0.0.1:{}/tollgate", tollgate_testkit::free_port());
    let files =
        Files::new(&[("tollgate.toml", &format!("[database]\nurl = \"{url}\"\nconnect_timeout = \"2s\"\n"))]);
    for flags in [&[][..], &["--dry-run"], &["--json"]] {
        let ran = run(&[&["migrate", "--config", &files.path("tollgate.toml")], flags].concat());
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        assert!(ran.stderr.contains("is unreachable"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("hunter2") && !ran.stdout.contains("hunter2"));
    }
    let files = Files::new(&[("tollgate.toml", "[database]\nurl = \"ftp://x\"\n")]);
    assert_eq!(run(&["migrate", "--config", &files.path("tollgate.toml")]).code, 2);
}

#[test]
fn concurrent_migrations_run_once() {
    let (postgres, mariadb) = (PostgresServer::start(), MariaDbServer::start());
    for url in [postgres.create_database(), mariadb.create_database()] {
        let migrate = |flags: &[&str]| {
            let mut command = tollgate();
            command.args(["migrate", "--json"]).args(flags).env("TOLLGATE_DATABASE__URL", &url);
            let ran = finished(command.output().unwrap());
            assert_eq!(ran.code, 0, "{}", ran.stderr);
            assert_eq!(ran.json()["records"], json!(null), "a local file belongs to a node");
            ran.json()
        };
        let pending = migrate(&["--dry-run"])["pending"].as_array().unwrap().len();
        assert!(pending > 0 && migrate(&["--dry-run"])["exists"] == true, "a dry run changes nothing");
        let applied: Vec<usize> = std::thread::scope(|scope| {
            let one = || migrate(&[])["applied"].as_array().unwrap().len();
            let running: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            running.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(applied.iter().sum::<usize>(), pending, "{applied:?}");
        assert_eq!(migrate(&["--dry-run"])["pending"], json!([]));
    }
}

/// The printed script has the effect of `migrate`: afterwards nothing is pending.
#[test]
fn printed_sql_creates_the_whole_schema() {
    let (postgres, mariadb) = (PostgresServer::start(), MariaDbServer::start());
    let script = |engine: &str| {
        let printed = run(&["migrate", "--print", "--engine", engine]);
        assert_eq!(printed.code, 0, "{}", printed.stderr);
        printed.stdout
    };
    let name = |url: &str| url.rsplit('/').next().unwrap().to_owned();
    let (on_postgres, on_mariadb) = (postgres.create_database(), mariadb.create_database());
    postgres.execute(&name(&on_postgres), &script("postgres"));
    mariadb.execute(&name(&on_mariadb), &script("mysql"));
    let files = Files::new(&[("schema.sql", &script("sqlite"))]);
    let on_sqlite = format!("sqlite://{}", files.path("tollgate.db"));
    let python = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(open(sys.argv[2]).read())";
    let made = std::process::Command::new("python3")
        .args(["-c", python, &files.path("tollgate.db"), &files.path("schema.sql")])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for url in [on_postgres, on_mariadb, on_sqlite] {
        let mut command = tollgate();
        command.args(["migrate", "--dry-run", "--json"]);
        command.env("TOLLGATE_DATABASE__URL", &url).env("TOLLGATE_RECORDS__URL", &url);
        let ran = finished(command.output().unwrap());
        assert_eq!((ran.code, ran.json()["pending"].clone()), (0, json!([])), "{}", ran.stderr);
        assert_eq!(ran.json()["records"]["pending"], json!([]));
    }
}
