//! Secrets stay out of files, logs and the database.

use std::fs;
use std::path::Path;

use tollgate_stores::sql::Item;
use tollgate_testkit::PostgresServer;

use crate::database::{KEY_SECRET, Store, alone, check_with, config, key, node, stop, wait_for_version};
use crate::harness::{Service, wait_for};

/// The secret half of every key under test.
const CANARY: &str = "s3cretCanary";

fn all_files(folder: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all_files(&path, found);
        } else {
            found.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
}

fn holds(bytes: &[u8], needle: &str) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
}

/// Sends a key in every place that accepts one.
fn use_everywhere(service: &Service, key: &str) -> String {
    let body = |endpoint: &str| format!(r#"{{"api_key":"{key}","endpoint":"{endpoint}"}}"#);
    let mut output = String::new();
    for path in ["check", "explain", "reset"] {
        output += &service.post(&format!("/v1/rate-limit/{path}"), &body("/x")).text;
        output += &service.with_key(key, "POST", &format!("/v1/rate-limit/{path}"), &body("/x")).text;
        output += &service.admin("POST", &format!("/v1/rate-limit/{path}"), &body("/x")).text;
        output += &service.post(&format!("/v1/rate-limit/{path}"), &body("/%zz")).text;
    }
    let batch = format!(r#"{{"checks":[{}],"idempotency_key":"{key}"}}"#, body("/x"));
    output += &service.post("/v1/rate-limit/batch-check", &batch).text;
    output += &service.get(&format!("/v1/rate-limit/status?endpoint=/x&api_key={key}")).text;
    output += &service.admin("GET", &format!("/v1/admin/counters?api_key={key}"), "").text;
    output + &service.with_key(key, "GET", &format!("/v1/admin/penalties?key={key}"), "").text
}

#[test]
fn key_secret_is_in_no_file_log_or_metric() {
    let (service, store) = alone("[log]\nlevel = \"debug\"");
    let mut known = key("canarykeyaaaaaa2");
    known.item.scopes = vec!["admin".to_owned()];
    let version = store.put(Item::Key(known.item.clone()));
    wait_for_version(&service, version);
    assert_eq!(check_with(&service, &known.text).status, 200);
    let mut output = use_everywhere(&service, &known.text);
    output += &use_everywhere(&service, &key("notaknownkeyaaa2").text);
    output += &service.get("/metrics").text;
    output += &service.get("/readyz").text;
    assert!(!output.contains(CANARY), "{output}");
    let folder = stop(service);
    let mut files = Vec::new();
    all_files(folder.path(), &mut files);
    assert!(files.iter().any(|(name, _)| name.ends_with("config.snap")));
    assert!(files.iter().any(|(name, bytes)| name.contains("gate.db") && holds(bytes, known.id)));
    for (name, bytes) in &files {
        assert!(!holds(bytes, CANARY), "{name}");
        // The key secret is in the settings only.
        assert!(!holds(bytes, KEY_SECRET) || name.ends_with("tollgate.toml"), "{name}");
    }
}

#[test]
fn key_secret_is_in_no_database_row() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let service = node(&url, "");
    let store = Store::open(&url);
    let known = key("canarykeyaaaaaa2");
    let version = store.put(Item::Key(known.item.clone()));
    wait_for_version(&service, version);
    use_everywhere(&service, &known.text);
    stop(service);
    let name = url.rsplit('/').next().unwrap();
    let tables = postgres.execute(name, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'");
    let mut dump = String::new();
    for table in tables.lines().map(str::trim).filter(|table| !table.is_empty()) {
        dump += &postgres.execute(name, &format!("SELECT t::text FROM \"{table}\" t"));
    }
    assert!(dump.contains(known.id), "{dump}");
    assert!(!dump.contains(CANARY) && !dump.contains(KEY_SECRET), "{dump}");
    assert!(!postgres.log().contains(CANARY));
}

#[test]
fn settings_and_banner_hide_secrets() {
    let service = Service::with_config(&config("postgres://u:canary-password@127.0.0.1:1/gate", ""));
    let shown = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["config", "show", "--config"])
        .arg(service.config_file())
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("postgres://u:***@127.0.0.1:1/gate") && shown.contains("key_secret = \"***\""),
        "{shown}"
    );
    let output = [
        shown,
        service.banner.clone(),
        service.log(),
        service.get("/readyz").text,
        service.get("/metrics").text,
    ];
    for text in output {
        assert!(!text.contains("canary-password") && !text.contains(KEY_SECRET), "{text}");
    }
}

#[test]
fn node_with_another_key_secret_is_not_ready() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let first = node(&url, "");
    assert_eq!(first.get("/readyz").json()["status"], "ready");
    wait_for("the first to leave its mark", || {
        (first.metric("tollgate_config_key_secret_differs") == Some(0.0)).then_some(())
    });
    let other = config(&url, "").replace(KEY_SECRET, "quite-another-secret-0123456789abcdef");
    let second = Service::with_config(&other);
    wait_for("the difference to be reported", || {
        second.get("/readyz").text.contains("auth.key_secret is not the secret that").then_some(())
    });
    // It would refuse every API key, so traffic should go to other nodes.
    let ready = second.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &"misconfigured".into()));
    assert_eq!(second.metric("tollgate_config_key_secret_differs"), Some(1.0));
    assert_eq!(first.metric("tollgate_config_key_secret_differs"), Some(0.0));
}

#[test]
fn local_database_with_shared_counters_warns() {
    let redis = tollgate_testkit::RedisServer::start();
    let service = Service::with_config(&format!("[counters]\nstore = \"redis\"\nurl = \"{}\"", redis.url()));
    assert!(service.log().contains("unknown to other nodes"), "{}", service.log());
}
