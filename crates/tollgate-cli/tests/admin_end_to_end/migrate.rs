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
    assert!(dry.stdout.ends_with("tollgate.db does not exist yet and would be created\n"), "{}", dry.stdout);
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
    assert_eq!((mode("data"), mode("data/tollgate.db")), (0o700, 0o600));
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
